"""One HTML file out of a template, chart specifications and scripts: nothing is fetched, nothing can be injected.

Text reaches the page through Jinja's autoescape; data reach it as JSON in which no character can end a script element.
The content-security-policy forbids every load and every script but the page's own, by hash.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from normbench import formats, schema

TEMPLATES = Path(__file__).parent / "templates"
MOST_ROWS = 20_000  # of one chart; more would be a frame that should have been aggregated
DIGITS = 6  # significant; medians are known to four


def json_text(value: object) -> Markup:
    """Strict JSON (NaN raises ValueError) that is inert inside a script element and equal for equal values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def to_spec(chart: Any, description: str) -> dict[str, Any]:
    """The Vega-Lite specification of an Altair chart, its numbers rounded to DIGITS."""
    with alt.data_transformers.enable("default", max_rows=MOST_ROWS):  # to_dict refuses 5,000 rows and more
        spec: dict[str, Any] = chart.to_dict()
    spec.pop("config", None)
    return rounded(spec | {"description": description})  # type: ignore[no-any-return]


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


@dataclass
class Specs:
    """The specifications of a page, and their rows in a third of the space JSON objects would take.

    data: by content hash, ``{columns, worded, rows}``: an array a row; a column named in ``worded`` holds indices into
    ``words``, the page's distinct strings (a command that repeats a point is shown by six charts and stored once).
    """

    charts: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, spec: Mapping[str, Any]) -> None:
        """Take a specification whose data are in ``datasets``."""
        spec = dict(spec)
        for key, rows in spec.pop("datasets", {}).items():
            self.data[key] = self._columnar(rows)
        self.charts[name] = spec

    def _columnar(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        columns = list(rows[0]) if rows else []
        worded = [name for name in columns if any(isinstance(row[name], str) for row in rows)]
        packed = [[self._word(row[name]) if name in worded else row[name] for name in columns] for row in rows]
        return {"columns": columns, "worded": worded, "rows": packed}

    def _word(self, text: str | None) -> int | None:
        return None if text is None else self.words.setdefault(text, len(self.words))

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The rows of a dataset as they came in."""
        words, table = list(self.words), self.data[key]
        worded = [name in table["worded"] for name in table["columns"]]
        return [
            {
                name: words[value] if word and value is not None else value
                for name, word, value in zip(table["columns"], worded, row, strict=True)
            }
            for row in table["rows"]
        ]

    def json(self, **more: Any) -> str:
        """Everything a page's script draws from, as JSON."""
        return json_text({"charts": self.charts, "data": self.data, "words": list(self.words), **more})


@cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one module, from the wheel.

    Raises:
        ValueError: the bundle could end its own script element.
    """
    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg] # its stub lacks the default
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("the Vega bundle holds text that would end a script element")
    return script


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": formats.count, "gbps": formats.gbps, "percent": formats.percent, "times": formats.times,
        "sizes": formats.sizes, "bytes": formats.binary_bytes, "quantity": formats.quantity,
        "variant": formats.variant, "signed": formats.signed, "factor": formats.factor,
        "shares": formats.shares,
    }  # fmt: skip
    return made


def render(template: str, scripts: Mapping[str, str] | None = None, **context: Any) -> str:
    """Fill a template. ``scripts`` are inlined as modules in order and allowed by their hashes, and no others run."""
    scripts = scripts or {}
    inlined = [Markup(text) for text in scripts.values()]
    style = Markup((TEMPLATES / "style.css").read_text())
    html = (
        environment()
        .get_template(template)
        .render(policy=policy(list(scripts.values())), scripts=inlined, style=style, **context)
    )
    return html.rstrip() + "\n"


def policy(scripts: list[str]) -> str:
    """Content-security-policy: no loads, the page's scripts by hash, inline styles, pictures made in the page."""
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    allowed = " ".join(hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def compressed(text: str | bytes) -> bytes:
    """gzip with no time in it, so that equal content gives equal bytes."""
    return gzip.compress(text.encode() if isinstance(text, str) else text, compresslevel=9, mtime=0)


def packed(text: str) -> Markup:
    """``compressed`` in base64, which has no character that could end a script element."""
    return Markup(base64.b64encode(compressed(text)).decode())


def data_link(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def write(html: str, path: Path | str) -> None:
    """Write so that the page is either the old one or the whole new one."""
    with schema.atomic(path) as temporary:
        temporary.write_text(html, encoding="utf-8", newline="\n")
