"""Valid values in words, and the one nearest to a wrong value, from a JSON Schema description of it."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = {"integer": "a whole number", "number": "a number", "string": "text"}


def allowed(item: Mapping[str, Any]) -> str:
    """A described value in words, e.g. ``a multiple of 32 from 32 to 1024``."""
    if "enum" in item:
        return "one of " + ", ".join(map(str, item["enum"]))
    words = _WORDS.get(item.get("type", ""), "a mapping")
    if "examples" in item:
        return f"{words} such as {item['examples'][0]}"
    if "multipleOf" in item:
        words = f"a multiple of {item['multipleOf']}"
    if "exclusiveMinimum" in item:
        return f"{words} above {item['exclusiveMinimum']:g}"
    if "maximum" in item:
        return f"{words} from {item['minimum']} to {item['maximum']}"
    return f"{words} from {item['minimum']} on" if "minimum" in item else words


def nearest(value: object, item: Mapping[str, Any], default: Any) -> str:
    """The valid value nearest to a wrong one; the default where there is no distance to go by."""
    if "enum" in item:
        return str(closest(value, item["enum"]))
    number = _number(value)
    if number is None or item.get("type") != "integer":
        return json.dumps(default)
    step = item.get("multipleOf", 1)
    above = max(math.floor(number / step + 0.5) * step, item["minimum"])
    return str(min(above, item.get("maximum", above)))


def closest(value: object, valid: Sequence[Any]) -> Any:
    """The nearest of ``valid``, which is not empty: by distance for numbers, by spelling for text."""
    number = _number(value)
    if number is not None and isinstance(valid[0], int):
        return min(valid, key=lambda item: abs(item - number))
    return difflib.get_close_matches(str(value), [str(item) for item in valid], n=1, cutoff=0.0)[0]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
