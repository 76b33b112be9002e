"""Nsight Compute: its command line, and what its CSV says.

The metrics are those of Nsight Compute 2025.3 on sm_80 to sm_120. ``--page raw --csv`` prints a row of names, a row of
units and a row for each kernel; messages of the tool stand before and between them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIME = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2_HITS = "lts__t_sector_hit_rate.pct"
REGISTERS = "launch__registers_per_thread"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
METRICS = (
    *(TIME, READ, WRITTEN, L2_HITS, REGISTERS, WARPS),
    *(text.format(way) for text in (SECTORS, REQUESTS) for way in ("ld", "st")),
)
# stalls come with their section, which knows those of the architecture
SECTION = "WarpStateStats"
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
_UNITS = {"n": 1e-3, "u": 1.0, "m": 1e3, "": 1e6}  # of a second, in microseconds
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
DENIED = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True)
class Report:
    """kernels: metrics of each, in order; times in us, sizes in bytes. error: the tool's first complaint, if any."""

    kernels: list[dict[str, float]]
    error: str | None

    @property
    def refusal(self) -> str | None:
        """Why the tool cannot profile on this host, as a sentence; None where its error is another one, or none."""
        if self.error is None:
            return None
        if DENIED in self.error:
            return f"ncu may not read the GPU's counters ({DENIED}); an administrator can allow it, or run it as root"
        if "initialize the profiler" in self.error or "not supported" in self.error:
            return f"ncu does not work here: {self.error}"
        return None


def command(tool: Path, log: Path, program: Sequence[str]) -> list[str]:
    """``program`` with what lies between cuProfilerStart and cuProfilerStop profiled.

    Clocks are read, never set. The caches are left as the launches before leave them: flushing them would let the
    kernel end with its last writes still in L2 and none of an earlier launch's to make up for them, as a rotation does.
    """
    options = ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS), "--section", SECTION]
    options += ["--clock-control", "none", "--cache-control", "none", "--replay-mode", "kernel"]
    options += ["--profile-from-start", "off", "--target-processes", "application-only", "--log-file", str(log)]
    return [str(tool), *options, *program]


def parse(log: str) -> Report:
    """What ncu printed; metrics that it could not collect are left out."""
    lines = log.splitlines()
    errors = (line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR=="))
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    names, units, *rows = [*csv.reader(line for line in lines[start:] if line.startswith('"'))] or [[], []]
    return Report([dict(_values(names, units, row)) for row in rows], next(errors, None))


def _values(names: Sequence[str], units: Sequence[str], row: Sequence[str]) -> Iterator[tuple[str, float]]:
    for name, unit, text in zip(names, units, row, strict=False):
        if name in METRICS or _STALL.fullmatch(name):
            try:
                yield name, float(text.replace(",", "")) * scale(unit)
            except ValueError:
                continue  # n/a


def scale(unit: str) -> float:
    """What a value of this unit is multiplied with to be in us or in bytes; 1 for any other."""
    if match := re.fullmatch(r"([KMGT]?)byte", unit):
        return _SIZES[match[1]]
    if match := re.fullmatch(r"([num]?)s(?:ec(?:ond)?)?", unit):
        return _UNITS[match[1]]
    return 1.0


def columns(kernels: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The columns of a profile row: sums over the kernels of a launch, shares weighed by their time."""
    longest = max(kernels, key=lambda kernel: kernel.get(TIME, 0.0))
    stall, share = top_stall(longest)
    return {
        "kernels": len(kernels),
        "profiled_us": _sum(kernels, TIME),
        "dram_read_bytes": _sum(kernels, READ),
        "dram_write_bytes": _sum(kernels, WRITTEN),
        "l2_hit_rate": _share(kernels, L2_HITS),
        "achieved_occupancy": _share(kernels, WARPS),
        "load_sectors": _ratio(kernels, "ld"),
        "store_sectors": _ratio(kernels, "st"),
        "registers": max((int(kernel[REGISTERS]) for kernel in kernels if REGISTERS in kernel), default=None),
        "stall": stall,
        "stall_share": share,
    }


def top_stall(kernel: Mapping[str, float]) -> tuple[str | None, float | None]:
    """(reason, its share of all cycles between two instructions of a warp); a warp that issues is not stalled."""
    cycles = {match[1]: value for name, value in kernel.items() if (match := _STALL.fullmatch(name))}
    cycles = {name: value for name, value in cycles.items() if not name.endswith("_not_issued")}
    total = sum(cycles.values())
    waits = {name: value for name, value in cycles.items() if name != "selected"}
    if not waits or not total:
        return None, None
    reason = max(waits, key=lambda name: waits[name])
    return reason, waits[reason] / total


def _sum(kernels: Iterable[Mapping[str, float]], name: str) -> float | None:
    values = [kernel[name] for kernel in kernels if name in kernel]
    return sum(values) if values else None


def _share(kernels: Iterable[Mapping[str, float]], name: str) -> float | None:
    """Mean of a percentage over the time of the kernels, from 0 to 1."""
    known = [(kernel[name], kernel.get(TIME, 1.0)) for kernel in kernels if name in kernel]
    time = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / time / 100 if time else None


def _ratio(kernels: Sequence[Mapping[str, float]], way: str) -> float | None:
    """Sectors a request; None where no such request was made, as by kernels that copy in bulk."""
    sectors, requests = (_sum(kernels, text.format(way)) for text in (SECTORS, REQUESTS))
    return sectors / requests if sectors is not None and requests else None
