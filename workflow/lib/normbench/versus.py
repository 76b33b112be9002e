"""The page of ``compare``: two runs side by side, every judged row in a matrix, what shipping choices would cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench import archive, compare, document, provenance, regret, schema
from normbench.archive import Run
from normbench.compare import MARKS, Comparison, Row
from normbench.metrics import BASELINES, REFERENCES


@dataclass(frozen=True)
class Matrix:
    """Judged rows of one op, dtype, regime and semantics. points: (rows, hidden) of the columns, in order.

    lines: contender and a cell for each point, None where that row was not judged on both sides.
    """

    op: str
    dtype: str
    regime: str
    semantics: str
    points: tuple[tuple[int, int], ...]
    lines: tuple[tuple[str, tuple[Row | None, ...]], ...]

    @property
    def heading(self) -> str:
        work = "" if self.semantics == "default" else f" {self.semantics}"
        return f"{self.op}{work} {self.dtype}, {self.regime}"


@dataclass(frozen=True)
class Standing:
    """One contender over all its judged rows: how often each verdict, and the geometric mean of the speed-up."""

    contender: str
    counts: dict[str, int]
    speedup: float | None


def write(left: Run, right: Run, found: Comparison, path: Path, title: str = "normbench") -> None:
    document.write(build(left, right, found, title), path)


def build(left: Run, right: Run, found: Comparison, title: str = "normbench") -> str:
    """The whole page; equal runs give equal bytes."""
    variants = regret.of_variants(left.tables["cases"], right.tables["cases"])
    winners = regret.of_contenders(left.tables["showdown"], right.tables["showdown"])
    content = json.dumps(compare.as_json(found), indent=1, allow_nan=False).encode()
    return document.render(
        "compare.html.j2",
        title=title,
        left=left,
        right=right,
        found=found,
        marks=MARKS,
        standings=standings(found.rows),
        matrices=list(matrices(found.rows)),
        winners=regret.summary(winners),
        variants=regret.by_contender(variants),
        differences=provenance.differences([left.machine, right.machine]),
        link=document.data_link(content, "application/json"),
        name=f"{archive.comparison(left.id, right.id)}.json",
    )


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Every contender, ours first, by all regimes together."""
    by: dict[str, list[Row]] = {}
    for row in rows:
        by.setdefault(row.contender, []).append(row)
    return [_standing(contender, by[contender]) for contender in sorted(by, key=_rank)]


def _standing(contender: str, rows: Sequence[Row]) -> Standing:
    counts = Counter(row.verdict for row in rows)
    speedup = compare.geometric_mean([1 / row.ratio for row in rows])
    return Standing(contender, {verdict: counts[verdict] for verdict in MARKS}, speedup)


def matrices(rows: Sequence[Row]) -> Iterator[Matrix]:
    """One matrix for each op, dtype, regime and semantics, the stream regime first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.regime, row.op, row.semantics, row.dtype), []).append(row)
    for regime, op, semantics, dtype in sorted(groups, key=_place):
        yield _matrix(op, dtype, regime, semantics, groups[regime, op, semantics, dtype])


def _matrix(op: str, dtype: str, regime: str, semantics: str, rows: Sequence[Row]) -> Matrix:
    points = sorted({(row.rows, row.hidden) for row in rows}, key=lambda point: (point[1], point[0]))
    cells = {(row.contender, row.rows, row.hidden): row for row in rows}
    names = sorted({row.contender for row in rows}, key=_rank)
    lines = ((contender, tuple(cells.get((contender, *point)) for point in points)) for contender in names)
    return Matrix(op, dtype, regime, semantics, tuple(points), tuple(lines))


def _place(group: tuple[str, str, str, str]) -> tuple[Any, ...]:
    regime, op, semantics, dtype = group
    return schema.REGIMES.index(regime), op, semantics != "default", semantics, schema.DTYPES.index(dtype)


def _rank(contender: str) -> tuple[int, int, str]:
    """Ours, then the baselines as people know them, then the device copy."""
    known = BASELINES.index(contender) if contender in BASELINES else -1
    group = 2 if contender in REFERENCES else 0 if known < 0 else 1
    return group, known, contender
