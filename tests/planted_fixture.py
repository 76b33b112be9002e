"""The kernels with one fault planted in them."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def planted(folder: Path, file: str, right: str, wrong: str) -> Path:
    """A copy of all kernels in ``folder`` with ``right``, which stands once in ``file``, replaced by ``wrong``; the
    copy's folder."""
    kernels = folder / "kernels"
    shutil.copytree(ROOT / "kernels", kernels)
    path = kernels / file
    text = path.read_text()
    assert text.count(right) == 1, "the text to replace has changed"
    path.write_text(text.replace(right, wrong))
    return kernels
