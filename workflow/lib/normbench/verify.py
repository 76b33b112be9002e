"""Verb ``verify``: one contender on adversarial inputs (worker side: adversary.py, inputs: inputs.py)."""

from __future__ import annotations

import argparse
from pathlib import Path

from normbench import harness, inputs, kernelfile, schema
from normbench.harness import Measurement
from normbench.points import short_hash
from normbench.showdown import baseline_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser)
    parser.add_argument("--contender", required=True, help="kernel file, baseline file or stem, or module:function")
    parser.add_argument("--build", nargs="*", default=[], help="build (.json) of a CUDA kernel")


def main(args: argparse.Namespace) -> int:
    spec = args.contender if "/" in args.contender else baseline_path(args.contender)
    stem = Path(spec).stem
    measurement = Measurement(args, "verify", f"verify-{stem}")
    study = measurement.study
    served = set(study.ops)
    if "baselines" not in spec and ":" not in spec:
        served &= set(kernelfile.load(spec).ops)
    task = measurement.task(
        spec=spec,
        build=next((path for path in args.build if path.endswith(".json")), None),
        ops=[op for op in study.ops if op in served],
        dtypes=study.dtypes,
    )
    count = sum(1 for op in task["ops"] for dtype in task["dtypes"] for _ in inputs.every(op, dtype))
    digest = short_hash(Path(spec).read_bytes(), 32) if Path(spec).exists() else spec
    done = measurement.run(task, count, measurement.context(digest, spec))
    harness.write((entry["row"] for entry in done.values()), schema.CHECKS, args.out)
    return 0
