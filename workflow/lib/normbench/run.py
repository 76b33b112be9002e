"""Verb ``run``: a contender on the caller's own arrays, in a process of its own (worker side: running.py)."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from normbench import config, harness, ops, sources
from normbench.bench import built, local_gpu
from normbench.cli import UserError
from normbench.journal import Journal
from normbench.points import Semantics
from normbench.supervise import Supervisor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("contender", help="kernel file, baseline file or module:function")
    parser.add_argument("--op", choices=sorted(ops.OPS), required=True)
    parser.add_argument(
        "--input", type=Path, required=True, metavar="NPZ", help="arrays x and, where wanted, gamma, beta, eps"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="NPZ", help="arrays y and the statistics asked for"
    )
    parser.add_argument("--semantics", default="default", help="JSON, e.g. '{\"stats\":true}'")
    parser.add_argument("--variant", type=json.loads, help="JSON of axes (default: the first that suits)")
    parser.add_argument("--device", help="device id, where there are several GPUs")


def main(args: argparse.Namespace) -> int:
    semantics = Semantics.parse(args.semantics)
    if not args.input.exists():
        raise UserError(f"{args.input}: no such file")
    gpu, study = local_gpu(args.device), config.load({})
    with tempfile.TemporaryDirectory() as folder:
        build = built(args.contender, gpu, study.block, Path(folder), semantics)
        task = {
            "verb": "run",
            "uuid": gpu.uuid,
            "device": gpu.device,
            "sources": sources.sources(),
            "environment": harness.environment(gpu.device),
            "study": {"block": study.block},
            "spec": args.contender,
            "build": str(build) if build else None,
            "op": args.op,
            "semantics": args.semantics,
            "variant": args.variant,
            "input": str(args.input.absolute()),
            "output": str(args.output.absolute()),
        }
        with harness.gpu_lock(gpu.uuid):
            done = Supervisor(task, Journal(None, ""), study.timeout_s, lambda _: None).run()
    outcome = done["run"]["row"]
    if outcome["status"] != "ok":
        raise UserError(outcome["reason"])
    print(f"{args.output}: {', '.join(outcome['arrays'])}")
    return 0
