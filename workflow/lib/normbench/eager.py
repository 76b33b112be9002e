"""What stands behind a claim of torch's bits: the kernels that torch eager launched, its version, and its CUDA.

The claim is made for these and for nothing else. For a race a process of its own (``python -m normbench.eager``) looks
them up beforehand, as part of ``warm``, so that no profiler has been loaded where times are taken.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from typing import Any

from normbench.gpu import CudaGpu, Gpu
from normbench.points import Point

MOST = 300  # characters of a row
NO_KERNEL = re.compile(r"Mem(cpy|set)|cu(da)?[A-Z]|Activity Buffer|Lazy |Command Buffer|Context Sync|Stream |Event ")


@cache
def torch_version() -> str:
    """``2.11.0+cu130, CUDA 13.0``: torch and what its kernels were compiled with."""
    import torch

    compiled = torch.version.cuda
    return f"{torch.__version__}, CUDA {compiled}" if compiled else str(torch.__version__)


_KNOWN: dict[str, str | None] = {}


def claim(point: Point, inputs: dict[str, Any], gpu: Gpu) -> dict[str, Any]:
    """Columns beside ``bitwise_torch``: torch's version and its kernels at this point, which are looked up once."""
    if point.key not in _KNOWN:
        _KNOWN[point.key] = None if gpu.fake else kernels(point, inputs)
    return {"torch_kernel": _KNOWN[point.key], "torch_version": torch_version()}


def kernels(point: Point, inputs: dict[str, Any]) -> str | None:
    """Names of the kernels torch eager launches, in their order, as its profiler gives them; None where it refuses."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from normbench.check import torch_eager

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        found = torch_eager(point, inputs)
        torch.cuda.synchronize()
    on_device = (event for event in profiled.events() or () if str(event.device_type).endswith("CUDA"))
    return names(event.name for event in on_device) if found else None


def names(events: Any) -> str | None:
    """One text of the events that are kernels, each with its template but without its arguments."""
    found = (re.sub(r"^void ", "", name) for name in events if not NO_KERNEL.match(name))
    short = [re.sub(r"\([^()]*\)$", "", name) for name in found]
    return " + ".join(dict.fromkeys(short))[:MOST] or None


def main() -> None:
    """{"points": [...]} on stdin; on stdout a line each, as soon as it is known: what it is, a tab, and what it says.
    They are torch's version, and the kernels of each point by its key."""
    from normbench.warming import empty_tensors
    from normbench.worker import die_with_parent

    die_with_parent()
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    gpu = CudaGpu()
    channel.write(f"version\t{torch_version()}\n")
    for row in json.loads(sys.stdin.read())["points"]:
        point = Point.from_identity(row)
        found = None
        try:
            found = kernels(point, empty_tensors(point, gpu).inputs)
        except RuntimeError as error:  # too little memory, say: no name, and the race will say why
            print(f"{point.op} {point.dtype} {point.shape}: {error}", file=sys.stderr)
        gpu.trim()
        channel.write(f"{point.key}\t{found or ''}\n")


if __name__ == "__main__":
    main()
    os._exit(0)
