"""The wide section of a page: two contracts that are not to be mixed, and what keeps which at what time.

*Bit for bit torch*: the output is torch eager's, with its errors. *Accurate*: within the float64 tolerance, with bits
of its own. torch's order of the sums is the less accurate one on inputs with an offset, so a contender can keep either
without the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import schema
from normbench.measured import Measured

REGIME = "wide"
BITWISE, ACCURATE, FAILS, YARDSTICK = "bit for bit torch", "accurate, bits of its own", "fails", "yardstick"
ORDER = (BITWISE, ACCURATE, FAILS, YARDSTICK)
KEPT = ORDER[:2]
MOST = 4  # failing inputs that a line names
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Tally:
    """How many of the inputs that were judged a contract held on, and the names of the others."""

    held: int = 0
    judged: int = 0
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.held}/{self.judged}" if self.judged else ""


@dataclass(frozen=True)
class Line:
    """One contender at one wide shape.

    contract: one of ORDER. time_us, ceiling, eager, compile: None where it has no quotable time. error_ulp and
    torch_ulp: largest error against float64 of this output and of torch eager's in the same race. bitwise, accurate,
    allclose: of the output that was timed, None where not asked. bits, right: the same over the adversarial inputs.
    """

    contender: str
    role: str
    contract: str
    status: str
    reason: str
    quotable: bool
    time_us: float | None
    ceiling: float | None
    eager: float | None
    compile: float | None
    error_ulp: float | None
    torch_ulp: float | None
    bitwise: bool | None
    accurate: bool | None
    allclose: bool | None
    bits: Tally
    right: Tally

    @property
    def against_torch(self) -> str:
        """How the error compares with torch's, in a word; "" where it is not known."""
        if self.error_ulp is None or self.torch_ulp is None:
            return ""
        if self.error_ulp == self.torch_ulp:
            return "the same"
        return "smaller" if self.error_ulp < self.torch_ulp else "larger"

    @property
    def failing(self) -> str:
        """What it fails: the reason without a time, else the race or inputs outside the tolerance; "" where nothing."""
        if self.status != "ok":
            return f"{self.status}: {self.reason}".rstrip(": ")
        failed = [*(["the race"] if self.accurate is False else []), *self.right.failed]
        more = f" and {len(failed) - MOST} more" if len(failed) > MOST else ""
        return ", ".join(failed[:MOST]) + more


@dataclass(frozen=True)
class Problem:
    """One op, dtype and shape: its lines by contract, the fastest first. torch: what made torch's bits, "" if unknown.

    skipped: contenders that were refused, with the reason.
    """

    op: str
    dtype: str
    shape: str
    lines: list[Line]
    skipped: list[tuple[str, str]]
    torch: str

    @property
    def groups(self) -> list[tuple[str, list[Line]]]:
        grouped = [(name, [line for line in self.lines if line.contract == name]) for name in ORDER]
        return [(name, lines) for name, lines in grouped if lines]


def problems(one: Measured) -> list[Problem]:
    """Every wide problem of the device, the largest of each op and dtype first."""
    raced = one.showdown.filter((pl.col("regime") == REGIME) & (pl.col("role") != "twin"))
    order = pl.col("dtype").replace_strict({name: place for place, name in enumerate(schema.DTYPES)})
    size = pl.col("rows") * pl.col("hidden")
    ordered = raced.sort("op", order, size, "point", "contender", descending=[False, False, True, False, False])
    checks = one.checks.filter(pl.col("regime") == REGIME)
    return [_problem(race, checks) for _, race in ordered.group_by("point", maintain_order=True)]


def _problem(race: pl.DataFrame, checks: pl.DataFrame) -> Problem:
    rows = race.to_dicts()
    first = rows[0]
    torch = next((row["err_ulp_max"] for row in rows if row["contender"] == "torch_eager"), None)
    plain = first["op"].split(" ")[0]  # a label may carry semantics, a check has them in their own column
    asked = checks.filter((pl.col("op") == plain) & (pl.col("dtype") == first["dtype"]))
    lines = [_line(row, asked.filter(pl.col("contender") == row["contender"]), torch) for row in _raced(rows)]
    return Problem(
        first["op"],
        first["dtype"],
        first["shape"],
        sorted(lines, key=_place),
        [(row["contender"], row["reason"] or "no reason given") for row in rows if row["status"] == "skipped"],
        _origin(rows),
    )


def _raced(rows: Sequence[Row]) -> Iterator[Row]:
    yield from (row for row in rows if row["status"] != "skipped")


def _place(line: Line) -> tuple[int, bool, float, str]:
    return ORDER.index(line.contract), line.time_us is None, line.time_us or 0.0, line.contender


def _line(row: Row, checks: pl.DataFrame, torch_ulp: float | None) -> Line:
    bits, right = tally(checks, "bitwise_torch"), tally(checks, "right")
    return Line(
        contender=row["contender"],
        role=row["role"],
        contract=contract(row, bits, right),
        status=row["status"],
        reason=row["reason"] or "",
        quotable=row["verdict"] == "quotable",
        time_us=row["time_us_p50"],
        ceiling=row["ceiling_fraction"],
        eager=row["speedup_eager"],
        compile=row["speedup_compile"],
        error_ulp=row["err_ulp_max"],
        torch_ulp=torch_ulp,
        bitwise=row["bitwise_torch"],
        accurate=row["accurate"],
        allclose=row["allclose_torch"],
        bits=bits,
        right=right,
    )


def tally(checks: pl.DataFrame, name: str) -> Tally:
    """Of a contract column, or of ``right``: ok and accurate against any failure; refusals are not judged."""
    if name == "right":
        judged = checks.filter(~pl.col("status").is_in(["skipped", "out_of_range"]))
        held = (judged["status"] == "ok") & judged["accurate"].fill_null(True)
    else:
        judged = checks.filter(pl.col(name).is_not_null())
        held = judged[name]
    failed = judged.filter(~held)["case"].unique().sort().to_list()
    return Tally(int(held.sum()), judged.height, tuple(failed))


def contract(row: Row, bits: Tally, right: Tally) -> str:
    """The contract that is kept in the race and on every adversarial input; bits come first, whatever the error."""
    if row["role"] == "reference":
        return YARDSTICK
    if row["status"] != "ok":
        return FAILS
    if row["bitwise_torch"] and bits.held == bits.judged:
        return BITWISE
    return ACCURATE if row["accurate"] and right.held == right.judged else FAILS


def _origin(rows: Sequence[Row]) -> str:
    """What made torch's bits in this race; the claim holds for nothing else."""
    for row in rows:
        known = [row.get(name) for name in ("torch_kernel", "torch_version")]
        if any(known):
            return " of ".join(text for text in known if text)
    return ""
