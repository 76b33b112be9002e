"""A study through a real Slurm, started here: what a dying node, a limit and a cancelled job leave behind.

Slow: two minutes on two cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil
import pytest
import yaml

from slurm_fixture import Slurm
from test_fleet import both
from workflow_fixture import OTHER, TARGET, Checkout

pytestmark = [pytest.mark.slow, pytest.mark.slurm]
LIMIT_S = 400
FLEET = {
    name: {"arch": arch, "gpu": f"Faked GPU {name[-1].upper()}", "gpu_model": name.replace("-", "_")}
    | {"cpus": 1, "mem_mb": 1500, "runtime": 10}
    for name, arch in (("faked-a", 90), ("faked-b", 80))
}
# what differs here from a cluster: no accounting, and no patience
HERE = ("--slurm-status-command", "squeue", "--slurm-no-account", "--latency-wait", "2")
# The plugin asks Slurm less and less often, and sleeps that long once more before it ends after a failure; here it asks
# every second. What it submits is plain Snakemake.
IMPATIENT = """
from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.next_seconds_between_status_checks = property(lambda self: 1, lambda self, seconds: None)
main()
"""
# long enough to be interrupted three times, in cases of milliseconds
WIDE = ("hidden=[32,64,128,256,512,1024]", "block=[64,128,256,512,1024]", "timeout_s=600")
CASES = "results/faked-a/cases/naive.parquet"
JOURNAL = "results/faked-a/journal/measure-naive.jsonl"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@dataclass(frozen=True)
class Submitter:
    """A checkout whose studies go to Slurm."""

    checkout: Checkout
    slurm: Slurm

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        settings = ("--show-failed-logs", "--profile", "workflow/profiles/slurm", *HERE)
        environment = self.checkout.environment("both") | {"PYTHONPATH": os.environ["PYTHONPATH"]}
        return subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, *settings, *arguments, "--configfile", "tiny.yaml"],
            cwd=self.checkout.folder,
            env=environment,
            stdout=self.checkout.path("snakemake.log").open("a"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, running: subprocess.Popen[str]) -> int:
        """Exit code; a Snakemake that hangs is ended with all it started, and the failure says what Slurm was at."""
        try:
            return running.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {LIMIT_S} s\n{self.log}\n{self.slurm.state()}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)

    @property
    def log(self) -> str:
        return self.checkout.path("snakemake.log").read_text()


@pytest.fixture(scope="module")
def submitter(tmp_path_factory: pytest.TempPathFactory, slurm: Slurm) -> Submitter:
    checkout = Checkout.make(tmp_path_factory.mktemp("submitted") / "study")
    both(checkout.folder, "a", "b").rename(checkout.path("fake_both.json"))
    checkout.path("fleet.yaml").write_text(yaml.safe_dump(FLEET))
    return Submitter(checkout, slurm)


def test_a_whole_study_runs_through_slurm_each_target_on_its_own_gpu(submitter: Submitter) -> None:
    code = submitter.finish(submitter.start("report", "--config", "fleet=fleet.yaml", "ops=rmsnorm"))

    assert code == 0, submitter.log
    race = pl.read_parquet(submitter.checkout.path("results", "tables", "showdown.parquet"))
    assert dict(race.group_by("device").agg(pl.col("point").n_unique()).iter_rows()) == {TARGET: 2, OTHER: 2}
    recorded = {
        name: json.loads(submitter.checkout.path("results", name, "machine.json").read_text())["device"]
        for name in FLEET
    }
    assert recorded == {"faked-a": TARGET, "faked-b": OTHER}
    index = submitter.checkout.path("reports", "index.html").read_text()
    for name in FLEET:
        assert submitter.checkout.path("reports", f"{name}.html").exists()
        assert f'href="{name}.html"' in index
    assert submitter.checkout.planned("report", "--config", "fleet=fleet.yaml", "ops=rmsnorm") == {}


def test_results_come_back_through_a_storage_plugin(slurm: Slurm, submitter: Submitter, tmp_path: Path) -> None:
    """No result on the shared file system; the target is one job on one chip all the same."""
    checkout = Checkout.make(tmp_path / "study")
    shutil.copy(submitter.checkout.path("fake_both.json"), checkout.folder)
    checkout.path("fleet.yaml").write_text(yaml.safe_dump({"faked-a": FLEET["faked-a"]}))
    storage = tmp_path / "storage"
    storage.mkdir()
    stored = Submitter(checkout, slurm)

    code = stored.finish(
        stored.start(
            "measurements",
            *("--default-storage-provider", "fs", "--default-storage-prefix", str(storage)),
            *("--shared-fs-usage", "persistence", "sources", "source-cache", "software-deployment"),
            *("--config", "fleet=fleet.yaml", "ops=rmsnorm"),
        )
    )

    assert code == 0, stored.log
    assert stored.log.count("has been submitted with SLURM jobid") == 2, "a compiler and the target"
    assert not checkout.path("results", "faked-a", "study.json").exists()
    shutil.copytree(storage / "results", checkout.path("results"), dirs_exist_ok=True)
    checkout.run("report")
    assert TARGET in checkout.path("reports", "index.html").read_text()


# interruptions


def journal(checkout: Checkout) -> list[tuple[str, str]]:
    """(unit, stage) of every finished case of the kernel; a line cut short by a kill is none."""
    path = checkout.path(JOURNAL)
    entries: list[tuple[str, str]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            entries += [(unit, stage) for unit, stage, _ in json.loads(line)["units"]]
    return entries


def worker(checkout: Checkout) -> psutil.Process:
    """The process that measures."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "normbench.worker" in process.cmdline() and process.cwd() == str(checkout.folder):
                return process
    raise AssertionError("nothing is measuring")


def node_dies(slurm: Slurm, checkout: Checkout) -> None:
    slurm.kill_node()


def user_cancels(slurm: Slurm, checkout: Checkout) -> None:
    slurm.order("scancel", "--user=root")


def limit_is_reached(slurm: Slurm, checkout: Checkout) -> None:
    """The job hangs until its limit ends it; Slurm looks for such jobs every 30 s. It refuses a limit that is in the
    past when it arrives, which "now" is where a second ends on its way."""
    worker(checkout).send_signal(signal.SIGSTOP)
    running = slurm.ask("squeue", "-h", "-t", "running", "-o", "%A").split()
    assert running
    for job in running:
        slurm.order("scontrol", "update", f"jobid={job}", "endtime=now+5")


INTERRUPTIONS = (node_dies, user_cancels, limit_is_reached)


@dataclass(frozen=True)
class Attempt:
    """One invocation of Snakemake: its exit code, whether the table was there afterwards, and the journal then."""

    code: int
    table: bool
    known: list[tuple[str, str]]


@pytest.fixture(scope="module")
def attempts(submitter: Submitter, slurm: Slurm) -> list[Attempt]:
    """One long measurement, interrupted three times and then left alone."""
    checkout = submitter.checkout
    checkout.path(JOURNAL).unlink(missing_ok=True)  # of the study above, which other settings decided
    found: list[Attempt] = []
    for interrupt in (*INTERRUPTIONS, None):
        before = len(journal(checkout))
        running = submitter.start(CASES, "--config", "fleet=fleet.yaml", *WIDE)
        try:
            if interrupt:
                while len(journal(checkout)) < before + 3:
                    assert running.poll() is None, submitter.log
                    time.sleep(0.02)
                interrupt(slurm, checkout)
        finally:
            code = submitter.finish(running)
        if "slurmd" not in slurm.daemons:
            slurm.start_node()
        found.append(Attempt(code, checkout.path(CASES).exists(), journal(checkout)))
    return found


@pytest.mark.parametrize("number", range(len(INTERRUPTIONS)), ids=[each.__name__ for each in INTERRUPTIONS])
def test_an_interruption_leaves_no_half_table_and_every_finished_case(attempts: list[Attempt], number: int) -> None:
    attempt, following = attempts[number : number + 2]

    assert attempt.code == 1
    assert not attempt.table
    assert len(attempt.known) >= 3 * (number + 1)
    assert following.known[: len(attempt.known)] == attempt.known


def test_the_next_invocation_completes_without_repeating_a_case(attempts: list[Attempt], submitter: Submitter) -> None:
    last = attempts[-1]

    assert (last.code, last.table) == (0, True), submitter.log
    assert len(last.known) == len(set(last.known)), "a finished case was launched again"
    assert pl.read_parquet(submitter.checkout.path(CASES))["point"].n_unique() == 12
