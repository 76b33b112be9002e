"""A comparison as Markdown, short enough for a comment on a pull request: the verdicts, and what each rests on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from normbench import schema
from normbench.archive import Run
from normbench.compare import MARKS, Comparison, Row
from normbench.formats import fact, factor, percent, plain, quantity, signed

MOST_ROWS = 40  # GitHub refuses comments of more than 65,536 characters
MOST_WRONG = 20
TOLD = ("SLOWER", "FASTER", "AMBIGUOUS")
HEADINGS = ("verdict", "contender", "work", "left µs", "right µs", "time", "95 % interval", "cycles", "% of ceiling")
# words of the left and right side, escaped where they come from a kernel's author
_SPECIAL = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_[]<>|#@"} | {"\n": " "})


def write(left: Run, right: Run, found: Comparison, path: Path) -> None:
    with schema.atomic(path) as temporary:
        temporary.write_text(render(left, right, found), encoding="utf-8")


def render(left: Run, right: Run, found: Comparison) -> str:
    """The whole comment; the same runs give the same bytes."""
    blocks = (_heading(right, found), _wrong(found), _table(found), _method(left, right, found))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _heading(right: Run, found: Comparison) -> str:
    verdict = "a regression" if found.regressed else "no confirmed regression"
    gpu = _text(fact(right.machine.get("gpu_name")))
    return (
        f"### normbench on {gpu}: {verdict}\n\n{found.counted} of {quantity(len(found.rows), 'judged row')};"
        f" geometric mean of the speed-up {factor(found.speedup)}."
    )


def _wrong(found: Comparison) -> str:
    sentences = [f"* newly wrong: {_text(plain(sentence))}" for sentence in found.newly_wrong[:MOST_WRONG]]
    if len(found.newly_wrong) > MOST_WRONG:
        sentences.append(f"* and {len(found.newly_wrong) - MOST_WRONG} more that are newly wrong")
    return "\n".join(sentences)


def _table(found: Comparison) -> str:
    """Rows that are not SAME, worst first, ambiguous ones last."""
    told = sorted((row for row in found.rows if row.verdict in TOLD), key=lambda row: TOLD.index(row.verdict))
    if not told:
        return ""
    lines = [_line(HEADINGS), _line("---" for _ in HEADINGS), *(_line(_cells(row)) for row in told[:MOST_ROWS])]
    table = "\n".join(lines)
    left_out = len(told) - MOST_ROWS
    return table if left_out <= 0 else f"{table}\n\n{quantity(left_out, 'more row')} in the archived runs."


def _line(cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> tuple[str, ...]:
    semantics = "" if row.semantics == "default" else f" {row.semantics}"
    ceilings = (f"{percent(None if pct is None else (pct / 100, pct / 100))}" for pct in (row.left_pct, row.right_pct))
    return (
        f"{MARKS[row.verdict]} {row.verdict}",
        _text(row.contender),
        _text(f"{row.op}{semantics} {row.dtype} {row.rows}×{row.hidden} {row.regime}"),
        f"{row.left_us:.2f}",
        f"{row.right_us:.2f}",
        _change(row.ratio),
        f"{_change(row.ratio_lo)} to {_change(row.ratio_hi)}",
        "–" if row.ratio_cycles is None else _change(row.ratio_cycles),
        " → ".join(ceilings),
    )


def _change(ratio: float) -> str:
    """A ratio of times as what it adds: ``+2.0 %`` is slower."""
    return signed(ratio - 1)


def _method(left: Run, right: Run, found: Comparison) -> str:
    margins = ", ".join(f"{100 * margin:.2f} % in {regime}" for regime, margin in found.margins.items())
    sentences = [
        f"Left {_text(left.id)}, right {_text(right.id)}.",
        "FASTER and SLOWER: the whole 95 % interval of the ratio of medians, in time and in SM cycles, is beyond the "
        f"margin ({margins or 'unknown, since a run has no A/A twin'}), which is the noise floor of the runs or 0.5 %.",
        f"{quantity(found.not_judged, 'common row')} without a quotable time on both sides.",
    ]
    if found.caveat:
        sentences.append(found.caveat)
    return "\n".join(("<details><summary>What was compared, and how</summary>\n", *sentences, "\n</details>"))


def _text(text: str) -> str:
    return text.translate(_SPECIAL)
