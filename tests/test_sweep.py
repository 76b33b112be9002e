"""Sweep: the points of a study, the same ones for the same study on every GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from normbench import config, sweep
from normbench.points import Point

Verb = Callable[..., subprocess.CompletedProcess[str]]
DEFAULT = config.Study()


def test_rows_depend_on_anything_but_elements_and_hidden() -> None:
    stream = [point for point in sweep.points(DEFAULT) if point.regime == "stream"]
    assert {(point.hidden, point.rows) for point in stream} == {(hidden, 2**27 // hidden) for hidden in DEFAULT.hidden}


def test_row_longer_than_the_tensor_gives_zero_rows() -> None:
    study = config.load({"regimes": "stream,l2", "hidden": 2**24, "elements": 2**20, "l2_hidden": 2**23})
    assert {point.rows for point in sweep.points(study)} == {1}


def test_regimes_take_each_others_shapes() -> None:
    study = config.load({"hidden": 64, "l2_hidden": 128, "l2_bytes": 5120, "latency": {"rows": [1, 16], "hidden": 256}})
    shapes = {(point.regime, point.rows, point.hidden) for point in sweep.points(study) if point.dtype == "fp32"}
    assert shapes == {
        ("stream", 2**27 // 64, 64),
        ("l2", 10, 128),
        ("latency", 1, 256),
        ("latency", 16, 256),
    }


def test_l2_tensors_of_other_types_with_other_bytes() -> None:
    l2 = {point.dtype: point.rows for point in sweep.points(DEFAULT) if point.regime == "l2"}
    assert l2 == {"fp32": 256, "fp16": 512, "bf16": 512}


@pytest.mark.parametrize(
    ("memory_bytes", "elements"),
    [(None, 2**27), (141 * 10**9, 2**27), (24 * 10**9, 2**27), (24 * 10**9 - 1, 2**25), (8 * 2**30, 2**25)],
)
def test_small_card_gets_tensors_it_cannot_hold(memory_bytes: int | None, elements: int) -> None:
    stream = [point for point in sweep.points(DEFAULT, memory_bytes) if point.regime == "stream"]
    assert {point.rows for point in stream if point.hidden == 1024} == {elements // 1024}


def test_small_memory_tier_makes_a_small_study_larger() -> None:
    study = config.load({"elements": 2**20})
    assert sweep.stream_elements(study, 8 * 10**9) == 2**20


def test_small_memory_tier_changes_the_other_regimes() -> None:
    full, small = (
        {point.key for point in sweep.points(DEFAULT, memory) if point.regime != "stream"} for memory in (None, 1)
    )
    assert full == small


def test_order_of_the_config_changes_the_order_of_the_points() -> None:
    values = DEFAULT.model_dump()
    backwards = {key: value[::-1] if isinstance(value, list) else value for key, value in reversed(values.items())}
    assert sweep.document(config.load(backwards)) == sweep.document(DEFAULT)


def test_point_is_listed_twice_or_missing() -> None:
    points = sweep.points(DEFAULT)
    assert len({point.key for point in points}) == len(points)
    shapes = len(DEFAULT.hidden) + len(DEFAULT.l2_hidden) + len(DEFAULT.latency.rows) * len(DEFAULT.latency.hidden)
    assert len(points) == len(DEFAULT.ops) * len(DEFAULT.dtypes) * shapes


def test_adding_a_hidden_size_changes_the_other_points() -> None:
    before = {point.key for point in sweep.points(DEFAULT)}
    after = {point.key for point in sweep.points(config.load({"hidden": [*DEFAULT.hidden, 5120]}))}
    assert before < after
    assert len(after - before) == len(DEFAULT.ops) * len(DEFAULT.dtypes)


def test_eps_is_lost_on_the_way_to_the_semantics() -> None:
    assert {str(point.semantics) for point in sweep.points(DEFAULT)} == {"default"}
    points = sweep.points(config.load({"eps": 1e-6}))
    assert {point.semantics.eps for point in points} == {1e-6}
    assert {str(point.semantics) for point in points} == {'{"eps":1e-06}'}


def test_written_points_read_back_differently(tmp_path: Path, normbench: Verb) -> None:
    out = tmp_path / "new folder" / "sweep.json"
    study = {"dtypes": "bf16", "hidden": [2049], "title": "mine"}
    done = normbench("sweep", "--study", json.dumps(study), "--memory-bytes", 8 * 10**9, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert sweep.read(out) == sweep.points(config.load(study), 8 * 10**9)
    assert sweep.read(out, 141 * 10**9) == sweep.points(config.load(study), None)
    written = json.loads(out.read_text())
    assert "title" not in written["study"]
    assert all(Point.from_identity(row).identity() == row for row in written["points"])


@pytest.mark.parametrize("study", ['{"hidden": 0}', "[1, 2]", "{unclosed"])
def test_wrong_study_ends_in_a_traceback_or_a_file(tmp_path: Path, normbench: Verb, study: str) -> None:
    out = tmp_path / "sweep.json"
    done = normbench("sweep", "--study", study, "--out", out)
    assert done.returncode == 1
    assert done.stderr.startswith("normbench sweep: ")
    assert len(done.stderr.splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"points": [{"op": "layernorm"}]}', '{"points": [], "study": {"hidden": 0}}']
)
def test_foreign_file_is_taken_for_a_sweep(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"sweep\.json: not a sweep\.json"):
        sweep.read(path, 10**9)


def test_a_cast_order_and_an_offset_reach_the_ops_that_have_them() -> None:
    study = config.load({"ops": ["layernorm", "add_rmsnorm"], "cast": "llama", "gamma_offset": 1})

    found = {point.op: point.semantics for point in sweep.points(study)}

    assert (found["layernorm"].cast, found["layernorm"].offset) == ("torch", 1.0)
    assert (found["add_rmsnorm"].cast, found["add_rmsnorm"].offset) == ("llama", 1.0)
    plain = config.load({"ops": ["layernorm", "add_rmsnorm"]})
    assert {str(point.semantics) for point in sweep.points(plain)} == {"default"}
