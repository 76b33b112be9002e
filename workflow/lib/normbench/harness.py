"""What the measuring verbs share: a worker's task, one measurement per GPU at a time, ceilings by point, progress."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from filelock import FileLock, Timeout

from normbench import config, cores, device, metrics, schema, sources, sweep
from normbench.cli import UserError
from normbench.journal import Done, Journal
from normbench.points import Point, canonical_json, short_hash
from normbench.supervise import Supervisor

LOCK_WAIT_S = 24 * 3600.0
LAUNCHED_BY = ("tune_samples", "race_ms", "block")  # settings of the study that decide a row beside its point


def add_arguments(parser: argparse.ArgumentParser, journal: bool = True) -> None:
    """Arguments every measuring verb has; ``journal``: it keeps one, since its work is more than a few processes."""
    parser.add_argument("--target", required=True, help="device id of a local GPU, or a name of the fleet")
    parser.add_argument("--machine", type=Path, required=True, help="its machine.json")
    parser.add_argument("--sweep", type=Path, required=True, help="the study's sweep.json")
    if journal:
        parser.add_argument("--journal", type=Path, help="default: results/<target>/journal/<verb>.jsonl")
    else:
        parser.set_defaults(journal=None)
    parser.add_argument("--out", type=Path, required=True, help="parquet file to write")


class Measurement:
    """One measuring verb on one GPU."""

    def __init__(self, args: argparse.Namespace, verb: str, name: str) -> None:
        self.args, self.verb, self.name = args, verb, name
        self.machine = json.loads(args.machine.read_text())
        self.gpu = recorded_gpu(args.target, self.machine["device"])
        document = json.loads(args.sweep.read_text())
        self.study = config.load(document["study"])
        self.points = sweep.read(args.sweep, self.machine.get("memory_bytes"))
        self.journal_path = args.journal or Path("results", args.target, "journal", f"{name}.jsonl")

    def task(self, **more: Any) -> dict[str, Any]:
        """What a worker is told; ``more`` is the verb's own."""
        return {
            "verb": self.verb,
            "uuid": self.gpu.uuid,
            "device": self.gpu.device,
            "sources": sources.sources(),
            "study": {name: getattr(self.study, name) for name in (*LAUNCHED_BY, "timeout_s")},
            "environment": environment(self.args.target) | self._fake(),
        } | more

    def _fake(self) -> dict[str, str]:
        """A faked GPU of several, as the only one the worker sees; what CUDA_VISIBLE_DEVICES does to a real one."""
        if self.gpu.fake is None:
            return {}
        path = Path("results", self.args.target, "fake_gpu.json").absolute()
        with schema.atomic(path) as temporary:
            temporary.write_text(json.dumps(self.gpu.fake))
        return {device.FAKE: str(path)}

    def context(self, *decides: object) -> str:
        """Hash of what decides the numbers of this verb's rows beside the point: ``decides``, our sources, versions."""
        settings = {name: getattr(self.study, name) for name in LAUNCHED_BY}
        versions = sources.versions(self.machine.get("driver"))
        return short_hash(canonical_json([*decides, sources.measuring(), versions, self.gpu.uuid, settings]), 16)

    def run(self, task: dict[str, Any], ticks: int, context: str) -> Done:
        """Supervise the task's worker, which ticks about ``ticks`` times, under the GPU's lock; all finished units."""
        with gpu_lock(self.gpu.uuid), progress(self.name, ticks) as tick:
            return Supervisor(task, Journal(self.journal_path, context), self.study.timeout_s, tick).run()


def recorded_gpu(target: str, chip: str) -> device.Gpu:
    """The GPU whose device id, and so whose UUID, the target's machine.json has.

    A local target is a device id. The target of a fleet gets what its scheduler gives, which must be the same chip from
    the first step to the last: numbers of two chips are no study of one.

    Raises:
        UserError: it is not here, or not given to this job.
    """
    if target == chip:
        return device.find(target)
    try:
        return device.find(chip, os.environ.get(device.VISIBLE))
    except UserError as error:
        raise UserError(
            f"target {target} was begun on another chip ({error}); run this job where {chip} is, or remove "
            f"results/{target}/machine.json to begin anew, which keeps what was finished on {chip} for its return"
        ) from error


def environment(target: str) -> dict[str, str]:
    """Where JIT compilers keep what ``warm`` compiled, and all cores of this process for them, since it times nothing
    while they compile."""
    cache = Path("results", target, "jit").absolute()
    threads = str(len(cores.available()))
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "QUACK_CACHE_DIR": str(cache / "quack"),
        "FLASHINFER_WORKSPACE_BASE": str(cache / "flashinfer"),
        "OMP_NUM_THREADS": threads,
    }


def build_file(paths: Iterable[str]) -> str | None:
    """The build of a CUDA kernel among the files of ``--build``; None for the others, which have none."""
    return next((path for path in paths if path.endswith(".json")), None)


def write(rows: Iterable[dict[str, Any]], table: schema.Table, path: Path) -> None:
    """Rows of finished units as one table file."""
    known = table.schema
    columns: dict[str, list[Any]] = {name: [] for name in known}
    for row in rows:
        for name, values in columns.items():
            values.append(row.get(name))
    schema.write(pl.DataFrame(columns, schema=known, strict=False), table, path)


@contextlib.contextmanager
def gpu_lock(uuid: str) -> Iterator[None]:
    """One measurement per GPU at a time, whoever started it."""
    path = Path(tempfile.gettempdir(), f"normbench-{short_hash(uuid, 12)}.lock")
    lock = FileLock(path, mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another normbench on this GPU ({path})", file=sys.stderr)
        lock.acquire(timeout=LOCK_WAIT_S)
    try:
        yield
    finally:
        lock.release()


class Ceilings:
    """Measured ceilings of a device, looked up by point."""

    def __init__(self, path: Path) -> None:
        self.rows = schema.read(path, schema.CEILINGS).rows(named=True)

    def launch_floor_us(self) -> float | None:
        return next((row["value"] for row in self.rows if row["name"] == "launch_floor"), None)

    def of(self, point: Point) -> dict[str, Any] | None:
        """The row of the point's access mix at the nearest size; None outside the stream regime."""
        return metrics.nearest_roof(self.rows, point)

    def values(self, points: Iterable[Point]) -> dict[str, float]:
        """GB/s by point key."""
        return {point.key: row["value"] for point in points if (row := self.of(point))}

    def variants(self, points: Iterable[Point]) -> dict[str, Any]:
        """Winning stream variant by point key."""
        rows = ((point.key, self.of(point)) for point in points)
        return {key: json.loads(row["variant"]) for key, row in rows if row and row["variant"]}


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar with the remaining time on the terminal, whatever stderr is redirected to; else plain lines on stderr."""
    terminal = _terminal()
    if terminal is None:
        done = 0

        def line(text: str) -> None:
            nonlocal done
            done += 1
            print(f"{title}: {done}/{total} {text}", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with terminal, Progress(*columns, console=Console(file=terminal, force_terminal=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda text: bar.update(task, advance=1, description=f"{title} {text}")


def _terminal() -> Any | None:
    try:
        return Path("/dev/tty").open("w")
    except OSError:
        return None


def chosen(points: Iterable[Point], **wanted: str) -> list[Point]:
    """Points whose fields have the wanted values.

    Raises:
        UserError: none is left.
    """
    found = [point for point in points if all(getattr(point, name) == value for name, value in wanted.items())]
    if not found:
        raise UserError(f"the study has no point with {', '.join(f'{k} {v}' for k, v in wanted.items())}")
    return found
