"""Verb ``verify``: one contender on adversarial inputs (worker side: adversary.py, inputs: inputs.py)."""

from __future__ import annotations

import argparse

from normbench import contenders, harness, inputs, schema, sources, wide
from normbench.harness import Measurement
from normbench.showdown import baseline_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser)
    parser.add_argument("--contender", required=True, help="kernel file, baseline file or stem, or module:function")
    parser.add_argument("--build", nargs="*", default=[], help="build (.json) of a CUDA kernel")


def main(args: argparse.Namespace) -> int:
    spec = args.contender if "/" in args.contender else baseline_path(args.contender)
    build = harness.build_file(args.build)
    contender = contenders.load(spec, build)
    measurement = Measurement(args, "verify", f"verify-{contender.stem}")
    study = measurement.study
    served = contender.kernel.ops if isinstance(contender, contenders.Ours) else study.ops
    task = measurement.task(
        spec=spec,
        build=build,
        ops=[op for op in study.ops if op in served],
        dtypes=study.dtypes,
        wide=study.wide.model_dump() if wide.REGIME in study.regimes else None,
    )
    count = sum(1 for op in task["ops"] for dtype in task["dtypes"] for _ in inputs.every(op, dtype))
    if task["wide"] and wide.REGIME in contender.regimes:
        asked = (case for op in task["ops"] for dtype in task["dtypes"] for case in wide.cases(op, dtype, task["wide"]))
        count += sum(wide.given(case, isinstance(contender, contenders.Ours)) for case in asked)
    done = measurement.run(task, count, measurement.context(contender.sha, sources.verifying()))
    # the journal may know more, of a wider study before
    rows = (entry["row"] for entry in done.values())
    wanted = (row for row in rows if row["op"] in task["ops"] and row["dtype"] in task["dtypes"])
    harness.write(wanted, schema.CHECKS, args.out)
    return 0
