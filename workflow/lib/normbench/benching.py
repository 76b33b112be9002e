"""Worker side of ``bench``: tune the contender at one point, then race its winner against torch eager and the copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normbench import ops
from normbench.contenders import load
from normbench.points import Point
from normbench.racing import Race
from normbench.streams import SmClock, Streams, expression, variants
from normbench.tuning import Tuner
from normbench.worker import Session

BASELINES = Path(__file__).resolve().parents[3] / "kernels" / "baselines"


def run(session: Session) -> None:
    """One point; the units of the race begin with ``race``."""
    task = session.task
    point = Point.from_identity(task["points"][0])
    contender = load(task["spec"], Path(task["build"]) if task["build"] else None)
    # the roof of a quick look: 16-byte vectors, four a thread, one shot, beside the library copy
    mix, shape = ops.OPS[point.op].mix, {"unroll": 4, "block": 512, "grid": 0, "hint": "KEEP"}
    roof = next(variant for variant in variants(mix, session.gpu) if shape.items() <= variant.items())
    streams = Streams(session.gpu, [expression(mix, roof)])
    tuner = Tuner(session, SmClock(streams), contender, point, 0)
    tuner.only = task["variant"]
    tuner.run()
    winner = tuner.winner()
    if winner is None:
        return
    entries: list[dict[str, Any]] = [{"spec": task["spec"], "variant": winner}]
    entries += [{"spec": str(BASELINES / f"{stem}.py"), "variant": {}} for stem in ("torch_eager", "copy")]
    task |= {
        "entries": {point.key: [entry | {"unit": f"race {entry['spec']}"} for entry in entries]},
        "roofs": {point.key: roof},
    }
    contenders = {task["spec"]: contender} | {entry["spec"]: load(entry["spec"]) for entry in entries[1:]}
    Race(session, contenders, streams, point, 1).run()
