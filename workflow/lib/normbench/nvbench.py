"""A run in the JSON format of NVBench, so that its comparison scripts work on ours.

NVBench (github.com/NVIDIA/nvbench) has benchmarks with axes, a state for each combination of axis values, and
summaries by tag; 64-bit values are strings. A benchmark here is an op, its axes are what else tells rows apart. The
tags that begin ``nv/cold`` are those the scripts compare: isolated samples, whatever the regime, an axis of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from normbench import __version__
from normbench.metrics import TWIN

FORMAT = (1, 0, 0)  # of NVBench's JSON
NVBENCH = (0, 1, 0)  # the version of NVBench that writes it so
AXES = {
    "contender": "string", "dtype": "string", "regime": "string", "rows": "int64", "hidden": "int64",
    "semantics": "string",
}  # fmt: skip
DEVICE = 0  # a run has one GPU
Json = dict[str, Any]


def document(showdown: pl.DataFrame, machine: Mapping[str, Any]) -> Json:
    """The races of one run; rows without a time are skipped states with their reason. A/A twins are left out."""
    rows = showdown.filter(~TWIN).sort("op", *AXES, "shape")
    ops = rows.partition_by("op", maintain_order=True)
    return {
        "meta": {"argv": ["normbench", "export", "--format", "nvbench", _run_id(machine)], "version": _versions()},
        "devices": [_device(machine)],
        "benchmarks": [_benchmark(index, part, machine) for index, part in enumerate(ops)],
    }


def text(showdown: pl.DataFrame, machine: Mapping[str, Any]) -> str:
    """``document`` as strict JSON; equal data give equal text."""
    return json.dumps(document(showdown, machine), indent=1, allow_nan=False) + "\n"


def _run_id(machine: Mapping[str, Any]) -> str:
    return f"{machine.get('device')}/{machine.get('run')}"


def _versions() -> Json:
    ours = tuple(int(part) for part in __version__.split(".")[:3])
    return {"json": _version(FORMAT), "nvbench": _version(NVBENCH), "normbench": _version(ours)}


def _version(parts: Sequence[int]) -> Json:
    named = dict(zip(("major", "minor", "patch"), parts, strict=True))
    return named | {"string": ".".join(map(str, parts))}


def _device(machine: Mapping[str, Any]) -> Json:
    """What is known of the GPU under NVBench's names; frequencies in Hz, rates in bytes a second."""
    arch = str(machine.get("arch") or "sm_0").removeprefix("sm_")
    return {
        "id": DEVICE,
        "name": machine.get("gpu_name") or str(machine.get("device")),
        "sm_version": int(arch) * 10,
        "ptx_version": int(arch) * 10,
        "sm_default_clock_rate": _times(machine.get("max_sm_clock_mhz"), 1e6),
        "number_of_sms": machine.get("sm_count"),
        "global_memory_size": machine.get("memory_bytes"),
        "global_memory_bus_peak_clock_rate": _times(machine.get("max_mem_clock_mhz"), 1e6),
        "global_memory_bus_width": machine.get("memory_bus_bits"),
        "global_memory_bus_bandwidth": _times(machine.get("theoretical_gbps"), 1e9),
        "l2_cache_size": machine.get("l2_bytes"),
        "ecc_state": machine.get("ecc"),
    }


def _times(value: float | None, factor: float) -> int | None:
    return None if value is None else round(value * factor)


def _benchmark(index: int, rows: pl.DataFrame, machine: Mapping[str, Any]) -> Json:
    return {
        "name": rows["op"][0],
        "index": index,
        **_CRITERIA,
        "devices": [DEVICE],
        "axes": [_axis(name, kind, rows) for name, kind in AXES.items()],
        "states": [_state(row, machine) for row in rows.iter_rows(named=True)],
    }


# fields every reader expects; our races stop on the width of an interval, which NVBench has no name for
_CRITERIA: Json = {"min_samples": 0, "skip_time": -1.0, "timeout": -1.0}


def _axis(name: str, kind: str, rows: pl.DataFrame) -> Json:
    values = rows[name].unique().sort()
    texts = [{"input_string": str(value), "description": "", "value": _value(value)} for value in values]
    return {"name": name, "type": kind, "flags": "", "values": texts}


def _value(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value


def _state(row: Mapping[str, Any], machine: Mapping[str, Any]) -> Json:
    axes = [{"name": name, "type": kind, "value": _value(row[name])} for name, kind in AXES.items()]
    words = " ".join(f"{name}={row[name]}" for name in AXES)
    state = {
        "name": f"Device={DEVICE} {words}",
        **_CRITERIA,
        "device": DEVICE,
        "type_config_index": 0,
        "axis_values": axes,
    }
    if row["time_us_p50"] is None:
        return state | {"summaries": [], "is_skipped": True, "skip_reason": f"{row['status']}: {row['reason']}"}
    return state | {"summaries": list(_summaries(row, machine)), "is_skipped": False}


def _summaries(row: Mapping[str, Any], machine: Mapping[str, Any]) -> Iterator[Json]:
    samples = np.asarray(row["samples_us"] or [row["time_us_p50"]], float) / 1e6
    low, first, middle, third, high = np.percentile(samples, (0, 25, 50, 75, 100))
    mean, spread = float(samples.mean()), _deviation(samples)
    yield _summary("nv/cold/sample_size", "Samples", len(samples), "sample_size")
    for name, label, seconds in (
        ("min", "Min", low),
        ("max", "Max", high),
        ("mean", "GPU Time", mean),
        ("q1", "Q1", first),
        ("median", "Median", middle),
        ("q3", "Q3", third),
        ("iqr/absolute", "IQR", third - first),
        ("stdev/absolute", "Deviation", spread),
    ):
        yield _summary(f"nv/cold/time/gpu/{name}", label, seconds, "duration")
    yield _summary("nv/cold/time/gpu/stdev/relative", "Noise", None if spread is None else spread / mean, "percentage")
    yield _summary("nv/cold/time/gpu/iqr/relative", "IQR", (third - first) / middle, "percentage")
    yield from _rates(row, mean, machine)
    clock = row["sm_clock_gpu_mhz"] or row["sm_clock_mhz_p50"]
    if clock:
        yield _summary("nv/cold/sm_clock_rate/mean", "Clock Rate", clock * 1e6, "frequency")
    if row["reduce_us"] is not None:
        yield _summary("normbench/reduction", "Reduction", row["reduce_us"] / 1e6, "duration")
    yield _summary("normbench/verdict", "Verdict", row["verdict"], None)


def _deviation(samples: Any) -> float | None:
    """Sample standard deviation; None, which NVBench reads as unknown noise, of a single sample."""
    return float(samples.std(ddof=1)) if len(samples) > 1 else None


def _rates(row: Mapping[str, Any], mean_s: float, machine: Mapping[str, Any]) -> Iterator[Json]:
    if row["bytes"] is None:
        return
    rate = row["bytes"] / mean_s
    yield _summary("nv/cold/bw/global/bytes_per_second", "GlobalMem BW", rate, "byte_rate")
    if row["regime"] == "stream" and machine.get("theoretical_gbps"):
        share = rate / (machine["theoretical_gbps"] * 1e9)
        yield _summary("nv/cold/bw/global/utilization", "BWUtil", share, "percentage")


def _summary(tag: str, name: str, value: float | int | str | None, hint: str | None) -> Json:
    kind = "int64" if isinstance(value, int) else "string" if isinstance(value, str) else "float64"
    given = None if value is None else value if isinstance(value, str) else repr(_plain(value))
    shown = {"tag": tag, "name": name} | ({"hint": hint} if hint else {})
    return shown | {"data": [{"name": "value", "type": kind, "value": given}]}


def _plain(value: float | int) -> float | int:
    """A Python number of 9 significant digits, which hold a float32 sample exactly."""
    return value if isinstance(value, int) else float(f"{value:.9g}")
