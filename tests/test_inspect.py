"""The targets audit, sanitize and profile as a person runs them, on a faked GPU and with tools made for it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import report_fixture
from normbench import archive, cli, inspections, measured, page, publish, schema
from study_fixture import Study
from tools_fixture import install
from workflow_fixture import TARGET, Checkout


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny study with the three targets run, the tools finding nothing; not to be changed."""
    folder = tmp_path_factory.mktemp("inspected")
    with pytest.MonkeyPatch.context() as patch:
        install(folder / "tools", patch, compute_sanitizer="clean", ncu="ncu.csv")
        checkout = Checkout.make(folder / "study")
        checkout.path("inspected.log").write_text(checkout.run("report", "audit", "sanitize", "profile", gpu="a"))
    return checkout


def table(checkout: Checkout, name: str) -> pl.DataFrame:
    paths = sorted(checkout.path("results", TARGET, name).glob("*.parquet"))
    return pl.concat([schema.read(path, schema.TABLES[name]) for path in paths])


@pytest.mark.slow
def test_each_target_leaves_its_table_and_says_what_is_in_it(inspected: Checkout) -> None:
    sanitized, profiled, audited = (table(inspected, name) for name in ("sanitize", "profile", "audit"))

    assert set(sanitized["contender"]) == {"naive", "triton_row"}
    assert sanitized["status"].to_list() == ["ok"] * 8
    assert profiled["status"].to_list() == ["ok", "ok"]
    assert set(audited["op"]) == {"layernorm", "rmsnorm"}
    assert set(audited["method"]) == set(inspections.METHODS)
    text = inspected.path("results", "logs", "sanitize.log").read_text()
    assert "naive            memcheck   clean" in text
    assert "× compulsory" in inspected.path("results", "logs", "profile.log").read_text()
    assert (
        "No other timer has a time for a launch of more than 50 µs."
        in inspected.path("results", "logs", "audit.log").read_text()
    )


def test_the_report_shows_what_was_recorded_and_then_has_nothing_to_do(
    inspected: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, compute_sanitizer="clean", ncu="ncu.csv")
    checkout = inspected.copy(tmp_path / "study")
    checkout.run("report", gpu="a")

    text = checkout.path("reports", f"{TARGET}.html").read_text()
    assert "Other timers" in text
    assert '<th scope="row">memcheck</th>' in text
    assert "long_scoreboard" in text
    assert checkout.planned("report", gpu="a") == {}
    # judging costs nothing and is done every time
    assert checkout.planned("sanitize", "audit", "profile", gpu="a") == {"sanitize": 1, "audit": 1, "profile": 1}


@pytest.mark.slow
def test_findings_fail_the_target_after_every_kernel_has_been_run(
    inspected: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = inspected.copy(tmp_path / "study")
    install(tmp_path / "tools", monkeypatch, compute_sanitizer="", ncu="ncu.csv")
    for path in checkout.path("results", TARGET, "sanitize").iterdir():
        path.unlink()

    refused = checkout.snakemake("sanitize", gpu="a")

    assert refused.returncode == 1
    assert table(checkout, "sanitize")["status"].to_list() == ["findings"] * 8
    assert "sanitize: 8 checks of 8 not clean" in checkout.path("results", "logs", "sanitize.log").read_text()
    # what was found is no reason to have no report
    assert "planted.cu:23" in checkout.run("report", gpu="a") + checkout.path("reports", f"{TARGET}.html").read_text()


def test_a_tool_that_came_later_makes_the_skipped_rows_again(
    inspected: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCU", "COMPUTE_SANITIZER"):
        monkeypatch.setenv(f"NORMBENCH_{name}", "no-such-program")

    planned = inspected.planned("sanitize", "profile", gpu="a")

    assert planned == {"sanitize_kernel": 2, "sanitize": 1, "profile_kernel": 2, "profile": 1}


def test_an_edited_kernel_is_sanitized_again_and_the_other_one_is_not(
    inspected: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "tools", monkeypatch, compute_sanitizer="clean", ncu="ncu.csv")
    checkout = inspected.copy(tmp_path / "study")
    path = checkout.path("kernels", "forward", "naive.cu")
    path.write_text(path.read_text() + "// another constant\n")

    assert checkout.planned("sanitize", gpu="a") == {"sanitize_kernel": 1, "sanitize": 1}


def write(folder: Path, name: str) -> Path:
    frame = report_fixture.Fixture().tables()[name]
    path = folder / name / "part.parquet"
    schema.write(frame, schema.TABLES[name], path)
    return path


@pytest.mark.parametrize(("name", "code"), [("audit", 0), ("profile", 0), ("sanitize", 1)])
def test_only_findings_make_show_fail(name: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(write(tmp_path, name))]) == code

    printed = capsys.readouterr().out
    wanted = {
        "audit": "not within 2 %",
        "profile": "device memory",
        "sanitize": "welford          racecheck  1 finding, the first: Race reported",
    }
    assert wanted[name] in printed


def test_rows_without_a_verdict_fail_and_skipped_ones_do_not() -> None:
    made = report_fixture.Fixture().tables()["sanitize"]
    for status, count in (("skipped", 0), ("timeout", made.height), ("launch_error", made.height), ("ok", 0)):
        assert inspections.bad("sanitize", made.with_columns(status=pl.lit(status))).height == count


def test_a_table_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(tmp_path / "cases" / "naive.parquet")]) == 1
    assert "neither the file nor its folder is called audit, sanitize, profile" in capsys.readouterr().err


def test_what_was_asked_for_is_published_with_the_study(tmp_path: Path) -> None:
    study = Study()
    folder = study.write_local(tmp_path / "results")
    made = report_fixture.Fixture(device=study.device).tables()
    schema.write(made["audit"], schema.AUDIT, folder / "audit" / "rmsnorm.parquet")
    for name in ("sanitize", "profile"):
        for stem in ("naive", "triton_row", "welford"):  # no race of this study has welford
            part = made[name].filter(pl.col("contender") == stem)
            schema.write(part, schema.TABLES[name], folder / name / f"{stem}.parquet")

    published = publish.publish(archive.read_local(folder, tmp_path / "results" / "build"), tmp_path / "data")

    tables = archive.read_archived(published).tables
    assert {name: set(tables[name]["contender"]) for name in ("audit", "sanitize", "profile")} == {
        "audit": {"cta_row", "torch_eager"},
        "sanitize": {"naive", "triton_row"},
        "profile": {"naive", "triton_row"},
    }
    assert {f"{name}.parquet" for name in ("audit", "sanitize", "profile")} <= {one.name for one in published.iterdir()}


def test_a_study_without_them_is_published_without_them(tmp_path: Path) -> None:
    folder = Study().write_local(tmp_path / "results")
    published = publish.publish(archive.read_local(folder, tmp_path / "results" / "build"), tmp_path / "data")

    assert not {"audit.parquet", "sanitize.parquet", "profile.parquet"} & {one.name for one in published.iterdir()}
    assert archive.read_archived(published).tables["profile"].is_empty()


def test_the_card_says_what_the_profiler_and_the_sanitizer_said() -> None:
    made = report_fixture.Fixture()
    one = measured.measured(measured.Archive(**made.tables(), machines=(made.machine(),)), made.device)

    text = page.build(one)

    assert "1.002 × compulsory" in text
    assert "16 B x 8; 16.0 sectors a request" in text
    assert "loads from global or local memory (long_scoreboard, 75 % of the cycles)" in text
    assert "<b>1 finding, the first: Race reported between Write access at void welford&lt;float, 64&gt;()" in text
    assert "invented: ncu may not read the GPU&#39;s counters" in text
    assert "at most 3.1 %, not within 2 %" in text
    notes = inspections.of_kernel(one, "cta_row")
    assert notes.versions == "Nsight Compute 2025.3.1.0, Compute Sanitizer 2025.3.1"
    assert [check["clean"] for check in notes.checks] == [True] * 4


def test_a_page_without_them_says_nothing_of_them() -> None:
    made = report_fixture.Fixture(inspected=False)
    one = measured.measured(measured.Archive(**made.tables(), machines=(made.machine(),)), made.device)

    text = page.build(one)

    assert "Other timers" not in text
    assert "under the profiler" not in text
