"""Verb ``audit``: a few points of one op timed by other people's timers too (worker side: auditing.py)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench import contenders, harness, kernelfile, schema, showdown, sources
from normbench.harness import Measurement
from normbench.inspections import METHODS
from normbench.kernelfile import Kernel
from normbench.points import Point

BASELINE = "torch_eager"  # what is always there, and allocates its output as library functions do
SHORT = 16  # the short launch moves this share of what the study's points move: some 10 us on an H200
Winners = dict[tuple[str, str], tuple[float, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    showdown.add_field_arguments(parser)
    parser.add_argument("--count", type=int, default=6, help="points to time")


def main(args: argparse.Namespace) -> int:
    measurement = Measurement(args, "audit", f"audit-{args.op}")
    builds = showdown.builds_by_stem(args.builds)
    kernels = {path: kernelfile.load(path) for path in args.kernels}
    points = [point for point in measurement.points if point.op == args.op and point.regime == "stream"]
    entries = entries_of(chosen(points, args.count), kernels, showdown.winners(args.cases))
    specs = [{"spec": spec, "build": builds.get(Path(spec).stem)} for spec in sorted({one["spec"] for one in entries})]
    shas = {entry["spec"]: contenders.load(**entry).sha for entry in specs}
    told = [entry | {"unit": f"{entry['point']['point']} {shas[entry['spec']]}"} for entry in entries]
    context = measurement.context("audit", sources.auditing(), sources.version("cuda-bench"))
    done = measurement.run(measurement.task(contenders=specs, entries=told), len(told), context)
    wanted = {f"{entry['unit']} {method}" for entry in told for method in METHODS}
    harness.write((entry["row"] for unit, entry in done.items() if unit in wanted), schema.AUDIT, args.out)
    return 0


@dataclass(frozen=True)
class Choice:
    """A point to time, and the point of the study whose winner runs there."""

    point: Point
    studied: Point


def chosen(points: Sequence[Point], count: int) -> list[Choice]:
    """``count`` points spread evenly over dtypes and hidden sizes, the last of them with few rows: a short launch,
    whose times show what each timer adds to a launch."""
    ordered = sorted(points, key=lambda point: (schema.DTYPES.index(point.dtype), point.hidden))
    if not ordered:
        return []
    long = max(1, min(count - 1, len(ordered)))
    spread = (ordered[index * (len(ordered) - 1) // max(1, long - 1)] for index in range(long))
    found = [Choice(point, point) for point in spread]
    if count > 1:
        middle = ordered[len(ordered) // 2]
        found.append(Choice(middle.with_rows(max(1, middle.rows // SHORT)), middle))
    return found


def entries_of(choices: Sequence[Choice], kernels: dict[str, Kernel], winners: Winners) -> list[dict[str, Any]]:
    """At each point the fastest of our kernels with the variant that won there, and the baseline; a point at which none
    of ours has a time is left out."""
    found: list[dict[str, Any]] = []
    for choice in choices:
        keys = ((path, (choice.studied.key, kernel.stem)) for path, kernel in kernels.items())
        timed = [(*winners[key], path) for path, key in keys if key in winners]
        if timed:
            _, variant, path = min(timed)
            point, baseline = choice.point.identity(), showdown.baseline_path(BASELINE)
            found.append({"point": point, "spec": path, "variant": json.loads(variant)})
            found.append({"point": point, "spec": baseline, "variant": {}})
    return found
