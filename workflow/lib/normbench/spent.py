"""Where the time of a measuring process goes: a study's guards must not cost more than they are worth."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

SECONDS: dict[str, float] = defaultdict(float)  # by what the process was doing
ACTIVITIES = ("inputs", "checking", "binding", "timing")


@contextlib.contextmanager
def spending(activity: str) -> Iterator[None]:
    """Count the wall time of the block to one of ACTIVITIES; blocks must not lie in each other."""
    began = time.perf_counter()
    try:
        yield
    finally:
        SECONDS[activity] += time.perf_counter() - began


def summary() -> str:
    """One line for the log: seconds an activity, in the order of ACTIVITIES."""
    return ", ".join(f"{activity} {SECONDS[activity]:.1f} s" for activity in ACTIVITIES)
