"""The process that touches the GPU. It reads one task from stdin and writes one JSON line per event to stdout.

Events: {"begin": [[unit, identity row], ...]} before the GPU is used for them,
{"finish": [[unit, stage, row], ...]} when they are done, {"tick": text} for the progress bar.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from normbench import spent
from normbench.gpu import DeviceLost, Gpu, open_gpu
from normbench.supervise import LOST

RUNNERS = {
    "measure": "tuning",
    "showdown": "racing",
    "ceilings": "roofs",
    "verify": "adversary",
    "audit": "auditing",
    "bench": "benching",
    "run": "running",
}


class Channel:
    """The supervisor's end of the conversation; whatever libraries print goes to stderr instead."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message, separators=(",", ":")) + "\n")
        self._file.flush()

    def begin(self, *units: tuple[str, dict[str, Any]]) -> None:
        """(unit, identity row) of everything that a crash from here on would have to answer for; none: nobody."""
        self.send({"begin": units})

    def finish(self, *units: tuple[str, str, dict[str, Any]]) -> None:
        """(unit, stage, row), kept together or not at all."""
        self.send({"finish": units})

    def tick(self, text: str) -> None:
        self.send({"tick": text})


@dataclass(frozen=True)
class Session:
    """What a worker measures with: its task, the device, NVML readings (None without NVML), the way back."""

    task: dict[str, Any]
    gpu: Gpu
    nvml: Any
    channel: Channel


def die_with_parent() -> None:
    """A killed supervisor must not leave a process measuring on the GPU (Linux; elsewhere the broken pipe ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def nvml(task: dict[str, Any]) -> Any | None:
    """NVML readings of this GPU, or None with the reason on stderr."""
    from normbench import device

    try:
        return device.Nvml(task["uuid"])
    except Exception as error:
        print(f"no clock readings: {error}", file=sys.stderr)
        return None


def main() -> int:
    die_with_parent()
    task = json.loads(sys.stdin.buffer.read())
    channel = Channel()
    gpu = open_gpu()
    runner = importlib.import_module(f"normbench.{RUNNERS[task['verb']]}")
    try:
        runner.run(Session(task, gpu, nvml(task), channel))
    except DeviceLost as error:
        print(f"the CUDA context is lost: {error}", file=sys.stderr)
        return LOST
    print(f"spent on {spent.summary()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a broken context must not be torn down: that can hang
