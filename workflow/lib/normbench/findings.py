"""What stands out in a study, as sentences; each is computed from the tables or left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from normbench import answers, contracts, formats, schema
from normbench.measured import Measured

NEAR_CEILING = 0.9
COLLAPSE = 2.0  # a baseline's best over its worst bandwidth from which a finding says so
COSTLY = 0.1  # what a wrong variant costs from which a finding says so
MOST = 3  # examples in a sentence
Row = dict[str, Any]


def findings(one: Measured) -> list[str]:
    """The sentences the study supports, the weightiest first."""
    raced = answers.stream(one.showdown).sort("op", "dtype", "hidden", "contender")
    sentences = (
        correctness(one.checks.filter(pl.col("regime") != contracts.REGIME)),
        lead(raced),
        wide(contracts.problems(one)),
        collapse(raced),
        below_ceiling(raced),
        deficit(raced),
        variants(one.cases),
        failures(one.showdown),
        rejected(one.showdown),
        absent(one.showdown),
    )
    return [sentence for sentence in sentences if sentence is not None]


def where(row: Row) -> str:
    return f"{row['op']} {row['dtype']} at hidden {row['hidden']}"


def _listed(items: Iterable[str]) -> str:
    """The first MOST items, and how many more there are."""
    known = list(items)
    more = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    return ", ".join(known[:MOST]) + more


def _works(rows: pl.DataFrame) -> str:
    """``rmsnorm fp32, fp16, bf16``: the ops of the rows with the dtypes of each."""
    parts = []
    for (op,), part in rows.sort("op").group_by("op", maintain_order=True):
        parts.append(f"{op} {', '.join(sorted(part['dtype'].unique(), key=schema.DTYPES.index))}")
    return "; ".join(parts)


def correctness(checks: pl.DataFrame) -> str | None:
    """Which contender gave a wrong result on which adversarial input; or that none did."""
    judged = checks.filter(pl.col("status").is_in(["ok", "wrong", "no_work"]))
    if judged.is_empty():
        return None
    bad = judged.filter(pl.col("status") != "ok").sort("contender", "case")
    if bad.is_empty():
        contenders = formats.quantity(judged["contender"].n_unique(), "contender")
        inputs = formats.quantity(judged["case"].n_unique(), "input")
        return f"Checked on adversarial inputs and never wrong: {contenders} on {inputs}."
    pairs = bad.group_by("contender", "case", maintain_order=True)
    failed = (f"{name} on {case} ({_works(rows)})" for (name, case), rows in pairs)
    return f"Wrong on an adversarial input: {_listed(failed)}."


def flawed(checks: pl.DataFrame) -> set[tuple[str, str, str]]:
    """(contender, op, dtype) of those that gave a wrong result on an adversarial input, however fast they are."""
    bad = checks.filter(pl.col("status").is_in(["wrong", "no_work"]), pl.col("regime") != contracts.REGIME)
    return set(bad.select("contender", "op", "dtype").iter_rows())


def lead(raced: pl.DataFrame) -> str | None:
    """How often a kernel of ours is in the winner set, and its largest lead over the best baseline."""
    ours = _compared(raced)
    if ours.is_empty():
        return None
    points = raced.filter("competes")["point"].n_unique()
    wins = ours.filter("in_winner_set")["point"].n_unique()
    best = ours.sort("speedup_best", descending=True, maintain_order=True).row(0, named=True)
    return (
        f"A kernel of this repository is fastest or tied at {wins} of {formats.quantity(points, 'point')}; "
        f"the best speed-up over the best baseline is {formats.factor(best['speedup_best'])} "
        f"({best['contender']}, {where(best)}: {formats.count(best['gbps'])} GB/s)."
    )


def wide(problems: Sequence[contracts.Problem]) -> str | None:
    """The fastest of each contract at the largest wide problem; those checks have contracts of their own."""
    for problem in problems:
        timed = [line for line in problem.lines if line.quotable and line.time_us is not None and line.role == "ours"]
        kept = {line.contract: line for line in reversed(timed) if line.contract in contracts.KEPT}
        if kept:
            best = (_kept(name, kept.get(name)) for name in contracts.KEPT)
            return f"Wide rows, {problem.op} {problem.dtype} of {problem.shape}: {'; '.join(best)}."
    return None


def _kept(contract: str, line: contracts.Line | None) -> str:
    if line is None:
        return f"none of our kernels is {contract}"
    eager = f", {formats.factor(line.eager)} as fast as torch eager" if line.eager is not None else ""
    return f"{line.contender} is the fastest of our kernels that is {contract} ({line.time_us:.4g} µs{eager})"


def deficit(raced: pl.DataFrame) -> str | None:
    """Where the best of our kernels is furthest behind the best baseline; not where a time of ours was rejected."""
    rejected_here = ((pl.col("role") == "ours") & (pl.col("status") == "over_roof")).any().over("point")
    best = _compared(raced.filter(~rejected_here)).sort("speedup_best", descending=True, maintain_order=True)
    best = best.unique("point", keep="first", maintain_order=True)
    behind = best.filter(pl.col("speedup_best") < 1).sort("speedup_best", "op", "dtype", "hidden")
    if behind.is_empty():
        return None
    worst = behind.row(0, named=True)
    return (
        f"The kernels of this repository are furthest behind at {where(worst)}: the best of them, "
        f"{worst['contender']}, is {formats.factor(worst['speedup_best'])} as fast as the best baseline."
    )


def _compared(raced: pl.DataFrame) -> pl.DataFrame:
    return raced.filter(pl.col("competes") & (pl.col("role") == "ours") & pl.col("speedup_best").is_not_null())


def collapse(raced: pl.DataFrame) -> str | None:
    """The baselines whose bandwidth falls below half of their own best over the hidden sizes of one op and dtype."""
    baselines = raced.filter(pl.col("competes") & (pl.col("role") == "baseline") & pl.col("gbps").is_not_null())
    curve = ["contender", "op", "dtype"]
    falls = (
        baselines.sort("gbps", "hidden")
        .group_by(curve, maintain_order=True)
        .agg(
            pl.col("gbps").first().alias("low"),
            pl.col("hidden").first().alias("at_low"),
            pl.col("gbps").last().alias("high"),
            pl.col("hidden").last().alias("at_high"),
        )
        .with_columns((pl.col("high") / pl.col("low")).alias("fall"))
        .sort("fall", *curve, descending=[True, False, False, False])
        .unique("contender", keep="first", maintain_order=True)
    )
    deep = falls.filter(pl.col("fall") >= COLLAPSE)
    if deep.is_empty():
        return None
    return (
        f"{deep.height} of {formats.quantity(falls.height, 'baseline')} "
        f"{'falls' if deep.height == 1 else 'fall'} below half of {'its' if deep.height == 1 else 'their'} own best "
        "bandwidth at some hidden size: "
        f"{_listed(map(_fall, deep.iter_rows(named=True)))}."
    )


def _fall(row: Row) -> str:
    return (
        f"{row['contender']} in {row['op']} {row['dtype']} (from {formats.count(row['high'])} GB/s at "
        f"{row['at_high']} to {formats.count(row['low'])} at {row['at_low']})"
    )


def below_ceiling(raced: pl.DataFrame) -> str | None:
    """Where nothing reaches 90 % of the measured ceiling."""
    known = raced.filter(pl.col("competes") & pl.col("ceiling_fraction").is_not_null())
    if known.is_empty():
        return None
    best = known.sort("ceiling_fraction", descending=True, maintain_order=True)
    best = best.unique("point", keep="first", maintain_order=True)
    short = best.filter(pl.col("ceiling_fraction") < NEAR_CEILING).sort("ceiling_fraction", "op", "dtype", "hidden")
    if short.is_empty():
        return f"At each of {formats.quantity(best.height, 'point')} something reaches 90 % of the measured ceiling."
    unaligned = short.filter(~pl.col("aligned")).height
    apart = f", {unaligned} of them with rows that are no multiple of 16 bytes" if unaligned else ""
    return (
        f"At {short.height} of {formats.quantity(best.height, 'point')} nothing reaches 90 % of the measured "
        f"ceiling{apart}: {_listed(map(_share, short.iter_rows(named=True)))}."
    )


def _share(row: Row) -> str:
    return f"{where(row)} (best {row['contender']}, {row['ceiling_fraction'] * 100:.0f} %)"


def variants(cases: pl.DataFrame) -> str | None:
    """What the worst variant of a kernel costs at a point, where it costs most."""
    point = ("device", "point", "contender")
    timed = cases.filter(pl.col("time_us_p50").is_not_null() & (pl.col("regime") == "stream")).sort(
        "time_us_p50", "variant"
    )
    spread = timed.group_by(point, maintain_order=True).agg(
        pl.col("op", "dtype", "hidden").first(),
        pl.col("variant").first().alias("best"),
        pl.col("variant").last().alias("worst"),
        (pl.col("time_us_p50").last() / pl.col("time_us_p50").first() - 1).alias("cost"),
    )
    costly = spread.filter(pl.col("cost") >= COSTLY).sort("cost", *point[1:], descending=[True, False, False])
    if costly.is_empty():
        return None
    row = costly.row(0, named=True)
    return (
        f"A wrong launch choice costs 10 % or more at {costly.height} of {spread.height} tuned points, and most in "
        f"{row['contender']}, {where(row)}: {formats.variant(row['worst'])} takes {formats.factor(row['cost'] + 1)} "
        f"the time of {formats.variant(row['best'])}."
    )


def failures(raced: pl.DataFrame) -> str | None:
    """The contenders that were asked for a time and gave none, with the commonest reason of the first."""
    failed = _contending(raced).filter(~pl.col("status").is_in(["ok", "skipped", "over_roof"]))
    if failed.is_empty():
        return None
    counted = failed.group_by("contender", "status", "reason").agg(pl.len().alias("n"))
    row = counted.sort("n", "contender", "status", "reason", descending=[True, False, False, False]).row(0, named=True)
    others = sorted({*failed["contender"]} - {row["contender"]})
    more = f" Others that failed somewhere: {_listed(others)}." if others else ""
    reason = str(row["reason"]).rstrip(".")
    return f"{row['contender']} fails at {formats.quantity(row['n'], 'point')} ({row['status']}: {reason}).{more}"


def rejected(raced: pl.DataFrame) -> str | None:
    """Times that no ceiling allows."""
    over = _contending(raced).filter(pl.col("status") == "over_roof")
    if over.is_empty():
        return None
    names = over["contender"].unique().sort().to_list()
    return (
        f"{formats.quantity(over.height, 'time')} {'was' if over.height == 1 else 'were'} faster than the measured "
        f"ceiling allows and {'is' if over.height == 1 else 'are'} not shown ({_listed(names)})."
    )


def absent(raced: pl.DataFrame) -> str | None:
    """Contenders that were skipped at every point."""
    skipped = _contending(raced).group_by("contender").agg((pl.col("status") == "skipped").all())
    names = skipped.filter("status")["contender"].sort().to_list()
    return f"Named in the study but raced nowhere: {_listed(names)}." if names else None


def _contending(raced: pl.DataFrame) -> pl.DataFrame:
    return raced.filter(pl.col("role").is_in(["ours", "baseline"]))
