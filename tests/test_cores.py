"""What would let two measurements, or a measurement and a compiler, share a core."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from normbench import cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="binding to cores needs Linux")
HOLD = """
import os, sys
from normbench import cores
with cores.own(1) as claimed:
    print(*claimed, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pool of claims of its own, so that a study running on this machine takes no part."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


def holder() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def claimed(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(core) for core in process.stdout.readline().split()]


def test_a_claim_binds_this_process_and_gives_everything_back() -> None:
    before = os.sched_getaffinity(0)

    with cores.own(1) as mine:
        assert os.sched_getaffinity(0) == set(mine)
        assert len(mine) == 1
        child = subprocess.run(["nproc"], capture_output=True, text=True, check=True)
        assert child.stdout.strip() == "1"

    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core cannot be shared out")
def test_two_processes_never_claim_the_same_core() -> None:
    processes = [holder() for _ in range(2)]
    try:
        first, second = (claimed(process) for process in processes)
    finally:
        for process in processes:
            process.communicate("\n")

    assert len(first) == len(second) == 1
    assert first != second


def test_a_killed_holder_frees_its_cores() -> None:
    process = holder()
    assert len(claimed(process)) == 1
    process.kill()
    process.communicate()

    with cores.own(len(cores.available())) as mine:
        assert sorted(mine) == sorted(cores.available())


def test_too_few_free_cores_bind_nothing_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getaffinity(0)
    process = holder()
    assert len(claimed(process)) == 1
    try:
        with cores.own(len(before)) as mine:
            assert mine == []
            assert os.sched_getaffinity(0) == before
    finally:
        process.communicate("\n")

    assert "not bound" in capsys.readouterr().err
    with cores.own(len(before)) as mine:
        assert len(mine) == len(before), "the cores of a failed claim were not given back"


def test_hardware_threads_of_a_core_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 to 3 with second threads 4 to 7: half of them must be two whole cores."""
    for core in range(8):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    assert cores.available() == [0, 4, 1, 5, 2, 6, 3, 7]
