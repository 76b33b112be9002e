"""Small invented studies for tests of the archive: devices that do not exist, times that follow a formula.

Nothing here is ever written below reports/data.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from normbench import ops, schema
from normbench.points import Point
from normbench.publish import ARCHS

DEVICE = "invented-gpu-a00001"
RUN = "20200102T030405-abcdef0"
CONTENDERS = {
    "naive": "cuda",
    "cta_row": "cuda",
    "cta_row__twin": "cuda",
    "triton_row": "triton",
    "torch_eager": "torch",
    "copy": "torch",
}
CLOCK_MHZ = 1500.0
CEILING_GBPS = 1000.0


@dataclass(frozen=True)
class Study:
    """One invented study. slow: factor on the times, by contender. clock: on the SM clock. seed: of the 0.1 % noise.
    changes: column values by contender, laid over its race rows."""

    device: str = DEVICE
    run: str = RUN
    model: str = "invented-gpu"
    ops: tuple[str, ...] = ("layernorm", "rmsnorm")
    dtype: str = "fp32"
    hidden: tuple[int, ...] = (64, 128)
    measured_at: str = "2020-01-02T03:04:05Z"
    sources: str = "abcdef0"
    seed: int = 1
    slow: dict[str, float] = field(default_factory=dict)
    clock: float = 1.0
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    archs: tuple[str, ...] = tuple(sorted(ARCHS))
    fake: bool = False

    @property
    def points(self) -> list[Point]:
        return [Point(op, self.dtype, 4096 // hidden, hidden) for op in self.ops for hidden in self.hidden]

    def machine(self) -> dict[str, Any]:
        return {"device": self.device, "gpu_name": "Invented GPU", "model": self.model, "fake": self.fake}

    def document(self) -> dict[str, Any]:
        study = {"ops": list(self.ops), "hidden": list(self.hidden)}
        return {"study": study, "points": [point.identity() for point in self.points]}

    def with_(self, **changes: Any) -> Study:
        return replace(self, **changes)

    def race(self, points: list[Point] | None = None) -> pl.DataFrame:
        wanted = self.points if points is None else points
        return _frame("showdown", [self._race_row(point, name) for point in wanted for name in CONTENDERS])

    def cases(self, stem: str) -> pl.DataFrame:
        rows = []
        for point in self.points:
            row = self._race_row(point, stem)
            rows.append({name: row.get(name) for name in schema.CASES.schema} | {"variant": "{}", "block": 64})
        return _frame("cases", rows)

    def ceilings(self) -> pl.DataFrame:
        row = {"name": "copy", "size_bytes": 1 << 20, "value": CEILING_GBPS, "unit": "GB/s"}
        return _frame("ceilings", [{"device": self.device, "run": self.run, **row}])

    def checks(self, contender: str, status: str = "ok") -> pl.DataFrame:
        reason = None if status == "ok" else "an invented failure"
        rows = [
            self._identity(point, contender) | {"variant": "{}", "case": "K1.1", "status": status, "reason": reason}
            for point in self.points
        ]
        return _frame("checks", rows)

    def resources(self, stem: str, arch: str) -> pl.DataFrame:
        row = {"contender": stem, "lang": CONTENDERS[stem], "arch": arch, "op": "rmsnorm", "dtype": self.dtype}
        more = {"param_dtype": self.dtype, "variant": "{}", "launch": 0, "symbol": stem, "status": "ok"}
        return _frame("resources", [row | more | {"registers": 32}])

    def write_local(self, results: Path) -> Path:
        """results/<device> and results/build as the rules leave them; returns the folder of the device."""
        folder = results / self.device
        for op in self.ops:
            race = self.race([point for point in self.points if point.op == op])
            schema.write(race, schema.SHOWDOWN, folder / "showdown" / f"{op}.parquet")
        for stem in ("naive", "cta_row", "triton_row"):
            schema.write(self.cases(stem), schema.CASES, folder / "cases" / f"{stem}.parquet")
        for stem in ("naive", "cta_row"):
            for arch in self.archs:
                schema.write(self.resources(stem, arch), schema.RESOURCES, results / "build" / arch / f"{stem}.parquet")
        schema.write(self.ceilings(), schema.CEILINGS, folder / "ceilings.parquet")
        _json(folder / "machine.json", self.machine())
        _json(folder / "study.json", self.document())
        return folder

    def write_archived(self, archive: Path, checks: dict[str, str] | None = None) -> Path:
        """<archive>/<device>/<run> as ``publish`` leaves it; checks: status by contender."""
        folder = archive / self.device / self.run
        cases = pl.concat([self.cases(stem) for stem in ("naive", "cta_row", "triton_row")])
        resources = [self.resources(stem, arch) for stem in ("naive", "cta_row") for arch in self.archs]
        labelled = pl.concat(resources).with_columns(device=pl.lit(self.device), run=pl.lit(self.run))
        tables = {"showdown": self.race(), "cases": cases, "ceilings": self.ceilings(), "resources": labelled}
        if checks:
            tables["checks"] = pl.concat([self.checks(name, status) for name, status in checks.items()])
        for name, frame in tables.items():
            schema.write(frame, schema.TABLES[name], folder / f"{name}.parquet")
        _json(folder / "machine.json", self.machine() | {"run": self.run})
        _json(folder / "study.json", self.document())
        return folder

    def _identity(self, point: Point, contender: str) -> dict[str, Any]:
        lang = CONTENDERS[contender]
        return {"device": self.device, "run": self.run, **point.identity(), "contender": contender, "lang": lang}

    def _race_row(self, point: Point, contender: str) -> dict[str, Any]:
        noise = random.Random(f"{self.seed} {point.key} {contender}")
        moved = ops.compulsory_bytes(point)
        time_us = 100.0 * self.slow.get(contender.removesuffix("__twin"), 1.0)
        samples = sorted(time_us * noise.gauss(1.0, 0.001) for _ in range(40))
        noise.shuffle(samples)
        row = {
            "variant": "{}",
            "status": "ok",
            "n_samples": len(samples),
            "time_us_p50": float(pl.Series(samples).median()),  # type: ignore[arg-type]
            "samples_us": samples,
            "bytes": moved,
            "ceiling_gbps": CEILING_GBPS,
            "sm_clock_mhz_p50": CLOCK_MHZ * self.clock,
            "verdict": "quotable",
            "measured_at": self.measured_at,
            "sources": self.sources,
        }
        return self._identity(point, contender) | row | self.changes.get(contender, {})


FAILED = {"status": "wrong", "reason": "an invented failure", "time_us_p50": None, "verdict": None}


def _frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    table = schema.TABLES[name]
    columns = {column: [row.get(column) for row in rows] for column in table.schema}
    return schema.validate(pl.DataFrame(columns, schema=table.schema, strict=False), table)


def _json(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n")
