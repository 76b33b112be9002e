"""Verb ``audit``: a few points of one op timed by other people's timers too (worker side: auditing.py)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normbench import contenders, harness, kernelfile, schema, showdown, sources
from normbench.harness import Measurement
from normbench.kernelfile import Kernel
from normbench.points import Point, canonical_json, short_hash

BASELINE = "torch_eager"  # what is always there, and allocates its output as library functions do
SHORT = 16  # the short launch moves this share of what the study's points move: some 10 us on an H200
Winners = dict[tuple[str, str], tuple[float, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser)
    parser.add_argument("--op", required=True)
    parser.add_argument("--kernels", nargs="*", default=[], help="our kernel files")
    parser.add_argument("--builds", nargs="*", default=[], help="builds (.json) of the CUDA ones")
    parser.add_argument("--cases", nargs="*", default=[], type=Path, help="their tuning tables")
    parser.add_argument("--count", type=int, default=6, help="points to time")


def main(args: argparse.Namespace) -> int:
    measurement = Measurement(args, "audit", f"audit-{args.op}")
    builds = {Path(path).stem: path for path in args.builds if path.endswith(".json")}
    kernels = {path: kernelfile.load(path) for path in args.kernels}
    points = [point for point in measurement.points if point.op == args.op and point.regime == "stream"]
    entries = entries_of(chosen(points, args.count), kernels, showdown.winners(args.cases))
    baseline = showdown.baseline_path(BASELINE)
    wanted = sorted({entry["spec"] for entry in entries})
    specs = [{"spec": spec, "build": builds.get(Path(spec).stem)} for spec in (*wanted, baseline)]
    shas = [contenders.load(**entry).sha for entry in specs]
    named = [
        {"point": entry["point"].identity(), "spec": spec, "variant": variant, "unit": f"{entry['point'].key} {spec}"}
        for entry in entries
        for spec, variant in ((entry["spec"], entry["variant"]), (baseline, {}))
    ]
    context = measurement.context("audit", sources.auditing(), sources.version("cuda-bench"), shas, named)
    done = measurement.run(measurement.task(contenders=specs, entries=named), len(named), context)
    rows = [row for entry in done.values() for row in entry["row"].pop("methods", [entry["row"]])]
    harness.write(rows, schema.AUDIT, args.out)
    return 0


def chosen(points: Sequence[Point], count: int) -> list[Point]:
    """``count`` points spread evenly over dtypes and hidden sizes, the last of them with few rows: a short launch, whose
    times show what each timer adds to a launch."""
    ordered = sorted(points, key=lambda point: (schema.DTYPES.index(point.dtype), point.hidden))
    if not ordered:
        return []
    long = max(1, min(count - 1, len(ordered)))
    found = [ordered[index * (len(ordered) - 1) // max(1, long - 1)] for index in range(long)]
    if count > 1:
        middle = ordered[len(ordered) // 2]
        found.append(middle.with_rows(max(1, middle.rows // SHORT)))
    return found


def entries_of(points: Sequence[Point], kernels: dict[str, Kernel], winners: Winners) -> list[dict[str, Any]]:
    """The fastest of our kernels at each point, with the variant that won there; a point none of them has a time at is
    left out. A short launch takes the choice of the long one of its op, dtype and hidden size."""
    found = []
    for point in points:
        keys = {key for key, _ in winners}
        timed = [
            (time, path, variant)
            for path, kernel in kernels.items()
            for (key, stem), (time, variant) in winners.items()
            if stem == kernel.stem and key == (point.key if point.key in keys else None)
        ]
        if timed:
            _, path, variant = min(timed)
            found.append({"point": point, "spec": path, "variant": json.loads(variant)})
    return found


assert canonical_json
assert short_hash
