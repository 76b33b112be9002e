"""What ``audit``, ``sanitize`` and ``profile`` recorded, in words: for the page, and for ``normbench show``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import formats
from normbench.measured import Measured

OWN = "normbench"
# what each timer covers; the order of the columns
METHODS = {
    OWN: "our own: median of replays of a CUDA graph of many launches over rotating buffers, both contenders of a "
    "point interleaved, half of the samples before and half after the other timers; gaps between launches are in it",
    "nvbench": "NVBench, cold: median of single launches between two events behind a blocking kernel, so that the host "
    "is not in it; a memset as large as L2 before each leaves lines in L2 that the launch must write back",
    "nvbench_batch": "NVBench, batch: mean of one batch of launches back to back over the same rotating buffers; where "
    "a launch takes the host longer than the GPU, it is the host that is timed",
    "do_bench": "triton.testing.do_bench: median of single launches between events, a memset of 256 MB before each, "
    "behind which the host runs ahead where a launch takes the host less time than the memset takes the GPU",
}
LONG_US = 50.0  # below, what an event and a launch cost is no longer small beside the launch
AGREE = 0.02
STALLS = {
    "long_scoreboard": "loads from global or local memory",
    "short_scoreboard": "shared memory or special functions",
    "barrier": "a barrier of the block",
    "lg_throttle": "room in the queue of global loads and stores",
    "mio_throttle": "room in the queue of shared memory and special functions",
    "math_pipe_throttle": "an arithmetic unit",
    "wait": "the fixed latency of an instruction",
    "not_selected": "their turn",
    "drain": "stores to leave before the end",
    "membar": "a memory fence",
    "no_instruction": "instructions to be fetched",
    "branch_resolving": "a branch",
    "dispatch_stall": "the dispatcher",
    "imc_miss": "constants",
    "sleeping": "sleep to end",
    "tex_throttle": "room in the texture queue",
    "gmma": "the matrix unit",
    "misc": "something else",
}
CLEAN = ("ok", "skipped")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One contender at one point under every timer. cells: (text, off by more than AGREE) in the order of METHODS."""

    work: str
    contender: str
    cells: Sequence[tuple[str, bool]]


@dataclass(frozen=True)
class Audit:
    """The cross-check of a device. conclusion: a sentence with the largest deviation; missing: why a timer has none."""

    lines: Sequence[Line]
    methods: Mapping[str, str]
    conclusion: str
    missing: Sequence[str]


def deviations(audit: pl.DataFrame) -> pl.DataFrame:
    """Rows of other timers with a time; ``deviation`` is their median over our own of the same launches, minus one.

    Less what the SM clock explains: at another clock the same launch takes something between the same time (memory is
    its limit) and the same cycles (the multiprocessors are). A timer that works a GPU for a second meets a lower clock
    than one that works it for some milliseconds, and is as right. In time alone where a clock is unknown.
    """
    keys = ["device", "run", "point", "contender"]
    ours = audit.filter(pl.col("method") == OWN).select(*keys, own_us="time_us_p50", own_mhz="sm_clock_gpu_mhz")
    in_time = pl.col("time_us_p50") / pl.col("own_us") - 1
    in_cycles = ((in_time + 1) * pl.col("sm_clock_gpu_mhz") / pl.col("own_mhz") - 1).fill_null(in_time)
    explained = in_time.sign() * in_cycles.sign() < 0
    unexplained = pl.when(in_cycles.abs() < in_time.abs()).then(in_cycles).otherwise(in_time)
    return (
        audit.filter((pl.col("method") != OWN) & pl.col("time_us_p50").is_not_null())
        .join(ours, on=keys, how="inner")
        .with_columns(deviation=pl.when(explained).then(0.0).otherwise(unexplained))
        .drop_nulls("deviation")
    )


def audit(frame: pl.DataFrame) -> Audit | None:
    """None where nothing was audited."""
    if frame.is_empty():
        return None
    off = {(row["point"], row["contender"], row["method"]): row["deviation"] for row in deviations(frame).to_dicts()}
    lines = []
    for (point, contender), rows in frame.sort("dtype", "op", "hidden", "rows", "contender").group_by(
        "point", "contender", maintain_order=True
    ):
        found = {row["method"]: row for row in rows.to_dicts()}
        first = rows.row(0, named=True)
        cells = [_cell(found.get(method), off.get((point, contender, method))) for method in METHODS]
        lines.append(Line(f"{first['op']} {first['dtype']} {first['shape']}", str(contender), cells))
    return Audit(lines, METHODS, conclusion(frame), list(_missing(frame)))


def _cell(row: Row | None, deviation: float | None) -> tuple[str, bool]:
    if row is None or row["time_us_p50"] is None:
        return "–", False
    time = f"{row['time_us_p50']:.4g} µs"
    return (time, False) if deviation is None else (f"{time} ({deviation * 100:+.1f} %)", abs(deviation) > AGREE)


def conclusion(frame: pl.DataFrame) -> str:
    """The largest deviation over all timers on launches over LONG_US, and whether it is within AGREE."""
    found = deviations(frame).filter(pl.col("own_us") > LONG_US)
    if found.is_empty():
        return f"No other timer has a time for a launch of more than {LONG_US:.0f} µs."
    worst = found.sort(pl.col("deviation").abs(), "method", "contender").row(-1, named=True)
    each = found.group_by("method", maintain_order=True).agg(pl.col("deviation").abs().max()).sort("method")
    largest = ", ".join(f"{method} {value * 100:.1f} %" for method, value in each.iter_rows())
    verdict = "within" if abs(worst["deviation"]) <= AGREE else "not within"
    return (
        f"On launches of more than {LONG_US:.0f} µs the medians differ from ours by at most "
        f"{abs(worst['deviation']) * 100:.1f} %, {verdict} {AGREE * 100:.0f} %, beyond what other SM clocks explain "
        f"({largest}; the largest is {worst['contender']} {worst['op']} {worst['dtype']} {worst['shape']} "
        f"under {worst['method']})."
    )


def _missing(frame: pl.DataFrame) -> Iterator[str]:
    failed = frame.filter(pl.col("status") != "ok").group_by("method", "reason", maintain_order=True).len()
    for method, reason, count in failed.sort("method", "reason").iter_rows():
        yield f"{method}: {formats.plain(str(reason))} ({formats.quantity(count, 'row')})"


def sanitized(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """A kernel's checks, for its card: tool, words, whether it is clean or was not run."""
    return [
        {"tool": row["tool"], "words": _checked(row), "clean": row["status"] in CLEAN}
        for row in frame.sort("contender", "tool").iter_rows(named=True)
    ]


def _checked(row: Row) -> str:
    if row["status"] == "ok":
        return f"clean, {row['launched']:,} launches"
    if row["status"] == "findings":
        return f"{formats.quantity(row['errors'], 'finding')}, the first: {row['finding']}"
    return f"{row['status']}: {row['reason']}"


def profiled(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """A kernel's profiles, for its card: where, and (name, value) of each figure that is known."""
    found = []
    for row in frame.sort("contender", "op", "dtype", "hidden", "rows").iter_rows(named=True):
        where = f"{row['op']} {row['dtype']} {row['shape']}"
        reason = None if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        found.append({"where": where, "variant": row["variant"], "reason": reason, "figures": list(figures(row))})
    return found


def figures(row: Row) -> Iterator[tuple[str, str]]:
    """(name, value in words) of one profile row."""
    moved = traffic(row)
    if moved is not None:
        read, written = row["dram_read_bytes"], row["dram_write_bytes"]
        over = f"{moved / row['bytes']:.3f} × compulsory"
        yield "device memory", f"{read / 1e6:.1f} MB read, {written / 1e6:.1f} MB written, {over}"
        if row["profiled_us"]:
            yield "its throughput", f"{moved / row['profiled_us'] / 1e3:.0f} GB/s under the profiler"
    if row["l2_hit_rate"] is not None:
        yield "L2 hits", f"{row['l2_hit_rate'] * 100:.1f} %"
    for name, way in (("loads", "load"), ("stores", "store")):
        sectors = row[f"{way}_sectors"]
        words = [row[name], f"{sectors:.1f} sectors a request" if sectors is not None else None]
        if any(words):
            yield name, "; ".join(filter(None, words))
    if row["registers"] is not None:
        yield "registers", f"{row['registers']} a thread"
    if row["achieved_occupancy"] is not None:
        yield "occupancy", f"{row['achieved_occupancy'] * 100:.0f} % achieved"
    if row["stall"] is not None:
        waited = STALLS.get(row["stall"], row["stall"])
        yield "warps wait most for", f"{waited} ({row['stall']}, {row['stall_share'] * 100:.0f} % of the cycles)"


def traffic(row: Row) -> float | None:
    """Bytes read from and written to device memory; None where either is not known."""
    read, written = row["dram_read_bytes"], row["dram_write_bytes"]
    return None if read is None or written is None else float(read + written)


@dataclass(frozen=True)
class Notes:
    """What a kernel's card says beyond its times."""

    profiles: Sequence[Mapping[str, Any]]
    checks: Sequence[Mapping[str, Any]]
    versions: str


def of_kernel(one: Measured, name: str) -> Notes:
    profile, sanitize = (frame.filter(pl.col("contender") == name) for frame in (one.profile, one.sanitize))
    said = (("Nsight Compute", profile["version"]), ("Compute Sanitizer", sanitize["version"]))
    versions = (f"{tool} {version}" for tool, column in said for version in sorted(set(column.drop_nulls())))
    return Notes(profiled(profile), sanitized(sanitize), ", ".join(versions))


def text(name: str, frame: pl.DataFrame) -> Iterator[str]:
    """One table as lines."""
    if name == "audit":
        yield from _audit_text(audit(frame))
    elif name == "sanitize":
        for row in frame.sort("contender", "tool").iter_rows(named=True):
            yield f"{row['contender']:<16} {row['tool']:<10} {_checked(row)}"
    elif name == "profile":
        for contender, rows in frame.sort("contender").group_by("contender", maintain_order=True):
            for entry in profiled(rows):
                yield f"{contender[0]} {entry['where']} {formats.variant(entry['variant'])}"
                yield from ([f"  {entry['reason']}"] if entry["reason"] else _indented(entry["figures"]))


def _indented(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in pairs:
        yield f"  {name:<20} {value}"


def _audit_text(found: Audit | None) -> Iterator[str]:
    if found is None:
        return
    yield " ".join(f"{name:<22}" for name in ("", "", *METHODS)).rstrip()
    for line in found.lines:
        words = (line.work, line.contender, *(text for text, _ in line.cells))
        yield " ".join(f"{word:<22}" for word in words).rstrip()
    yield from found.missing
    yield found.conclusion


def bad(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows for which ``normbench show`` fails: findings, and checks that did not come to their end."""
    return frame.filter(~pl.col("status").is_in(CLEAN)) if name == "sanitize" else frame.clear()
