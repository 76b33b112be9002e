"""Widths of the global loads and stores in machine code, as nvdisasm prints it."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from normbench import tools

_MOVE = re.compile(r"\b(LDG|STG|LDGSTS|UBLKCP|UTMALDG|UTMASTG)\b((?:\.\w+)*)")
_WIDTH = {"256": 32, "128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1}
DISASSEMBLY_S = 60.0


def widths(binary: bytes) -> tuple[str | None, str | None]:
    """(loads, stores) of all functions of a cubin: ``16 B x 8, 2 B x 1``, widest first; None without nvdisasm."""
    try:
        tool = tools.find("nvdisasm")
    except tools.ToolMissing:
        return None, None
    with tempfile.TemporaryDirectory(prefix="normbench-sass-") as folder:
        path = Path(folder, "code.cubin")
        path.write_bytes(binary)
        ran = tools.run([str(tool), "-c", str(path)], os.environ, DISASSEMBLY_S)
    return count(ran.out) if ran.code == 0 else (None, None)


def count(text: str) -> tuple[str | None, str | None]:
    """The same of a disassembly; None where there is no such instruction."""
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    for name, suffixes in _MOVE.findall(text):
        parts = suffixes.split(".")[1:]
        if name in ("UBLKCP", "UTMALDG", "UTMASTG"):
            writes = name == "UTMASTG" or parts[:2] == ["G", "S"]
            (stores if writes else loads)[0] += 1
            continue
        width = next((_WIDTH[part] for part in parts if part in _WIDTH), 4)
        (stores if name == "STG" else loads)[width] += 1
    return _text(loads), _text(stores)


def _text(counted: Counter[int]) -> str | None:
    """0 stands for copies in bulk, whose size is no part of the instruction."""
    named = [("bulk" if width == 0 else f"{width} B", number) for width, number in sorted(counted.items())]
    return ", ".join(f"{name} x {number}" for name, number in reversed(named)) or None
