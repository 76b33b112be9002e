"""Runs a worker process over its units and survives whatever it does.

The worker announces each unit before it touches the GPU with it. A worker that dies or hangs is replaced; the unit it
had announced becomes a row with the reason, and the rest goes on. Of several units announced together none is blamed
at first: they are suspects, and the next worker tries each of those alone. Every finished unit is journalled at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from normbench.cli import UserError
from normbench.formats import last_line
from normbench.journal import PASSING, Done, Journal

LOST = 3  # exit code of a worker whose CUDA context broke; the unit's row was written before it left
MAX_RESTARTS_WITHOUT_A_UNIT = 2
STARTUP_S = 180.0
LOOK_S = 0.5  # how often a silent worker is looked at


Announced = list[tuple[str, dict[str, Any]]]


class Supervisor:
    """One worker at a time, restarted until every unit has an outcome."""

    def __init__(self, task: dict[str, Any], journal: Journal, timeout_s: float, tick: Callable[[str], None]) -> None:
        self.task = task
        self.journal = journal
        self.timeout_s = timeout_s
        self.tick = tick
        self.done: Done = journal.load()
        self.suspects: set[str] = set()

    def run(self) -> Done:
        """All finished units.

        Raises:
            UserError: the worker cannot start, or dies again and again without settling a unit.
        """
        idle = 0
        while True:
            settled = self._settled()
            code, announced, tail = self._one_worker()
            if code == 0:
                return self.done
            if len(announced) > 1 and not self.suspects.issuperset(unit for unit, _ in announced):
                self.suspects |= {unit for unit, _ in announced}
            elif announced:
                self._failed(announced, code, tail)
            idle = idle + 1 if self._settled() == settled else 0
            if idle >= MAX_RESTARTS_WITHOUT_A_UNIT:
                raise UserError(f"the measuring process cannot run: {last_line(tail) or _ending(code)}")

    def _settled(self) -> int:
        """Grows with every unit that gets an outcome, once more when that is its last, and with every suspect."""
        return sum(1 + bool(entry["stage"] != "tune") for entry in self.done.values()) + len(self.suspects)

    def _failed(self, announced: Announced, code: int, tail: str) -> None:
        if code == -signal.SIGALRM:
            stage, status, reason = PASSING, "timeout", f"took longer than {self.timeout_s:.0f} s and was ended"
        else:
            reason = f"the process {_ending(code)}: {last_line(tail)}".rstrip(": ")
            stage, status = "final", "launch_error"
        failed = {"status": status, "reason": reason, "measured_at": utc_now()}
        self._finish([(unit, stage, row | failed) for unit, row in announced])

    def _finish(self, units: list[tuple[str, str, dict[str, Any]]]) -> None:
        self.done |= {unit: {"stage": stage, "row": row} for unit, stage, row in units}
        self.journal.append(units)

    def _one_worker(self) -> tuple[int, Announced, str]:
        """(exit code, -SIGALRM for a hang; the units it left open; end of its stderr)."""
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "normbench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=worker_environment(self.task),
                start_new_session=True,
            )
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(self._told()).encode())
                process.stdin.close()
                announced, hung = self._listen(process)
                if not hung:
                    process.wait()
            except BrokenPipeError:
                announced, hung = [], False
                process.wait()
            finally:
                end_group(process)
            code = -signal.SIGALRM if hung else process.returncode
            errors.seek(0)
            tail = errors.read()[-20000:].decode(errors="replace")
        if tail.strip():
            print(tail, file=sys.stderr)
        return code, announced, tail

    def _told(self) -> dict[str, Any]:
        return self.task | {"done": self.done, "suspects": sorted(self.suspects)}

    def _listen(self, process: subprocess.Popen[bytes]) -> tuple[Announced, bool]:
        """(the units left open; whether it was silent for too long) of a worker's conversation."""
        announced: Announced = []
        lines = Lines(process, STARTUP_S)
        for line in lines:
            if line is None:
                return announced, True
            message = _message(line)
            lines.patience(self.timeout_s)
            if "begin" in message:
                announced = message["begin"]
            elif "finish" in message:
                self._finish(message["finish"])
                announced = []
            elif "tick" in message:
                self.tick(message["tick"])
        return announced, False


def _message(line: bytes) -> dict[str, Any]:
    """A worker's event; what a library printed before the channel was the worker's own goes to stderr."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    print(line.decode(errors="replace"), file=sys.stderr)
    return {}


class Lines:
    """Lines of a process's stdout as they come; None, and no more, once it has been silent for too long."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.process = process
        self.patience(seconds)

    def patience(self, seconds: float) -> None:
        """Wait ``seconds`` from now for the next line."""
        self.deadline = time.monotonic() + seconds

    def __iter__(self) -> Iterator[bytes | None]:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                ended = self.process.poll() is not None
                if selector.select(0.0 if ended else LOOK_S):
                    data = os.read(descriptor, 1 << 16)
                    *lines, rest = (rest + data).split(b"\n")
                    yield from (line for line in lines if line.strip())
                    if data:
                        continue
                    time.sleep(0.01)  # closed, but not ended yet
                if ended:  # not by the pipe's end: what a library forked may hold it open
                    return
                if time.monotonic() > self.deadline:
                    yield None
                    return


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process started with a session of its own, and whatever its libraries left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def worker_environment(task: dict[str, Any]) -> dict[str, str]:
    """The worker sees one GPU, by UUID, so that NVML's and CUDA's numbering cannot disagree."""
    environment = dict(os.environ)
    if task.get("uuid") and not os.environ.get("NORMBENCH_FAKE_GPU"):
        environment["CUDA_VISIBLE_DEVICES"] = task["uuid"]
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(Path(__file__).parents[1]), environment.get("PYTHONPATH")) if part
    )
    # Snakemake sets these to the job's threads; the JIT compilers of the baselines may use them all before timing
    wanted: dict[str, str] = task.get("environment", {})
    return environment | wanted


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by signal {signal.Signals(-code).name}"
    return f"ended with code {code}"


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
