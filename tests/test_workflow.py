"""The pipeline as a person runs it, on a faked GPU: what runs, what is left alone, and what survives a kill."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from filelock import FileLock

from normbench import archive as archived
from normbench.points import short_hash
from study_fixture import Study
from workflow_fixture import OTHER, ROOT, TARGET, TWIN, Checkout, entries, measuring, wait_for_lines

PAGES = {"index": 1, "page": 1, "report": 1}
AFTER_MEASURING = {"record": 1, "collect": 1, **PAGES}


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A fresh clone, in a folder with a space in its name (P7); not to be changed."""
    return Checkout.make(tmp_path_factory.mktemp("fresh") / "my study")


@pytest.fixture(scope="session")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny study, measured on faked GPU A and reported in a folder with a quote in its name; not to be changed."""
    checkout = Checkout.make(tmp_path_factory.mktemp("studied") / "user's dir")
    checkout.path("first.log").write_text(checkout.run("report", gpu="a"))
    return checkout


@pytest.fixture
def study(studied: Checkout, tmp_path: Path) -> Checkout:
    """A copy of the measured study, to be changed."""
    return studied.copy(tmp_path / "study")


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def measured_at(checkout: Checkout, target: str = TARGET) -> dict[tuple[object, ...], str]:
    cases = pl.read_parquet(checkout.path("results", target, "cases", "naive.parquet"))
    return {(row["point"], row["variant"]): row["measured_at"] for row in cases.iter_rows(named=True)}


# what there is to do


def test_without_a_gpu_only_the_archive_is_reported(fresh: Checkout) -> None:
    assert fresh.planned("report") == {"collect": 1, "index": 1, "report": 1}


def test_with_a_gpu_everything_is_measured_once(fresh: Checkout) -> None:
    assert fresh.planned("report", gpu="a") == {
        "sweep": 1,
        "compile": 1,
        "machine": 1,
        "ceilings": 1,
        "warm": 1,
        "measure": 2,
        "showdown": 2,
        **AFTER_MEASURING,
    }


def test_report_compiles_for_the_local_architecture_and_cubins_for_all(fresh: Checkout) -> None:
    assert fresh.planned("cubins") == {"compile": 7, "cubins": 1}


def test_verify_covers_kernels_and_baselines(fresh: Checkout) -> None:
    assert fresh.planned("verify", gpu="a")["verify_contender"] == 4


@pytest.mark.parametrize("target", ["measurements", "verify"])
def test_measuring_without_a_gpu_says_so(fresh: Checkout, target: str) -> None:
    refused = fresh.snakemake(target)

    assert refused.returncode == 1
    assert "no GPU is visible here" in refused.stderr + refused.stdout


def test_two_gpus_share_the_cores_only_when_asked(fresh: Checkout, tmp_path: Path) -> None:
    checkout = fresh.copy(tmp_path / "two")
    both = [json.loads(checkout.path(f"fake_{name}.json").read_text()) for name in "ab"]
    checkout.path("fake_both.json").write_text(json.dumps(both))

    one = checkout.run("--dry-run", "measurements", gpu="both", cores=8)
    two = checkout.run("--dry-run", "measurements", "--resources", "gpu=2", gpu="both", cores=8)

    assert (one.count(f"target={TARGET}"), one.count(f"target={OTHER}")) == (8, 0)
    assert (two.count(f"target={TARGET}"), two.count(f"target={OTHER}")) == (8, 8)
    # warm, beside which kernels may compile, has half of them where it is alone
    assert {line.strip() for line in one.splitlines() if "threads:" in line} == {"threads: 8", "threads: 4"}
    assert {line.strip() for line in two.splitlines() if "threads:" in line} == {"threads: 4"}


@pytest.mark.parametrize(
    ("visible", "measured"),
    [("1,0", {OTHER, TARGET}), ("1", {OTHER}), ("GPU-00000000-0000-4000-8000-00000000000b", {OTHER})],
)
def test_only_visible_gpus_are_measured_however_they_are_named(
    fresh: Checkout, tmp_path: Path, visible: str, measured: set[str]
) -> None:
    """A container or a scheduler sets CUDA_VISIBLE_DEVICES, often to indices."""
    checkout = fresh.copy(tmp_path / "visible")
    both = [json.loads(checkout.path(f"fake_{name}.json").read_text()) for name in "ab"]
    checkout.path("fake_both.json").write_text(json.dumps(both))

    planned = checkout.run(
        *("--dry-run", "measurements", "--resources", "gpu=2"),
        **{"gpu": "both", "cores": 8, "CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )

    assert set(re.findall(r"target=([\w-]+)", planned)) == measured


def test_the_command_line_overrides_lists_and_takes_plain_words(fresh: Checkout) -> None:
    planned = fresh.planned("measurements", "--config", "ops=rmsnorm", "hidden=[4096]", "dtypes=bf16", gpu="a")

    assert planned["showdown"] == 1


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [("hidden=0", "hidden: 0 is not"), ("hiden=[64]", "nearest valid key: hidden"), ("block=100", "block: 100 is not")],
)
def test_a_wrong_value_stops_in_one_sentence(fresh: Checkout, setting: str, sentence: str) -> None:
    refused = fresh.snakemake("--dry-run", "report", "--config", setting)

    printed = refused.stdout + refused.stderr
    assert refused.returncode == 1
    assert sentence in printed
    assert "Traceback" not in printed
    assert "Error" not in printed


def test_a_bad_kernel_header_is_named(fresh: Checkout, tmp_path: Path) -> None:
    checkout = fresh.copy(tmp_path / "bad")
    path = checkout.path("kernels", "forward", "naive.cu")
    path.write_text(path.read_text().replace("// summary", "// sumary", 1))

    refused = checkout.snakemake("--dry-run", "report")

    assert refused.returncode == 1
    assert "normbench: kernels/forward/naive.cu: unknown key 'sumary'" in refused.stderr


def test_a_dry_run_takes_less_than_five_seconds(fresh: Checkout) -> None:
    """The best of three: what a busy machine adds is not ours."""
    taken = []
    for _ in range(3):
        began = time.monotonic()
        fresh.planned("report", gpu="a")
        taken.append(time.monotonic() - began)

    assert min(taken) < 5


@pytest.mark.parametrize("gpu", [None, "a"])
def test_snakemakes_own_linter_has_nothing_to_say(fresh: Checkout, gpu: str | None) -> None:
    assert "your workflow is in a good condition" in fresh.run("--lint", gpu=gpu)


def test_the_rules_are_formatted() -> None:
    command = [sys.executable, "-m", "snakefmt.snakefmt", "--check", "Snakefile", "workflow/rules"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr


# several GPUs of one host


MEASURING = ("ceilings", "measure", "showdown")


@dataclass(frozen=True)
class Sight:
    """A verb seen at work: which, for which target (empty for none), and the cores it may use."""

    verb: str
    target: str
    cores: frozenset[int]


def look(folder: Path) -> frozenset[Sight]:
    """Every verb of a checkout that is at work and keeps to cores of its own, all of them at one moment.

    To see them one after the other takes a while, so only those count that are still there when the last was seen.
    """
    import psutil

    seen = {process: sight(process, folder) for process in psutil.process_iter()}
    return frozenset(found for process, found in seen.items() if found and sight(process, folder) == found)


def sight(process: Any, folder: Path) -> Sight | None:
    """What a process is of that, None for nothing of it, or no longer."""
    import psutil

    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        if command[1:3] == ["-m", "normbench"] and process.cwd() == str(folder):
            cores = frozenset(process.cpu_affinity())
            if len(cores) < len(os.sched_getaffinity(0)):
                target = command[command.index("--target") + 1] if "--target" in command else ""
                return Sight(command[3], target, cores)
    return None


@dataclass(frozen=True)
class Watched:
    """A study and what ran side by side while it was made: one set of sights each time somebody looked."""

    checkout: Checkout
    looks: list[frozenset[Sight]]

    @property
    def pairs(self) -> set[tuple[Sight, Sight]]:
        """All that were at work at the same time for longer than a process takes to end, which is three looks.

        It gives its cores back first, and a busy host needs a while to take its libraries down.
        """
        lasting = map(frozenset.intersection, self.looks, self.looks[1:], self.looks[2:])
        return {pair for look in lasting for pair in itertools.combinations(look, 2)}


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """The tiny study of two faked chips of one model, measured side by side; not to be changed."""
    checkout = Checkout.make(tmp_path_factory.mktemp("twins") / "study")
    arguments = ("--cores", "2", "report", "--resources", "gpu=2", "--configfile", "tiny.yaml")
    log = checkout.path("twins.log")
    running = subprocess.Popen(
        checkout.command(*arguments),
        cwd=checkout.folder,
        env=checkout.environment("twins") | {"CUDA_VISIBLE_DEVICES": "0,1"},
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    looks = []
    while running.poll() is None:
        looks.append(look(checkout.folder))
        time.sleep(0.05)
    assert running.returncode == 0, log.read_text()
    return Watched(checkout, looks)


@pytest.fixture
def twins(watched: Watched) -> Checkout:
    return watched.checkout


@pytest.mark.slow
def test_two_gpus_are_measured_side_by_side_on_cores_of_their_own(watched: Watched) -> None:
    """Snakemake measures two at a time: never two jobs on one chip, never two on one core."""
    pairs = [pair for pair in watched.pairs if all(one.verb in MEASURING for one in pair)]

    assert {one.target for pair in pairs for one in pair} == {TARGET, TWIN}, "nothing ran side by side"
    assert all(one.target != other.target for one, other in pairs)
    assert all(len(one.cores) == len(other.cores) == 1 for one, other in pairs)
    assert all(one.cores.isdisjoint(other.cores) for one, other in pairs)


@pytest.mark.slow
def test_nothing_that_works_hard_runs_on_the_cores_of_a_measurement(watched: Watched) -> None:
    """What compiles, warms up or draws keeps to a core, too, and to another one."""
    seen = {sight.verb for look in watched.looks for sight in look}

    assert seen >= {"measure", "showdown", "page"}
    beside = [pair for pair in watched.pairs if any(one.verb in MEASURING for one in pair)]
    assert beside, "nothing ran side by side"
    assert [pair for pair in beside if pair[0].cores & pair[1].cores] == []


@pytest.mark.slow
def test_a_gpu_that_disappears_keeps_the_other_from_nothing_and_loses_nothing(fresh: Checkout, tmp_path: Path) -> None:
    """It falls off the bus after three cases; the sentence says so; when it is back, the same command completes."""
    checkout = fresh.copy(tmp_path / "gone")
    machine, journal = (
        checkout.path("fake_twins.json"),
        checkout.path("results", TWIN, "journal", "measure-naive.jsonl"),
    )
    twins = json.loads(machine.read_text())
    arguments = ("measurements", "--keep-going", "--resources", "gpu=2", "--config", "ops=rmsnorm")
    running = subprocess.Popen(
        checkout.command("--cores", "2", *arguments, "--configfile", "tiny.yaml"),
        cwd=checkout.folder,
        env=checkout.environment("twins"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_lines(journal, 3, running)
    machine.write_text(json.dumps(twins[:1]))

    assert running.wait(300) == 1
    logs = "".join(path.read_text() for path in checkout.path("results", "logs").rglob(f"{TWIN}*/*.log"))
    assert f"{TWIN} is not a GPU of this host, which has {TARGET}" in logs
    assert "Traceback" not in logs
    assert checkout.path("results", TARGET, "study.json").exists()
    assert not checkout.path("results", TWIN, "study.json").exists()
    known = entries(journal)

    machine.write_text(json.dumps(twins))
    checkout.run(*arguments, gpu="twins")

    assert checkout.path("results", TWIN, "study.json").exists()
    everything = entries(journal)
    assert everything[: len(known)] == known
    assert len(everything) == len(set(everything)), "a finished case was launched again"


@pytest.mark.parametrize(
    ("arch", "sentence"),
    [("sm_999", None), ("sm_52", "compiles for sm_75 and newer, not for sm_52; an older NVRTC does")],
)
def test_a_kind_of_gpu_that_the_compiler_does_not_know(
    fresh: Checkout, tmp_path: Path, arch: str, sentence: str | None
) -> None:
    """What a newer one runs is left to its driver; for an older one there is a sentence, and no page is lost."""
    checkout = fresh.copy(tmp_path / "unknown")
    facts = json.loads(checkout.path("fake_a.json").read_text())
    checkout.path("fake_a.json").write_text(json.dumps(facts | {"arch": arch}))
    build = checkout.path("results", "build", arch, "naive.json")

    done = checkout.snakemake(str(build.relative_to(checkout.folder)), gpu="a")

    if sentence is None:
        assert done.returncode == 0, done.stderr
        assert json.loads(build.read_text())["jit"] is True
    else:
        assert done.returncode == 1
        assert sentence in done.stdout + done.stderr
        assert not build.exists()


def test_two_chips_of_a_model_have_a_page_each_and_are_compared(twins: Checkout) -> None:
    race = pl.read_parquet(twins.path("results", "tables", "showdown.parquet"))
    index = twins.path("reports", "index.html").read_text()

    points = dict(race.group_by("device").agg(pl.col("point").n_unique()).iter_rows())
    assert points == {TARGET: 4, TWIN: 4}
    assert all(twins.path("reports", f"{device}.html").exists() for device in (TARGET, TWIN))
    assert "Same model, different chip" in index


def test_how_many_measure_at_a_time_is_no_reason_to_measure_again(twins: Checkout) -> None:
    assert twins.planned("report", "--resources", "gpu=2", gpu="twins") == {}
    assert not {"measure", "showdown", "ceilings", "compile"} & twins.planned("report", gpu="twins").keys()


# a whole study


@pytest.mark.slow
def test_a_study_ends_in_a_page_and_a_second_run_does_nothing(studied: Checkout) -> None:
    assert studied.path("reports", f"{TARGET}.html").stat().st_size > 500_000
    assert TARGET in studied.path("reports", "index.html").read_text()
    assert studied.planned("report", gpu="a") == {}


def test_every_contender_and_a_twin_have_a_row_at_every_point(studied: Checkout) -> None:
    race = pl.read_parquet(studied.path("results", "tables", "showdown.parquet"))

    named = race.with_columns(pl.col("contender").str.replace(".*__twin", "twin"))
    assert set(named["contender"]) == {"naive", "triton_row", "copy", "torch_eager", "twin"}
    assert named.group_by("contender").agg(pl.col("point").n_unique())["point"].unique().to_list() == [4]


def test_everything_is_compiled_before_anything_is_timed(studied: Checkout) -> None:
    started = re.findall(r"^(?:local)?rule (\w+):", studied.path("first.log").read_text(), re.MULTILINE)

    assert started.index("compile") < started.index("ceilings")
    assert started.index("warm") < started.index("ceilings")
    assert started.index("warm") < started.index("measure")


@pytest.mark.slow
def test_the_same_command_on_another_gpu_leaves_the_first_alone(study: Checkout) -> None:
    """P1: snakemake#4134. Another UUID and driver; then the config is touched."""
    Study().write_archived(study.path("reports", "data"))
    archived, before = digests(study.path("reports", "data")), digests(study.path("results", TARGET))

    study.run("report", gpu="b")

    assert digests(study.path("results", TARGET)) == before
    assert digests(study.path("reports", "data")) == archived
    assert study.path("reports", f"{Study().device}.html").exists()
    assert study.path("results", OTHER, "study.json").exists()
    index = study.path("reports", "index.html").read_text()
    assert TARGET in index
    assert OTHER in index
    assert Study().device in index
    assert study.path("reports", f"{OTHER}.html").exists()
    study.path("config", "config.yaml").touch()
    study.path("tiny.yaml").touch()
    assert study.planned("report", gpu="b") == {}
    # back on A: only the tables and pages know another way round
    assert not {"measure", "showdown", "ceilings", "compile"} & study.planned("report", gpu="a").keys()


def test_a_host_without_a_gpu_shows_what_was_measured_elsewhere(study: Checkout) -> None:
    study.run("report")

    assert TARGET in study.path("reports", "index.html").read_text()


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1))


def append(path: Path, line: str) -> None:
    path.write_text(f"{path.read_text()}{line}\n")


def test_a_constant_in_a_kernel_reruns_that_kernel_and_its_races(study: Checkout) -> None:
    """P2."""
    append(study.path("kernels", "forward", "naive.cu"), "// another constant")

    assert study.planned("report", gpu="a") == {"compile": 1, "measure": 1, "showdown": 2, **AFTER_MEASURING}


def test_a_triton_kernel_is_warmed_again_and_the_others_stay(study: Checkout) -> None:
    """What ``warm`` compiled must come first, but it changes no other kernel's numbers."""
    append(study.path("kernels", "triton", "triton_row.py"), "# another constant")

    assert study.planned("report", gpu="a") == {"warm": 1, "measure": 1, "showdown": 2, **AFTER_MEASURING}


def test_a_header_reruns_the_kernels_that_include_it(study: Checkout) -> None:
    append(study.path("kernels", "common", "element.cuh"), "// another constant")

    assert study.planned("report", gpu="a") == {"compile": 1, "measure": 1, "showdown": 2, **AFTER_MEASURING}


def test_a_kernel_outside_the_study_reruns_nothing(study: Checkout) -> None:
    append(study.path("kernels", "forward", "welford.cu"), "// another constant")

    assert study.planned("report", gpu="a") == {}


def test_the_timing_module_reruns_every_measurement(study: Checkout) -> None:
    """P2."""
    append(study.path("workflow", "lib", "normbench", "timing.py"), "# another way to time")

    planned = study.planned("report", gpu="a")

    assert planned == {"ceilings": 1, "measure": 2, "showdown": 2, **AFTER_MEASURING}


def test_a_comment_in_the_page_template_redraws_pages_only(study: Checkout) -> None:
    """P2: snakemake#3456."""
    append(study.path("workflow", "lib", "normbench", "templates", "page.html.j2"), "{# another comment #}")

    assert study.planned("report", gpu="a") == PAGES


def test_a_chart_redraws_the_device_pages_only(study: Checkout) -> None:
    append(study.path("workflow", "lib", "normbench", "charts", "bandwidth.py"), "# another comment")

    assert study.planned("report", gpu="a") == {"page": 1, "report": 1}


def test_another_driver_measures_again(study: Checkout) -> None:
    edit(study.path("fake_a.json"), '"fake-1"', '"fake-1.1"')

    planned = study.planned("report", gpu="a")

    assert planned == {"machine": 1, "ceilings": 1, "warm": 1, "measure": 2, "showdown": 2, **AFTER_MEASURING}


def test_the_title_redraws_pages_only(study: Checkout) -> None:
    """P3."""
    assert study.planned("report", "--config", "title=Another", gpu="a") == PAGES


def test_reordered_keys_and_touched_sources_rerun_nothing(study: Checkout) -> None:
    """P3: euro-calliope#253."""
    lines = study.path("tiny.yaml").read_text().splitlines()
    study.path("tiny.yaml").write_text("\n".join(lines[::-1]) + "\n")
    for path in study.path("kernels").rglob("*.cu*"):
        path.touch()

    assert study.planned("report", gpu="a") == {}


def test_epsilon_compiles_nothing_and_measures_everything(study: Checkout) -> None:
    """P3."""
    planned = study.planned("report", "--config", "eps=0.001", gpu="a")

    assert planned == {"sweep": 1, "ceilings": 1, "warm": 1, "measure": 2, "showdown": 2, **AFTER_MEASURING}


@pytest.mark.slow
def test_another_hidden_size_measures_that_size_only(study: Checkout) -> None:
    """P3: jobs run again, but the journal hands out what is known."""
    before = measured_at(study)

    study.run("report", "--config", "hidden=[32,64,128]", gpu="a")

    after = measured_at(study)
    assert before.items() <= after.items()
    assert len(after) == len(before) * 3 // 2


@pytest.mark.slow
def test_a_killed_measurement_continues_where_it_was(study: Checkout) -> None:
    """P5: SIGKILL after 3 cases; no final path; the rerun launches only what is missing."""
    append(study.path("kernels", "forward", "naive.cu"), "// another constant")
    journal = study.path("results", TARGET, "journal", "measure-naive.jsonl")
    cases = study.path("results", TARGET, "cases", "naive.parquet")
    wide = ("--config", "hidden=[32,48,64,96,128,192,256,384,512,768,1024,2048]", "block=[64,128,256,512,1024]")
    arguments = ("--cores", "2", str(cases.relative_to(study.folder)), *wide, "--configfile", "tiny.yaml")
    journal.unlink()
    running = subprocess.Popen(
        study.command(*arguments),
        cwd=study.folder,
        env=study.environment("a"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    wait_for_lines(journal, 3, running)
    for process in measuring(running.pid):
        os.kill(process, signal.SIGKILL)

    assert running.wait(60) == 1
    assert not cases.exists()
    known = entries(journal)
    study.run(str(cases.relative_to(study.folder)), *wide, gpu="a")
    assert pl.read_parquet(cases)["point"].n_unique() == 24
    everything = entries(journal)
    assert everything[: len(known)] == known
    assert len(everything) == len(set(everything)), "a finished case was launched again"
    assert len(everything) > len(known) >= 3


def test_a_measurement_takes_all_cores_and_runs_alone(studied: Checkout) -> None:
    """P9: snakemake#281."""
    printed = studied.run("--dry-run", "--forceall", "measurements", gpu="a", cores=8)

    blocks = re.split(r"\n *\[", printed)
    on_gpu = [block for block in blocks if "gpu=1" in block and "rule machine" not in block]
    measuring = [block for block in on_gpu if "rule warm" not in block]
    assert (len(on_gpu), len(measuring)) == (6, 5)
    assert all("threads: 8" in block for block in measuring)


def test_kernels_may_compile_while_baselines_are_warmed(studied: Checkout) -> None:
    """Nothing is timed there; and no measurement fits beside it, since it takes all cores."""
    printed = studied.run("--dry-run", "--forceall", "measurements", gpu="a", cores=8)

    (warming,) = (block for block in re.split(r"\n *\[", printed) if "rule warm:" in block)
    assert "threads: 4" in warming


def test_two_checkouts_never_measure_one_gpu_at_once(study: Checkout) -> None:
    """P9: the second waits for the lock of the GPU, and says so."""
    uuid = json.loads(study.path("fake_a.json").read_text())["uuid"]
    lock = FileLock(study.path("tmp", f"normbench-{short_hash(uuid, 12)}.lock"))
    table = study.path("results", TARGET, "showdown", "rmsnorm.parquet")
    table.unlink()
    log = study.path("results", "logs", "showdown", TARGET, "rmsnorm.log")
    log.unlink()
    with lock:
        running = subprocess.Popen(
            study.command("--cores", "2", str(table.relative_to(study.folder)), "--configfile", "tiny.yaml"),
            cwd=study.folder,
            env=study.environment("a"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(300):
            if log.exists() and "waiting for another normbench" in log.read_text():
                break
            time.sleep(0.1)
        else:
            raise AssertionError("it did not wait")
        assert not table.exists()

    assert running.wait(60) == 0
    assert table.exists()


def test_a_run_published_elsewhere_is_one_folder_to_copy(studied: Checkout, fresh: Checkout, tmp_path: Path) -> None:
    """Without a shared file system: publish there, copy, check, report here."""
    there, here = studied.copy(tmp_path / "there"), fresh.copy(tmp_path / "here")
    there.run("cubins", gpu="a")
    there.verb("publish", "--archive", "data", "--allow-fake", gpu="a")
    shutil.copytree(there.path("data"), here.path("reports", "data"))

    assert here.verb("archive", "check", "--allow-fake") == "1 run of 1 device: no problem\n"
    here.run("report")
    assert here.path("reports", f"{TARGET}.html").exists()
    assert here.planned("report") == {}


def test_snakemakes_report_holds_the_pages(study: Checkout) -> None:
    study.run("report", "--report", "results/provenance.html", gpu="a")

    assert study.path("results", "provenance.html").stat().st_size > 1_000_000


def test_moving_a_checkout_reruns_nothing(study: Checkout, tmp_path: Path) -> None:
    assert study.copy(tmp_path / "elsewhere").planned("report", gpu="a") == {}


def test_compare_fails_on_a_confirmed_slower_and_keeps_its_verdict(fresh: Checkout, tmp_path: Path) -> None:
    checkout = fresh.copy(tmp_path / "compared")
    archive = checkout.path("reports", "data")
    Study().write_archived(archive)
    Study(run="20210102T030405-abcdef1", seed=2, slow={"naive": 1.1}).write_archived(archive)
    runs = [f"{Study().device}/{run}" for run in ("20200102T030405-abcdef0", "20210102T030405-abcdef1")]

    worse = checkout.snakemake("compare", "--config", f"left={runs[0]}", f"right={runs[1]}")
    verdict = checkout.path("results", "compare.txt").read_text()
    better = checkout.snakemake("compare", "--config", f"left={runs[1]}", f"right={runs[0]}")

    assert (worse.returncode, better.returncode) == (1, 0)
    assert "4 SLOWER" in verdict
    pages = [checkout.path("reports", f"{archived.comparison(*pair)}.html") for pair in (runs, runs[::-1])]
    assert ["4 SLOWER" in page.read_text() for page in pages] == [True, False]
    assert json.loads(checkout.path("results", "compare.json").read_text())["exit"] == 0


def test_compare_with_an_unknown_run_says_which_there_are(fresh: Checkout) -> None:
    refused = fresh.snakemake("compare", "--config", "left=a/b", "right=c/d")

    assert refused.returncode == 1
    assert "no archived run" in refused.stdout + refused.stderr


def test_a_study_of_gradients_has_their_section_on_its_page(fresh: Checkout, tmp_path: Path) -> None:
    """On the faked GPU, whose page says that it is no measurement."""
    study = fresh.copy(tmp_path / "gradients")
    study.path("tiny.yaml").write_text(
        study.path("tiny.yaml")
        .read_text()
        .replace("[layernorm, rmsnorm]", "[layernorm, layernorm_bwd]")
        .replace("[naive, triton_row]", "[naive, naive_bwd]")
        .replace("[32, 64]", "[64]")
    )
    study.run("report", gpu="a")
    html = study.path("reports", f"{TARGET}.html").read_text()
    section = html.split('<section id="backward">')[1].split("</section>")[0]
    raced = pl.read_parquet(study.path("results", "tables", "showdown.parquet")).filter(op="layernorm_bwd", status="ok")
    best = raced.filter(pl.col("contender").is_in(["naive_bwd", "torch_eager"]), verdict="quotable").sort("time_us_p50")
    assert f'{best["contender"][0]}</td><td class="n">{best["time_us_p50"][0]:.4g}</td>' in section
    assert "(<code>read2_write1</code>)" in section
    assert '<th scope="row">naive_bwd</th><td class="n">3</td>' in section  # its launches, as they were compiled
    parts = {row["contender"]: row["reduce_us"] for row in raced.iter_rows(named=True)}
    assert parts["naive_bwd"] > 0
    assert {name for name, part in parts.items() if part is not None} == {"naive_bwd"}
    assert 'data-chart="reduction-0"' in section
    assert 'value="layernorm_bwd"' in html
    assert "Not a measurement" in html
