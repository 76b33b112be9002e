"""Invented tables for tests of the report: device ``fixture-gpu-000001``, a GPU that does not exist.

The numbers follow a formula, not a measurement, and only look plausible enough to judge a page by. They are made in
memory; nothing here is ever written below reports/data.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from normbench import ops, schema
from normbench.points import Point, canonical_json

DEVICE = "fixture-gpu-000001"
RUN = "20200101T000000-f1c7105"
CEILING_GBPS = 4200.0
THEORETICAL_GBPS = 4814.0
OPS = ("layernorm", "rmsnorm")
DTYPES = ("fp32", "fp16", "bf16")
HIDDEN = (256, 768, 1024, 2048, 2049, 4096, 8192, 16384, 32768, 65536)
BLOCKS = (64, 128, 256, 512, 1024)
# contender: language, fraction of the ceiling at small, middle and large hidden sizes, and at an odd one
SHAPES: dict[str, tuple[str, tuple[float, float, float, float]]] = {
    "naive": ("cuda", (0.35, 0.52, 0.46, 0.40)),
    "welford": ("cuda", (0.55, 0.70, 0.62, 0.50)),
    "cta_row": ("cuda", (0.90, 0.96, 0.70, 0.61)),
    "triton_row": ("triton", (0.93, 0.94, 0.55, 0.58)),
    "triton_loop": ("triton", (0.50, 0.80, 0.88, 0.55)),
    "torch_eager": ("torch", (0.20, 0.62, 0.52, 0.25)),
    "torch_compile": ("torch", (0.97, 0.80, 0.58, 0.28)),
    "liger": ("library", (0.75, 0.90, 0.12, 0.27)),
    "quack": ("library", (0.95, 0.93, 0.91, 0.0)),
    "copy": ("torch", (0.98, 0.98, 0.98, 0.98)),
    "cta_row__twin": ("cuda", (0.90, 0.96, 0.70, 0.61)),
}
KERNELS = ("naive", "welford", "cta_row", "triton_row", "triton_loop")
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
CASES_OF_CHECKS = ("K1.1", "K1.2", "K2.1", "K5.1", "ratio_1e4", "ratio_1e6", "hidden_1023", "nan_row", "misaligned")


@dataclass(frozen=True)
class Fixture:
    """What to invent; a device of its own draws its own noise."""

    device: str = DEVICE
    run: str = RUN
    gpu_name: str = "Fixture GPU (invented)"
    ops: tuple[str, ...] = OPS
    dtypes: tuple[str, ...] = DTYPES
    hidden: tuple[int, ...] = HIDDEN
    contenders: tuple[str, ...] = tuple(SHAPES)
    rename: dict[str, str] = field(default_factory=dict)
    elements: int = 2**27
    latency: bool = True
    l2: bool = False
    checks: bool = True
    inspected: bool = True
    scale: float = 1.0

    def tables(self) -> dict[str, pl.DataFrame]:
        """Validated tables by name."""
        showdown = [row for point in self._points() for row in self._race(point)]
        rows = {
            "showdown": showdown,
            "cases": [row for point in self._points() for row in self._tuning(point)],
            "checks": self._checks() if self.checks else [],
            "ceilings": self._ceilings(),
            "resources": self._resources(),
            "audit": self._audit() if self.inspected else [],
            "sanitize": self._sanitize() if self.inspected else [],
            "profile": self._profile() if self.inspected else [],
        }
        return {name: frame(name, values) for name, values in rows.items()}

    def machine(self) -> dict[str, Any]:
        return {
            "device": self.device, "run": self.run, "gpu_name": self.gpu_name, "model": "fixture-gpu", "arch": "sm_90",
            "sm_count": 132, "l2_bytes": 62914560, "memory_bytes": 150_000_000_000, "memory_bus_bits": 6016,
            "max_sm_clock_mhz": 1980, "max_mem_clock_mhz": 3201, "theoretical_gbps": THEORETICAL_GBPS,
            "power_limit_w": 700, "ecc": True, "mig": False, "driver": "0.0.fixture", "cuda_driver": "13.0",
            "nvrtc": "13.0", "torch": "2.11.0", "triton": "3.6.0", "cuda_core": "1.2.0", "cuda_bindings": "13.3",
            "python": "3.12.3", "baselines": {"liger": "0.8.5", "quack": "0.6.5"}, "fake": True,
            "notes": {"vbios": "not asked for"},
        }  # fmt: skip

    def write(self, folder: Path) -> Path:
        """Write what ``collect`` would have written; returns the folder."""
        return write(folder, self)

    def _points(self) -> list[Point]:
        stream = [
            Point(op, dtype, self.elements // hidden, hidden)
            for op in self.ops
            for dtype in self.dtypes
            for hidden in self.hidden
        ]
        few = [
            Point(op, dtype, rows, hidden, "latency")
            for op in self.ops
            for dtype in self.dtypes
            for hidden in (4096, 8192)
            for rows in (1, 16, 128, 1024)
        ]
        cached = [Point(op, "bf16", 2**22 // 4096, 4096, "l2") for op in self.ops]
        return stream + (few if self.latency else []) + (cached if self.l2 else [])

    def _identity(self, point: Point, contender: str) -> dict[str, Any]:
        name = self.rename.get(contender, contender)
        return {
            "device": self.device, "run": self.run, **point.identity(), "contender": name, "lang": SHAPES[contender][0]
        }  # fmt: skip

    def _time_us(self, point: Point, contender: str, noise: random.Random) -> float | None:
        """An invented median, or None where this contender is said to fail."""
        small, middle, large, odd = SHAPES[contender][1]
        if point.hidden % 8:
            share = odd
        elif point.hidden <= 4096:
            share = small + (middle - small) * (math.log2(point.hidden) - 8) / 4
        else:
            share = middle + (large - middle) * (math.log2(point.hidden) - 12) / 4
        if share <= 0:
            return None
        share *= self.scale * (1 + noise.uniform(-0.02, 0.02)) * (1.0 if point.op == "layernorm" else 1.015)
        stream = ops.compulsory_bytes(point) / (min(share, 0.995) * CEILING_GBPS * 1e3)
        return stream if point.regime == "stream" else 1.1 / share + stream / (2 if point.regime == "l2" else 1)

    def _race(self, point: Point) -> list[dict[str, Any]]:
        return [self._row(point, contender) for contender in self.contenders]

    def _row(self, point: Point, contender: str) -> dict[str, Any]:
        original = contender.removesuffix("__twin")
        noise = random.Random(f"{self.device} {point.key} {original}")
        row = self._identity(point, contender) | {"variant": self._variant(original), "bytes": None}
        time_us = self._time_us(point, contender, noise)
        if time_us is None:
            return row | {
                "status": "launch_error",
                "reason": f"invented: needs hidden to be a multiple of 8, not {point.hidden}",
            }
        time_us *= 1.002 if contender != original else 1.0
        throttled = contender == "welford" and point.hidden == 32768
        return row | {
            "status": "ok",
            "bytes": ops.compulsory_bytes(point),
            "ceiling_gbps": CEILING_GBPS * self.scale if point.regime == "stream" else None,
            "time_us_lo": time_us * 0.998,
            "time_us_hi": time_us * 1.002,
            "reduce_us": self._reduce_us(point, contender, time_us),
            "verdict": "throttled" if throttled else "quotable",
            "launch_bound": point.regime == "latency" and point.rows < 128,
            "accurate": True,
            "allclose_torch": contender != "naive" or point.hidden < 16384,
            "allclose_seed": contender not in ("naive", "liger"),
            "bitwise_torch": contender == "torch_eager",
            **self._measured(time_us, noise, samples=60),
            **self._clocks(point, noise, throttled),
            **self._errors(point, contender, noise),
        }

    def _reduce_us(self, point: Point, contender: str, time_us: float) -> float | None:
        """A gradient of cta_row reduces in 2 % of its time, one of naive in half of it; others do not tell."""
        share = {"cta_row": 0.02, "naive": 0.5}.get(contender)
        return share * time_us if share and ops.OPS[point.op].backward else None

    def _variant(self, contender: str, block: int = 256) -> str | None:
        if contender not in KERNELS:
            return None
        return canonical_json(
            {"num_warps": block // 32} if contender.startswith("triton") else {"block": block, "vec": 4}
        )

    def _measured(self, time_us: float, noise: random.Random, samples: int) -> dict[str, Any]:
        times = sorted(time_us * (1 + abs(noise.gauss(0, 0.004)) - 0.002) for _ in range(samples))
        return {
            "n_samples": samples,
            "time_us_min": times[0],
            "time_us_p25": times[samples // 4],
            "time_us_p50": time_us,
            "time_us_p75": times[3 * samples // 4],
            "samples_us": noise.sample(times, samples),
        }

    def _clocks(self, point: Point, noise: random.Random, throttled: bool) -> dict[str, Any]:
        clock = 1500.0 if throttled else 1980.0 - noise.randrange(3) * 15
        second = noise.randrange(300)
        return {
            "sm_clock_mhz_min": clock - 15, "sm_clock_mhz_p50": clock, "sm_clock_mhz_max": clock + 15,
            "sm_clock_gpu_mhz": clock, "mem_clock_mhz_p50": 3201.0, "power_w_p50": 480 + noise.uniform(0, 120),
            "temp_c_max": 50 + second / 30, "throttle_reasons": 4 if throttled else 0,
            "measured_at": f"2020-01-01T00:{second // 60:02d}:{second % 60:02d}Z",
        }  # fmt: skip

    def _errors(self, point: Point, contender: str, noise: random.Random) -> dict[str, Any]:
        ulp = (1.0 if point.dtype != "fp32" else 4.0) * (1 + noise.random()) * (3 if contender == "naive" else 1)
        return {"err_max_abs": ulp * 2.0**-9, "err_ulp_max": ulp, "tolerance": 2.0**-6, "tolerance_used": ulp / 20}

    def _tuning(self, point: Point) -> list[dict[str, Any]]:
        return [
            self._tuned(point, kernel, block)
            for kernel in KERNELS
            if kernel in self.contenders and point.regime == "stream"
            for block in BLOCKS
        ]

    def _tuned(self, point: Point, kernel: str, block: int) -> dict[str, Any]:
        noise = random.Random(f"{self.device} {point.key} {kernel} {block}")
        row = self._identity(point, kernel) | {"variant": self._variant(kernel, block), "block": block}
        time_us = self._time_us(point, kernel, noise)
        if time_us is None or (kernel == "cta_row" and block == 64 and point.hidden > 8192):
            return row | {"status": "skipped", "reason": f"invented: {point.hidden} columns do not fit {block} threads"}
        best = min(max(math.log2(point.hidden) - 4, 6), 10)
        return row | {
            "status": "ok",
            "verdict": "quotable",
            "registers": 16 + point.hidden // max(block * 4, 256),
            "spill_bytes": 0,
            "smem_bytes": 128,
            "blocks_per_sm": max(1, 2048 // block),
            **self._measured(time_us * (1 + 0.06 * abs(math.log2(block) - best)), noise, samples=5),
            **self._clocks(point, noise, throttled=False),
            **self._errors(point, kernel, noise),
        }

    def _checks(self) -> list[dict[str, Any]]:
        rows = []
        for op in self.ops:
            for dtype in self.dtypes:
                for contender in (name for name in self.contenders if name != "copy" and "__" not in name):
                    rows += [self._check(Point(op, dtype, 4, 1023), contender, case) for case in CASES_OF_CHECKS]
        return rows

    def _check(self, point: Point, contender: str, case: str) -> dict[str, Any]:
        noise = random.Random(f"{point.key} {contender} {case}")
        row = self._identity(point, contender) | {"case": case}
        if contender == "quack":
            return row | {"status": "skipped", "reason": "invented: needs hidden to be a multiple of 8, not 1023"}
        if contender == "liger" and case == "K2.1":
            return row | {"status": "wrong", "reason": "invented: constant row gives -0.78, not 0", "err_ulp_max": 4e5}
        return row | {"status": "ok", "accurate": True, "deterministic": True, **self._errors(point, contender, noise)}

    def _audit(self) -> list[dict[str, Any]]:
        """Two contenders at one point; NVBench's cold time of one of them is off by more than 2 %, the batch failed."""
        point = Point(self.ops[0], self.dtypes[0], self.elements // 4096, 4096)
        rows = []
        for contender, cold in (("cta_row", 1.004), ("torch_eager", 1.031)):
            row = self._identity(point, contender) | {"version": "1.0", "measured_at": "2020-01-01T00:09:00Z"}
            for method, factor in (("normbench", 1.0), ("nvbench", cold), ("do_bench", 0.995)):
                times = self._measured(270.0 * factor, random.Random(method), 30)
                rows.append(row | {"method": method, "status": "ok", **times})
            failed = {"status": "skipped", "reason": "invented: NVBench has no time"}
            rows.append(row | {"method": "nvbench_batch", **failed})
        return rows

    def _sanitize(self) -> list[dict[str, Any]]:
        """All clean but one: the sanitizer's first finding names a kernel's template arguments."""
        rows = []
        for kernel in (name for name in KERNELS if name in self.contenders):
            for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
                row = {"device": self.device, "run": self.run, "contender": self.rename.get(kernel, kernel)}
                row |= {"lang": SHAPES[kernel][0], "tool": tool, "planned": 155, "launched": 155, "version": "2025.3.1"}
                finding = "Race reported between Write access at void welford<float, 64>()+0x90 in welford.cu:13"
                bad = (kernel, tool) == ("welford", "racecheck")
                rows.append(row | {"status": "findings" if bad else "ok", "errors": int(bad)})
                rows[-1] |= {"reason": finding, "finding": finding} if bad else {}
        return rows

    def _profile(self) -> list[dict[str, Any]]:
        """One launch a kernel; Triton's could not be profiled."""
        point = Point(self.ops[0], self.dtypes[0], self.elements // 4096, 4096)
        moved = ops.compulsory_bytes(point)
        rows = []
        for kernel in (name for name in KERNELS if name in self.contenders):
            row = self._identity(point, kernel) | {"variant": self._variant(kernel), "bytes": moved}
            if kernel == "triton_row":
                rows.append(row | {"status": "skipped", "reason": "invented: ncu may not read the GPU's counters"})
                continue
            rows.append(
                row
                | {
                    "status": "ok", "kernels": 1, "profiled_us": 280.0, "dram_read_bytes": moved * 0.502,
                    "dram_write_bytes": moved * 0.5, "l2_hit_rate": 0.36, "load_sectors": 16.0, "store_sectors": 16.0,
                    "loads": "16 B x 8", "stores": "16 B x 4", "registers": 40, "achieved_occupancy": 0.88,
                    "stall": "long_scoreboard", "stall_share": 0.75, "version": "2025.3.1.0",
                }
            )  # fmt: skip
        return rows

    def _ceilings(self) -> list[dict[str, Any]]:
        values = {
            "read": (4400.0, "GB/s"), "write": (4100.0, "GB/s"), "copy": (CEILING_GBPS, "GB/s"),
            "l2_copy": (9800.0, "GB/s"), "launch_floor": (1.1, "us"), "fma_fp32": (60.0, "TFLOP/s"),
        }  # fmt: skip
        return [
            {
                "device": self.device,
                "run": self.run,
                "name": name,
                "size_bytes": 2**29,
                "value": value * self.scale,
                "unit": unit,
            }
            for name, (value, unit) in values.items()
        ]

    def _resources(self) -> list[dict[str, Any]]:
        return [
            {
                "device": self.device, "run": self.run, "contender": self.rename.get(kernel, kernel),
                "lang": SHAPES[kernel][0], "arch": arch, "op": op, "dtype": dtype, "param_dtype": dtype,
                "variant": self._variant(kernel, block), "launch": 0, "symbol": f"{kernel}<float,{block}>",
                "status": "ok", "block": block, "registers": 24 + 8 * index + (16 if block == 1024 else 0),
                "spill_bytes": 48 if kernel == "cta_row" and block == 64 and arch == "sm_75" else 0,
                "smem_bytes": 128, "blocks_per_sm": 2048 // block, "occupancy": min(1.0, 0.5 + block / 2048),
                "compiler": "nvrtc 13.0",
            }
            for index, kernel in enumerate(("naive", "welford", "cta_row"))
            if kernel in self.contenders
            for arch in ARCHS
            for op in self.ops
            for dtype in self.dtypes
            for block in BLOCKS
        ]  # fmt: skip


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows as a validated table; columns a row lacks are null."""
    table = schema.TABLES[name]
    full = pl.DataFrame([{column: row.get(column) for column in table.schema} for row in rows], schema=table.schema)
    return schema.validate(full, table)


def write(folder: Path, *fixtures: Fixture) -> Path:
    """Write the tables of all fixtures as ``collect`` would; returns the folder."""
    made = [fixture.tables() for fixture in fixtures]
    for name, table in schema.TABLES.items():
        parts = [tables[name] for tables in made] or [table.empty()]
        schema.write(pl.concat(parts), table, folder / f"{name}.parquet")
    (folder / "machines.json").write_text(json.dumps([fixture.machine() for fixture in fixtures], sort_keys=True))
    return folder
