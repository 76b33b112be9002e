"""A thousand archived runs: what would no longer fit memory, a coffee break, or a page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from normbench import measured, schema
from study_fixture import Study

pytestmark = pytest.mark.slow
RUNS, RUNS_A_DEVICE, DEVICES_A_MODEL = 1000, 5, 40
COLLECT_S, COLLECT_BYTES, INDEX_BYTES = 60, 4 << 30, 2_000_000


def template() -> tuple[Study, dict[str, pl.DataFrame]]:
    """One run of 5,000 rows, most of them tuning, as a study has them."""
    study = Study(hidden=tuple(range(1024, 65 * 1024, 1024)), dtype="bf16")
    tuned = pl.concat([study.cases(stem) for stem in ("naive", "cta_row", "triton_row")])
    cases = pl.concat(
        [
            tuned.with_columns(variant=pl.lit(json.dumps({"block": block})), block=pl.lit(block, pl.Int32))
            for block in range(32, 384, 32)
        ]
    )
    resources = [study.resources(stem, arch) for stem in ("naive", "cta_row") for arch in study.archs]
    return study, {
        "cases": cases,
        "showdown": study.race(),
        "ceilings": study.ceilings(),
        "resources": pl.concat(resources),
    }


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 runs of 200 devices of 5 models, each with times of its own."""
    data = tmp_path_factory.mktemp("large") / "data"
    study, tables = template()
    assert sum(frame.height for frame in tables.values()) >= 5000
    for number in range(RUNS):
        chip = number // RUNS_A_DEVICE
        device, run = f"invented-gpu-{chip:06x}", f"2020{1 + number % RUNS_A_DEVICE:02d}02T030405-abcdef0"
        folder = data / device / run
        folder.mkdir(parents=True)
        for name, frame in tables.items():
            own = frame.with_columns(device=pl.lit(device), run=pl.lit(run))
            if "time_us_p50" in own.columns:
                own = own.with_columns(pl.col("time_us_p50") * (1 + chip / 10_000))
            own.write_parquet(folder / f"{name}.parquet", compression="lz4", statistics=False)
        model = f"invented-{chip // DEVICES_A_MODEL}"
        (folder / "machine.json").write_text(
            json.dumps(study.machine() | {"device": device, "run": run, "model": model})
        )
        (folder / "study.json").write_text(json.dumps(study.document()))
    return data


def verb(*arguments: object) -> tuple[float, int]:
    """CPU and wall seconds, the lesser, and peak memory in bytes of a verb in a process of its own.

    On a machine that does other work the wall says little; with one core or more to itself CPU time is no less.
    """
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "normbench", *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return min(time.monotonic() - began, usage.ru_utime + usage.ru_stime), usage.ru_maxrss << 10


@pytest.fixture(scope="module")
def collected(archived: Path) -> tuple[Path, float, int]:
    folder = archived.parent / "tables"
    seconds, peak = verb("collect", "--results", archived.parent / "none", "--archive", archived, "--out", folder)
    return folder, seconds, peak


def test_collecting_takes_neither_more_than_a_minute_nor_more_than_4_gb(
    collected: tuple[Path, float, int], archived: Path
) -> None:
    folder, seconds, peak = collected
    rows = {
        name: pl.scan_parquet(folder / f"{name}.parquet").select(pl.len()).collect().item() for name in schema.TABLES
    }

    print(f"{rows}: {seconds:.1f} s, {peak / 2**30:.2f} GB")
    assert sum(rows.values()) >= 5_000 * RUNS
    assert seconds <= COLLECT_S
    assert peak <= COLLECT_BYTES
    assert len(json.loads((folder / "machines.json").read_text())) == RUNS


def test_the_index_is_one_page_of_bearable_size(collected: tuple[Path, float, int]) -> None:
    out = collected[0].parent / "index.html"
    seconds, peak = verb("index", "--tables", collected[0], "--out", out)

    print(f"{out.stat().st_size} bytes: {seconds:.1f} s, {peak / 2**30:.2f} GB")
    assert out.stat().st_size <= INDEX_BYTES
    assert seconds <= COLLECT_S
    assert peak <= COLLECT_BYTES
    text = out.read_text()
    assert text.count("<h2>") == RUNS // RUNS_A_DEVICE // DEVICES_A_MODEL
    assert f"of {DEVICES_A_MODEL} chips" in text
    assert text.count(".html") >= RUNS // RUNS_A_DEVICE


def test_a_page_reads_its_own_device_only(collected: tuple[Path, float, int]) -> None:
    one = measured.load(collected[0], "invented-gpu-000007")

    assert one.devices == ["invented-gpu-000007"]
    assert set(one.showdown["device"]) == {"invented-gpu-000007"}
    assert one.cases["run"].n_unique() == RUNS_A_DEVICE


def test_checking_takes_minutes_at_most(archived: Path) -> None:
    """Names of the runs are invented, so every run has its problem; what counts is that each is looked at."""
    process = subprocess.run(
        [sys.executable, "-m", "normbench", "archive", "check", str(archived)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert process.stdout.splitlines()[-1].startswith("1,000 runs of 200 devices: ")
