"""``python -m normbench <verb>``: the only place arguments are parsed; each verb is a module with main(args) -> int."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from normbench import __version__


class UserError(ValueError):
    """Something the caller can mend; printed as one sentence, without a traceback."""


ABOUT = (
    "Times, checks and tunes LayerNorm and RMSNorm kernels on this GPU. The first verbs are for use by hand; "
    "`snakemake --cores 1 report` calls the others."
)
VERBS = {
    "bench": "check and time one contender at one point",
    "run": "run a contender on your own arrays",
    "doctor": "what works on this host, and what to do about what does not",
    "columns": "every table and column, with unit and meaning",
    "compare": "compare two archived runs; exit 1 on a confirmed SLOWER or a newly wrong row",
    "publish": "copy the finished study into reports/data",
    "export": "an archived run in the format of another tool (NVBench)",
    "archive": "check every run of an archive and name each bad file",
    "sweep": "config to points",
    "compile": "a kernel file to a cubin for one architecture, without a GPU",
    "machine": "facts of the GPU",
    "ceilings": "measured roofs of the GPU",
    "warm": "compile the JIT baselines before anything is timed",
    "measure": "tune one kernel over the study",
    "showdown": "race winners and baselines of one op",
    "verify": "adversarial inputs for one contender",
    "audit": "time a few points of one op with NVBench and do_bench too",
    "sanitize": "one kernel under compute-sanitizer, on small odd shapes",
    "profile": "one launch of a kernel's winner under Nsight Compute",
    "show": "tables of audit, sanitize or profile as text; exit 1 on findings",
    "collect": "local results and archive to validated tables",
    "page": "the report of one device",
    "index": "the report over all devices",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code: 0, 1 for an error or a confirmed regression, 2 for wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="normbench", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"normbench {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    for name, meaning in VERBS.items():
        subparser = verbs.add_parser(name, help=meaning, description=meaning)
        if name == verb:
            module = importlib.import_module(f"normbench.{name}")
            module.add_arguments(subparser)
            subparser.add_argument(
                "--own-cores", type=int, default=0, metavar="N", help="keep to N cores nobody else of normbench uses"
            )
            subparser.set_defaults(main=module.main)
    args = parser.parse_args(arguments)
    try:
        if args.own_cores:
            from normbench import cores

            cores.keep(args.own_cores)
        code: int = args.main(args)
        return code
    except BrokenPipeError:
        return 1
    except ValueError as error:
        print(f"normbench {verb}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"normbench {verb}: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"normbench {verb}: interrupted; what was finished is kept", file=sys.stderr)
        return 130
