"""Verb ``compare``: one archived run judged against another, row by row, with an answer that may be "ambiguous".

Rows of the same point and contender are compared. FASTER and SLOWER need the whole 95 % block-bootstrap interval of the
ratio of medians to clear a margin, in time and, where both SM clocks are known, in cycles; SAME needs it inside. The
margin is 0.5 %, or the A/A noise floor of the point's regime in either run where that is more.
Exit code 1: a confirmed SLOWER between GPUs of one model, or a newly wrong row; else 0.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from normbench import archive, metrics, schema
from normbench.archive import ArchiveError, Run
from normbench.points import short_hash

LEAST_MARGIN = 0.005
BLOCK = 5  # rounds; neighbouring samples of a race share clocks and temperature, so they are resampled together
RESAMPLES = 1000
LEVEL = (2.5, 97.5)
VERDICTS = ("SLOWER", "AMBIGUOUS", "FASTER", "SAME")
# a verdict is told by sign and word as well as by colour, so that it survives print and colour blindness
MARKS = {"FASTER": "▲", "SLOWER": "▼", "SAME": "=", "AMBIGUOUS": "?"}
PLANTED = 0.02  # a slowdown that every regime should tell
BROKEN = ("wrong", "no_work", "compile_error", "launch_error", "timeout")


@dataclass(frozen=True)
class Row:
    """One contender at one point in both runs. ratio: right time over left time, with its 95 % interval; ratio_cycles
    the same in SM cycles. left_pct, right_pct: bandwidth as % of the ceiling measured in the same race."""

    verdict: str
    op: str
    dtype: str
    rows: int
    hidden: int
    regime: str
    semantics: str
    contender: str
    left_us: float
    right_us: float
    ratio: float
    ratio_lo: float
    ratio_hi: float
    ratio_cycles: float | None
    left_pct: float | None
    right_pct: float | None


@dataclass(frozen=True)
class Comparison:
    """left, right: run ids. margins: relative difference that counts by regime, absent without twins in both.

    not_judged: common rows without a quotable time on both sides. newly_wrong: sentences."""

    left: str
    right: str
    same_model: bool
    margins: dict[str, float]
    rows: list[Row]
    not_judged: int
    newly_wrong: list[str]

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(row.verdict for row in self.rows)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def counted(self) -> str:
        """``3 SLOWER, 1 AMBIGUOUS, 0 FASTER, 9 SAME``."""
        return ", ".join(f"{number} {verdict}" for verdict, number in self.counts.items())

    @property
    def caveat(self) -> str | None:
        """What a reader must know of the verdicts, if anything."""
        different = "The GPUs are of different models, so a SLOWER is a finding and not a regression."
        return None if self.same_model else different

    def seen(self, slowdown: float) -> dict[str, tuple[int, int]]:
        """By regime, on how many rows of how many the verdict would be SLOWER, were all times of the right run longer
        by that share: medians, and so the interval of their ratio, grow with the samples."""
        found: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            low, high = ((1 + slowdown) * limit for limit in (row.ratio_lo, row.ratio_hi))
            stretch = None if row.ratio_cycles is None else row.ratio_cycles / row.ratio
            told = verdict(low, high, stretch, self.margins.get(row.regime)) == "SLOWER"
            slower, rows = found.get(row.regime, (0, 0))
            found[row.regime] = slower + told, rows + 1
        return found

    @property
    def speedup(self) -> float | None:
        """Geometric mean of left time over right time over all judged rows; above 1 the right side is faster."""
        return geometric_mean([1 / row.ratio for row in self.rows])

    @property
    def regressed(self) -> bool:
        """Whether the exit code is 1. Another model's GPU may be slower; it may not be wrong."""
        return bool(self.newly_wrong) or (self.same_model and self.counts["SLOWER"] > 0)


def compare(left: Run, right: Run) -> Comparison:
    """Everything the two runs have in common, worst first.

    Raises:
        ArchiveError: they have nothing in common.
    """
    pairs = _pairs(left, right, "showdown")
    if pairs.is_empty():
        raise ArchiveError(f"{left.id} and {right.id} have no point and contender in common")
    margins = _margins(left, right)
    judged = pairs.filter(_quotable("") & _quotable("_right"))
    rows = [_judge(pair, margins.get(pair["regime"])) for pair in judged.iter_rows(named=True)]
    rows.sort(key=lambda row: (VERDICTS.index(row.verdict), -row.ratio, row.op, row.dtype, row.hidden, row.contender))
    return Comparison(
        left=left.id,
        right=right.id,
        same_model=left.machine.get("model") == right.machine.get("model"),
        margins=margins,
        rows=rows,
        not_judged=pairs.height - judged.height,
        newly_wrong=[*_newly_wrong(pairs), *_newly_wrong(_pairs(left, right, "checks"))],
    )


def swapped(found: Comparison) -> Comparison:
    """The same comparison read from the other side; what is newly wrong has no other side and is left out."""
    turned = {"FASTER": "SLOWER", "SLOWER": "FASTER"}
    rows = [
        replace(
            row,
            verdict=turned.get(row.verdict, row.verdict),
            left_us=row.right_us,
            right_us=row.left_us,
            ratio=1 / row.ratio,
            ratio_lo=1 / row.ratio_hi,
            ratio_hi=1 / row.ratio_lo,
            ratio_cycles=None if row.ratio_cycles is None else 1 / row.ratio_cycles,
            left_pct=row.right_pct,
            right_pct=row.left_pct,
        )
        for row in found.rows
    ]
    return replace(found, left=found.right, right=found.left, rows=rows, newly_wrong=[])


def geometric_mean(ratios: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _pairs(left: Run, right: Run, table: str) -> pl.DataFrame:
    """Rows of both tables side by side, the right one's with the suffix ``_right``; A/A twins are no contenders."""
    key = [name for name in schema.TABLES[table].key if name not in ("device", "run")]
    ours, theirs = (_rows(run, table) for run in (left, right))
    return ours.filter(~metrics.TWIN).join(theirs, on=key, how="inner").sort(key)


def _rows(run: Run, table: str) -> pl.DataFrame:
    """A table of a run, its ceilings raised to the run's own roofs as on the page of its device."""
    frame = run.tables[table]
    return metrics.with_roofs(frame, run.tables["ceilings"]) if table == "showdown" else frame


def _quotable(side: str) -> pl.Expr:
    return (pl.col(f"status{side}") == "ok") & (pl.col(f"verdict{side}") == "quotable").fill_null(False)


def _margins(left: Run, right: Run) -> dict[str, float]:
    ours, theirs = (metrics.noise_floors(run.tables["showdown"]) for run in (left, right))
    return {regime: max(LEAST_MARGIN, ours[regime], theirs[regime]) for regime in ours if regime in theirs}


def _judge(pair: dict[str, Any], margin: float | None) -> Row:
    seed = int(short_hash(f"{pair['point']} {pair['contender']}", 8), 16)
    low, high = ratio_interval(pair["samples_us"], pair["samples_us_right"], seed)
    stretch = _clock_ratio(pair)
    ratio = pair["time_us_p50_right"] / pair["time_us_p50"]
    return Row(
        verdict=verdict(low, high, stretch, margin),
        **{name: pair[name] for name in ("op", "dtype", "rows", "hidden", "regime", "semantics", "contender")},
        left_us=pair["time_us_p50"],
        right_us=pair["time_us_p50_right"],
        ratio=ratio,
        ratio_lo=low,
        ratio_hi=high,
        ratio_cycles=None if stretch is None else ratio * stretch,
        left_pct=_ceiling_pct(pair, ""),
        right_pct=_ceiling_pct(pair, "_right"),
    )


def verdict(low: float, high: float, stretch: float | None, margin: float | None) -> str:
    """FASTER, SLOWER, SAME or AMBIGUOUS for the interval of right time over left time.

    stretch: right SM clock over left, which turns the ratio into one of cycles; None where a clock is unknown.
    margin: None, without a noise floor, is AMBIGUOUS whatever the interval.
    """
    if margin is None:
        return "AMBIGUOUS"
    above, below = 1 + margin, 1 / (1 + margin)
    factors = (1.0,) if stretch is None else (1.0, stretch)
    if all(low * factor > above for factor in factors):
        return "SLOWER"
    if all(high * factor < below for factor in factors):
        return "FASTER"
    return "SAME" if below <= low and high <= above else "AMBIGUOUS"


def ratio_interval(left_us: list[float], right_us: list[float], seed: int) -> tuple[float, float]:
    """95 % interval of median(right) / median(left): percentiles of RESAMPLES circular block-bootstrap resamples.

    The same samples and seed give the same interval. Source: Politis and Romano, A circular block-resampling procedure
    for stationary data (1992).
    """
    random = np.random.default_rng(seed)
    ratios = _medians(np.asarray(right_us, float), random) / _medians(np.asarray(left_us, float), random)
    low, high = np.percentile(ratios, LEVEL)
    return float(low), float(high)


def _medians(samples: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    blocks = -(-len(samples) // BLOCK)
    starts = random.integers(0, len(samples), (RESAMPLES, blocks, 1))
    chosen = (starts + np.arange(BLOCK)) % len(samples)
    medians: NDArray[np.float64] = np.median(samples[chosen.reshape(RESAMPLES, -1)[:, : len(samples)]], axis=1)
    return medians


def _clock_ratio(pair: dict[str, Any]) -> float | None:
    """Right SM clock over left, both read the same way: inside the GPU, else by NVML."""
    for name in ("sm_clock_gpu_mhz", "sm_clock_mhz_p50"):
        left, right = pair[name], pair[f"{name}_right"]
        if left and right:
            return float(right / left)
    return None


def _ceiling_pct(pair: dict[str, Any], side: str) -> float | None:
    ceiling, moved = pair[f"ceiling_gbps{side}"], pair[f"bytes{side}"]
    if not ceiling or moved is None or pair[f"launch_bound{side}"]:
        return None
    return float(100 * moved / pair[f"time_us_p50{side}"] / 1e3 / ceiling)


def _newly_wrong(pairs: pl.DataFrame) -> list[str]:
    """A sentence for each row that was ok on the left and is broken on the right, or was accurate there and is not."""
    off = pl.col("accurate") & ~pl.col("accurate_right") & (pl.col("status_right") == "ok")
    broken = pairs.filter((pl.col("status") == "ok") & (pl.col("status_right").is_in(BROKEN) | off.fill_null(False)))
    return [
        " ".join(str(row[name]) for name in ("contender", "op", "dtype", "rows", "hidden"))
        + (f" {row['case']}" if "case" in row else "")
        + f": {'not accurate' if row['status_right'] == 'ok' else row['status_right']}: {row['reason_right']}"
        for row in broken.iter_rows(named=True)
    ]


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as JSON; ``exit`` is the exit code."""
    facts = asdict(found)
    rows = facts.pop("rows")
    planted = {"slowdown": PLANTED, "seen": found.seen(PLANTED)}
    return facts | {"counts": found.counts, "planted": planted, "exit": int(found.regressed), "rows": rows}


def show(found: Comparison, everything: bool = False) -> None:
    """The comparison for people: a table of what is not SAME (or of everything), worst first, and a line of counts."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 160
    table = Table(title=f"{found.right} against {found.left}", title_justify="left")
    for heading in ("verdict", "contender", "op", "dtype", "rows", "hidden"):
        table.add_column(heading)
    for heading in ("left µs", "right µs", "time ratio", "95 % interval", "cycle ratio", "left % ceiling", "right %"):
        table.add_column(heading, justify="right")
    for row in found.rows:
        if everything or row.verdict != "SAME":
            table.add_row(*_cells(row))
    if table.row_count:
        console.print(table)
    for sentence in _summary(found):
        console.print(sentence, markup=False, highlight=False)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.verdict,
        row.contender,
        row.op,
        row.dtype,
        str(row.rows),
        str(row.hidden),
        f"{row.left_us:.2f}",
        f"{row.right_us:.2f}",
        f"{row.ratio:.4f}",
        f"{row.ratio_lo:.4f} to {row.ratio_hi:.4f}",
        _number(row.ratio_cycles, ".4f"),
        _number(row.left_pct, ".1f"),
        _number(row.right_pct, ".1f"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _summary(found: Comparison) -> list[str]:
    margins = ", ".join(f"{100 * margin:.2f} % ({regime})" for regime, margin in found.margins.items())
    margins = margins or "unknown, since a run has no A/A twin"
    unjudged = f"{found.not_judged} common rows have no quotable time on one side or both"
    lines = [f"{found.counted}; {unjudged}. Margin: {margins}."]
    seen = ", ".join(f"{slower} of {rows} ({regime})" for regime, (slower, rows) in found.seen(PLANTED).items())
    if seen:
        lines.append(f"Were {found.right} {100 * PLANTED:.0f} % slower in everything, that would be SLOWER on {seen}.")
    if found.caveat:
        lines.append(found.caveat)
    return lines + [f"newly wrong: {sentence}" for sentence in found.newly_wrong]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("left", help="archived run to start from: device/run, or its folder")
    parser.add_argument("right", help="archived run to judge")
    parser.add_argument("--archive", type=Path, default=Path("reports/data"), metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every row as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the comparison as a page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write it as a comment on a pull request")
    parser.add_argument("--title", default="normbench", help="title of the page")
    parser.add_argument("--all", action="store_true", help="list the rows that are SAME, too")


def main(args: argparse.Namespace) -> int:
    left, right = (archive.read_archived(archive.locate(text, args.archive)) for text in (args.left, args.right))
    found = compare(left, right)
    if args.json:
        with schema.atomic(args.json) as temporary:
            temporary.write_text(json.dumps(as_json(found), indent=1, allow_nan=False) + "\n")
    if args.html:
        from normbench import versus

        versus.write(left, right, found, args.html, args.title)
    if args.markdown:
        from normbench import comment

        comment.write(left, right, found, args.markdown)
    show(found, args.all)
    return int(found.regressed)
