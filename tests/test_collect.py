"""What would put wrong, short or double rows into the report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl
import pytest

from normbench import archive, collect, schema
from study_fixture import FAILED, Study


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tmp_path / "data"


def gather(results: Path, published: Path, targets: Sequence[str] = ()) -> list[archive.Run]:
    return list(collect.gather(results, published, targets))


def joined(runs: Iterable[archive.Run], folder: Path) -> dict[str, pl.DataFrame]:
    collect.write(runs, folder)
    return {name: schema.read(folder / f"{name}.parquet", table) for name, table in schema.TABLES.items()}


def test_an_empty_archive_gives_empty_tables_of_the_right_schema(results: Path, published: Path) -> None:
    collect.write(gather(results, published), results / "tables")

    for name, table in schema.TABLES.items():
        frame = schema.read(results / "tables" / f"{name}.parquet", table)
        assert frame.is_empty()
        assert frame.schema == table.empty().schema
    assert json.loads((results / "tables" / "machines.json").read_text()) == []


def test_local_and_archived_studies_stand_side_by_side(results: Path, published: Path) -> None:
    Study().write_local(results)
    Study(device="invented-gpu-b00002").write_archived(published)

    runs = gather(results, published, ["invented-gpu-a00001"])

    assert [run.device for run in runs] == ["invented-gpu-a00001", "invented-gpu-b00002"]
    tables = joined(runs, results / "tables")
    assert tables["showdown"].height == 2 * Study().race().height
    assert tables["resources"]["run"].unique().to_list() == ["20200102T030405-abcdef0"]


def test_a_published_study_that_is_still_local_counts_once(results: Path, published: Path) -> None:
    Study().write_local(results)
    Study().write_archived(published)

    runs = gather(results, published, [Study().device])

    assert [run.id for run in runs] == ["invented-gpu-a00001/20200102T030405-abcdef0"]


def test_the_run_id_is_that_of_the_newest_race_and_its_sources() -> None:
    old = Study().race()
    new = Study(measured_at="2020-01-02T03:04:06Z", sources="1234567").race(Study().points[:1])

    assert archive.run_id(pl.concat([new, old])) == "20200102T030406-1234567"
    assert archive.run_id(pl.concat([old, new])) == "20200102T030406-1234567"


def test_a_short_race_is_refused_and_named(results: Path, published: Path) -> None:
    """P5: an interrupted process must not pass for a finished study."""
    folder = Study().write_local(results)
    short = Study(ops=("rmsnorm",), hidden=(64,)).race()
    schema.write(short, schema.SHOWDOWN, folder / "showdown" / "rmsnorm.parquet")

    with pytest.raises(archive.ArchiveError, match=r"showdown/rmsnorm\.parquet: holds 1 of the 2 points.*128"):
        gather(results, published, [Study().device])


def test_a_short_tuning_table_is_refused_and_named(results: Path, published: Path) -> None:
    folder = Study().write_local(results)
    schema.write(Study(ops=("rmsnorm",)).cases("naive"), schema.CASES, folder / "cases" / "naive.parquet")

    with pytest.raises(archive.ArchiveError, match=r"cases/naive\.parquet: holds 2 of the 4 points"):
        gather(results, published, [Study().device])


def test_rows_for_failures_count_as_measured(results: Path, published: Path) -> None:
    Study(changes={"naive": FAILED}).write_local(results)

    (run,) = gather(results, published, [Study().device])

    assert run.tables["showdown"].filter(pl.col("status") == "wrong").height == 4


def test_a_race_of_another_sweep_is_refused(results: Path, published: Path) -> None:
    folder = Study().write_local(results)
    wide = Study(ops=("rmsnorm",), hidden=(64, 128, 256)).race()
    schema.write(wide, schema.SHOWDOWN, folder / "showdown" / "rmsnorm.parquet")

    with pytest.raises(archive.ArchiveError, match=r"rmsnorm fp32 256 stream default, which is no point"):
        gather(results, published, [Study().device])


def test_tables_of_an_earlier_wider_study_are_not_read(results: Path, published: Path) -> None:
    """After ``--config ops=layernorm`` the folder still holds the race of rmsnorm."""
    folder = Study().write_local(results)
    (folder / "study.json").write_text(json.dumps(Study(ops=("layernorm",)).document()))

    (run,) = gather(results, published, [Study().device])

    assert run.tables["showdown"]["op"].unique().to_list() == ["layernorm"]
    assert run.tables["cases"]["op"].unique().to_list() == ["layernorm"]


def test_a_smaller_memory_tier_is_whole_with_fewer_rows(results: Path, published: Path) -> None:
    """On a small card the stream points have fewer rows than sweep.json says, and other hashes."""
    folder = Study().write_local(results)
    document = Study().document()
    for row in document["points"]:
        row["rows"] *= 4
    (folder / "study.json").write_text(json.dumps(document))

    assert len(gather(results, published, [Study().device])) == 1


def test_another_gpus_broken_leftovers_do_not_stop_the_report(
    results: Path, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Study().write_local(results)
    other = Study(device="invented-gpu-b00002").write_local(results)
    (other / "showdown" / "rmsnorm.parquet").unlink()

    runs = gather(results, published, [Study().device])

    assert [run.device for run in runs] == [Study().device]
    assert "left out" in capsys.readouterr().err


def test_a_row_of_another_device_is_found_out(results: Path, published: Path) -> None:
    folder = Study().write_local(results)
    schema.write(Study(device="someone-else").ceilings(), schema.CEILINGS, folder / "ceilings.parquet")

    with pytest.raises(archive.ArchiveError, match="holds a row of someone-else"):
        gather(results, published, [Study().device])


def test_a_run_in_the_wrong_folder_is_found_out(results: Path, published: Path) -> None:
    folder = Study().write_archived(published)
    folder.rename(folder.parent / "20200102T030405-fffffff")

    with pytest.raises(archive.ArchiveError, match=r"machine\.json: run is '20200102T030405-abcdef0'"):
        gather(results, published)


def test_two_folders_with_one_run_are_named(results: Path, published: Path) -> None:
    run = archive.read_archived(Study().write_archived(published))

    with pytest.raises(archive.ArchiveError, match=r"20200102T030405-abcdef0: found in two folders"):
        collect.write([run, run], results / "tables")
    assert not (results / "tables" / "cases.parquet").exists()


def _versions(folder: Path) -> list[Path]:
    """One table as three versions might have written it: all-null text, whole numbers for times, a column less."""
    study = Study(ops=("layernorm",))
    frames = [
        study.race([study.points[0]]).with_columns(reason=pl.lit(None, dtype=pl.Null)),
        study.race([study.points[1]]).with_columns(pl.col("time_us_p50").round().cast(pl.Int64)),
        study.with_(hidden=(256,)).race().drop("launch_bound"),
    ]
    paths = []
    for number, frame in enumerate(frames):
        paths.append(folder / f"{number}.parquet")
        frame.write_parquet(paths[-1])
    return paths


def test_tables_of_several_versions_make_one_table_in_every_order(tmp_path: Path) -> None:
    """R5: an all-null column is no text column until it is told so, and polars refuses to join the two."""
    paths = _versions(tmp_path)
    joined = [
        schema.validate(pl.concat([schema.read(path, schema.SHOWDOWN) for path in order]), schema.SHOWDOWN)
        for order in itertools.permutations(paths)
    ]

    assert joined[0].height == 3 * 6
    assert joined[0].schema["time_us_p50"] == pl.Float64
    assert all(frame.equals(joined[0]) for frame in joined)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(b""), "not a readable parquet file"),
        (lambda path: pl.read_parquet(path).with_columns(extra=1).write_parquet(path), "unknown column 'extra'"),
        (
            lambda path: pl.read_parquet(path).with_columns(pl.col("rows") + 0.5).write_parquet(path),
            "'rows' holds fractions",
        ),
        (lambda path: pl.read_parquet(path).drop("device").write_parquet(path), "'device' is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "not a readable parquet file"),
    ],
)
def test_a_bad_file_is_named(results: Path, published: Path, spoil: object, message: str) -> None:
    """R5: one empty or foreign file must not hide among hundreds."""
    path = Study().write_archived(published) / "showdown.parquet"
    spoil(path)  # type: ignore[operator]

    with pytest.raises(schema.SchemaError, match=f"showdown.parquet: .*{message}"):
        gather(results, published)


def test_the_order_of_folders_changes_no_byte(
    results: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Device names that sort otherwise once a slash follows them."""
    for device in ("invented-gpu", "invented-gpu-a00001", "invented-gpu-b00002"):
        Study(device=device).write_archived(published)
    folders = archive.folders(published)

    for name, order in (("one", folders), ("two", folders[::-1])):
        monkeypatch.setattr(archive, "folders", lambda _, order=order: order)
        collect.write(collect.gather(results, published), tmp_path / name)

    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_table_larger_than_memory_is_written_in_parts(
    results: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        Study(device=f"invented-gpu-{number:06x}").write_archived(published)
    whole = joined(collect.gather(results, published), results / "whole")

    monkeypatch.setattr(collect, "PART_ROWS", 40)
    parts = joined(collect.gather(results, published), results / "parts")

    assert all(parts[name].equals(whole[name]) for name in whole)
    assert sorted(path.name for path in (results / "parts").iterdir()) == sorted(
        [*(f"{name}.parquet" for name in schema.TABLES), "machines.json"]
    )
