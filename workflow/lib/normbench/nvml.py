"""NVML by way of nvidia-ml-py, imported late: start it, ask it, and keep the reason for each refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class NvmlMissing(Exception):
    """NVML cannot be used. ``worth_saying``: there is a driver or a library, so somebody expects a GPU."""

    def __init__(self, message: str, worth_saying: bool) -> None:
        super().__init__(message)
        self.worth_saying = worth_saying


def start() -> Any:
    """The initialised ``pynvml`` module of the package nvidia-ml-py; starting again is free.

    Raises:
        NvmlMissing: no package, no library, or a library that does not suit the driver.
    """
    try:
        import pynvml
    except ImportError:
        driver = Path("/proc/driver/nvidia").exists()
        raise NvmlMissing("nvidia-ml-py is not installed, so no GPU can be identified.", driver) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = getattr(error, "value", None) == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        raise NvmlMissing(f"NVML does not start: {error}.", worth_saying=not absent) from None
    return pynvml


class Query:
    """Single NVML readings; one that the driver refuses is None, with the reason under its name in ``notes``."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.notes: dict[str, str] = {}

    def ask(self, name: str, function: str, *args: Any, take: Callable[[Any], Any] = lambda value: value) -> Any:
        """``take`` of what ``function`` returns, or None; 0 is a reading like any other."""
        try:
            return take(getattr(self.nvml, function)(*args))
        except AttributeError:
            self.notes[name] = f"{function} is not in this nvidia-ml-py"
        except self.nvml.NVMLError as error:
            self.notes[name] = f"{function}: {error}"
        return None
