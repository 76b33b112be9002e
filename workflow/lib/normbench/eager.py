"""What stands behind a claim of torch's bits: the kernels that torch eager launched, its version, and its CUDA.

The claim is made for these and for nothing else. For a race a process of its own (``python -m normbench.eager``) looks
them up beforehand, as part of ``warm``, so that no profiler has been loaded where times are taken.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from typing import Any

from normbench.gpu import CudaGpu, Gpu
from normbench.points import Point

MOST = 300  # characters of a row
VECTOR = 4  # elements of a vector in torch's layernorm, which takes rows of whole vectors at aligned addresses
VECTOR_PATH_ENDS = 1 << 24  # the longest row of it: a float counts no further
NO_KERNEL = re.compile(r"Mem(cpy|set)|cu(da)?[A-Z]|Activity Buffer|Lazy |Command Buffer|Context Sync|Stream |Event ")


@cache
def torch_version() -> str:
    """``2.11.0+cu130, CUDA 13.0``: torch and what its kernels were compiled with."""
    import torch

    compiled = torch.version.cuda
    return f"{torch.__version__}, CUDA {compiled}" if compiled else str(torch.__version__)


_KNOWN: dict[Hashable, str | None] = {}


def claim(point: Point, inputs: dict[str, Any], gpu: Gpu) -> dict[str, Any]:
    """Columns beside ``bitwise_torch``: torch's version, and its kernels at this point."""
    told = None if gpu.fake else known(point, inputs)
    return {"torch_kernel": told, "torch_version": torch_version()}


def known(point: Point, inputs: dict[str, Any]) -> str | None:
    """``kernels``, looked up once for all the work that takes the same ``route``."""
    key = route(point, inputs)
    if key not in _KNOWN:
        _KNOWN[key] = kernels(point, inputs)
    return _KNOWN[key]


def route(point: Point, inputs: dict[str, Any]) -> Hashable:
    """What decides which kernels torch launches: of a layernorm its types, its affine form, and whether its vector path
    takes it, so that cases that differ in values and sizes share an answer.

    Of other ops the point: a reduction chooses by the shape, and rms_norm may be another library's for some sizes.
    """
    if point.op != "layernorm":
        return point.key
    strided = point.row_stride != point.hidden
    semantics = replace(point.semantics, row_stride=None, eps=1.0)
    grouped = point.hidden % VECTOR == 0 and point.hidden <= VECTOR_PATH_ENDS
    given = [tensor for tensor in inputs.values() if tensor is not None]
    aligned = all(tensor.data_ptr() % (VECTOR * tensor.element_size()) == 0 for tensor in given)
    return point.op, point.dtype, str(semantics), strided, grouped, aligned, point.rows > 0


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
            found = known(point, empty_tensors(point, gpu).inputs)
        except RuntimeError as error:  # too little memory, say: no name, and the race will say why
            print(f"{point.op} {point.dtype} {point.shape}: {error}", file=sys.stderr)
        gpu.trim()
        channel.write(f"{point.key}\t{found or ''}\n")


if __name__ == "__main__":
    main()
    os._exit(0)
