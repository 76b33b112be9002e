"""What a measuring process has finished, one JSON line each, flushed to disk as soon as it is heard of.

A line counts only under the ``context`` it was written for: a hash of everything that decides its numbers. Damaged
lines (a kill in the middle of a write) are passed over, and so are outcomes of the moment (stage ``passing``: a hang,
memory that somebody else had): whoever starts again gets another try.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Done = dict[str, dict[str, Any]]
PASSING = "passing"  # the stage of an outcome that another attempt may change


class Journal:
    """Append-only record of finished units. ``path`` None keeps nothing (``normbench bench``)."""

    def __init__(self, path: Path | None, context: str) -> None:
        self.path = path
        self.context = context
        self._file: Any = None

    def load(self) -> Done:
        """Finished units of this context: {unit: {stage, row}}; the last line of a unit wins."""
        done: Done = {}
        if self.path is None or not self.path.exists():
            return done
        for line in self.path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("context") == self.context:
                done |= {unit: {"stage": stage, "row": row} for unit, stage, row in entry["units"]}
        return {unit: entry for unit, entry in done.items() if entry["stage"] != PASSING}

    def append(self, units: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Keep (unit, stage, row) of ``units`` in one line: all or none of them survive a kill."""
        if self.path is None:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            if self._file.tell():
                self._file.write(b"\n")  # ends a line that a kill left open
        entry = {"context": self.context, "units": units}
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
