"""Verb ``sweep``: the points of a study, in one order whatever the order of the config."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from normbench import config, ops, schema, wide
from normbench.points import ELEMENT_BYTES, Point, Semantics, dimensions

GB = 1e9


def points(study: config.Study, memory_bytes: int | None = None) -> list[Point]:
    """Every point of a study, by regime, op, dtype, hidden size and rows.

    memory_bytes: memory of the GPU; with less than the tier's limit the stream regime takes the tier's elements.
    None (no GPU, or not known) takes the default ones.
    """
    semantics = {op: _semantics(study, ops.OPS[op]) for op in study.ops}
    of_rows = [op for op in study.ops if not ops.OPS[op].scale]
    regimes = [regime for regime in study.regimes if regime != wide.REGIME]
    found = [
        Point(op, dtype, rows, hidden, regime, semantics[op])
        for regime, op, dtype in itertools.product(regimes, of_rows, study.dtypes)
        for rows, hidden in _shapes(study, regime, dtype, memory_bytes)
    ]
    return found + list(_scaled(study)) + (_wide(study, semantics) if wide.REGIME in study.regimes else [])


def _wide(study: config.Study, semantics: dict[str, Semantics]) -> list[Point]:
    """Points of the wide regime, whose shapes are given and not derived; a card that cannot hold one skips it."""
    return [
        wide.point(op, dtype, shape, semantics[op])
        for op in study.ops
        if op in wide.OPS
        for dtype in study.dtypes
        if dtype in study.wide.dtypes
        for shape in study.wide.shapes
    ]


def _scaled(study: config.Study) -> Iterator[Point]:
    """Points of the scale-only norms: the same shapes on every card, which are skipped where they do not fit.

    An axis is named only where it is not the op's own; channels last in memory are rows.
    """
    if "stream" not in study.regimes:
        return
    for op, dtype in itertools.product((op for op in study.ops if ops.OPS[op].scale), study.dtypes):
        own, eps = ops.OPS[op].axis, study.eps if ops.OPS[op].has_eps else Semantics().eps
        rows = [] if own == 1 else study.scale.rows
        for axis, shapes in ((1, study.scale.channels), (-1, study.scale.channels_last), (-1, rows)):
            semantics = Semantics(eps=eps, axis=None if axis == own else axis)
            for shape in shapes:
                yield ops.point_of(op, dtype, dimensions(shape), "stream", semantics)


def _semantics(study: config.Study, op: ops.Op) -> Semantics:
    """What the study wants of an op; what the op has not stays at its default, which names nothing."""
    return Semantics(
        eps=study.eps,
        residual=study.residual if op.adds and study.residual != "fp32" else None,
        cast=study.cast if op.casts else "torch",
        offset=study.gamma_offset if "gamma" in op.inputs else 0.0,
    )


def stream_elements(study: config.Study, memory_bytes: int | None) -> int:
    """Elements per tensor of the stream regime on a card with this much memory."""
    tier = study.small_memory
    small = memory_bytes is not None and memory_bytes < tier.below_gb * GB
    return min(tier.elements, study.elements) if small else study.elements


def _shapes(study: config.Study, regime: str, dtype: str, memory_bytes: int | None) -> Iterator[tuple[int, int]]:
    """(rows, hidden) of a regime; a row longer than the tensor still makes one row."""
    if regime == "latency":
        yield from ((rows, hidden) for hidden in study.latency.hidden for rows in study.latency.rows)
        return
    elements = study.l2_bytes // ELEMENT_BYTES[dtype] if regime == "l2" else stream_elements(study, memory_bytes)
    sizes = study.l2_hidden if regime == "l2" else study.hidden
    yield from ((max(1, elements // hidden), hidden) for hidden in sizes)


def document(study: config.Study, memory_bytes: int | None = None) -> dict[str, Any]:
    """What results/sweep.json holds: what was asked for, without title and archs, and the points' identities."""
    return {
        "study": study.measured(),
        "points": [point.identity() for point in points(study, memory_bytes)],
    }


def read(path: Path | str, memory_bytes: int | None = None) -> list[Point]:
    """The points of a sweep.json, as a GPU with that much memory takes them (None: as they are listed).

    Raises:
        ValueError: the file is not one.
    """
    try:
        values = json.loads(Path(path).read_text())
        listed = [Point.from_identity(row) for row in values["points"]]
        return listed if memory_bytes is None else points(config.Study(**values["study"]), memory_bytes)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a sweep.json of this version ({str(error).splitlines()[0]})") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", default="{}", metavar="JSON", help="the configuration, as JSON or YAML text")
    parser.add_argument("--memory-bytes", type=int, metavar="N", help="memory of the GPU (default: enough)")
    parser.add_argument("--out", type=Path, default=Path("results/sweep.json"), metavar="FILE")


def main(args: argparse.Namespace) -> int:
    try:
        values = yaml.safe_load(args.study) or {}
    except yaml.YAMLError as error:
        raise config.ConfigError(f"--study: not JSON or YAML: {' '.join(str(error).split())}") from error
    study = config.load(values)
    with schema.atomic(args.out) as temporary:
        temporary.write_text(json.dumps(document(study, args.memory_bytes), indent=1) + "\n")
    return 0
