"""What a set of samples says: quartiles, interval of the median, when to stop, and whether it may be quoted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from scipy import stats

# Thresholds of the verdict, each with its reason.
MIN_SAMPLES = 10  # below this the 95 % interval of a median spans nearly the whole sample
CLOCK_SPREAD = 0.05  # SM clock (max - min) / median over one window; a steady H200 shows 0
RESOLUTION_US = 0.5  # CUDA event tick; a launch shorter than this cannot be told from it
WIDTH = 0.0025  # stop once the 95 % interval of the median is within 0.25 %: two such studies tell 0.5 % apart
LAUNCH_BOUND = 3.0  # median under three empty launches: the launch is what was timed
OVER_ROOF = 1.03  # faster than this share of a measured ceiling is an error of the measurement
# NVML clock-event reasons that mean the clock was held down: software and hardware slowdown, thermal, power brake.
# Idle (1), application clocks (2), the power cap (4: normal for a card at its limit) and sync boost (16) do not.
THROTTLED = 0x8 | 0x20 | 0x40 | 0x80


def summarise(samples: Sequence[float]) -> dict[str, Any]:
    """The TIMES columns and the 95 % interval of the median (order statistics, distribution-free)."""
    low, high = interval(numpy.asarray(samples, dtype=float))
    return times(samples) | {"time_us_lo": low, "time_us_hi": high}


def times(samples: Sequence[float]) -> dict[str, Any]:
    """The TIMES columns."""
    values = numpy.asarray(samples, dtype=float)
    p25, p50, p75 = (float(value) for value in numpy.quantile(values, (0.25, 0.5, 0.75)))
    return {
        "n_samples": len(values),
        "time_us_min": float(values.min()),
        "time_us_p25": p25,
        "time_us_p50": p50,
        "time_us_p75": p75,
        "samples_us": [float(value) for value in values],
    }


def interval(values: numpy.ndarray[Any, Any]) -> tuple[float | None, float | None]:
    """95 % interval of the median; null ends where the sample is too small to have one."""
    if len(values) < 6:
        return None, None
    found = stats.quantile_test(values, p=0.5).confidence_interval(0.95)
    low, high = float(found.low), float(found.high)
    return (low if numpy.isfinite(low) else None), (high if numpy.isfinite(high) else None)


def narrow(samples: Sequence[float]) -> bool:
    """True where the interval of the median is within WIDTH on both sides."""
    if len(samples) < MIN_SAMPLES:
        return False
    values = numpy.asarray(samples, dtype=float)
    low, high = interval(values)
    middle = float(numpy.median(values))
    return low is not None and high is not None and max(high - middle, middle - low) <= WIDTH * middle


def part(whole: Sequence[float], without: Sequence[float], noise: float) -> float | None:
    """Microseconds a launch that a part takes: the median of ``whole`` less that of the samples ``without`` it, of the
    same rounds.

    None where it could be noise: where the 95 % intervals of the two medians meet, or it is no larger a share of the
    median than ``noise``, by which a contender and its A/A twin differed in the same race.
    """
    total, rest = (numpy.asarray(samples, dtype=float) for samples in (whole, without))
    low, high = interval(total)[0], interval(rest)[1]
    middle = float(numpy.median(total))
    found = middle - float(numpy.median(rest))
    if low is None or high is None or low <= high or found <= noise * middle:
        return None
    return found


def over_roof(moved_bytes: int, time_us: float, ceiling_gbps: float | None) -> str | None:
    """Why a time cannot be: its bandwidth is over OVER_ROOF times the measured ceiling; None where it can be, and where
    no ceiling is known."""
    gbps = moved_bytes / time_us / 1e3
    if not ceiling_gbps or gbps <= OVER_ROOF * ceiling_gbps:
        return None
    return f"{gbps:.0f} GB/s is over the measured ceiling of {ceiling_gbps:.0f} GB/s"


def launch_bound(time_us: float, floor_us: float | None) -> bool | None:
    """Whether the launch is what was timed; None without a floor."""
    return time_us < LAUNCH_BOUND * floor_us if floor_us else None


def verdict(times: dict[str, Any], clocks: dict[str, Any], shared: bool | None) -> str:
    """Whether the time may be quoted; the first objection wins."""
    if shared:
        return "shared_gpu"
    if times["n_samples"] < MIN_SAMPLES:
        return "too_few"
    if times["time_us_p50"] < RESOLUTION_US:
        return "below_resolution"
    if (clocks.get("throttle_reasons") or 0) & THROTTLED:
        return "throttled"
    low, middle, high = (clocks.get(f"sm_clock_mhz_{name}") for name in ("min", "p50", "max"))
    if low is not None and middle and high is not None and (high - low) / middle > CLOCK_SPREAD:
        return "clock_drift"
    return "quotable"
