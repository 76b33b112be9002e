"""Worker side of ``run``: arrays from an .npz file to a contender's outputs in another. bf16 travels as uint16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from normbench import ops, schema
from normbench.contenders import Contender, load
from normbench.gpu import Gpu
from normbench.points import Point, Semantics
from normbench.tensors import Tensors, make_outputs
from normbench.trial import Failure, attempt, with_stream
from normbench.worker import Session

DTYPES = {"float32": "fp32", "float16": "fp16", "uint16": "bf16"}


class BadInput(Exception):
    """The arrays do not describe work of this op; the text says which and why."""


def run(session: Session) -> None:
    """One launch; the unit is named run."""
    task = session.task
    session.channel.begin(("run", {}))
    try:
        arrays = outputs_of(task, session.gpu)
        with schema.atomic(task["output"]) as temporary, temporary.open("wb") as file:
            numpy.savez(file, **arrays)
        outcome: dict[str, Any] = {"status": "ok", "arrays": sorted(arrays)}
    except Failure as failure:
        outcome = {"status": failure.status, "reason": failure.reason}
    except BadInput as error:
        outcome = {"status": "skipped", "reason": str(error)}
    session.channel.finish(("run", "final", outcome))


def outputs_of(task: dict[str, Any], gpu: Gpu) -> dict[str, Any]:
    """Bind the contender to the caller's arrays and launch it once."""
    arrays = dict(numpy.load(task["input"]))
    point = point_of(arrays, task)
    tensors = Tensors(point, _inputs(arrays, point, gpu), make_outputs(point, gpu.device))
    contender = load(task["spec"], Path(task["build"]) if task["build"] else None)
    trial = attempt(contender, _variant(contender, point, gpu, task), [tensors], [], gpu)
    with_stream(gpu, trial.replay)
    return {name: _array(tensor) for name, tensor in trial.replay.outputs[0].items()}


def point_of(arrays: dict[str, Any], task: dict[str, Any]) -> Point:
    """The work the arrays describe: x of shape (..., hidden), gamma and beta of shape (hidden,)."""
    x = arrays.get("x")
    if x is None or x.ndim < 1:
        raise BadInput("the input needs an array x of shape (..., hidden)")
    if str(x.dtype) not in DTYPES:
        raise BadInput(f"x is {x.dtype}; it may be float32, float16, or bf16 as uint16 bits")
    semantics = Semantics.parse(task["semantics"])
    values: dict[str, Any] = {name: name in arrays for name in ("gamma", "beta")}
    if "eps" in arrays:
        values["eps"] = float(arrays["eps"])
    if "gamma" in arrays and DTYPES[str(arrays["gamma"].dtype)] != DTYPES[str(x.dtype)]:
        values["param_dtype"] = DTYPES[str(arrays["gamma"].dtype)]
    for name in ("gamma", "beta"):
        if name in arrays and arrays[name].shape != (x.shape[-1],):
            raise BadInput(f"{name} has shape {arrays[name].shape}, x has {x.shape[-1]} columns")
    if "beta" in arrays and not ops.OPS[task["op"]].has_beta:
        raise BadInput(f"{task['op']} has no beta")
    merged = {name: getattr(semantics, name) for name in semantics.__dataclass_fields__} | values
    hidden = x.shape[-1]
    shape = "x".join(map(str, x.shape))
    return Point(
        task["op"], DTYPES[str(x.dtype)], x.size // max(hidden, 1), hidden, "stream", Semantics(**merged), shape
    )


def _inputs(arrays: dict[str, Any], point: Point, gpu: Gpu) -> dict[str, Any]:
    def tensor(name: str) -> Any:
        if name not in arrays:
            return None
        found = gpu.torch.from_numpy(numpy.ascontiguousarray(arrays[name]))
        if arrays[name].dtype == numpy.uint16:
            found = found.view(gpu.torch.bfloat16)
        return found.to(gpu.device)

    return {"x": tensor("x").reshape(point.rows, point.hidden), "gamma": tensor("gamma"), "beta": tensor("beta")}


def _variant(contender: Contender, point: Point, gpu: Gpu, task: dict[str, Any]) -> dict[str, int]:
    reason = contender.refusal(point, gpu)
    if reason:
        raise Failure("skipped", reason, {})
    if task["variant"] is not None:
        return dict(task["variant"])
    variants = contender.variants(point, gpu, task["study"]["block"])
    if not variants:
        raise Failure("skipped", "no variant suits these arrays", {})
    return variants[len(variants) // 2]


def _array(tensor: Any) -> Any:
    import torch

    tensor = tensor.contiguous().cpu()
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
