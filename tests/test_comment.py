"""What a comment on a pull request must tell, and what it must not let through."""

from __future__ import annotations

import re
from pathlib import Path

from normbench import archive, comment, compare
from normbench.archive import Run
from study_fixture import Study

LATER = "20210102T030405-abcdef1"


def runs(tmp_path: Path, left: Study, right: Study) -> tuple[Run, Run]:
    first, second = (study.write_archived(tmp_path) for study in (left, right.with_(run=LATER)))
    return archive.read_archived(first), archive.read_archived(second)


def rendered(tmp_path: Path, left: Study, right: Study) -> str:
    before, after = runs(tmp_path, left, right)
    return comment.render(before, after, compare.compare(before, after))


def table(text: str) -> list[list[str]]:
    """Cells of the rows of its table, headings left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]


def test_slower_and_faster_are_told_with_their_evidence(tmp_path: Path) -> None:
    text = rendered(tmp_path, Study(seed=1), Study(seed=2, slow={"naive": 1.02, "cta_row": 0.95}))

    rows = [[cell.strip() for cell in row] for row in table(text)]
    assert [row[0] for row in rows] == ["▼ SLOWER"] * 4 + ["▲ FASTER"] * 4
    assert {(row[0], row[1]) for row in rows} == {("▼ SLOWER", "naive"), ("▲ FASTER", "cta\\_row")}
    slower = rows[0]
    assert slower[2].startswith(("rmsnorm", "layernorm"))
    assert re.fullmatch(r"\+[12]\.\d\u00a0%", slower[5])
    low, high = re.fullmatch(r"\+(\d\.\d)\u00a0% to \+(\d\.\d)\u00a0%", slower[6]).groups()
    assert 1.5 < float(low) <= 2.0 <= float(high) < 2.5
    assert "### normbench on Invented GPU: a regression" in text
    assert "4 SLOWER, 0 AMBIGUOUS, 4 FASTER, 12 SAME of 20 judged rows" in text
    assert "0.50 % in stream" in text


def test_without_a_difference_there_is_no_table(tmp_path: Path) -> None:
    text = rendered(tmp_path, Study(seed=1), Study(seed=2))

    assert table(text) == []
    assert "no confirmed regression" in text
    assert "20 SAME" in text


def test_what_is_newly_wrong_comes_first_and_cannot_write_markdown(tmp_path: Path) -> None:
    """The reason is written by the pull request's own code."""
    reason = "err <img src=x> | @everyone\n## merged \x1b[31mred"
    broken = {"status": "wrong", "reason": reason, "time_us_p50": None, "verdict": None}

    text = rendered(tmp_path, Study(seed=1), Study(seed=2, changes={"naive": broken}))

    lines = [line for line in text.splitlines() if line.startswith("* newly wrong: naive")]
    assert len(lines) == 4
    assert "\\<img" in lines[0]
    assert "\\@everyone" in lines[0]
    assert "\x1b" not in text
    assert not re.search(r"^## ", text, re.MULTILINE)
    assert "a regression" in text


def test_a_comment_stays_within_what_github_takes(tmp_path: Path) -> None:
    sizes = tuple(range(64, 64 * 31, 64))
    slow = {"naive": 1.05, "cta_row": 1.05}

    text = rendered(tmp_path, Study(seed=1, hidden=sizes), Study(seed=2, hidden=sizes, slow=slow))

    assert len(text) < 65_536
    assert len(table(text)) == comment.MOST_ROWS
    assert "\n\n80 more rows in the archived runs.\n" in text


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    before, after = runs(tmp_path, Study(seed=1), Study(seed=2, slow={"naive": 1.02}))
    texts = {comment.render(before, after, compare.compare(before, after)) for _ in range(2)}

    assert len(texts) == 1
