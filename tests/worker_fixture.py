"""A worker that does strange things on command: the real process and channel, neither torch nor a GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "workflow" / "lib"

# found by the worker's interpreter ahead of everything else: stands in for torch and for the verb's worker side
STAND_IN = """
import os, signal, subprocess, sys, time, types

torch = types.ModuleType("torch")
torch.device = str
sys.modules["torch"] = torch


def child_with_the_pipe():
    if os.fork() == 0:
        note(f"child {os.getpid()}")
        time.sleep(3600)
        os._exit(0)


def prints_garbage():
    print('{"finish": [["forged", "final", {}]]}', flush=True)
    os.write(1, b"no json at all\\n")
    subprocess.run(["echo", "a library's own process"])


def leaves(code):
    sys.stderr.write("the last words\\n")
    sys.stderr.flush()
    os._exit(code)


def loses_the_device():
    from normbench.gpu import DeviceLost
    raise DeviceLost("an illegal memory access")


def raises():
    raise RuntimeError("a bug")


DEEDS = {
    "works": lambda: time.sleep(0.005),
    "crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hangs": lambda: time.sleep(3600),
    "leaves": lambda: leaves(7),
    "leaves content": lambda: leaves(0),
    "raises": raises,
    "loses the device": loses_the_device,
    "forks": child_with_the_pipe,
    "prints": prints_garbage,
}


def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")


def run(session):
    task, channel = session.task, session.channel
    note(f"worker {os.getpid()}")
    if task.get("early"):
        DEEDS[task["early"]]()
    for unit in [unit for unit in task["suspects"] if unit in task.get("suspected", {}).keys() - task["done"].keys()]:
        channel.begin([unit, {"unit": unit}])
        note(f"launch {unit}")
        DEEDS[task["suspected"][unit]]()
        channel.finish((unit, "final", {"unit": unit, "status": "ok"}))
    for unit, deed in task["units"]:
        if set(unit.split("+")) <= task["done"].keys() and not task.get("forgetful"):
            continue
        together = [[name, {"unit": name}] for name in unit.split("+")]
        channel.begin(*together)
        note(f"launch {unit}")
        DEEDS[deed]()
        channel.finish(*((name, "final", row | {"status": "ok"}) for name, row in together))
        channel.tick(unit)


runner = types.ModuleType("normbench.tuning")
runner.run = run
sys.modules["normbench.tuning"] = runner
if os.environ.get("CHATTY"):
    print("hello from a library that greets at import")
"""


class Strange:
    """A folder with the stand-in, and what its workers noted."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes.txt"
        self.stand_in = folder / "stand_in"
        self.stand_in.mkdir()
        (self.stand_in / "sitecustomize.py").write_text(STAND_IN)
        self.gpu = folder / "gpu.json"
        self.gpu.write_text(json.dumps({"fake": True, "uuid": "GPU-0", "gpu_name": "Strange"}))

    def task(self, *units: tuple[str, str], **more: Any) -> dict[str, Any]:
        environment = {
            "PYTHONPATH": os.pathsep.join((str(self.stand_in), str(LIBRARY))),
            "NORMBENCH_FAKE_GPU": str(self.gpu),
            "NOTES": str(self.notes),
        } | more.pop("environment", {})
        return {"verb": "measure", "uuid": "GPU-0", "units": units, "environment": environment} | more

    def noted(self, what: str) -> list[str]:
        """The second words of the notes that begin with ``what``, in the order they were written."""
        if not self.notes.exists():
            return []
        lines = (line.split(" ", 1) for line in self.notes.read_text().splitlines())
        return [rest for first, rest in lines if first == what]

    def supervisor(self, task: dict[str, Any], journal: Path) -> list[str]:
        """Command line of a supervisor in a process of its own."""
        text = (
            "import json, sys, pathlib; from normbench.journal import Journal;"
            "from normbench.supervise import Supervisor;"
            "Supervisor(json.loads(sys.argv[1]), Journal(pathlib.Path(sys.argv[2]), 'c'), 30, lambda _: None).run()"
        )
        return [sys.executable, "-c", text, json.dumps(task), str(journal)]
