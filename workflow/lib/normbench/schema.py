"""Tables at rest: every column's type, unit and meaning, and the rules a table must keep.

Null means "not measured". A column that is not listed here does not exist; a listed column that a file lacks is null.
``read`` and ``write`` are the only way tables reach or leave the disk, so a half-written or foreign file is never used.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

STATUSES = (
    "ok",
    "skipped",
    "compile_error",
    "launch_error",
    "wrong",
    "no_work",
    "timeout",
    "over_roof",
    "out_of_range",
    "findings",
)
VERDICTS = ("quotable", "clock_drift", "throttled", "shared_gpu", "too_few", "below_resolution")
DTYPES = ("fp32", "fp16", "bf16")
REGIMES = ("stream", "l2", "latency", "wide")
USUAL_REGIMES = REGIMES[:3]  # of a study, and of a contender that names no others
LANGS = ("cuda", "triton", "torch", "library")
TWIN = "__twin"  # ends the name under which a contender is raced a second time, for the noise floor
# what machine.json holds, in this order
MACHINE = (
    "device",
    "gpu_name",
    "model",
    "arch",
    "sm_count",
    "l2_bytes",
    "memory_bytes",
    "memory_bus_bits",
    "max_sm_clock_mhz",
    "max_mem_clock_mhz",
    "theoretical_gbps",
    "power_limit_w",
    "ecc",
    "mig",
    "driver",
    "cuda_driver",
    "nvrtc",
    "torch",
    "triton",
    "cuda_core",
    "cuda_bindings",
    "python",
    "baselines",
    "fake",
    "notes",
)


class SchemaError(ValueError):
    """A table breaks a rule of this module; the message names the file and the rule."""


@dataclass(frozen=True)
class Column:
    """One column: its name, polars type, unit ("" where it has none), meaning, and whether it may be null."""

    name: str
    dtype: pl.DataType | type[pl.DataType]
    unit: str
    meaning: str
    required: bool = False


@dataclass(frozen=True)
class Table:
    """One table: its columns in order and the columns that together identify a row.

    asked: made only by a target of its own, in parts below results/<target>/<name>/; a study without it is whole.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    asked: bool = False

    @property
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        return {column.name: column.dtype for column in self.columns}

    def empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.schema)


def _c(name: str, dtype: object, unit: str, meaning: str, required: bool = False) -> Column:
    return Column(name, dtype, unit, meaning, required)  # type: ignore[arg-type]


IDENTITY = (
    _c("device", pl.String, "", "GPU model slug and six hex digits of a hash of its UUID", True),
    _c("run", pl.String, "", "UTC time of the study and a hash of the sources that decide numbers", True),
    _c("op", pl.String, "", "operation, see ops.py", True),
    _c("dtype", pl.String, "", "element type of x and y: fp32, fp16, bf16", True),
    _c("rows", pl.Int64, "rows", "number of rows normalised", True),
    _c("hidden", pl.Int64, "elements", "elements in a row", True),
    _c(
        "regime",
        pl.String,
        "",
        "stream (bytes from memory), l2, latency (few rows, warm), wide (from memory, long rows)",
        True,
    ),
    _c("shape", pl.String, "", "shape of x as the caller sees it, e.g. 32768x4096", True),
    _c(
        "semantics", pl.String, "", "canonical JSON of what else defines the work; 'default' for the op's default", True
    ),
    _c("point", pl.String, "", "hash of op, dtype, rows, hidden, regime, shape and semantics", True),
    _c("contender", pl.String, "", "implementation: stem of a kernel file, or a baseline", True),
    _c("lang", pl.String, "", "cuda, triton, torch or library", True),
)
VARIANT = _c("variant", pl.String, "", "canonical JSON of the variant axes (block size, vectors a thread, ...)")
STATUS = (
    _c("status", pl.String, "", "ok, or what went wrong", True),
    _c("reason", pl.String, "", "why it is not ok, or is ok and not accurate, as a sentence a person can act on"),
)
ERRORS = (
    _c("err_max_abs", pl.Float64, "", "largest absolute error of the output against float64"),
    _c("err_ulp_max", pl.Float64, "ulp", "largest error in ulp of the output type at max(|y|, |gamma|, |beta|)"),
    _c("tolerance", pl.Float64, "", "absolute error allowed at the element that used the largest share of it"),
    _c("tolerance_used", pl.Float64, "", "largest error divided by its tolerance; at most 1 passes"),
)
STATIC = (
    _c("registers", pl.Int32, "registers", "registers a thread"),
    _c("spill_bytes", pl.Int32, "B", "bytes of spill stores and loads a thread, as ptxas reports them"),
    _c("smem_bytes", pl.Int32, "B", "static and dynamic shared memory a block"),
    _c("blocks_per_sm", pl.Int32, "blocks", "resident blocks a multiprocessor by registers, threads and shared memory"),
)
TIMES = (
    _c("n_samples", pl.Int32, "samples", "accepted timing samples"),
    _c("time_us_min", pl.Float64, "us", "fastest sample, per launch"),
    _c("time_us_p25", pl.Float64, "us", "first quartile"),
    _c("time_us_p50", pl.Float64, "us", "median"),
    _c("time_us_p75", pl.Float64, "us", "third quartile"),
    _c("samples_us", pl.List(pl.Float32), "us", "the samples in the order they were taken"),
)
CLOCKS = (
    _c("sm_clock_mhz_min", pl.Float64, "MHz", "lowest SM clock NVML reported over the timed window"),
    _c("sm_clock_mhz_p50", pl.Float64, "MHz", "median SM clock over the timed window"),
    _c("sm_clock_mhz_max", pl.Float64, "MHz", "highest SM clock over the timed window"),
    _c("sm_clock_gpu_mhz", pl.Float64, "MHz", "SM clock from counters inside the GPU; of a race, while all took part"),
    _c("mem_clock_mhz_p50", pl.Float64, "MHz", "median memory clock over the timed window"),
    _c("power_w_p50", pl.Float64, "W", "median board power; NVML refreshes it every 100 ms"),
    _c("temp_c_max", pl.Float64, "C", "highest GPU temperature over the timed window"),
    _c("throttle_reasons", pl.Int64, "bits", "union of NVML clock-event reasons over the window"),
)
JUDGED = (
    _c("verdict", pl.String, "", "whether the time may be quoted"),
    _c("launch_bound", pl.Boolean, "", "median under three times the empty-launch floor"),
    _c("measured_at", pl.String, "", "UTC time at which the row was finished, ISO 8601 to the second"),
    _c("sources", pl.String, "", "hash of the sources that decide numbers, when this row was made"),
)
CONTRACTS = (
    _c(
        "accurate",
        pl.Boolean,
        "",
        "within the float64 tolerance; in the regime wide an output without this that has bitwise_torch is ok too",
    ),
    _c("allclose_torch", pl.Boolean, "", "torch.allclose(torch eager's output, ours)"),
    _c("allclose_seed", pl.Boolean, "", "the same with atol 1e-5 in fp32, 1e-4 in 16-bit types"),
    _c("bitwise_torch", pl.Boolean, "", "bit for bit equal to torch eager's outputs, saved statistics among them"),
    _c("torch_kernel", pl.String, "", "what torch eager launched for those bits, as its profiler names it"),
    _c("torch_version", pl.String, "", "version of that torch and the CUDA it was compiled with"),
    _c("compiler", pl.String, "", "what compiled the contender, and its version"),
)

CASES = Table(
    "cases",
    "Tuning: every variant of every kernel at every point, timed alone.",
    (
        *IDENTITY,
        VARIANT,
        _c("block", pl.Int32, "threads", "threads a block"),
        *STATUS,
        *ERRORS,
        *STATIC,
        *TIMES,
        *CLOCKS,
        *JUDGED,
    ),
    ("device", "run", "point", "contender", "variant"),
)
SHOWDOWN = Table(
    "showdown",
    "The race: each kernel's best variant and every baseline, interleaved in one process on fresh samples.",
    (
        *IDENTITY,
        VARIANT,
        *STATUS,
        *ERRORS,
        *STATIC,
        *TIMES,
        _c("time_us_lo", pl.Float64, "us", "lower end of the 95 % interval of the median"),
        _c("time_us_hi", pl.Float64, "us", "upper end of the 95 % interval of the median"),
        _c(
            "reduce_us",
            pl.Float64,
            "us",
            "part of the median that only forms dgamma and dbeta: the median less that of the same launches without "
            "it, in the same rounds; null where there is no such part, or it is within the noise of the race",
        ),
        _c(
            "bytes",
            pl.Int64,
            "B",
            "compulsory bytes: each input read once, each output written once; of the device copy, what it copies",
        ),
        _c(
            "ceiling_gbps",
            pl.Float64,
            "GB/s",
            "measured ceiling of this access mix and size: the race's or the run's, the higher",
        ),
        *CLOCKS,
        *JUDGED,
        *CONTRACTS,
    ),
    ("device", "run", "point", "contender"),
)
CHECKS = Table(
    "checks",
    "Adversarial correctness: one row per contender, op, dtype and input.",
    (
        *IDENTITY,
        VARIANT,
        _c("case", pl.String, "", "name of the input, e.g. K1.2, ratio_1e4, hidden_1023", True),
        *STATUS,
        *ERRORS,
        *CONTRACTS,
        _c("failing_elements", pl.Int64, "elements", "elements outside the float64 tolerance"),
        _c("deterministic", pl.Boolean, "", "two runs gave the same bits"),
        _c("reproducible", pl.Boolean, "", "the same bits whatever the number of multiprocessors"),
        _c("measured_at", pl.String, "", "UTC time, ISO 8601 to the second"),
        _c("sources", pl.String, "", "hash of the sources that decide numbers, when this row was made"),
    ),
    ("device", "run", "point", "contender", "case"),
    asked=True,
)
CEILINGS = Table(
    "ceilings",
    "What the device reaches with our own streaming kernels and the library copy.",
    (
        _c("device", pl.String, "", "as in the other tables", True),
        _c("run", pl.String, "", "as in the other tables", True),
        _c(
            "name",
            pl.String,
            "",
            "copy, read, write, read2_write1, read2_write2, l2_copy, launch_floor, launch_floor_pdl or fma_fp32",
            True,
        ),
        _c("size_bytes", pl.Int64, "B", "bytes moved a launch", True),
        _c("value", pl.Float64, "see unit", "the best of the tuned variants", True),
        _c("unit", pl.String, "", "GB/s, us or TFLOP/s", True),
        _c("variant", pl.String, "", "canonical JSON of the winning variant"),
        _c("sm_clock_mhz_p50", pl.Float64, "MHz", "median SM clock over the window"),
        _c("measured_at", pl.String, "", "UTC time, ISO 8601 to the second"),
        _c("sources", pl.String, "", "hash of the sources that decide numbers"),
    ),
    ("device", "run", "name", "size_bytes"),
)
RESOURCES = Table(
    "resources",
    "What the compiler gave each variant on each architecture.",
    (
        _c("device", pl.String, "", "as in the other tables; null in results/build"),
        _c("run", pl.String, "", "as in the other tables; null in results/build"),
        _c("contender", pl.String, "", "stem of the kernel file", True),
        _c("lang", pl.String, "", "cuda or triton", True),
        _c("arch", pl.String, "", "sm_75 ... sm_120", True),
        _c("op", pl.String, "", "operation", True),
        _c("dtype", pl.String, "", "element type of x and y", True),
        _c("param_dtype", pl.String, "", "element type of gamma and beta", True),
        VARIANT,
        _c("launch", pl.Int32, "", "which of the kernel file's launches", True),
        _c("symbol", pl.String, "", "NVRTC name expression; an add op has one for each residual mode compiled", True),
        *STATUS,
        _c("block", pl.Int32, "threads", "threads a block"),
        *STATIC,
        _c("occupancy", pl.Float64, "", "resident warps over the architecture's maximum"),
        _c("compiler", pl.String, "", "compiler and version"),
    ),
    ("device", "run", "contender", "arch", "op", "dtype", "param_dtype", "variant", "launch", "symbol"),
)
MADE = (
    _c("measured_at", pl.String, "", "UTC time, ISO 8601 to the second"),
    _c("sources", pl.String, "", "hash of the sources that decide numbers, when this row was made"),
)
AUDIT = Table(
    "audit",
    "Cross-check: the same bound launches and buffers timed by normbench, by NVBench and by Triton's do_bench.",
    (
        *IDENTITY,
        VARIANT,
        _c("method", pl.String, "", "who timed: normbench, nvbench, nvbench_batch or do_bench", True),
        *STATUS,
        *TIMES,
        _c("sm_clock_gpu_mhz", pl.Float64, "MHz", "SM clock while this timer worked, from counters inside the GPU"),
        _c("version", pl.String, "", "version of the package that timed"),
        *MADE,
    ),
    ("device", "run", "point", "contender", "method"),
    asked=True,
)
SANITIZE = Table(
    "sanitize",
    "What compute-sanitizer says of each kernel on small odd shapes; ok is clean.",
    (
        _c("device", pl.String, "", "as in the other tables", True),
        _c("run", pl.String, "", "as in the other tables", True),
        _c("contender", pl.String, "", "stem of the kernel file", True),
        _c("lang", pl.String, "", "cuda or triton", True),
        _c("tool", pl.String, "", "memcheck, racecheck, initcheck or synccheck", True),
        *STATUS,
        _c("planned", pl.Int32, "launches", "launches asked for: shapes, types, ops and variants"),
        _c("launched", pl.Int32, "launches", "launches that ended under the tool; memcheck stops at the first fault"),
        _c("errors", pl.Int64, "errors", "errors, hazards and warnings the tool counted"),
        _c("finding", pl.String, "", "the first finding, its lines joined"),
        _c("version", pl.String, "", "version of compute-sanitizer"),
        *MADE,
    ),
    ("device", "run", "contender", "tool"),
    asked=True,
)
PROFILE = Table(
    "profile",
    "One launch of each kernel's winner under Nsight Compute, clocks as they are and buffers rotated as in the study; "
    "of some kernels also the fastest variant of each value of an axis.",
    (
        *IDENTITY,
        VARIANT,
        *STATUS,
        _c("kernels", pl.Int32, "kernels", "kernels the launch consists of; times and bytes are their sums"),
        _c("profiled_us", pl.Float64, "us", "GPU time under the profiler; not to be compared with a race"),
        _c("bytes", pl.Int64, "B", "compulsory bytes: each input read once, each output written once"),
        _c("dram_read_bytes", pl.Float64, "B", "bytes read from device memory"),
        _c("dram_write_bytes", pl.Float64, "B", "bytes written to device memory, while the kernels ran"),
        _c("l2_hit_rate", pl.Float64, "", "share of L2 sector lookups that hit, 0 to 1"),
        _c("load_sectors", pl.Float64, "sectors", "32-byte sectors a global load instruction of a warp touches"),
        _c("store_sectors", pl.Float64, "sectors", "32-byte sectors a global store instruction of a warp touches"),
        _c("loads", pl.String, "", "global load instructions in the machine code, by width: '16 B x 8, 2 B x 1'"),
        _c("stores", pl.String, "", "global store instructions in the machine code, by width"),
        _c("registers", pl.Int32, "registers", "registers a thread, the most of all kernels"),
        _c("achieved_occupancy", pl.Float64, "", "resident warps over the most a multiprocessor holds, 0 to 1"),
        _c("stall", pl.String, "", "what warps waited for most, in the profiler's word"),
        _c("stall_share", pl.Float64, "", "its share of the cycles between two instructions of a warp, 0 to 1"),
        _c("version", pl.String, "", "version of ncu"),
        *MADE,
    ),
    ("device", "run", "point", "contender", "variant"),
    asked=True,
)
TABLES = {table.name: table for table in (CASES, SHOWDOWN, CHECKS, CEILINGS, RESOURCES, AUDIT, SANITIZE, PROFILE)}
ASKED = tuple(name for name, table in TABLES.items() if table.asked)


def validate(frame: pl.DataFrame, table: Table, source: str = "") -> pl.DataFrame:
    """Return ``frame`` with exactly the columns of ``table``, cast and sorted by its key.

    Missing nullable columns become null (older archives), all-null columns take the right type, integers widen.

    Raises:
        SchemaError: unknown or missing column, lossy cast, null key, duplicate row, or a broken invariant.
    """
    where = f"{source or table.name}: "
    unknown = sorted(set(frame.columns) - set(table.schema))
    if unknown:
        raise SchemaError(f"{where}unknown column {unknown[0]!r} in table {table.name}")
    columns = []
    for column in table.columns:
        if column.name in frame.columns:
            _whole_numbers(frame[column.name], column, where)
            columns.append(pl.col(column.name).cast(column.dtype, strict=True))
        elif column.required:
            raise SchemaError(f"{where}column {column.name!r} is missing")
        else:
            columns.append(pl.lit(None, dtype=column.dtype).alias(column.name))
    try:
        frame = frame.select(columns)
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"{where}{error}") from error
    _refuse_broken(frame, table, where)
    return frame.sort(table.key, nulls_last=True)


def _whole_numbers(values: pl.Series, column: Column, where: str) -> None:
    """A cast to integers cuts fractions off without a word, so they are looked for."""
    if values.dtype.is_float() and column.dtype in (pl.Int32, pl.Int64) and (values != values.round()).any():
        raise SchemaError(
            f"{where}column {column.name!r} holds fractions, but it counts {column.unit or 'whole things'}"
        )


def _refuse_broken(frame: pl.DataFrame, table: Table, where: str) -> None:
    """Every rule at once over the whole frame, since most frames break none; then rule by rule for the sentence."""
    rules = list(_rules(table))
    twice = pl.struct(table.key).is_duplicated().any().alias("twice")
    broken = frame.select(twice, *(rule.any().fill_null(False).alias(str(i)) for i, (rule, _) in enumerate(rules)))
    if not any(broken.row(0)):
        return
    for index, (rule, sentence) in enumerate(rules):
        if broken[str(index)].item():
            raise SchemaError(where + sentence(frame.filter(rule)))
    key = frame.filter(frame.select(table.key).is_duplicated()).select(table.key).row(0, named=True)
    raise SchemaError(f"{where}two rows for {key}")


Rule = tuple[pl.Expr, Callable[[pl.DataFrame], str]]


def _rules(table: Table) -> Iterator[Rule]:
    """(what must not be, sentence about the rows where it is): a time exists only where the check passed, every failure
    has a reason, and what was not measured is null."""
    names = set(table.schema)
    for column in table.columns:
        if column.required:
            yield pl.col(column.name).is_null(), partial(_say, f"column {column.name!r} has nulls")
    for name, allowed in (("status", STATUSES), ("verdict", VERDICTS), ("dtype", DTYPES), ("regime", REGIMES)):
        if name in names:
            bad = pl.col(name).is_not_null() & ~pl.col(name).is_in(allowed)
            yield bad, partial(_say_value, name, f"is none of {', '.join(allowed)}")
    failed, timed = pl.col("status") != "ok", pl.col("time_us_p50").is_not_null()
    if "status" in names:
        mute = failed & pl.col("reason").is_null()
        yield mute, lambda rows: f"a row with status {rows['status'][0]!r} has no reason"
    if "time_us_p50" in names:
        yield timed & failed, partial(_say, "a time without a passed check")
        yield ~failed & ~timed & (pl.col("rows") > 0), partial(_say, "status ok without a time")
        yield timed & ~(pl.col("time_us_p50") > 0), partial(_say, "a time that is not positive")
    if "reduce_us" in names:
        part = pl.col("reduce_us").is_not_null()
        inside = pl.col("reduce_us").is_between(0, pl.col("time_us_p50"), closed="none").fill_null(False)
        yield part & ~inside, partial(_say, "a part that is not between 0 and the whole time")
    for name, dtype in table.schema.items():
        if dtype == pl.Float64:
            strange = pl.col(name).is_infinite() | pl.col(name).is_nan()
            yield strange, partial(_say, f"{name} holds NaN or infinity; not measured is null")


def _say(sentence: str, rows: pl.DataFrame) -> str:
    return sentence


def _say_value(name: str, sentence: str, rows: pl.DataFrame) -> str:
    return f"{name} {rows[name][0]!r} {sentence}"


def read(path: Path | str, table: Table, device: str | None = None) -> pl.DataFrame:
    """Read and validate one parquet file, or its rows of one device; the error names the file."""
    try:
        rows = pl.scan_parquet(path)
        frame = (rows if device is None else rows.filter(pl.col("device") == device)).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise SchemaError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from error
    return validate(frame, table, str(path))


def write(frame: pl.DataFrame, table: Table, path: Path | str) -> None:
    """Validate, sort and write ``frame`` so that ``path`` is either absent or whole."""
    frame = validate(frame, table, str(path))
    with atomic(path) as temporary:
        frame.write_parquet(temporary, compression="zstd", compression_level=12, statistics=False)


class atomic:
    """Context: a temporary path beside ``path``, renamed onto it on success and removed on failure."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        os.close(handle)
        self.temporary = Path(name)
        return self.temporary

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is None:
            self.temporary.chmod(0o644)
            self.temporary.replace(self.path)
        else:
            self.temporary.unlink(missing_ok=True)


def describe(only: str | None = None) -> str:
    """Every table (or ``only`` one) and its columns as text, for ``normbench columns``."""
    lines = []
    for table in [TABLES[only]] if only else TABLES.values():
        lines += [f"{table.name}: {table.meaning}", f"  key: {', '.join(table.key)}"]
        for column in table.columns:
            unit = f" [{column.unit}]" if column.unit else ""
            lines.append(f"  {column.name:<20} {_type_name(column.dtype):<14}{unit} {column.meaning}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _type_name(dtype: object) -> str:
    return str(dtype).replace("()", "").lower()
