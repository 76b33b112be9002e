"""What samples say: the interval of a median, when to stop, and what may be quoted."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any
from unittest.mock import MagicMock

import numpy
import pytest

from normbench import timing
from normbench.gpu import CudaGpu
from normbench.observe import Observer

STEADY = tuple(100 + 0.01 * index for index in range(30))


# the interval


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # order statistics l and u with P(X_(l) <= median <= X_(u)) >= 95 %, from tables of the binomial distribution
    [(6, 1, 6), (8, 1, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (25, 8, 18), (30, 10, 21), (50, 18, 33)],
)
def test_the_interval_of_the_median_is_that_of_the_tables(count: int, low: int, high: int) -> None:
    found = timing.interval(numpy.arange(1.0, count + 1))

    assert found == (low, high)
    covered = sum(math.comb(count, k) for k in range(low, high)) / 2**count
    assert covered >= 0.95


def test_the_interval_covers_the_median_of_a_lopsided_distribution() -> None:
    """Times have a long tail; an interval that takes them for normal is too narrow."""
    generator = numpy.random.default_rng(3)
    draws = generator.exponential(1.0, (400, 25))
    covered = sum(low <= math.log(2) <= high for low, high in map(timing.interval, draws))  # type: ignore[operator]

    assert 0.93 <= covered / 400 <= 0.995


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_too_few_samples_have_no_interval(count: int) -> None:
    """T7: nvbench#231, inf and nan as the ends of an interval."""
    times = timing.summarise(STEADY[:count])

    assert (times["time_us_lo"], times["time_us_hi"]) == (None, None)
    assert timing.verdict(times, {}, None) == "too_few"
    json.dumps(times, allow_nan=False)
    assert times["time_us_min"] <= times["time_us_p25"] <= times["time_us_p50"] <= times["time_us_p75"]


def test_one_and_two_samples_keep_what_they_say() -> None:
    """T7."""
    one, two = timing.summarise([5.0]), timing.summarise([5.0, 7.0])

    assert (one["n_samples"], one["time_us_p50"], one["samples_us"]) == (1, 5.0, [5.0])
    assert (two["time_us_min"], two["time_us_p50"], two["samples_us"]) == (5.0, 6.0, [5.0, 7.0])


def test_samples_are_kept_in_the_order_they_were_taken() -> None:
    assert timing.summarise([3.0, 1.0, 2.0])["samples_us"] == [3.0, 1.0, 2.0]


def test_quartiles_are_quartiles() -> None:
    times = timing.summarise([1, 2, 3, 4, 5])

    assert [times[f"time_us_{name}"] for name in ("min", "p25", "p50", "p75")] == [1, 2, 3, 4]


# when to stop


@pytest.mark.parametrize(
    ("samples", "enough"),
    [
        ([100.0] * 9, False),
        ([100.0] * 10, True),
        ([99.8, 100.2] * 15, True),
        ([99.6, 100.4] * 15, False),
        ([100.0] * 28 + [500.0] * 2, True),
        ([100.0] * 15 + [110.0] * 15, False),
    ],
    ids=["nine", "ten alike", "within", "wide", "two outliers", "two levels"],
)
def test_sampling_stops_once_the_median_is_known(samples: list[float], enough: bool) -> None:
    assert timing.narrow(samples) is enough


# what may be quoted

CLOCKS = {"sm_clock_mhz_min": 1980.0, "sm_clock_mhz_p50": 1980.0, "sm_clock_mhz_max": 1980.0, "throttle_reasons": 0}
DRIFT = {"sm_clock_mhz_min": 1700.0, "sm_clock_mhz_p50": 1980.0}


@pytest.mark.parametrize(
    ("samples", "clocks", "shared", "verdict"),
    [
        (STEADY, {}, False, "quotable"),
        (STEADY, {}, None, "quotable"),
        (STEADY, {"throttle_reasons": None}, None, "quotable"),
        (STEADY, dict.fromkeys(CLOCKS), None, "quotable"),
        (STEADY, {"throttle_reasons": 0x1 | 0x2 | 0x4 | 0x10}, False, "quotable"),
        (STEADY, {"throttle_reasons": 0x8}, False, "throttled"),
        (STEADY, {"throttle_reasons": 0x20}, False, "throttled"),
        (STEADY, {"throttle_reasons": 0x40}, False, "throttled"),
        (STEADY, {"throttle_reasons": 0x80 | 0x4}, False, "throttled"),
        (STEADY, DRIFT, False, "clock_drift"),
        (STEADY, {"sm_clock_mhz_min": 1900.0}, False, "quotable"),
        (STEADY, DRIFT | {"throttle_reasons": 0x40}, False, "throttled"),
        (STEADY, {}, True, "shared_gpu"),
        (STEADY[:9], {}, False, "too_few"),
        (STEADY[:2], {"throttle_reasons": 0x40}, True, "shared_gpu"),
        ([0.4] * 30, {}, False, "below_resolution"),
        ([0.5] * 30, {}, False, "quotable"),
    ],
)
def test_the_first_objection_is_the_verdict(
    samples: list[float], clocks: dict[str, Any], shared: bool | None, verdict: str
) -> None:
    """T7: thirty throttled samples are a row that is not quoted; a power cap and an idle clock are normal."""
    assert timing.verdict(timing.summarise(samples), CLOCKS | clocks, shared) == verdict


# the clock state of a window


class Nvml:
    """Readings handed out one after the other."""

    def __init__(self, *readings: dict[str, float | None], others: tuple[int, ...] = ()) -> None:
        self.readings, self.others = list(readings), others

    def clocks(self) -> dict[str, float | None]:
        return self.readings.pop(0)

    def other_processes(self, pid: int) -> list[int]:
        return [other for other in self.others if other != pid]


def watched(*readings: dict[str, float | None]) -> dict[str, float | int | None]:
    observer = Observer(Nvml(*readings))
    for _ in readings:
        observer.look()
    return observer.summary()


def test_a_window_is_told_by_its_lowest_median_and_highest_clock() -> None:
    found = watched(*({"sm_mhz": value, "power_w": 1.0, "temp_c": value / 100} for value in (1800.0, 1980.0, 1900.0)))

    assert [found[f"sm_clock_mhz_{name}"] for name in ("min", "p50", "max")] == [1800, 1900, 1980]
    assert (found["temp_c_max"], found["mem_clock_mhz_p50"]) == (19.8, None)


def test_a_reason_seen_once_is_a_reason() -> None:
    assert watched({"throttle_reasons": 0}, {"throttle_reasons": 0x40}, {"throttle_reasons": 4})[
        "throttle_reasons"
    ] == (0x44)


def test_a_clock_that_reads_zero_is_told_apart_from_none() -> None:
    assert watched({"sm_mhz": 0.0, "throttle_reasons": 0})["sm_clock_mhz_p50"] == 0
    assert watched({"sm_mhz": 0.0, "throttle_reasons": 0})["throttle_reasons"] == 0


def test_without_nvml_every_clock_is_null() -> None:
    """T13."""
    observer = Observer(None)
    observer.before()
    observer.after()
    observer.finished()

    assert set(observer.summary().values()) == {None}
    assert observer.shared() is None


class Clock:
    """Reads one value after the other."""

    def __init__(self, *mhz: float | None) -> None:
        self.left = list(mhz)

    def mark(self, index: int) -> None:
        pass

    def mhz(self) -> float | None:
        return self.left.pop(0)


@pytest.mark.parametrize(
    ("compared", "read", "mhz"),
    [
        (None, (1980.0, 1960.0, 1800.0), 1960),
        (2, (1980.0, 1960.0, 1800.0, 1800.0), 1970),  # who stays longer in a race sets the clock of what is left of it
        (2, (None, 1960.0, 1800.0), 1960),
    ],
)
def test_the_clock_inside_is_that_of_the_windows_to_be_compared(
    compared: int | None, read: tuple[float | None, ...], mhz: float
) -> None:
    observer = Observer(None, Clock(*read), compared)
    for _ in read:
        observer.finished()

    assert observer.summary()["sm_clock_gpu_mhz"] == mhz


def test_a_refused_reading_is_null_and_the_others_stay() -> None:
    """T11."""
    found = watched({"sm_mhz": None, "power_w": 300.0}, {"sm_mhz": None, "power_w": 320.0})

    assert (found["sm_clock_mhz_p50"], found["power_w_p50"], found["throttle_reasons"]) == (None, 310.0, None)


@pytest.mark.parametrize(("others", "shared"), [((), False), ((4_000_000,), True)])
def test_another_process_on_the_gpu_is_seen(others: tuple[int, ...], shared: bool) -> None:
    assert Observer(Nvml(others=others)).shared() is shared


@pytest.mark.parametrize("use", ["capture", "rounds"])
def test_our_stream_begins_behind_what_was_enqueued_before(use: str) -> None:
    """Zeroed scratch and poison are written on torch's current stream, and ours does not wait for it by itself."""
    gpu: Any = object.__new__(CudaGpu)
    calls = MagicMock()
    gpu.torch, gpu.stream, replay = calls.torch, calls.stream, calls.replay
    if use == "capture":
        gpu._record = lambda *_: (None, [])
        gpu.capture([calls.launch], 1)
    else:
        calls.torch.cuda.Event().elapsed_time.return_value = 1.0
        replay.launches = 1
        replay.turn.return_value = replay
        gpu.time_rounds([replay], [[0]], calls.observer)

    names = [name for name, _, _ in calls.mock_calls]
    waited = names.index("stream.wait_stream")
    assert calls.mock_calls[waited].args == (calls.torch.cuda.current_stream(),)
    assert waited < names.index("torch.cuda.stream") < names.index("launch" if use == "capture" else "replay.replay")


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(("failures", "ends"), [(0, None), (1, None), (2, OutOfMemoryError)])
def test_a_capture_that_lacks_memory_is_tried_again_with_what_nobody_uses(
    failures: int, ends: type[Exception] | None
) -> None:
    """A graph cannot use what torch keeps for others, and torch gives nothing back while one is captured."""
    gpu: Any = object.__new__(CudaGpu)
    calls = MagicMock()
    gpu.torch, gpu.stream = calls.torch, calls.stream
    calls.launch.side_effect = [*[OutOfMemoryError("full")] * failures, {"y": 1}]

    with pytest.raises(ends) if ends else contextlib.nullcontext():
        assert gpu._record([calls.launch], 1)[1] == [{"y": 1}]

    names = [name for name, _, _ in calls.mock_calls]
    assert names.count("torch.cuda.empty_cache") == min(failures, 1)
    assert names.count("torch.cuda.CUDAGraph().capture_end") == names.count("torch.cuda.CUDAGraph().capture_begin")


def test_what_is_wrong_with_a_capture_otherwise_is_said_at_once() -> None:
    gpu: Any = object.__new__(CudaGpu)
    calls = MagicMock()
    gpu.torch, gpu.stream = calls.torch, calls.stream
    calls.launch.side_effect = ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        gpu._record([calls.launch], 1)

    assert calls.launch.call_count == 1
