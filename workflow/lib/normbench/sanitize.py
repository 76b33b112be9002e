"""Verb ``sanitize``: one kernel under compute-sanitizer on small odd shapes (the program under it: sanitizing.py).

A missing tool is a row with status skipped. Findings are rows too: the table is whole whatever was found, and
``normbench show`` is what fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench import compile, cores, harness, kernelfile, nvrtc, oddities, sanitizer, schema, tools
from normbench.harness import Measurement
from normbench.kernelfile import Kernel
from normbench.sanitizer import CHECKS
from normbench.supervise import utc_now, worker_environment

TOOL = "compute-sanitizer"
TOOL_S = 300.0  # one check of one kernel; on an H200 it takes seconds
# torch gives tensors exactly the memory they ask for, and loads no kernel that is not launched
EXACT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_MODULE_LOADING": "LAZY"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A kernel to sanitize on one device. environment: of the program under the tool."""

    kernel: Kernel
    arch: int
    sm_count: int
    blocks: Sequence[int]
    environment: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser, journal=False)
    parser.add_argument("--contender", required=True, help="kernel file of ours")


def main(args: argparse.Namespace) -> int:
    kernel = kernelfile.load(args.contender)
    measurement = Measurement(args, "sanitize", f"sanitize-{kernel.stem}")
    task = measurement.task()
    subject = Subject(
        kernel,
        compile.architecture(str(measurement.machine["arch"])),
        int(measurement.machine["sm_count"]),
        measurement.study.block,
        worker_environment(task) | EXACT,
    )
    identity = {"device": task["device"], "run": "local", "contender": kernel.stem, "lang": kernel.lang}
    with harness.gpu_lock(measurement.gpu.uuid):
        rows = sanitize(subject)
    stamp = {"sources": task["sources"], "measured_at": utc_now()}
    harness.write([identity | row | stamp for row in rows], schema.SANITIZE, args.out)
    return 0


def sanitize(subject: Subject, checks: Sequence[str] = CHECKS) -> list[Row]:
    """A row for each check: status, reason, counts, first finding, version of the tool."""
    try:
        tool = tools.find(TOOL)
    except tools.ToolMissing as missing:
        print(f"normbench sanitize: {missing}", file=sys.stderr)
        return [{"tool": check, "status": "skipped", "reason": str(missing)} for check in checks]
    launches = oddities.launches(subject.kernel, subject.blocks, subject.arch, subject.sm_count)
    facts: Row = {"planned": len(launches), "version": tools.version(tool)}
    with tempfile.TemporaryDirectory(prefix="normbench-sanitize-") as folder:
        try:
            build = _build(subject, launches, Path(folder))
        except nvrtc.CompileError as error:
            return [facts | {"tool": check, "status": "compile_error", "reason": str(error)} for check in checks]
        task = {
            "spec": str(subject.kernel.path),
            "build": build,
            "arch": subject.arch,
            "sm_count": subject.sm_count,
            "launches": [launch.task() for launch in launches],
        }
        rows = _checks(tool, task, subject.environment, Path(folder), checks)
    return [facts | row for row in rows]


def _build(subject: Subject, launches: Sequence[oddities.Launch], folder: Path) -> str | None:
    """The variants that will be launched and no others, with line numbers; the machine code is the study's."""
    kernel = subject.kernel
    if kernel.lang != "cuda":
        return None
    launched = [
        kernelfile.launch_names(one.odd.point, subject.arch, subject.sm_count, one.odd.aligned) | one.variant
        for one in launches
    ]
    return str(compile.compile_launched(kernel, subject.arch, launched, folder / f"{kernel.stem}.json", lineinfo=True))


def _checks(tool: Path, task: Row, environment: dict[str, str], folder: Path, checks: Sequence[str]) -> list[Row]:
    """All checks, side by side where there are cores for it: nothing is timed."""
    if not task["build"]:  # a Triton kernel compiles itself: once and without a tool, not under each
        tools.run(_program(task, folder, "warm"), environment, TOOL_S)
    at_once = max(1, min(len(checks), len(cores.available()) // 2))
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda check: _check(tool, check, task, environment, folder), checks))


def _program(task: Row, folder: Path, name: str) -> list[str]:
    """The command that launches everything, with its own file of what has ended."""
    told = folder / f"{name}.json"
    told.write_text(json.dumps(task | {"done": str(folder / f"{name}.done")}))
    return [sys.executable, "-m", "normbench.sanitizing", str(told)]


def _check(tool: Path, check: str, task: Row, environment: dict[str, str], folder: Path) -> Row:
    log, done = folder / f"{check}.log", folder / f"{check}.done"
    program = _program(task, folder, check)
    ran = tools.run(sanitizer.command(tool, check, log, program), environment, TOOL_S)
    text = (log.read_text(errors="replace") if log.exists() else "") or ran.out
    launched = len(done.read_text().splitlines()) if done.exists() else 0
    found = {"tool": check, "launched": launched} | judge(ran, sanitizer.parse(text), launched == len(task["launches"]))
    if found["status"] not in ("ok", "skipped"):
        print(f"{check}: {found['reason']}\n{text[-4000:]}{ran.err[-2000:]}", file=sys.stderr)
    return found


def judge(ran: tools.Ran, report: sanitizer.Report, whole: bool) -> Row:
    """Status and reason of one check. whole: every launch ended."""
    found: Row = {"errors": report.errors, "finding": report.finding}
    if report.errors:
        return found | {"status": "findings", "reason": report.finding or f"{report.errors} errors without a report"}
    if ran.code is None:
        return found | {"status": "timeout", "reason": f"took longer than {TOOL_S:.0f} s and was ended"}
    if report.refusal:
        return found | {"status": "skipped", "reason": f"{TOOL} does not work here: {report.refusal}"}
    if report.trouble or report.errors is None or ran.code or not whole:
        return found | {"status": "launch_error", "reason": f"not every launch ended: {report.trouble or ran.words}"}
    return found | {"status": "ok", "reason": None}
