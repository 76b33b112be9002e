"""What decides a number decides whether the journal may be believed: a changed source is measured again."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from measuring_fixture import ROOT, point
from normbench import contenders, parse, schema, showdown, sources
from normbench.roofs import tensor_sizes


@pytest.fixture
def guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules can be imported."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def unit(cases: Path, guest: str) -> str:
    arguments = Namespace(op="layernorm", kernels=[], builds=[], cases=[cases], baselines=[guest])
    return str(showdown.Field(arguments).entries(point())[0]["unit"])


def test_an_edited_guest_races_again(guests: Path) -> None:
    cases = guests / "cases.parquet"
    schema.write(schema.CASES.empty(), schema.CASES, cases)
    (guests / "visitor.py").write_text("def norm(t): ...\n")
    before = unit(cases, "visitor:norm")
    assert unit(cases, "visitor:norm") == before

    (guests / "visitor.py").write_text("def norm(t): return None\n")

    assert unit(cases, "visitor:norm") != before


def test_two_functions_of_one_module_are_two_contenders(guests: Path) -> None:
    (guests / "pair.py").write_text("def one(t): ...\ndef two(t): ...\n")

    assert contenders.load("pair:one").sha != contenders.load("pair:two").sha


def test_a_guest_in_a_package_that_is_absent_stops_nothing() -> None:
    """It becomes a row that says so, as for a module that is absent."""
    assert contenders.load("no_such_package.norms:norm").stem == "norm"


def test_a_baseline_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library's version is a trigger, and ``warm`` compiles it, without a list that names it somewhere else."""
    (tmp_path / "another.py").write_text('LANG = "library"\nDISTRIBUTION = "polars"\nJIT = "rows"\n')
    (tmp_path / "eager.py").write_text('LANG = "torch"\nDISTRIBUTION = "torch"\n')
    monkeypatch.setattr(sources, "BASELINES", tmp_path)

    assert sources.baseline_versions() == {"another": sources.version("polars")}
    assert [contenders.baseline(path).jit for path in sorted(tmp_path.iterdir())] == ["rows", ""]


@pytest.mark.parametrize(("changed", "same"), [({"hidden": 1024, "rows": 128}, True), ({"dtype": "bf16"}, False)])
def test_ceilings_are_measured_again_for_other_sizes_only(changed: dict[str, Any], same: bool) -> None:
    """A slice by hidden size or op is judged by the ceilings that are known."""
    facts = {"dtype": "fp32", "rows": 256, "hidden": 512}

    assert (tensor_sizes([point(**facts)]) == tensor_sizes([point(**facts | changed)])) is same


def test_an_edited_header_and_a_new_binary_are_another_contender(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    kernel = tmp_path / "kernels" / "forward" / "naive.cu"
    build = tmp_path / "naive.json"
    build.write_text(json.dumps({"lowered": {}}))
    build.with_suffix(".cubin").write_bytes(b"one")
    first = contenders.load(str(kernel), build).sha

    build.with_suffix(".cubin").write_bytes(b"two")
    second = contenders.load(str(kernel), build).sha
    with (tmp_path / "kernels" / "common" / "reduce.cuh").open("a") as header:
        header.write("// edited\n")

    assert len({first, second, contenders.load(str(kernel), build).sha}) == 3


def test_inputs_of_verify_are_part_of_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in sources.VERIFYING:
        shutil.copy(sources.PACKAGE / name, tmp_path)
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    before = sources.verifying()

    (tmp_path / "inputs.py").write_text("HIDDEN = ()\n")

    assert sources.verifying() != before


def test_the_rule_of_verify_watches_the_same_files() -> None:
    assert {Path(path).name for path in parse.verifying()} == set(sources.VERIFYING)
    assert all((ROOT / path).is_file() for path in parse.verifying())
