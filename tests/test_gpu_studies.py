"""Whole studies on a real GPU: two of them agree, 2 % is seen, and a kill, a fault or a hang loses nothing.

About four minutes on an H200, for which the studies compile: `pytest -m gpu tests/test_gpu_studies.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from normbench import archive, device
from normbench.archive import Run
from normbench.compare import compare
from workflow_fixture import REAL, Checkout, entries, measuring, wait_for_lines

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

STUDY = """\
ops: [layernorm, rmsnorm]
dtypes: [fp32, bf16]
regimes: [stream]
hidden: [512, 1024, 4096, 8192, 16384]
block: [128, 256, 512]
kernels: [cta_row, triton_row]
baselines: [copy, torch_eager]
tune_samples: 3
"""
# every fiftieth row once more: 2 % more blocks that read, reduce and write as the others do
SLOWER = (
    (
        'grid = "cdiv(rows * lanes, block) if lanes else rows"',
        'grid = "cdiv(cdiv(rows * 51, 50) * lanes, block) if lanes else cdiv(rows * 51, 50)"',
    ),
    (
        "const long long row = Threads::row();",
        "const long long row = Threads::row() - (Threads::row() < rows ? 0 : rows);",
    ),
)
FAULTY = """\
// /// kernel
// summary = "{summary}"
// ops = ["rmsnorm"]
// dtypes = ["fp32", "bf16"]
// [axes]
// block = [128]
// [[launches]]
// name = "{name}<{{T}}, {{W}}, {{NORM}}>"
// grid = "rows"
// block = "block"
// args = ["x", "gamma", "y", "rows", "hidden"]
// ///
template <typename T, typename W, int NORM>
__global__ void {name}(const T* x, const W* gamma, T* y, long long rows, int hidden) {{
    {deed}
}}
"""
DEEDS = {
    "astray": "if (threadIdx.x == 0) *reinterpret_cast<volatile int*>(blockIdx.x + 4) = hidden;",
    "endless": "volatile int forever = 1; while (forever) { }",
}


GPUS = device.discover(os.environ.get(device.VISIBLE)).gpus


@pytest.fixture(scope="module")
def target() -> str:
    return GPUS[0].device


@dataclass
class Studied:
    """A checkout and every study that was measured in it."""

    checkout: Checkout
    runs: list[Run]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory, target: str) -> Studied:
    """A study of two ops, two types and five sizes, measured twice by the same code."""
    checkout = Checkout.make(tmp_path_factory.mktemp("studied") / "checkout")
    checkout.path("tiny.yaml").write_text(STUDY)
    return Studied(checkout, [measured(checkout, target) for _ in range(2)])


def measured(checkout: Checkout, target: str) -> Run:
    """The checkout's study, with nothing left of an earlier one but the ceilings."""
    for folder in ("journal", "cases", "showdown"):
        shutil.rmtree(checkout.path("results", target, folder), ignore_errors=True)
    checkout.path("results", target, "study.json").unlink(missing_ok=True)
    checkout.run("measurements", gpu=REAL, cores=8)
    return archive.read_local(checkout.path("results", target), checkout.path("results", "build"))


def test_two_studies_by_the_same_code_that_differ(studied: Studied) -> None:
    found = compare(*studied.runs[:2])

    print(found.counts, found.margins)
    assert len(found.rows) >= 60
    assert found.counts["SAME"] >= 0.9 * len(found.rows)
    assert found.counts["SLOWER"] <= 0.01 * len(found.rows)


def test_a_slowdown_of_two_percent_that_is_not_seen(studied: Studied, target: str) -> None:
    source = studied.checkout.path("kernels", "forward", "cta_row.cu")
    text = source.read_text()
    for old, new in SLOWER:
        assert text.count(old) == 1
        text = text.replace(old, new)
    source.write_text(text)

    slower = measured(studied.checkout, target)

    rows = [row for row in compare(studied.runs[1], slower).rows if row.contender == "cta_row"]

    print(sorted((row.verdict, round(row.ratio, 4), row.op, row.dtype, row.hidden) for row in rows))
    assert len(rows) == 20
    assert sum(row.verdict == "SLOWER" for row in rows) >= 0.95 * len(rows)


def test_a_kill_that_makes_a_finished_case_run_again(tmp_path: Path, target: str) -> None:
    checkout = Checkout.make(tmp_path / "killed")
    checkout.path("tiny.yaml").write_text(STUDY)
    journal = checkout.path("results", target, "journal", "measure-triton_row.jsonl")
    table = checkout.path("results", target, "cases", "triton_row.parquet")
    wanted = str(table.relative_to(checkout.folder))
    running = subprocess.Popen(
        checkout.command("--cores", "8", wanted, "--configfile", "tiny.yaml"),
        cwd=checkout.folder,
        env=checkout.environment(REAL),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_lines(journal, random.randint(3, 20), running)
    for process in measuring(running.pid):
        os.kill(process, signal.SIGKILL)

    assert running.wait(60) == 1
    assert not table.exists()
    known = entries(journal)
    checkout.run(wanted, gpu=REAL, cores=8)
    everything = entries(journal)
    assert everything[: len(known)] == known
    assert len(everything) == len(set(everything)) > len(known) >= 3


def test_a_fault_or_a_hang_that_takes_others_with_it(tmp_path: Path, target: str) -> None:
    checkout = Checkout.make(tmp_path / "faulty")
    for name, deed in DEEDS.items():
        kernel = checkout.path("kernels", "forward", f"{name}.cu")
        kernel.write_text(FAULTY.format(name=name, deed=deed, summary=f"{name}, on purpose"))
    checkout.path("tiny.yaml").write_text(STUDY)
    small = ("--config", "ops=rmsnorm", "hidden=[4096]", "kernels=[cta_row,astray,endless]", "timeout_s=8")

    checkout.run("measurements", *small, gpu=REAL, cores=8)

    races = pl.read_parquet(checkout.path("results", target, "showdown", "rmsnorm.parquet"))
    status = {row["contender"]: row["status"] for row in races.iter_rows(named=True) if row["dtype"] == "bf16"}
    assert status.pop("astray") in ("launch_error", "skipped")
    assert status.pop("endless") in ("timeout", "skipped")
    assert set(status.values()) == {"ok"}
    for name, wanted in (("astray", "launch_error"), ("endless", "timeout")):
        cases = pl.read_parquet(checkout.path("results", target, "cases", f"{name}.parquet"))
        assert set(cases["status"]) == {wanted}, json.dumps(cases["reason"].to_list())


def test_another_process_on_the_gpu_that_is_not_seen() -> None:
    from normbench.observe import Observer

    nvml = device.Nvml(GPUS[0].uuid)
    before = Observer(nvml).shared()
    text = "import torch, time; torch.ones(1, device='cuda'); print('on', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "on\n"
            assert Observer(nvml).shared() is True
        finally:
            other.kill()
    assert before is False
