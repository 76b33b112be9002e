"""One process of ``warm``: binds and launches each of its jobs once, so that its compiler's cache has it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from normbench import ops
from normbench.contenders import Unsupported, load
from normbench.gpu import CudaGpu
from normbench.points import Point
from normbench.tensors import Guarded, Tensors
from normbench.worker import die_with_parent


def empty_tensors(point: Point, gpu: CudaGpu) -> Tensors:
    """Tensors of the point's shapes with ones in them."""
    torch = gpu.torch

    def tensor(name: str) -> Any:
        shape, dtype = ops.extent(point, name)
        strided = name in ops.inputs(point) and name in ops.LARGE and ops.layout(point) == "rows"
        pitch = point.row_stride if strided else shape[-1]
        made = torch.ones(*shape[:-1], pitch, dtype=ops.torch_dtype(dtype), device=gpu.device)
        return made[..., : shape[-1]]

    inputs = {"gamma": None, "beta": None} | {name: tensor(name) for name in ops.inputs(point)}
    return Tensors(point, inputs, {name: Guarded(view, view) for name in ops.outputs(point) for view in [tensor(name)]})


def compile_job(job: dict[str, Any], blocks: list[int], gpu: CudaGpu) -> str:
    """Launch every variant once; the reason of the first that fails, or nothing."""
    point = Point.from_identity(job["point"])
    contender = load(job["spec"])
    if contender.refusal(point, gpu):
        return ""
    reason = ""
    tensors = empty_tensors(point, gpu)
    for variant in contender.variants(point, gpu, blocks):
        try:
            contender.bind(tensors, variant, gpu)()
            gpu.synchronize()
        except Unsupported:
            continue
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return reason


def broken(gpu: CudaGpu) -> bool:
    """Whether the CUDA context no longer answers."""
    try:
        gpu.synchronize()
    except Exception:
        return True
    return False


def main() -> None:
    die_with_parent()
    task = json.loads(sys.stdin.read())
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    gpu = CudaGpu()
    for job in task["jobs"]:
        point = job["point"]
        name = f"{Path(job['spec']).stem} {point['op']} {point['dtype']} {point['rows']}x{point['hidden']}"
        reason = compile_job(job, task["study"]["block"], gpu)
        gpu.empty_cache()
        channel.write(f"{name}\t{reason}\n")
        if reason and broken(gpu):
            return


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
