"""Verb ``showdown``: race one op over all its points (worker side: racing.py)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from normbench import contenders, harness, kernelfile, schema, sources
from normbench.harness import Ceilings, Measurement
from normbench.points import Point, canonical_json, short_hash


def add_field_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verbs that take one op and the winners of its kernels."""
    harness.add_arguments(parser)
    parser.add_argument("--op", required=True)
    parser.add_argument("--kernels", nargs="*", default=[], help="our kernel files")
    parser.add_argument("--builds", nargs="*", default=[], help="builds (.json) of the CUDA ones")
    parser.add_argument("--cases", nargs="*", default=[], type=Path, help="their tuning tables")


def builds_by_stem(paths: Sequence[str]) -> dict[str, str]:
    """The builds among the files of ``--builds`` by the stem of their kernel."""
    return {Path(path).stem: path for path in paths if path.endswith(".json")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_field_arguments(parser)
    parser.add_argument("--baselines", nargs="*", default=[], help="baseline files, stems or module:function")
    parser.add_argument("--ceilings", type=Path, required=True)
    parser.add_argument("--warm", type=Path, help="what `warm` wrote, for the names of torch eager's kernels")


def main(args: argparse.Namespace) -> int:
    measurement = Measurement(args, "showdown", f"showdown-{args.op}")
    points = harness.chosen(measurement.points, op=args.op)
    field = Field(args)
    entries = {point.key: field.entries(point) for point in points}
    ceilings = Ceilings(args.ceilings)
    task = measurement.task(
        contenders=field.contenders(),
        points=[point.identity() for point in points],
        entries=entries,
        roofs=ceilings.variants(points),
        ceilings=ceilings.values(points),
        launch_floor_us=ceilings.launch_floor_us(),
    )
    done = measurement.run(task, len(points), measurement.context("showdown"))
    wanted = {entry["unit"] for listed in entries.values() for entry in listed}
    claims = Claims(field, args.warm)
    rows = [claims.of(entry["row"]) for unit, entry in done.items() if unit.removesuffix(schema.TWIN) in wanted]
    harness.write([*rows, *field.absentees(points, args.cases)], schema.SHOWDOWN, args.out)
    return 0


class Field:
    """Who races: every kernel with its winner at the point, and every baseline."""

    def __init__(self, args: argparse.Namespace) -> None:
        builds = builds_by_stem(args.builds)
        kernels = [(path, kernelfile.load(path)) for path in args.kernels]
        self.ours = [(path, kernel, builds.get(kernel.stem)) for path, kernel in kernels if args.op in kernel.ops]
        self.baselines = [baseline_path(name) for name in args.baselines]
        self.winners = winners(args.cases)
        loaded = {entry["spec"]: contenders.load(**entry) for entry in self.contenders()}
        self.shas = {spec: contender.sha for spec, contender in loaded.items()}
        self.regimes = {spec: contender.regimes for spec, contender in loaded.items()}
        self.compilers = {contender.stem: contender.compiler for contender in loaded.values()}

    def contenders(self) -> list[dict[str, Any]]:
        ours = [{"spec": path, "build": build} for path, _, build in self.ours]
        return ours + [{"spec": path} for path in self.baselines]

    def entries(self, point: Point) -> list[dict[str, Any]]:
        """Contenders of one point, the fastest of ours first (it gets the A/A twin).

        The unit of a race names everyone in it: a changed winner or source is another race.
        """
        ours = [
            (time, {"spec": path, "variant": json.loads(variant)})
            for path, kernel, _ in self.ours
            for time, variant in [self.winners.get((point.key, kernel.stem), (None, None))]
            if variant is not None
        ]
        ranked = [entry for _, entry in sorted(ours, key=lambda pair: (pair[0], pair[1]["spec"]))]
        invited = [path for path in self.baselines if point.regime in self.regimes[path]]
        found = ranked + [{"spec": path, "variant": {}} for path in invited]
        race = short_hash(canonical_json([found, [self.shas[entry["spec"]] for entry in found]]), 12)
        return [entry | {"unit": f"{point.key} {race} {entry['spec']}"} for entry in found]

    def absentees(self, points: Sequence[Point], cases: Sequence[Path]) -> list[dict[str, Any]]:
        """Rows of kernels without a winner at a point: what tuning said of them."""
        keys = {point.key for point in points}
        told: dict[tuple[str, str], dict[str, Any]] = {}
        for path in cases:
            for row in schema.read(path, schema.CASES).iter_rows(named=True):
                found = (row["point"], row["contender"])
                if row["point"] in keys and found not in self.winners:
                    told.setdefault(found, row)
        return list(told.values())


class Claims:
    """What is recorded beside a comparison with torch's bits: torch's kernels and version, and who compiled ours."""

    def __init__(self, field: Field, warm: Path | None) -> None:
        eager = json.loads(warm.read_text()).get("eager", {}) if warm else {}
        self.kernels: dict[str, str | None] = eager.get("kernels", {})
        self.version: str | None = eager.get("version") or sources.version("torch")
        self.compilers = field.compilers

    def of(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with these columns where it has such a comparison."""
        if row.get("bitwise_torch") is None:
            return row
        stem = row["contender"].removesuffix(schema.TWIN)
        told = {"torch_kernel": self.kernels.get(row["point"]), "torch_version": self.version}
        return row | told | {"compiler": self.compilers.get(stem)}


def winners(paths: Sequence[Path]) -> dict[tuple[str, str], tuple[float, str]]:
    """(time, variant JSON) of the fastest variant by (point, kernel); a finalist's longer look counts before others."""
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for path in paths:
        timed = schema.read(path, schema.CASES).filter(pl.col("status") == "ok")
        most = pl.col("n_samples").max().over("point", "contender")
        for row in timed.filter(pl.col("n_samples") == most).sort("time_us_p50").iter_rows(named=True):
            found.setdefault((row["point"], row["contender"]), (row["time_us_p50"], row["variant"]))
    return found


def baseline_path(name: str) -> str:
    return name if "/" in name or ":" in name else f"kernels/baselines/{name}.py"
