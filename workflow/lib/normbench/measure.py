"""Verb ``measure``: tune one kernel over every point of the study (worker side: tuning.py)."""

from __future__ import annotations

import argparse
from pathlib import Path

from normbench import contenders, harness, kernelfile, schema
from normbench.harness import Ceilings, Measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser)
    parser.add_argument("--kernel", required=True, help="kernel file")
    parser.add_argument(
        "--build", nargs="*", default=[], help="its build (.json) for this architecture; none for Triton"
    )
    parser.add_argument("--ceilings", type=Path, required=True, help="the device's ceilings.parquet")


def main(args: argparse.Namespace) -> int:
    kernel = kernelfile.load(args.kernel)
    measurement = Measurement(args, "measure", f"measure-{kernel.stem}")
    points = [point for point in measurement.points if point.op in kernel.ops and point.regime in kernel.regimes]
    ceilings = Ceilings(args.ceilings)
    build = harness.build_file(args.build)
    task = measurement.task(
        spec=args.kernel,
        build=build,
        points=[point.identity() for point in points],
        ceilings=ceilings.values(points),
        launch_floor_us=ceilings.launch_floor_us(),
    )
    done = measurement.run(task, len(points), measurement.context(contenders.load(args.kernel, build).sha))
    wanted = {point.key for point in points}
    rows = (entry["row"] for unit, entry in done.items() if unit.split(" ")[0] in wanted)
    harness.write(rows, schema.CASES, args.out)
    return 0
