"""What must never reach, or change, the archive."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from normbench import archive, integrity, publish, schema
from normbench.publish import PublishError
from study_fixture import Study

Normbench = Callable[..., subprocess.CompletedProcess[str]]


def local(tmp_path: Path, study: Study | None = None) -> archive.Run:
    folder = (study or Study()).write_local(tmp_path / "results")
    return archive.read_local(folder, tmp_path / "results" / "build")


def test_a_published_study_reads_back_as_it_was(tmp_path: Path) -> None:
    run = local(tmp_path)

    folder = publish.publish(run, tmp_path / "data")

    assert folder == tmp_path / "data" / run.device / run.run
    back = archive.read_archived(folder)
    assert back.machine == run.machine
    assert back.study == run.study
    assert all(back.tables[name].equals(run.tables[name]) for name in schema.TABLES)
    assert sorted(path.name for path in folder.iterdir() if path.suffix in (".json", ".parquet")) == [
        "cases.parquet",
        "ceilings.parquet",
        "machine.json",
        "resources.parquet",
        "showdown.parquet",
        "study.json",
    ]


def test_a_published_run_is_never_written_again(tmp_path: Path) -> None:
    run = local(tmp_path)
    folder = publish.publish(run, tmp_path / "data")
    before = {path: path.read_bytes() for path in folder.iterdir()}

    with pytest.raises(PublishError, match="exists; a published run is never written again"):
        publish.publish(run, tmp_path / "data")

    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_of_two_hosts_that_publish_one_run_at_once_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other host comes between the look for the folder and the rename; its run stays as it is."""
    run, data = local(tmp_path), tmp_path / "data"
    small = publish._small

    def meanwhile(folder: Path) -> None:
        monkeypatch.setattr(publish, "_small", small)
        small(folder)
        publish.publish(run, data)

    monkeypatch.setattr(publish, "_small", meanwhile)
    with pytest.raises(PublishError, match="exists; a published run is never written again"):
        publish.publish(run, data)

    assert [path.name for path in (data / run.device).iterdir()] == [run.run]
    assert list(integrity.check(data)) == []


def test_a_study_that_a_clock_put_before_an_earlier_one_is_told_so(tmp_path: Path, normbench: Normbench) -> None:
    """The host's clock was an hour ahead for the first study and then set right."""
    data = tmp_path / "data"
    publish.publish(local(tmp_path, Study(measured_at="2020-01-02T04:04:05Z")), data)
    second = Study(measured_at="2020-01-02T03:30:00Z", seed=2)
    folder = second.write_local(tmp_path / "results")

    done = normbench("publish", "--results", tmp_path / "results", "--archive", data)

    assert done.returncode == 0, done.stderr
    assert f"{folder.name} has a later run, 20200102T040405-" in done.stderr
    assert "the clock of a host was wrong" in done.stderr
    assert len(archive.folders(data)) == 2, "nothing is lost"


def test_the_latest_study_is_published_without_a_note(tmp_path: Path, normbench: Normbench) -> None:
    Study().write_local(tmp_path / "results")

    done = normbench("publish", "--results", tmp_path / "results", "--archive", tmp_path / "data")

    assert (done.returncode, done.stderr) == (0, "")


def test_a_faked_gpu_is_refused(tmp_path: Path) -> None:
    run = local(tmp_path, Study(fake=True))

    with pytest.raises(PublishError, match="faked GPU"):
        publish.publish(run, tmp_path / "data")

    assert not (tmp_path / "data").exists()


def test_allow_fake_cannot_reach_the_real_archive(
    tmp_path: Path, normbench: Normbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    Study(fake=True).write_local(tmp_path / "results")
    monkeypatch.chdir(tmp_path)

    refused = normbench("publish", "--allow-fake")
    taken = normbench("publish", "--allow-fake", "--archive", "fakes")

    assert refused.returncode == 1
    assert "needs an --archive of its own" in refused.stderr
    assert taken.returncode == 0, taken.stderr
    assert not (tmp_path / "reports").exists()
    assert archive.folders("fakes")


def test_a_kernel_that_needs_a_newer_architecture_is_compiled_where_it_has_no_variant(tmp_path: Path) -> None:
    Study(archs=("sm_90", "sm_100", "sm_120")).write_local(tmp_path / "results")
    builds = tmp_path / "results" / "build"
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89"):
        for path in list((builds / "sm_90").glob("*.parquet")):
            schema.write(schema.RESOURCES.empty(), schema.RESOURCES, builds / arch / path.name)

    folder = publish.publish(archive.read_local(tmp_path / "results" / Study().device, builds), tmp_path / "data")

    assert set(pl.read_parquet(folder / "resources.parquet")["arch"]) == {"sm_90", "sm_100", "sm_120"}


def test_missing_architectures_are_named(tmp_path: Path) -> None:
    run = local(tmp_path, Study(archs=("sm_90", "sm_100", "sm_75", "sm_80", "sm_120")))

    with pytest.raises(PublishError, match="is not compiled for sm_86, sm_89; run `snakemake --cores 2 cubins` first"):
        publish.publish(run, tmp_path / "data")


def test_a_folder_over_two_mebibytes_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = local(tmp_path)
    monkeypatch.setattr(publish, "MOST_BYTES", 4096)

    with pytest.raises(PublishError, match=r"publish it in slices"):
        publish.publish(run, tmp_path / "data")

    assert list((tmp_path / "data").rglob("*")) == []


def test_a_copy_that_fails_halfway_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = local(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(OSError, match="No space left"):
        publish.publish(run, tmp_path / "data")

    assert list((tmp_path / "data").rglob("*")) == []


def test_an_unfinished_study_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="run `snakemake --cores 1 report` first"):
        publish.finished(tmp_path / "results", None)


def test_of_two_finished_studies_one_must_be_named(tmp_path: Path) -> None:
    Study().write_local(tmp_path / "results")
    Study(device="invented-gpu-b00002").write_local(tmp_path / "results")

    with pytest.raises(PublishError, match="which study"):
        publish.finished(tmp_path / "results", None)

    assert publish.finished(tmp_path / "results", "invented-gpu-b00002").name == "invented-gpu-b00002"


def test_the_pictures_of_the_readme_lie_beside_the_data(tmp_path: Path) -> None:
    folder = publish.publish(local(tmp_path, Study(dtype="bf16")), tmp_path / "data")

    assert sorted(path.name for path in folder.glob("*.svg")) == [
        "bandwidth-layernorm-bf16.svg",
        "bandwidth-rmsnorm-bf16.svg",
        "speedup-layernorm-bf16.svg",
        "speedup-rmsnorm-bf16.svg",
    ]
    assert (folder / "bandwidth-rmsnorm-bf16.svg").read_text().startswith("<svg")


def test_checks_are_published_where_there_are_some(tmp_path: Path) -> None:
    study = Study()
    folder = study.write_local(tmp_path / "results")
    schema.write(study.checks("naive"), schema.CHECKS, folder / "checks" / "naive.parquet")
    run = archive.read_local(folder, tmp_path / "results" / "build")

    published = publish.publish(run, tmp_path / "data")

    assert archive.read_archived(published).tables["checks"].height == 4


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    ran = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_a_commit_is_named_only_if_its_sources_measured_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    (root / "kernels").mkdir(parents=True)
    (root / "package").mkdir()
    (root / "package" / "ops.py").write_text("rules = 1\n")
    (root / "kernels" / "naive.cu").write_text("// a kernel\n")
    monkeypatch.setattr(publish.sources, "PACKAGE", root / "package")
    run = local(tmp_path, Study(sources=publish.sources.sources(root / "kernels")))
    assert publish.checkout_commit(run, root) is None  # no repository

    git(root, "init")
    assert publish.checkout_commit(run, root) is None  # not committed
    git(root, "add", ".")
    git(root, "commit", "-m", "all")
    assert publish.checkout_commit(run, root) == git(root, "rev-parse", "HEAD")

    (root / "kernels" / "naive.cu").write_text("// another kernel\n")
    git(root, "commit", "-am", "another")
    assert publish.checkout_commit(run, root) is None


def test_the_commit_is_kept_beside_the_study(tmp_path: Path) -> None:
    folder = publish.publish(local(tmp_path), tmp_path / "data", commit="c0ffee")

    assert archive.read_archived(folder).study["commit"] == "c0ffee"
