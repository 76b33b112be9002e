"""The backward section of a page: what each gradient costs beside its forward, and how the column sums are formed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import answers, formats, ops, schema
from normbench.measured import Measured

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """The fastest quotable backward at one point of the regime stream.

    reduce_us: the part of its median that only forms dgamma and dbeta. ceiling, eager, compile: share of the measured
    ceiling, speed-up over torch eager and torch.compile. None where unknown. forward: the fastest forward at the same
    rows, hidden size and dtype; forward_us: its median.
    """

    op: str
    dtype: str
    rows: int
    hidden: int
    use: str
    role: str
    time_us: float
    reduce_us: float | None
    gbps: float
    ceiling: float | None
    eager: float | None
    compile: float | None
    forward: str | None
    forward_us: float | None

    @property
    def ratio(self) -> float | None:
        """Backward time over forward time."""
        return None if self.forward_us is None else self.time_us / self.forward_us


@dataclass(frozen=True)
class Parts:
    """What the reduction takes at one point: by contender, its time and that of the whole; None where it is unknown."""

    op: str
    dtype: str
    rows: int
    hidden: int
    cells: list[tuple[float, float] | None]


@dataclass(frozen=True)
class Sums:
    """How one contender forms dgamma and dbeta, as far as it was recorded.

    launches: kernels a call consists of; the profiler's count, else the compiled ones. share: the reduction's smallest
    and largest share of a call's time, over the quotable points of the regime stream where it is known. same_bits:
    checks of the backward ops that gave the same bits twice, and all that were asked; any_gpu: the same bits whatever
    the number of multiprocessors.
    """

    contender: str
    launches: int | None
    share: formats.Span | None
    same_bits: tuple[int, int]
    any_gpu: tuple[int, int]


@dataclass(frozen=True)
class Section:
    """mixes: the access mixes behind the ceilings. contenders: those of ``parts``, all whose reduction is known
    somewhere."""

    lines: list[Line]
    sums: list[Sums]
    mixes: list[str]
    contenders: list[str]
    parts: list[Parts]

    @property
    def ops(self) -> list[str]:
        return list(dict.fromkeys(line.op for line in self.lines))


def section(one: Measured) -> Section | None:
    """None where the device has no quotable time of a backward op."""
    raced = answers.stream(one.showdown)
    backward = raced.filter(_is_backward("op"))
    lines = [_line(row, raced) for row in _ordered(backward.filter("fastest"))]
    if not lines:
        return None
    mixes = sorted({ops.OPS[_plain(line.op)].mix for line in lines})
    names = sorted(backward.filter(pl.col("role").is_in(["ours", "baseline"]))["contender"].unique())
    sums = [found for name in names if (found := _sums(one, backward, name)) is not None]
    return Section(lines, sums, mixes, *_parts(backward))


def _plain(op: str) -> str:
    """The op without the semantics that its label may carry."""
    return op.split(" ")[0]


def _is_backward(column: str) -> pl.Expr:
    plain = pl.col(column).str.split(" ").list.first()
    return plain.is_in([op.name for op in ops.OPS.values() if op.backward])


def _ordered(rows: pl.DataFrame) -> Iterator[Row]:
    order = pl.col("dtype").replace_strict({name: place for place, name in enumerate(schema.DTYPES)})
    yield from rows.sort("op", order, "hidden", "rows").iter_rows(named=True)


def _line(row: Row, raced: pl.DataFrame) -> Line:
    norm = ops.OPS[_plain(row["op"])].norm
    same = (pl.col(name) == row[name] for name in ("dtype", "rows", "hidden"))
    forward = raced.filter(pl.col("fastest"), pl.col("op") == norm, *same).sort("contender").head(1)
    found = forward.row(0, named=True) if forward.height else {}
    return Line(
        op=row["op"],
        dtype=row["dtype"],
        rows=row["rows"],
        hidden=row["hidden"],
        use=row["contender"],
        role=row["role"],
        time_us=row["time_us_p50"],
        reduce_us=row["reduce_us"],
        gbps=row["gbps"],
        ceiling=row["ceiling_fraction"],
        eager=row["speedup_eager"],
        compile=row["speedup_compile"],
        forward=found.get("contender"),
        forward_us=found.get("time_us_p50"),
    )


def _parts(raced: pl.DataFrame) -> tuple[list[str], list[Parts]]:
    """The contenders whose reduction is known somewhere, and every point at which one is."""
    known = raced.filter(pl.col("competes") & pl.col("reduce_us").is_not_null())
    names = sorted(known["contender"].unique())
    found: dict[tuple[str, str, int, int], dict[str, tuple[float, float]]] = {}
    for row in _ordered(known):
        place = (row["op"], row["dtype"], row["rows"], row["hidden"])
        found.setdefault(place, {})[row["contender"]] = (row["reduce_us"], row["time_us_p50"])
    return names, [Parts(*place, [cells.get(name) for name in names]) for place, cells in found.items()]


def _sums(one: Measured, raced: pl.DataFrame, contender: str) -> Sums | None:
    """None where nothing was recorded of it."""
    mine = (pl.col("contender") == contender) & _is_backward("op")
    checks = one.checks.filter(mine)
    found = Sums(
        contender,
        _launches(one, mine),
        formats.span(raced.filter(mine, pl.col("competes"))["reduce_share"]),
        _held(checks["deterministic"]),
        _held(checks["reproducible"]),
    )
    known = found.launches is not None or found.share or found.same_bits[1] or found.any_gpu[1]
    return found if known else None


def _held(flags: pl.Series) -> tuple[int, int]:
    known = flags.drop_nulls()
    return int(known.sum()), known.len()


def _launches(one: Measured, mine: pl.Expr) -> int | None:
    profiled = one.profile.filter(mine)["kernels"].max()
    if profiled is not None:
        return int(profiled)  # type: ignore[arg-type]
    compiled = one.resources.filter(mine)["launch"].max()
    return None if compiled is None else int(compiled) + 1  # type: ignore[arg-type]


def reduction(reduce_us: float | None, whole_us: float) -> str:
    """``3.1 (1.4 %)``: the reduction in microseconds and its share of the whole, or a dash where it is unknown."""
    if reduce_us is None:
        return formats.NONE
    share = reduce_us / whole_us
    return f"{formats.few(reduce_us)} ({formats.shares((share, share))})"


def held(counts: tuple[int, int]) -> str:
    """``12 of 12``, or a dash where nothing was asked."""
    return f"{counts[0]} of {counts[1]}" if counts[1] else formats.NONE
