"""Numbers and messages as text, one way on every page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

NONE = "–"
Span = tuple[float, float]


_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def plain(text: str) -> str:
    """``text`` without terminal colours and control characters, which some compilers put into their messages."""
    return _ESCAPES.sub("", text)


def span(values: Iterable[float | None]) -> Span | None:
    """Smallest and largest of the values that exist."""
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low}–{high}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def gbps(value: Span | None) -> str:
    """``3,410–3,962``; the unit stands in the heading."""
    return NONE if value is None else _between(count(value[0]), count(value[1]))


def percent(value: Span | None) -> str:
    return NONE if value is None else f"{_between(f'{value[0] * 100:.0f}', f'{value[1] * 100:.0f}')}\u00a0%"


def few(value: float) -> str:
    """Two digits where they are decimals: ``0.82``, ``3.1``, ``47``, ``1,204``."""
    return f"{value:.2g}" if value < 9.95 else f"{value:,.0f}"


def shares(value: Span | None) -> str:
    """``0.8–12 %``: of small parts, in two digits."""
    return NONE if value is None else f"{_between(few(value[0] * 100), few(value[1] * 100))}\u00a0%"


def signed(value: float | None) -> str:
    """A fraction as a signed percentage with a digit that tells: ``+0.3 %``, ``+12 %``."""
    if value is None:
        return NONE
    return f"{value * 100:+.{1 if abs(value) < 0.0995 else 0}f}\u00a0%"


def factor(value: float | None) -> str:
    return NONE if value is None else f"{_factor(value)}×"


def times(value: Span | None) -> str:
    """``0.99–4.81×``; two decimals below 10, none above, so that a loss never rounds to 1.0."""
    return NONE if value is None else f"{_between(_factor(value[0]), _factor(value[1]))}×"


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def sizes(hidden: Iterable[int]) -> str:
    """A range of hidden sizes by its ends."""
    ordered = sorted(hidden)
    return _between(str(ordered[0]), str(ordered[-1]))


def quantity(number: int, noun: str) -> str:
    """``1 point``, ``2 points``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def fact(value: object) -> str:
    """A fact of a machine: a flag as yes or no, what is not known as a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return NONE if value is None else str(value)


def variant(text: str | None) -> str:
    """``{"block":256,"vec":4}`` as ``block 256, vec 4``."""
    if text is None:
        return NONE
    return ", ".join(f"{name} {value}" for name, value in json.loads(text).items()) or NONE


def binary_bytes(value: float | None) -> str:
    """Bytes in the largest binary unit that keeps a whole digit."""
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def last_line(text: str) -> str:
    """The last line with something in it, for a reason; "" where there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
