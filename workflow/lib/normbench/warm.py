"""Verb ``warm``: everything that compiles at its first call, compiled before anything is timed.

It also notes what torch eager launches at each point, by its profiler, which has no place beside timings.
Triton kernels, torch.compile, QuACK and FlashInfer each keep a cache on disk; this fills them from several processes at
once while nothing is measured, so that measuring processes only read. What Inductor found by timing its own choices
beside the other processes is thrown away: it tunes again, alone, when the race calls it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from normbench import contenders, cores, harness, kernelfile, schema
from normbench.harness import Measurement, progress
from normbench.points import Point, canonical_json
from normbench.showdown import baseline_path
from normbench.supervise import Lines, end_group, worker_environment
from normbench.tensors import set_bytes

Tick = Callable[[str], None]
JOB_S = 240.0  # a process silent for longer is ended
CONTEXT_BYTES = 2 << 30  # a CUDA context with torch's libraries, and room to compile
COSTS = {"torch_compile": 4.0, "liger": 0.5, "flashinfer": 0.2}  # seconds a job, about; 3 for the rest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser)
    parser.add_argument("--kernels", nargs="*", default=[], help="our Triton kernel files")
    parser.add_argument("--baselines", nargs="*", default=[], help="baseline files or stems")


def main(args: argparse.Namespace) -> int:
    measurement = Measurement(args, "warm", "warm")
    jobs = [] if measurement.gpu.fake else _jobs(args, measurement.points)
    shares = _shares(jobs, _processes(measurement))
    task = measurement.task()
    with harness.gpu_lock(measurement.gpu.uuid), progress("warm", len(jobs)) as tick:
        failures = _run(task, shares, tick)
        eager = {} if measurement.gpu.fake else _eager(task, measurement.points)
    _forget_choices(Path(task["environment"]["TORCHINDUCTOR_CACHE_DIR"]))
    with schema.atomic(args.out) as temporary:
        temporary.write_text(json.dumps({"jobs": len(jobs), "failures": failures, "eager": eager}, indent=1) + "\n")
    return 0


def _jobs(args: argparse.Namespace, points: list[Point]) -> list[dict[str, Any]]:
    """One job per spec and point, dearest first."""
    kernels = {path: kernelfile.load(path) for path in args.kernels}
    baselines = {path: contenders.load(path) for path in map(baseline_path, args.baselines)}
    compiled = {path: "hidden" for path, kernel in kernels.items() if kernel.lang == "triton"}
    compiled |= {path: baseline.jit for path, baseline in baselines.items()}
    regimes = {path: one.regimes for path, one in (kernels | baselines).items()}
    jobs = [
        {"spec": spec, "point": point.identity(), "cost": COSTS.get(Path(spec).stem, 3.0)}
        for spec, each in compiled.items()
        if each
        for served in [[point for point in points if point.regime in regimes[spec]]]
        for point in (served if each == "rows" else _largest(served))
    ]
    return sorted(jobs, key=lambda job: (-job["cost"], canonical_json(job)))


def _largest(points: list[Point]) -> list[Point]:
    """The point with the most rows of each op, dtype and hidden size, for what does not compile the row count in."""
    ranked = sorted(points, key=lambda point: point.rows)
    return list({(point.op, point.dtype, point.hidden): point for point in ranked}.values())


def _processes(measurement: Measurement) -> int:
    """As many as this process has cores and as fit the card."""
    memory = measurement.machine.get("memory_bytes") or (8 << 30)
    largest = max(set_bytes(point) for point in measurement.points)
    return max(1, min(len(cores.available()), int(0.8 * memory) // (2 * largest + CONTEXT_BYTES)))


def _shares(jobs: list[dict[str, Any]], processes: int) -> list[list[dict[str, Any]]]:
    """Greedy: each job to the lightest share."""
    shares: list[list[dict[str, Any]]] = [[] for _ in range(min(processes, len(jobs)))]
    for job in jobs:
        min(shares, key=lambda share: sum(entry["cost"] for entry in share)).append(job)
    return shares


def _run(task: dict[str, Any], shares: list[list[dict[str, Any]]], tick: Tick) -> dict[str, str]:
    """What failed to compile, by job; a failure here is no row: the race will meet it again and say so."""
    # one compile thread a process: the processes are the parallelism
    environment = worker_environment(task) | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(max(1, len(shares))) as pool:
        outcomes = list(pool.map(lambda share: _share(task, share, environment, tick), shares))
    failures = {name: reason for outcome in outcomes for name, reason in outcome.items()}
    return dict(sorted(failures.items()))


def _share(task: dict[str, Any], jobs: list[dict[str, Any]], environment: dict[str, str], tick: Tick) -> dict[str, str]:
    """Failures of one share. A process that a job ends is replaced for the jobs from there on; one that ends at its
    first job again costs that job, and a second one the rest."""
    failures: dict[str, str] = {}
    barren = 0
    while jobs and barren < 2:
        outcome = []
        for name, reason in _process(task | {"jobs": jobs}, environment):
            tick(name)
            outcome.append((name, reason))
        failures |= {name: reason for name, reason in outcome if reason}
        barren = 0 if outcome else barren + 1
        jobs = jobs[max(1, len(outcome)) :]
    return failures


def _process(
    task: dict[str, Any], environment: dict[str, str], module: str = "normbench.warming"
) -> Iterator[tuple[str, str]]:
    """(name, what is said of it) of each job that one process gets through; by default the reason of a failure."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(task).encode())
        process.stdin.close()
        lines = Lines(process, JOB_S)
        for line in lines:
            if line is None:
                return
            lines.patience(JOB_S)
            name, _, reason = line.decode().rstrip("\n").partition("\t")
            yield name, reason
    finally:
        end_group(process)


def _eager(task: dict[str, Any], points: list[Point]) -> dict[str, Any]:
    """What torch eager launches at each point, for the claims of a race; where its process fails, at those before."""
    asked = {"points": [point.identity() for point in points]}
    told = dict(_process(asked, worker_environment(task), "normbench.eager"))
    version = told.pop("version", None)
    if missing := len({point.key for point in points} - told.keys()):
        print(f"normbench warm: the kernels of torch eager are not known at {missing} points", file=sys.stderr)
    return {"version": version, "kernels": {key: names or None for key, names in told.items()}}


def _forget_choices(cache: Path) -> None:
    """Remove Inductor's autotuning results, which were timed beside other processes."""
    for path in cache.rglob("*.best_config"):
        path.unlink(missing_ok=True)
