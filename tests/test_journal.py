"""The journal: what a kill leaves behind is either a whole line or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normbench.journal import Journal

Units = list[tuple[str, str, dict[str, object]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "journal.jsonl"


def unit(name: str, stage: str = "final", **row: object) -> tuple[str, str, dict[str, object]]:
    return name, stage, row


def written(path: Path, *lines: Units, context: str = "now") -> Journal:
    journal = Journal(path, context)
    for units in lines:
        journal.append(units)
    return journal


def test_what_was_appended_is_loaded(path: Path) -> None:
    written(path, [unit("a", "tune", time=1.5)], [unit("b"), unit("c")])

    assert Journal(path, "now").load() == {
        "a": {"stage": "tune", "row": {"time": 1.5}},
        "b": {"stage": "final", "row": {}},
        "c": {"stage": "final", "row": {}},
    }


def test_the_last_word_on_a_unit_counts(path: Path) -> None:
    written(path, [unit("a", "tune", time=1)], [unit("a", "final", time=2)])

    assert Journal(path, "now").load() == {"a": {"stage": "final", "row": {"time": 2}}}


def test_another_context_is_as_good_as_nothing(path: Path) -> None:
    written(path, [unit("a")], context="yesterday")
    written(path, [unit("b")])

    assert Journal(path, "now").load().keys() == {"b"}
    assert Journal(path, "yesterday").load().keys() == {"a"}


@pytest.mark.parametrize("kept", [1, 10, 40, -1])
def test_a_line_cut_short_is_passed_over_and_the_next_one_is_not_lost(path: Path, kept: int) -> None:
    written(path, [unit("a")], [unit("b", text="x" * 50)])
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    path.write_bytes(whole[:start] + whole[start:-1][:kept])

    assert Journal(path, "now").load().keys() == {"a"}
    written(path, [unit("c")])
    assert Journal(path, "now").load().keys() == {"a", "c"}


def test_units_of_one_line_are_lost_together(path: Path) -> None:
    """A race counts for all who ran in it, or for none."""
    written(path, [unit("a"), unit("b"), unit("c")])
    path.write_bytes(path.read_bytes()[:-5])

    assert Journal(path, "now").load() == {}


@pytest.mark.parametrize("junk", [b"\x00\xff\xfe", b"null", b"[1, 2]", b'"text"', b"12", b'{"other": 1}'])
def test_a_foreign_line_is_passed_over(path: Path, junk: bytes) -> None:
    written(path, [unit("a")])
    with path.open("ab") as file:
        file.write(junk + b"\n")
    written(path, [unit("b")])

    assert Journal(path, "now").load().keys() == {"a", "b"}


def test_a_line_is_on_disk_before_the_next_case_starts(path: Path) -> None:
    journal = written(path, [unit("a")])

    assert [json.loads(line)["units"] for line in path.read_text().splitlines()] == [[["a", "final", {}]]]
    assert journal.load().keys() == {"a"}


def test_a_line_break_inside_a_reason_stays_inside_its_line(path: Path) -> None:
    reason = "error: γ\u2028is\u0085cast\r\ndown"
    written(path, [unit("a", reason=reason)], [unit("b")])

    assert Journal(path, "now").load()["a"]["row"]["reason"] == reason


def test_without_a_path_nothing_is_kept() -> None:
    journal = Journal(None, "")
    journal.append([unit("a")])

    assert journal.load() == {}
