"""What a copied archive can hide: a damaged file, a forged or doubled run, a clock that was wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest

from normbench import archive, cli, integrity, publish
from study_fixture import Study

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A published run, as ``publish`` leaves it."""
    Study().write_local(tmp_path / "results")
    local = archive.read_local(tmp_path / "results" / Study().device, tmp_path / "results" / "build")
    return publish.publish(local, tmp_path / "data")


def problems(run: Path) -> list[tuple[str, str]]:
    data = run.parents[1]
    return [(str(path.relative_to(data)), sentence) for path, sentence in integrity.check(data, NOW)]


def edit_table(path: Path, **changes: pl.Expr | str) -> None:
    pl.read_parquet(path).with_columns(**changes).write_parquet(path)


def resum(run: Path) -> None:
    """What somebody who changes a run on purpose would do, too."""
    integrity.write_sums(run)


def test_a_published_run_has_no_problem(run: Path) -> None:
    assert problems(run) == []


def test_a_run_of_before_there_were_checksums_has_none(run: Path) -> None:
    (run / integrity.SUMS).unlink()

    assert problems(run) == []


def test_the_published_archive_of_this_repository_is_sound(repository: Path) -> None:
    assert list(integrity.check(repository / "reports" / "data")) == []


def test_a_flipped_bit_is_found_and_the_file_named(run: Path) -> None:
    picture = run / "bandwidth-rmsnorm-bf16.svg"
    path = picture if picture.exists() else run / "study.json"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)

    assert any(name.endswith(path.name) and "its checksum differs" in sentence for name, sentence in problems(run))


def test_missing_and_foreign_files_are_named(run: Path) -> None:
    (run / "ceilings.parquet").rename(run / "other.parquet")

    found = dict(problems(run))

    assert found[f"{run.parent.name}/{run.name}/ceilings.parquet"] == "is missing"
    assert "was not published with the run" in found[f"{run.parent.name}/{run.name}/other.parquet"]


def test_a_corrupt_table_is_named_and_hides_no_other_run(run: Path) -> None:
    other = Study(device="invented-gpu-b00002", seed=2).write_archived(run.parents[1])
    for folder in (run, other):
        path = folder / "cases.parquet"
        path.write_bytes(path.read_bytes()[:-40])
    (run / integrity.SUMS).unlink()

    found = problems(run)

    assert [name.split("/")[0] for name, _ in found] == [Study().device, "invented-gpu-b00002"]
    assert all(sentence.startswith("cases.parquet: not a readable parquet file") for _, sentence in found)


def test_a_point_that_is_not_its_hash_is_found(run: Path) -> None:
    edit_table(run / "showdown.parquet", rows=pl.col("rows") * 2)
    resum(run)

    assert any("showdown.parquet: point" in sentence and "should be" in sentence for _, sentence in problems(run))


def test_a_race_short_of_the_study_is_found(run: Path) -> None:
    path = run / "showdown.parquet"
    pl.read_parquet(path).filter(pl.col("op") == "rmsnorm").write_parquet(path)
    resum(run)

    assert [sentence for _, sentence in problems(run)] == [
        "showdown.parquet: holds 2 of the 4 points in study.json, and 0 others"
    ]


def test_a_renamed_run_is_found(run: Path) -> None:
    name = "20300101T000000-abcdef0"
    machine = json.loads((run / "machine.json").read_text()) | {"run": name}
    (run / "machine.json").write_text(json.dumps(machine))
    for path in run.glob("*.parquet"):
        edit_table(path, run=pl.lit(name))
    resum(run)
    renamed = run.rename(run.parent / name)

    assert [sentence for _, sentence in problems(renamed)] == [f"should be called {Study().run} after its newest race"]


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=1800)])
def test_a_clock_that_was_ahead_is_found(tmp_path: Path, ahead: timedelta) -> None:
    at = NOW + ahead
    study = Study(measured_at=f"{at:%Y-%m-%dT%H:%M:%SZ}", run=f"{at:%Y%m%dT%H%M%S}-abcdef0")
    study.write_archived(tmp_path)

    ((_, sentence),) = integrity.check(tmp_path, NOW)

    assert sentence == (
        f"was measured at {at:%Y-%m-%dT%H:%M:%SZ}, which is to come: the clock of its host, or of this one, is wrong"
    )


def test_clocks_a_little_apart_are_no_problem(tmp_path: Path) -> None:
    at = NOW + timedelta(minutes=9)
    Study(measured_at=f"{at:%Y-%m-%dT%H:%M:%SZ}", run=f"{at:%Y%m%dT%H%M%S}-abcdef0").write_archived(tmp_path)

    assert list(integrity.check(tmp_path, NOW)) == []


def test_two_hosts_that_measured_in_the_same_second_do_not_meet(tmp_path: Path) -> None:
    """The same sources, model and second: the run's name is the same, the device's holds the chip's UUID."""
    first = Study(seed=1).write_archived(tmp_path / "a")
    second = Study(device="invented-gpu-b00002", seed=2).write_archived(tmp_path / "b")
    assert first.name == second.name

    for side in ("a", "b"):
        shutil.copytree(tmp_path / side, tmp_path / "both", dirs_exist_ok=True)

    assert len(archive.folders(tmp_path / "both")) == 2
    assert list(integrity.check(tmp_path / "both", NOW)) == []


def test_two_runs_copied_into_one_folder_are_found(run: Path, tmp_path: Path) -> None:
    """Two hosts with the same device and run, and a copy that did not keep what was there."""
    Study(seed=9).write_local(tmp_path / "other")
    local = archive.read_local(tmp_path / "other" / Study().device, tmp_path / "other" / "build")
    theirs = publish.publish(local, tmp_path / "theirs")
    shutil.copy(theirs / "showdown.parquet", run)

    assert any("showdown.parquet" in name and "its checksum differs" in sentence for name, sentence in problems(run))


def test_the_same_numbers_under_two_devices_are_found(tmp_path: Path) -> None:
    first = Study().write_archived(tmp_path)
    second = Study(device="invented-gpu-b00002").write_archived(tmp_path)

    assert list(integrity.check(tmp_path, NOW)) == [(second, f"holds the same measurements as {first}; remove one")]


def test_a_copy_that_was_interrupted_is_named(run: Path) -> None:
    (run.parent / ".20200102T030405-abcdef0.x1").mkdir()
    half = run.parent / "20190102T030405-abcdef0"
    shutil.copytree(run, half)
    (half / "machine.json").unlink()

    found = dict(problems(run))

    assert "interrupted" in found[f"{run.parent.name}/.20200102T030405-abcdef0.x1"]
    assert found[f"{run.parent.name}/{half.name}"] == "is no run: it has no machine.json"


def test_a_faked_gpu_is_no_measurement(tmp_path: Path) -> None:
    Study(fake=True).write_archived(tmp_path)

    assert ["faked" in sentence for _, sentence in integrity.check(tmp_path, NOW)] == [True]
    assert list(integrity.check(tmp_path, NOW, allow_fake=True)) == []


def test_the_verb_counts_and_fails(run: Path, normbench: Callable[..., CompletedProcess[str]]) -> None:
    good = normbench("archive", "check", run.parents[1])
    (run / "study.json").unlink()
    bad = normbench("archive", "check", run.parents[1])

    assert (good.returncode, good.stdout) == (0, "1 run of 1 device: no problem\n")
    assert bad.returncode == 1
    assert "study.json: is missing" in bad.stdout
    assert bad.stdout.endswith("1 run of 1 device: 2 problems\n")


def test_an_absent_archive_is_said_to_be_absent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["archive", "check", str(tmp_path / "none")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
