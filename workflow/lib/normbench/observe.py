"""Clock state of a timed window, from NVML. The timing loop knows only ``Observer.look``."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

# reading of device.Nvml -> column and which statistics of it
COUNTED = {
    "sm_mhz": ("sm_clock_mhz", ("min", "p50", "max")),
    "mem_mhz": ("mem_clock_mhz", ("p50",)),
    "power_w": ("power_w", ("p50",)),
    "temp_c": ("temp_c", ("max",)),
}


class Observer:
    """Collects readings of one window, or of several.

    nvml: a device.Nvml, or None where there is none: then its columns are null. clock: a streams.SmClock or None.
    compared: the SM clock read inside the GPU is that of so many windows, the first ones; None: of all. A kernel sets
    the clock it runs at, on an H200 1800 to 1980 MHz, so two races can be compared by windows of the same kernels only.
    """

    def __init__(self, nvml: Any | None, clock: Any | None = None, compared: int | None = None) -> None:
        self.nvml = nvml
        self.clock = clock
        self.compared = compared
        self.readings: list[dict[str, float | None]] = []
        self._inside: list[float | None] = []

    def before(self) -> None:
        """Called in stream order ahead of the first sample."""
        if self.clock is not None:
            self.clock.mark(0)

    def after(self) -> None:
        """Called in stream order behind the last sample."""
        if self.clock is not None:
            self.clock.mark(1)

    def finished(self) -> None:
        """Called when the window's work is done."""
        self.look()
        self._inside.append(self.clock.mhz() if self.clock is not None else None)

    def look(self) -> None:
        if self.nvml is not None:
            self.readings.append(self.nvml.clocks())

    def summary(self) -> dict[str, float | int | None]:
        """The CLOCKS columns of the window; null where nothing was read."""
        found: dict[str, float | int | None] = {}
        for name, (column, kinds) in COUNTED.items():
            values = [float(value) for reading in self.readings if (value := reading.get(name)) is not None]
            for kind in kinds:
                found[f"{column}_{kind}"] = _statistic(kind, values)
        reasons = [int(value) for reading in self.readings if (value := reading.get("throttle_reasons")) is not None]
        union: int | None = 0 if reasons else None
        for value in reasons:
            union = (union or 0) | value
        return found | {"throttle_reasons": union, "sm_clock_gpu_mhz": _statistic("p50", self.inside())}

    def inside(self) -> list[float]:
        """SM clocks (MHz) read inside the GPU, one of each window long enough to read it."""
        return [mhz for mhz in self._inside[: self.compared] if mhz is not None]

    def shared(self) -> bool | None:
        """Whether another process computes on the GPU now; None where NVML cannot tell."""
        return None if self.nvml is None else bool(self.nvml.other_processes(os.getpid()))


STATISTICS: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max, "p50": statistics.median}


def _statistic(kind: str, values: list[float]) -> float | None:
    return STATISTICS[kind](values) if values else None
