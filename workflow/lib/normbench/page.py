"""Verb ``page``: the report of one device as one HTML file."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from normbench import (
    answers,
    backward,
    charts,
    contracts,
    document,
    downloads,
    findings,
    gradients,
    inspections,
    kernelfile,
    measured,
    metrics,
    ops,
    pictures,
    provenance,
    sheets,
    timing,
)
from normbench.charts import kit, theme
from normbench.cli import UserError
from normbench.measured import Measured
from normbench.points import Point

MOST_BYTES = 5_000_000  # of a page
LEAD = re.compile(r"^([A-Z][\w ,-]{2,40}): +(.*)$")
FOREMOST = 3  # findings that stand open
ENOUGH = 50_000  # bytes kept free for what stands around the downloads
# in the order in which timing.verdict objects
VERDICTS = {
    "quotable": "none of the objections below, the first of which is the verdict",
    "shared_gpu": "another process was computing on the card",
    "too_few": f"fewer than {timing.MIN_SAMPLES} samples were accepted, so the median has no useful interval",
    "below_resolution": f"the median is under {timing.RESOLUTION_US} µs, the tick of a CUDA event",
    "throttled": f"NVML gave a reason to slow down during the window: bits {timing.THROTTLED:#x} of its clock events",
    "clock_drift": f"highest less lowest SM clock of the window is over {timing.CLOCK_SPREAD:.0%} of its median",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", required=True, help="device id as in the tables, or target of a local study")
    parser.add_argument(
        "--tables", type=Path, default=Path("results/tables"), help="folder of the collected tables (results/tables)"
    )
    parser.add_argument(
        "--kernels", type=Path, default=Path("kernels"), help="folder of the kernel files, for their cards (kernels)"
    )
    parser.add_argument("--out", type=Path, help="the page to write")
    parser.add_argument("--title", default="normbench", help="title of the page")
    parser.add_argument("--charts", type=Path, help="folder for every chart as SVG and PNG")


def main(args: argparse.Namespace) -> int:
    if not (args.out or args.charts):
        raise UserError("nothing to write; --out names a page, --charts a folder for the charts alone")
    kernels = kernelfile.find(args.kernels) if args.kernels.is_dir() else []
    archive = measured.load(args.tables, args.device)
    one = measured.measured(archive, archive.devices[0], kernels, args.kernels)
    if args.out:
        document.write(build(one, args.title), args.out)
    if args.charts:
        pictures.write(one, args.charts)
    return 0


@dataclass(frozen=True)
class Figure:
    """A chart's place in the page; ``omitted`` says which rows it cannot show, ``broad`` gives it the whole width."""

    name: str
    title: str
    help: str
    omitted: str
    broad: bool = False

    @property
    def reading(self) -> tuple[str, str]:
        """The first sentence of the help, which is one line on the page, and the rest of it."""
        first, _, rest = self.help.partition(". ")
        return (f"{first}." if rest else first), rest


@dataclass(frozen=True)
class Card:
    """A kernel's card beside its figures; ``prose`` is its text as (lead, rest) paragraphs, ``notes`` what the profiler
    and the sanitizer said of it."""

    name: str
    kernel: kernelfile.Kernel | None
    path: str
    prose: list[tuple[str, str]]
    results: list[dict[str, Any]]
    wins: int
    points: int
    figure: Figure | None
    notes: inspections.Notes


def build(one: Measured, title: str = "normbench") -> str:
    """The whole page; equal data give equal bytes."""
    specs = document.Specs()
    figures, absent = _figures(one, specs)
    section = backward.section(one)
    cards = list(_cards(one, specs))
    recommended = answers.answers(one.showdown)
    context = {
        "title": title,
        "one": one,
        "answers": recommended,
        "in_short": answers.in_short(one.showdown),
        "slack": answers.SLACK,
        "unanswered": answers.unanswered(one.showdown),
        "findings": findings.findings(one),
        "foremost": FOREMOST,
        "flawed": findings.flawed(one.checks) & {(found.use, found.op, found.dtype) for found in recommended},
        "sheets": sheets.sheets(one),
        "figures": figures,
        "backward": section,
        "reductions": list(_reductions(one, section, specs)),
        "problems": contracts.problems(one),
        "held": backward.held,
        "reduction": backward.reduction,
        "absent": absent,
        "selectors": selectors(specs),
        "cards": cards,
        "facts": provenance.facts(one.machine),
        "notes": sorted((one.machine.get("notes") or {}).items()),
        "study": sorted((one.machine.get("study") or {}).items()),
        "verdicts": _verdicts(one),
        "ops": [ops.OPS[name] for name in sorted(one.stored["showdown"]["op"].unique()) if name in ops.OPS],
        "traffic": _traffic(one),
        "bytes_rule": _paragraph(ops.compulsory_bytes),
        "tolerance_rule": _tolerance_rule(one),
        "metrics": [
            (name, metric) for name, metric in metrics.METRICS.items() if metric.unit or "over" in metric.meaning
        ],
        "ceilings": _ceilings(one),
        "noise": metrics.noise_floors(one.showdown),
        "audit": inspections.audit(one.audit),
        "origins": provenance.origins(one),
        "data": document.packed(specs.json(themes={"light": theme.LIGHT, "dark": theme.DARK})),
    }
    scripts = {"vega": document.vega_bundle(), "page": (document.TEMPLATES / "page.js").read_text()}
    bare = document.render("page.html.j2", scripts, downloads=[], left_out=[], **context)
    taken, left_out = downloads.fitting(downloads.of(one), MOST_BYTES - ENOUGH - len(bare.encode()))
    return document.render("page.html.j2", scripts, downloads=taken, left_out=left_out, **context)


def _figures(one: Measured, specs: document.Specs) -> tuple[list[Figure], list[str]]:
    """The charts that have data, and a sentence for each that has none."""
    figures, absent = [], []
    for module in charts.CHARTS:
        chosen = module.prepare(one)
        if chosen.frame.is_empty():
            absent.append(f"{module.NOTHING} {chosen.omitted}".strip())
            continue
        spec = document.to_spec(module.chart(chosen.frame), f"{module.TITLE}. {module.HELP}")
        specs.add(module.NAME, spec)
        broad = bool(spec.get("usermeta", {}).get("broad"))
        figures.append(Figure(module.NAME, module.TITLE, module.HELP, chosen.omitted, broad))
    return figures, absent


def selectors(specs: document.Specs) -> list[dict[str, Any]]:
    """The page's selectors: each parameter some chart declares, with every value any chart has.

    One starts at a value that the first chart with it can show: kernels are compiled for ops that no race has.
    """
    found: dict[str, set[Any]] = {}
    starts: dict[str, Any] = {}
    for spec in specs.charts.values():
        for column in picks_of(spec):
            shown = set(_values(spec, specs, column))
            found.setdefault(column, set()).update(shown)
            starts.setdefault(column, kit.default(column, list(shown)))
    return [
        {"column": column, "label": label, "values": values, "default": starts[column]}
        for column, label in kit.PICKS.items()
        if len(values := kit.sort_values(column, list(found.get(column, ())))) > 1
    ]


def picks_of(spec: Mapping[str, Any]) -> list[str]:
    names = (str(param["name"]) for param in spec.get("params", ()))
    return [name.removeprefix("pick_") for name in names if name.startswith("pick_")]


def _values(spec: Mapping[str, Any], specs: document.Specs, column: str) -> Iterator[Any]:
    yield from (row[column] for row in specs.rows(spec["data"]["name"]) if row[column] is not None)


def _cards(one: Measured, specs: document.Specs) -> Iterator[Card]:
    """A card for every kernel file, and for contenders that have rows but no file here; what was raced comes first."""
    known = {kernel.stem: kernel for kernel in one.kernels}
    raced = answers.stream(one.showdown).filter(pl.col("role") == "ours")
    seen = {*raced["contender"]}
    for index, name in enumerate(sorted({*known, *seen}, key=lambda name: (name not in seen, name))):
        rows = raced.filter(pl.col("contender") == name)
        yield Card(
            name=name,
            kernel=known.get(name),
            path=one.paths.get(name, ""),
            prose=paragraphs(known[name].card) if name in known else [],
            results=_results(rows),
            wins=rows.filter("in_winner_set").height,
            points=rows.height,
            figure=_blockmap(one, name, f"blockmap-{index}", specs),
            notes=inspections.of_kernel(one, name),
        )


def paragraphs(card: str) -> list[tuple[str, str]]:
    """A card's paragraphs as (lead, rest): a blank line or a line such as ``Numerics: …`` starts one; lead may be "".

    Comments are wrapped for the source; the page wraps for itself.
    """
    found: list[tuple[str, str]] = []
    fresh = True
    for line in card.splitlines():
        lead = LEAD.match(line)
        if lead:
            found.append((lead[1], lead[2]))
        elif fresh or not found:
            found.append(("", line.strip()))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}".strip())
        fresh = not line.strip()
    return [paragraph for paragraph in found if any(paragraph)]


def _results(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Per op and dtype: the best quotable point, the range of ceiling fractions, the worst error."""
    best = pl.col("gbps") == pl.col("gbps").max()
    quotable = rows.filter(pl.col("competes") & pl.col("gbps").is_not_null())
    return (
        quotable.group_by("op", "dtype")
        .agg(
            pl.col("gbps", "hidden", "variant", "command").filter(best).first(),
            pl.col("ceiling_fraction").min().alias("low"),
            pl.col("ceiling_fraction").max().alias("high"),
            pl.col("err_ulp_max").max().alias("ulp"),
        )
        .sort("op", pl.col("dtype").replace_strict({"fp32": 0, "fp16": 1, "bf16": 2}))
        .to_dicts()
    )


def _blockmap(one: Measured, contender: str, name: str, specs: document.Specs) -> Figure | None:
    module = charts.blockmap
    chosen = module.prepare(one, contender)
    if chosen.frame.is_empty():
        return None
    specs.add(name, document.to_spec(module.chart(chosen.frame), f"{contender}: {module.TITLE}. {module.HELP}"))
    return Figure(name, module.TITLE, module.HELP, chosen.omitted)


def _reductions(one: Measured, section: backward.Section | None, specs: document.Specs) -> Iterator[Figure]:
    """A chart for each backward op of which a reduction is known."""
    module = charts.reduction
    for index, op in enumerate(section.ops if section else ()):
        chosen = module.prepare(one, op)
        if not chosen.frame.is_empty():
            name, title = f"{module.NAME}-{index}", f"{op}: {module.TITLE[0].lower()}{module.TITLE[1:]}"
            specs.add(name, document.to_spec(module.chart(chosen.frame), f"{title}. {module.HELP}"))
            yield Figure(name, title, module.HELP, chosen.omitted)


def _verdicts(one: Measured) -> list[tuple[str, str, int]]:
    counts = dict(one.showdown.group_by("verdict").len().drop_nulls().iter_rows())
    return [(name, meaning, counts.get(name, 0)) for name, meaning in VERDICTS.items()]


def _ceilings(one: Measured) -> list[dict[str, Any]]:
    return one.ceilings.select("name", "size_bytes", "value", "unit", "variant").sort("name", "size_bytes").to_dicts()


def _tolerance_rule(one: Measured) -> str:
    """Why the check allows what it allows, for the kinds of op the study has."""
    kinds = {ops.OPS[name].backward for name in one.stored["showdown"]["op"].unique() if name in ops.OPS}
    rules = {False: ops.tolerance, True: gradients.tolerance}
    return "\n\n".join(inspect.getdoc(rules[kind]) or "" for kind in sorted(kinds or {False}))


def _traffic(one: Measured) -> dict[str, str]:
    """By op, in its default form: the tensors a launch reads and writes, with their elements."""
    sizes = {name: "rows × hidden" for name in ops.LARGE} | {name: "hidden" for name in ops.PARAMETERS}

    def listed(names: list[str]) -> str:
        return ", ".join(f"{name} ({sizes.get(name, 'rows')})" for name in names)

    points = (Point(name, "fp32", 1, 1) for name in ops.OPS if name in one.stored["showdown"]["op"].unique())
    return {point.op: f"reads {listed(ops.inputs(point))}; writes {listed(ops.outputs(point))}" for point in points}


def _paragraph(function: Any) -> str:
    return (inspect.getdoc(function) or "").split("\n\n")[0]
