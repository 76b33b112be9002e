"""What would let two measurements, or a measurement and a compiler, share a core."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from normbench import cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="binding to cores needs Linux")
HOLD = """
import os, sys
from normbench import cores
with cores.own(int(sys.argv[1])) as claimed:
    print(*claimed, flush=True)
    sys.stdin.readline()
"""
LOGICAL = 32


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pool of claims of its own, so that a study running on this machine takes no part."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


def holder(count: int = 1) -> subprocess.Popen[str]:
    """A process that claims cores, prints them, and keeps them until it is told a line."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def claimed(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 20)[0], "no cores within 20 s"
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


def test_a_claim_waits_until_others_are_done() -> None:
    """Nothing runs unbound beside a measurement because it came second."""
    everything = len(cores.available())
    first = holder(1)
    assert len(claimed(first)) == 1
    second = holder(everything)
    assert second.stderr is not None
    assert f"waits for {everything} cores" in second.stderr.readline()
    time.sleep(2 * cores.LOOK_S)
    assert second.poll() is None

    first.communicate("\n")

    assert len(claimed(second)) == everything
    second.communicate("\n")


def test_who_waits_is_not_overtaken_by_smaller_claims() -> None:
    """Else a measurement would wait for as long as there is something to compile."""
    first = holder(1)
    assert len(claimed(first)) == 1
    large, small = holder(len(cores.available())), None
    try:
        assert large.stderr is not None
        assert "waits for" in large.stderr.readline()
        small = holder(1)
        first.communicate("\n")
        assert len(claimed(large)) == len(cores.available())
    finally:
        for process in filter(None, (first, large, small)):
            process.communicate("\n" if process.poll() is None else None)


def test_more_cores_than_there_are_bind_nothing_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getaffinity(0)

    with cores.own(len(before) + 1) as mine:
        assert mine == []
        assert os.sched_getaffinity(0) == before

    assert f"not bound to cores: {len(before) + 1} were asked for" in capsys.readouterr().err


# hardware threads


@pytest.fixture
def threaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of 16 cores with two hardware threads each, numbered as Linux does: 0 and 16 are one core."""
    half = LOGICAL // 2
    for thread in range(LOGICAL):
        folder = tmp_path / f"cpu{thread}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{thread % half},{thread % half + half}\n")
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    bound = [set(range(LOGICAL))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(LOGICAL)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, threads: bound.append(set(threads)))


def test_hardware_threads_of_a_core_stand_side_by_side(threaded: None) -> None:
    assert cores.available()[:6] == [0, 16, 1, 17, 2, 18]


def test_no_two_claims_share_a_physical_core(threaded: None) -> None:
    """What compiles came first, then two measurements of four logical cores each, then a claim that fills no core."""
    with contextlib.ExitStack() as held:
        claims = [held.enter_context(cores.own(count)) for count in (1, 4, 4, 3, 1)]

    assert claims == [[0, 16], [1, 2, 17, 18], [3, 4, 19, 20], [5, 21], [6, 22]]
    physical = [{thread % 16 for thread in claim} for claim in claims]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(physical, 2))


@pytest.mark.parametrize("share", [1, 2, 3, 8, 15, 16])
def test_equal_shares_of_all_cores_fit_side_by_side(threaded: None, share: int) -> None:
    """K GPUs measure in parallel wherever --cores is no more than there are, and each has a core at least."""
    slots = min(LOGICAL // share, LOGICAL // 2)

    with contextlib.ExitStack() as held:
        claims = [held.enter_context(cores.own(share)) for _ in range(slots)]

    assert all(len(claim) == max(2, share // 2 * 2) for claim in claims)
