"""Runs beside each other over an archive: what each reached, what changed since the run before, how they compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import answers, compare, formats, measured, metrics, provenance, regret, schema
from normbench.archive import ArchiveError, Run
from normbench.compare import Comparison
from normbench.measured import Archive
from normbench.regret import Regret

NEWEST = "newest points"  # the run id of a device's newest points together


@dataclass(frozen=True)
class Cell:
    """The best contender of a run over the stream points of one op and dtype.

    eager, compile, baseline: geometric mean of its speed-up over torch eager, torch.compile and the best baseline of
    the same races, None where those have no quotable time. ceiling: range of its share of its own measured ceiling.
    """

    points: int
    eager: float | None
    compile: float | None
    baseline: float | None
    ceiling: formats.Span | None


@dataclass(frozen=True)
class Step:
    """One run of a model's history.

    before: the last earlier run that timed any of its points, None where there is none. changes: what differs from
    that one, as sentences. since: the comparison with it, None where no contender is in both.
    """

    run: Run
    cells: tuple[Cell | None, ...]
    before: Run | None
    changes: tuple[str, ...]
    since: Comparison | None

    @property
    def sources(self) -> str:
        """Hash of what decided the run's numbers, "" where no row says so."""
        return _sources(self.run)


@dataclass(frozen=True)
class History:
    """All runs of one model, oldest first. columns: (op, dtype) of the cells."""

    model: str
    columns: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Meeting:
    """Device ``left`` as the measure of device ``right``, by the newest points of both; None: nothing in common."""

    left: str
    right: str
    found: Comparison | None
    winners: Regret
    variants: Regret


def runs(everything: Archive) -> list[Run]:
    """The runs of collected tables, by device and run."""
    return [_run(everything, machine) for machine in everything.machines]


def _run(everything: Archive, machine: Mapping[str, Any]) -> Run:
    device, run = str(machine["device"]), str(machine.get("run"))
    mine = (pl.col("device") == device) & (pl.col("run") == run)
    tables = {name: getattr(everything, name).filter(mine) for name in schema.TABLES}
    study = {"study": machine.get("study"), "commit": machine.get("commit")}
    return Run(device, run, dict(machine), study, tables, machine.get("files") or {})


def newest(everything: Archive, device: str) -> Run:
    """The newest points of a device as if they were one run: what its page shows."""
    one = measured.measured(everything, device)
    return Run(device, NEWEST, dict(one.machine), {}, one.stored)


def histories(everything: Archive) -> list[History]:
    """One history a model, by name."""
    by_model: dict[str, list[Run]] = {}
    for run in sorted(runs(everything), key=lambda run: (run.run, run.device)):
        by_model.setdefault(str(run.machine.get("model") or run.device), []).append(run)
    return [_history(model, by_model[model]) for model in sorted(by_model)]


def _history(model: str, members: Sequence[Run]) -> History:
    columns = tuple(sorted({pair for run in members for pair in _pairs(run)}, key=_place))
    points = [{*run.tables["showdown"]["point"]} for run in members]
    steps = []
    for place, run in enumerate(members):
        like = (before for before in reversed(range(place)) if points[before] & points[place])
        before = next(like, None)
        steps.append(_step(run, None if before is None else members[before], columns))
    return History(model, columns, tuple(steps))


def _pairs(run: Run) -> set[tuple[str, str]]:
    return set(answers.stream(run.tables["showdown"]).select("op", "dtype").iter_rows())


def _place(pair: tuple[str, str]) -> tuple[str, int]:
    return pair[0], schema.DTYPES.index(pair[1])


def _step(run: Run, before: Run | None, columns: Sequence[tuple[str, str]]) -> Step:
    raced = metrics.with_roofs(run.tables["showdown"], run.tables["ceilings"])
    best = metrics.with_winners(metrics.derive(answers.stream(raced), [run.machine])).filter("fastest")
    cells = tuple(_cell(best.filter(op=op, dtype=dtype)) for op, dtype in columns)
    if before is None:
        return Step(run, cells, None, (), None)
    return Step(run, cells, before, tuple(changes(before, run)), _compared(before, run))


def _cell(best: pl.DataFrame) -> Cell | None:
    if best.is_empty():
        return None
    eager, compiled, baseline = (
        compare.geometric_mean(best[f"speedup_{name}"].drop_nulls().to_list()) for name in ("eager", "compile", "best")
    )
    return Cell(best.height, eager, compiled, baseline, formats.span(best["ceiling_fraction"]))


def _compared(left: Run, right: Run) -> Comparison | None:
    try:
        return compare.compare(left, right)
    except ArchiveError:
        return None


def changes(before: Run, after: Run) -> Iterator[str]:
    """What differs between two runs: card, driver and libraries, contenders, and kernels by what they compile to."""
    if before.device != after.device:
        yield f"card {before.device} → {after.device}"
    for label, (old, new), differs in provenance.differences([before.machine, after.machine]):
        if differs:
            yield f"{label} {old} → {new}"
    yield from _contenders(before, after)
    yield from _sizes(before, after)
    compiled = _recompiled(before.tables["resources"], after.tables["resources"])
    if compiled:
        yield f"compiles to other registers, spills or shared memory: {', '.join(compiled)}"
    old, new = (_sources(run) for run in (before, after))
    if old != new:
        yield f"sources {old or formats.NONE} → {new or formats.NONE}"


def _contenders(before: Run, after: Run) -> Iterator[str]:
    old, new = ({*run.tables["showdown"].filter(~metrics.TWIN)["contender"]} for run in (before, after))
    if new - old:
        yield f"new contender: {', '.join(sorted(new - old))}"
    if old - new:
        yield f"without: {', '.join(sorted(old - new))}"


def _sizes(before: Run, after: Run) -> Iterator[str]:
    """Means over other stream points are no comparison, so a study of others says so."""
    old, new = ({*answers.stream(run.tables["showdown"])["point"]} for run in (before, after))
    if old != new:
        yield f"stream points {len(old)} → {len(new)}, {len(old & new)} in both: means are over each run's own"


def _recompiled(before: pl.DataFrame, after: pl.DataFrame) -> list[str]:
    """Kernels of which a variant, on an architecture both runs have, takes other resources than before."""
    key = [name for name in schema.RESOURCES.key if name not in ("device", "run")]
    costs = ("registers", "spill_bytes", "smem_bytes")
    both = before.join(after, on=key, how="inner", nulls_equal=True)
    moved = both.filter(pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_right")) for name in costs))
    return sorted(moved["contender"].unique())


def _sources(run: Run) -> str:
    return ", ".join(run.tables["showdown"]["sources"].drop_nulls().unique().sort())


def meetings(everything: Archive) -> list[Meeting]:
    """Every ordered pair of devices; a pair is judged once and read both ways."""
    sides = [newest(everything, device) for device in everything.devices]
    pairs = {
        (left.device, right.device): _compared(left, right)
        for index, left in enumerate(sides)
        for right in sides[index + 1 :]
    }
    return [_meeting(left, right, pairs) for left in sides for right in sides if left.device != right.device]


def _meeting(left: Run, right: Run, pairs: Mapping[tuple[str, str], Comparison | None]) -> Meeting:
    if (left.device, right.device) in pairs:
        found = pairs[left.device, right.device]
    else:
        turned = pairs[right.device, left.device]
        found = None if turned is None else compare.swapped(turned)
    tables = (left.tables, right.tables)
    return Meeting(
        left.device,
        right.device,
        found,
        regret.summary(regret.of_contenders(*(one["showdown"] for one in tables))),
        regret.summary(regret.of_variants(*(one["cases"] for one in tables))),
    )
