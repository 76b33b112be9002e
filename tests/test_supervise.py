"""Whatever a worker does becomes a row with a reason, the rest goes on, and nothing finished runs again."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from normbench.cli import UserError
from normbench.journal import Done, Journal
from normbench.supervise import Supervisor
from worker_fixture import Strange


@pytest.fixture
def strange(tmp_path: Path) -> Strange:
    return Strange(tmp_path)


def supervise(task: dict[str, Any], timeout_s: float = 30, journal: Journal | None = None) -> Done:
    return Supervisor(task, journal or Journal(None, ""), timeout_s, lambda _: None).run()


def outcomes(done: Done) -> dict[str, tuple[str, str | None]]:
    return {unit: (entry["row"]["status"], entry["row"].get("reason")) for unit, entry in done.items()}


OK = ("ok", None)


@pytest.mark.parametrize(
    ("deed", "status", "reason"),
    [
        ("crashes", "launch_error", "the process was ended by signal SIGSEGV"),
        ("leaves", "launch_error", "the process ended with code 7: the last words"),
        ("raises", "launch_error", "the process ended with code 1: RuntimeError: a bug"),
        ("loses the device", "launch_error", "the CUDA context is lost: an illegal memory access"),
    ],
)
def test_a_worker_that_ends_is_a_row_and_the_rest_goes_on(
    strange: Strange, deed: str, status: str, reason: str
) -> None:
    found = outcomes(supervise(strange.task(("a", "works"), ("b", deed), ("c", "works"))))

    assert (found["a"], found["c"]) == (OK, OK)
    assert found["b"][0] == status
    assert reason in str(found["b"][1])
    assert strange.noted("launch") == ["a", "b", "c"]
    assert len(strange.noted("worker")) == 2


def test_a_worker_that_hangs_is_ended_and_the_rest_goes_on(strange: Strange) -> None:
    began = time.monotonic()
    found = outcomes(supervise(strange.task(("a", "works"), ("b", "hangs"), ("c", "works")), timeout_s=1))

    assert found == {"a": OK, "b": ("timeout", "took longer than 1 s and was ended"), "c": OK}
    assert time.monotonic() - began < 20
    assert eventually(lambda: not any(alive(int(pid)) for pid in strange.noted("worker")))


def test_of_several_announced_together_each_is_tried_alone_and_only_the_guilty_is_blamed(strange: Strange) -> None:
    """A race: who broke the process cannot be told from the race."""
    task = strange.task(("a", "works"), ("b+c", "leaves"), suspected={"b": "works", "c": "crashes"})

    found = outcomes(supervise(task))

    assert [found[unit][0] for unit in "abc"] == ["ok", "ok", "launch_error"]
    assert strange.noted("launch") == ["a", "b+c", "b", "c"]


def test_suspects_that_are_well_alone_and_break_the_process_again_fail_together(strange: Strange) -> None:
    found = outcomes(supervise(strange.task(("a", "works"), ("b+c", "leaves"), ("d", "works"))))

    assert [found[unit][0] for unit in "abcd"] == ["ok", "launch_error", "launch_error", "ok"]
    assert strange.noted("launch") == ["a", "b+c", "b+c", "d"]


def test_a_hang_is_tried_again_by_whoever_starts_again(strange: Strange, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    supervise(strange.task(("a", "works"), ("b", "hangs")), timeout_s=1, journal=Journal(journal, ""))

    assert Journal(journal, "").load().keys() == {"a"}
    found = outcomes(supervise(strange.task(("a", "works"), ("b", "works")), journal=Journal(journal, "")))

    assert found == {"a": OK, "b": OK}
    assert strange.noted("launch") == ["a", "b", "b"]


def test_crashes_one_after_the_other_are_each_a_row(strange: Strange) -> None:
    units = [(str(index), "crashes") for index in range(4)]

    found = outcomes(supervise(strange.task(*units)))

    assert [found[unit][0] for unit, _ in units] == ["launch_error"] * 4


def test_a_child_that_keeps_the_pipe_open_does_not_keep_the_study(strange: Strange) -> None:
    began = time.monotonic()
    found = outcomes(supervise(strange.task(("a", "forks"), ("b", "works"))))

    assert found == {"a": OK, "b": OK}
    assert time.monotonic() - began < 20
    assert eventually(lambda: not any(alive(int(pid)) for pid in strange.noted("child")))


def test_a_child_that_keeps_the_pipe_open_does_not_hide_a_crash(strange: Strange) -> None:
    found = outcomes(supervise(strange.task(("a", "forks"), ("b", "crashes"), ("c", "works"))))

    assert [found[unit][0] for unit in "abc"] == ["ok", "launch_error", "ok"]
    assert eventually(lambda: not any(alive(int(pid)) for pid in strange.noted("child")))


def test_what_libraries_print_is_no_message(strange: Strange, capfd: pytest.CaptureFixture[str]) -> None:
    found = outcomes(supervise(strange.task(("a", "prints"), ("b", "works"))))

    assert found == {"a": OK, "b": OK}
    assert "no json at all" in capfd.readouterr().err


def test_what_libraries_print_before_the_worker_listens_is_no_message(strange: Strange) -> None:
    found = outcomes(supervise(strange.task(("a", "works"), environment={"CHATTY": "1"})))

    assert found == {"a": OK}


def test_a_worker_that_cannot_start_is_one_sentence(strange: Strange) -> None:
    with pytest.raises(UserError, match="the measuring process cannot run: the last words"):
        supervise(strange.task(("a", "works"), early="leaves"))

    assert len(strange.noted("worker")) == 2


def test_a_worker_that_forgets_what_is_done_does_not_run_for_ever(strange: Strange) -> None:
    """It announces the same unit again and again, and dies of it."""
    with pytest.raises(UserError, match="cannot run"):
        supervise(strange.task(("a", "crashes"), forgetful=True))


def test_a_task_larger_than_a_pipe_reaches_the_worker(strange: Strange) -> None:
    found = supervise(strange.task(("a", "works"), padding="x" * 1_000_000))

    assert outcomes(found) == {"a": OK}


def test_a_task_nobody_reads_is_no_broken_pipe(strange: Strange) -> None:
    """The worker's interpreter ends before it takes its task, which is larger than the pipe."""
    (strange.stand_in / "sitecustomize.py").write_text("import os; os.write(2, b'no interpreter\\n'); os._exit(9)")

    with pytest.raises(UserError, match="no interpreter"):
        supervise(strange.task(("a", "works"), padding="x" * 1_000_000))


def test_what_the_journal_knows_is_not_launched(strange: Strange, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    task = strange.task(("a", "works"), ("b", "crashes"))
    first = supervise(task, journal=Journal(journal, "c"))

    again = supervise(task, journal=Journal(journal, "c"))

    assert again == first
    assert strange.noted("launch") == ["a", "b"]


def test_ticks_arrive_in_order(strange: Strange) -> None:
    ticks: list[str] = []

    Supervisor(strange.task(("a", "works"), ("b", "works")), Journal(None, ""), 30, ticks.append).run()

    assert ticks == ["a", "b"]


def alive(pid: int) -> bool:
    """Runs, and is not only an entry its parent has not read yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker notices at its next message")
def test_a_kill_at_any_moment_runs_nothing_finished_again_and_leaves_no_worker(
    strange: Strange, tmp_path: Path
) -> None:
    """P5: the supervisor killed at twenty random moments, from before its worker starts to the middle of a case."""
    journal = tmp_path / "journal.jsonl"
    units = [(f"unit {index}", "works") for index in range(400)]
    command = strange.supervisor(strange.task(*units), journal)
    moment = random.Random(20)
    for turn in range(20):
        known = finished(journal)
        launched, workers = len(strange.noted("launch")), len(strange.noted("worker"))
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        if turn >= 3:  # the first kills come at any time, the others once a worker works
            eventually(lambda n=workers: len(strange.noted("worker")) > n)  # type: ignore[misc]
        time.sleep(moment.uniform(0, 0.4 if turn < 3 else 0.06))
        running.kill()
        running.wait()
        assert eventually(lambda: not any(alive(int(pid)) for pid in strange.noted("worker"))), "a worker lives on"
        assert not known & set(strange.noted("launch")[launched:]), "a finished case was launched again"

    assert 0 < len(finished(journal)) < len(units), "every kill came too early or too late"
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert finished(journal) == {unit for unit, _ in units}
    assert lines(journal) == len(units), "a finished case has two lines"


def finished(journal: Path) -> set[str]:
    return set(Journal(journal, "c").load())


def lines(journal: Path) -> int:
    """Whole lines; a kill may leave one cut short."""
    whole = 0
    for line in journal.read_text().splitlines():
        try:
            whole += bool(json.loads(line))
        except json.JSONDecodeError:
            continue
    return whole


def test_a_full_disk_loses_nothing_and_ends_in_an_error(strange: Strange, tmp_path: Path) -> None:
    """Room for about ten lines, then none, in the middle of one; later there is room again."""
    journal = tmp_path / "journal.jsonl"
    task = strange.task(*((f"unit {index}", "works") for index in range(30)))

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (1100, 1100))

    full = subprocess.run(
        strange.supervisor(task, journal), preexec_fn=little_room, capture_output=True, text=True, check=False
    )
    known = finished(journal)
    assert full.returncode == 1
    assert "File too large" in full.stderr
    assert 3 < len(known) < 30
    assert eventually(lambda: not any(alive(int(pid)) for pid in strange.noted("worker")))

    assert len(supervise(task, journal=Journal(journal, "c"))) == 30
    launched = strange.noted("launch")
    assert all(launched.count(unit) == 1 for unit in known)


def test_ctrl_c_keeps_what_is_finished_and_leaves_no_worker(strange: Strange, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    task = strange.task(*((f"unit {index}", "works") for index in range(400)))
    running = subprocess.Popen(strange.supervisor(task, journal), stderr=subprocess.DEVNULL)
    assert eventually(lambda: journal.exists() and len(finished(journal)) > 3)

    running.send_signal(signal.SIGINT)

    assert running.wait(20) != 0
    known = finished(journal)
    assert eventually(lambda: not any(alive(int(pid)) for pid in strange.noted("worker")))
    assert 3 < len(known) < 400
    assert len(supervise(task, journal=Journal(journal, "c"))) == 400
    launched = strange.noted("launch")
    assert all(launched.count(unit) == 1 for unit in known)
