"""compute-sanitizer: its command line, and what its log says.

The shape of the log is that of Compute Sanitizer 2025.3: lines begin with nine equal signs; one space before the
headline of a report, four before what belongs to it; a summary ends it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")
PADDING_BYTES = 1024  # behind every allocation, so that a step past one does not land in the next
LONGEST = 500  # characters of a finding that are kept
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
_LINE = re.compile(r"^=========(\s*)(.*)$")
_FRAMES = ("Saved host backtrace", "Host Frame", "Device Frame")
# headlines that report nothing of a kernel
_CHATTER = ("COMPUTE-SANITIZER", "Target application", "Program hit", "Error: Target application")
_REFUSAL = "Device not supported"
_TROUBLE = ("Internal Sanitizer Error", "No attachable process", "Unable to", "Target application terminated before")


@dataclass(frozen=True)
class Report:
    """errors: as the summary counts them, None without one. finding: the first. refusal: why the tool does not work on
    this device. trouble: why what it says is not to be believed.
    """

    errors: int | None
    finding: str | None
    refusal: str | None = None
    trouble: str | None = None


def command(tool: Path, check: str, log: Path, program: Sequence[str]) -> list[str]:
    """``program`` under one check.

    API errors are not counted: libraries ask the driver for functions it may lack and live with the answer.
    """
    options = ["--tool", check, "--target-processes", "application-only", "--report-api-errors", "no"]
    options += ["--log-file", str(log)]
    if check == "memcheck":
        options += ["--padding", str(PADDING_BYTES)]
    return [str(tool), *options, *program]


def parse(log: str) -> Report:
    """What a log says; everything that is no line of the tool's own is passed over."""
    errors: int | None = None
    reports: list[list[str]] = []
    refusal = trouble = None
    for line in log.splitlines():
        match = _LINE.match(line.rstrip())
        if match is None or not match[2]:
            continue
        indent, text = len(match[1]), match[2]
        if summary := _SUMMARY.search(text):
            errors = (errors or 0) + int(summary[1])
        elif indent > 1 or text.startswith("and "):
            if reports:
                reports[-1].append(text)
        elif _REFUSAL in text:
            refusal = refusal or text.removeprefix("Error: ")
        elif any(words in text for words in _TROUBLE):
            trouble = trouble or text.removeprefix("Error: ")
        elif not text.startswith(_CHATTER):
            reports.append([text])
    return Report(errors, _finding(reports[0]) if reports else None, refusal, trouble)


def _finding(lines: Sequence[str]) -> str:
    kept = []
    for line in lines:
        if line.startswith(_FRAMES):
            break
        kept.append(line)
    return " ".join(kept)[:LONGEST]
