"""What the probes of ``doctor`` share: the host as NVML tells it, and the line a probe yields."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from normbench import device

State = Literal["ok", "warn", "fail"]
# the first driver that runs what NVRTC 13 and NVRTC 12 make
FIRST_DRIVER = {13: 580, 12: 525}


@dataclass(frozen=True)
class Line:
    """One finding: what was looked at, how it is, what was found, and what to do about it (empty: nothing)."""

    what: str
    state: State
    found: str
    todo: str = ""


@dataclass(frozen=True)
class Host:
    """What the probes have in common: the GPUs NVML shows, the driver, what NVML says against itself."""

    gpus: tuple[Any, ...] = ()
    driver: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def real(self) -> bool:
        """A GPU to measure on, not one that NORMBENCH_FAKE_GPU made up."""
        return any(gpu.fake is None for gpu in self.gpus)

    def runs(self, nvrtc: int) -> bool:
        """Whether the driver runs code of that major version of NVRTC; no driver suits everything."""
        number = (self.driver or "").partition(".")[0]
        return not number.isdecimal() or int(number) >= FIRST_DRIVER.get(nvrtc, FIRST_DRIVER[13])

    @property
    def extra(self) -> str:
        """The extra of pyproject.toml that brings a compiler the driver can follow."""
        return "cu13" if self.runs(13) else "cu12"

    @property
    def grave(self) -> State:
        """How bad it is when something that only measuring needs is missing."""
        return "fail" if self.real else "warn"


def look() -> Host:
    """The host as NVML tells it; an empty one where NVML cannot even be asked."""
    try:
        found = device.discover(os.environ.get(device.VISIBLE))
    except (ValueError, OSError) as error:
        return Host(notes=(str(error),))
    return Host(tuple(found.gpus), found.driver, tuple(found.notes))


def first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
