"""How to cite the data of a page, in the Citation File Format 1.2.0 (https://citation-file-format.github.io)."""

from __future__ import annotations

from typing import Any

import yaml

from normbench import __version__
from normbench.measured import Measured

AUTHORS = [{"name": "normbench authors"}]


def text(one: Measured) -> str:
    """A CITATION.cff of the device's published runs; equal data give equal text."""
    dumped: str = yaml.safe_dump(_document(one), sort_keys=False, allow_unicode=True, width=100)
    return dumped


def _document(one: Measured) -> dict[str, Any]:
    name = one.machine["gpu_name"] or one.device
    document = {
        "cff-version": "1.2.0",
        "message": "If you use these measurements, please cite them as below.",
        "title": f"normbench: LayerNorm and RMSNorm kernels measured on {name} ({one.device})",
        "type": "dataset",
        "authors": AUTHORS,
        "version": ", ".join(one.runs),
        "license": "MIT",
        "references": [{"type": "software", "title": "normbench", "authors": AUTHORS, "version": __version__}],
    }
    commit, day = one.machine["commit"], _day(one)
    return document | ({"commit": commit} if commit else {}) | ({"date-released": day} if day else {})


def _day(one: Measured) -> str | None:
    """UTC day of the newest run, whose id begins with it; None where no run has points."""
    if not one.runs or not one.runs[-1][:8].isdigit():
        return None
    digits = one.runs[-1]
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}"
