"""What a page says of where its numbers come from must hold for the files that are there."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import polars as pl
import yaml

import report_fixture as fixture
from normbench import archive, citation, collect, measured, provenance
from study_fixture import Study

SMALL = fixture.Fixture(ops=("rmsnorm",), dtypes=("bf16",), hidden=(2048, 4096), latency=False)


def collected(tmp_path: Path, *studies: Study) -> measured.Archive:
    for study in studies:
        study.write_archived(tmp_path / "data")
    collect.write(collect.gather(tmp_path / "results", tmp_path / "data"), tmp_path / "tables")
    return measured.load(tmp_path / "tables")


def test_the_checksums_are_those_sha256sum_takes(tmp_path: Path) -> None:
    one = measured.measured(collected(tmp_path, Study()), Study().device)
    (origin,) = provenance.origins(one)
    folder = tmp_path / "data" / Study().device / Study().run
    assert set(origin.files) == {path.name for path in archive.files(folder)}

    check = ["sha256sum", "--check", "--strict", "-"]
    subprocess.run(check, cwd=folder, input=origin.checksums, text=True, check=True, capture_output=True)

    (folder / "study.json").write_text("{}")
    failed = subprocess.run(check, cwd=folder, input=origin.checksums, text=True, check=False, capture_output=True)
    assert failed.returncode == 1


def test_a_page_of_two_runs_tells_whose_rows_they_are() -> None:
    newer = replace(SMALL, run="20200501T000000-1111111", hidden=(4096,))
    tables = {
        name: pl.concat([frame, newer.tables()[name]]).with_columns(
            **({"sources": pl.col("run").str.tail(7)} if name in ("showdown", "cases") else {})
        )
        for name, frame in SMALL.tables().items()
    }
    machines = (SMALL.machine() | {"driver": "1.0"}, newer.machine() | {"driver": "2.0", "commit": "c0ffee"})
    one = measured.measured(measured.Archive(**tables, machines=machines), SMALL.device)

    first, second = provenance.origins(one)

    assert (first.run, second.run) == (SMALL.run, newer.run)
    assert first.rows == second.rows == len(SMALL.contenders)
    assert (first.sources, second.sources) == (("f1c7105",), ("1111111",))
    assert (first.versions["driver"], second.versions["driver"]) == ("1.0", "2.0")
    assert (first.commit, second.commit) == (None, "c0ffee")
    assert "2020-01-01T00:00:00Z" <= str(first.first) <= str(first.last)


def test_another_configuration_has_another_hash(tmp_path: Path) -> None:
    study = Study()
    one, two = (
        provenance.origins(measured.measured(collected(tmp_path / str(index), made), made.device))[0].study
        for index, made in enumerate((study, study.with_(hidden=(64,))))
    )

    assert None not in (one, two)
    assert one != two


def test_the_citation_names_the_device_its_runs_and_who_made_it() -> None:
    one = measured.measured(measured.Archive(**SMALL.tables(), machines=(SMALL.machine(),)), SMALL.device)
    cited = yaml.safe_load(citation.text(replace(one, machine={**one.machine, "commit": "c0ffee"})))
    own = yaml.safe_load((Path(__file__).resolve().parents[1] / "CITATION.cff").read_text())
    assert (cited["cff-version"], cited["authors"], cited["license"]) == tuple(
        own[name] for name in ("cff-version", "authors", "license")
    )
    assert SMALL.device in cited["title"]
    assert cited["version"] == SMALL.run
    assert (cited["date-released"], cited["commit"]) == ("2020-01-01", "c0ffee")
    assert cited["references"][0]["version"] == own["version"]
    assert "commit" not in yaml.safe_load(citation.text(one))
