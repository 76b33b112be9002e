"""The worker side of the measuring verbs in this process, on the faked GPU, with a channel that remembers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from normbench.gpu import FakeGpu
from normbench.points import Point, Semantics, canonical_json
from normbench.streams import variants
from normbench.worker import RUNNERS, Session

torch.set_num_threads(1)  # several test processes share the cores, and the tensors are small

ROOT = Path(__file__).resolve().parents[1]
FACTS = json.loads((ROOT / "tests" / "fake_gpu.json").read_text())
ROW = str(ROOT / "kernels" / "triton" / "triton_row.py")
LOOP = str(ROOT / "kernels" / "triton" / "triton_loop.py")
NAIVE = str(ROOT / "kernels" / "forward" / "naive.cu")
EAGER = str(ROOT / "kernels" / "baselines" / "torch_eager.py")
COPY = str(ROOT / "kernels" / "baselines" / "copy.py")
STUDY = {"tune_samples": 5, "race_ms": 5.0, "block": [64, 128], "timeout_s": 30.0}


class Recorder:
    """What a worker said."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.lines: list[tuple[tuple[str, str, dict[str, Any]], ...]] = []
        self.ticks: list[str] = []

    def begin(self, *units: tuple[str, dict[str, Any]]) -> None:
        self.begun += [unit for unit, _ in units]

    def finish(self, *units: tuple[str, str, dict[str, Any]]) -> None:
        self.lines.append(json.loads(json.dumps(units, allow_nan=False)))

    def tick(self, text: str) -> None:
        self.ticks.append(text)

    @property
    def done(self) -> dict[str, dict[str, Any]]:
        """As the journal would have it."""
        return {unit: {"stage": stage, "row": row} for line in self.lines for unit, stage, row in line}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [entry["row"] for entry in self.done.values()]

    def by(self, name: str) -> dict[Any, dict[str, Any]]:
        """Rows by one of their columns."""
        return {row[name]: row for row in self.rows}


def point(
    op: str = "layernorm", dtype: str = "fp32", rows: int = 256, hidden: int = 512, regime: str = "stream", **more: Any
) -> Point:
    """One mebibyte of x and y: five buffer sets on the faked GPU."""
    return Point(op, dtype, rows, hidden, regime, Semantics(**more))


def fake(**facts: Any) -> FakeGpu:
    return FakeGpu(FACTS | facts)


def task(verb: str, points: Iterable[Point] = (), **more: Any) -> dict[str, Any]:
    identities = [one.identity() for one in points]
    facts = {"uuid": FACTS["uuid"], "device": "faked", "sources": "abc", "environment": {}, "done": {}}
    return facts | {"verb": verb, "study": STUDY, "points": identities} | more


def race_task(work: Point, specs: Sequence[str], **more: Any) -> dict[str, Any]:
    """A race of ``specs``, Triton kernels with four warps."""
    entries = [
        {"spec": spec, "variant": {} if "baselines" in spec else {"num_warps": 4}, "unit": f"{work.key} race {spec}"}
        for spec in specs
    ]
    told: dict[str, Any] = {"contenders": [{"spec": spec} for spec in specs], "entries": {work.key: entries}}
    return task("showdown", [work], roofs={work.key: variants("copy", fake())[0]}, **told, **more)


def work_off(told: dict[str, Any], gpu: FakeGpu | None = None) -> Recorder:
    """Run a task to its end in this process."""
    recorder = Recorder()
    runner = importlib.import_module(f"normbench.{RUNNERS[told['verb']]}")
    runner.run(Session(told, gpu or fake(), None, recorder))  # type: ignore[arg-type]
    return recorder


def variant(**axes: int) -> str:
    return canonical_json(axes)
