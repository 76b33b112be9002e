"""Verb ``ceilings``: the measured roofs of a GPU (worker side: roofs.py)."""

from __future__ import annotations

import argparse

from normbench import harness, schema
from normbench.cli import UserError
from normbench.harness import Measurement
from normbench.roofs import tensor_sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    measurement = Measurement(args, "ceilings", "ceilings")
    task = measurement.task(points=[point.identity() for point in measurement.points])
    done = measurement.run(task, 15, measurement.context("ceilings", tensor_sizes(measurement.points)))
    for entry in done.values():
        if "value" not in entry["row"]:
            # a ceiling is no contender: without it nothing can be judged, so it is tried again next time
            measurement.journal_path.unlink(missing_ok=True)
            raise UserError(f"ceiling {entry['row']['name']}: {entry['row']['reason']}")
    harness.write((entry["row"] for entry in done.values()), schema.CEILINGS, args.out)
    return 0
