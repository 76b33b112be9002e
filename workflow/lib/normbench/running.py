"""Worker side of ``run``: arrays from an .npz file to a contender's outputs in another. bf16 travels as uint16 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy

from normbench import ops, schema
from normbench.contenders import Contender, load
from normbench.gpu import Gpu
from normbench.points import Point, Semantics
from normbench.tensors import Tensors, make_outputs, saved_statistics
from normbench.trial import Failure, attempt, with_stream
from normbench.worker import Session

ARRAYS = ("beta", "dy", "eps", "gamma", "residual", "x")
LARGE = ("residual", "dy")  # shaped and typed like x
PARAMETERS = ("gamma", "beta")
DTYPES = {"float32": "fp32", "float16": "fp16", "uint16": "bf16"}


class BadInput(Exception):
    """The arrays do not describe work of this op; the text says which and why."""


def run(session: Session) -> None:
    """One launch; the unit is named run. A contender that broke the process is not launched again."""
    task = session.task
    if "run" in task["done"]:
        return
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
    """Bind the contender to the caller's arrays and launch it once; y is shaped like x, statistics like its rows.

    The statistics of a backward op are made of x and eps.
    """
    arrays = read(task["input"])
    point = point_of(arrays, task)
    tensors = Tensors(point, _inputs(arrays, point, gpu), make_outputs(point, gpu.device))
    contender = load(task["spec"], Path(task["build"]) if task["build"] else None)
    trial = attempt(contender, _variant(contender, point, gpu, task), [tensors], [], gpu)
    with_stream(gpu, trial.replay)
    shape = arrays["x"].shape
    shapes = {name: shape for name in ops.LARGE} | {name: shape[:-1] for name in ops.STATISTICS}
    return {
        name: _array(tensor).reshape(shapes.get(name, shape[-1:])) for name, tensor in trial.replay.outputs[0].items()
    }


def read(path: str) -> dict[str, Any]:
    """Arrays of an .npz file by name.

    Raises:
        BadInput: it is none, or holds an array that is not ours.
    """
    try:
        with numpy.load(path) as file:
            arrays = dict(file)
    except (OSError, ValueError, TypeError, BadZipFile) as error:
        raise BadInput(f"{path}: not a readable .npz file") from error
    for name in arrays:
        if name not in ARRAYS:
            raise BadInput(f"unknown array {name!r}; known: {', '.join(ARRAYS)}")
    return arrays


def point_of(arrays: dict[str, Any], task: dict[str, Any]) -> Point:
    """The work the arrays describe: x of shape (..., hidden), or as the axis says, gamma and beta of shape (hidden,).

    Raises:
        BadInput: they describe none of this op.
    """
    x = arrays.get("x")
    if x is None or x.ndim < 1:
        raise BadInput("the input needs an array x of shape (..., hidden)")
    dtype, hidden = _dtype("x", x), x.shape[-1]
    if not 1 <= hidden <= ops.MAX_HIDDEN:
        raise BadInput(f"x has {hidden} columns; 1 to {ops.MAX_HIDDEN} can be normalised")
    op = ops.OPS[task["op"]]
    _check_large(arrays, op)
    if "beta" in arrays and not (op.has_beta and "beta" in op.inputs):
        raise BadInput(f"{op.name} has no beta")
    values: dict[str, Any] = {name: name in arrays for name in PARAMETERS if name in op.inputs}
    if op.backward and "residual" in arrays:
        values["residual"] = "fp32"
    param_dtype = _param_dtype(arrays, hidden)
    if param_dtype not in (None, dtype):
        values["param_dtype"] = param_dtype
    if "eps" in arrays:
        if arrays["eps"].ndim:
            raise BadInput(f"eps has shape {arrays['eps'].shape}; it is one number")
        values["eps"] = float(arrays["eps"])
    semantics = replace(Semantics.parse(task["semantics"]), **values)
    if op.scale:
        return _scaled(op, dtype, x.shape, semantics)
    return Point(task["op"], dtype, x.size // hidden, hidden, "stream", semantics, "x".join(map(str, x.shape)))


def _scaled(op: ops.Op, dtype: str, shape: tuple[int, ...], semantics: Semantics) -> Point:
    try:
        return ops.point_of(op.name, dtype, shape, semantics=semantics)
    except ValueError as error:
        raise BadInput(str(error)) from None


def _check_large(arrays: dict[str, Any], op: ops.Op) -> None:
    needed = {"residual": op.adds, "dy": op.backward}
    for name in LARGE:
        if name not in arrays and needed[name]:
            raise BadInput(f"{op.name} needs an array {name}")
        if name in arrays and name not in op.inputs:
            raise BadInput(f"{op.name} has no {name}")
        x = arrays["x"]
        if name in arrays and (arrays[name].shape, arrays[name].dtype) != (x.shape, x.dtype):
            raise BadInput(f"{name} is {arrays[name].dtype} {arrays[name].shape}, x is {x.dtype} {x.shape}")


def _dtype(name: str, array: Any) -> str:
    if str(array.dtype) not in DTYPES:
        raise BadInput(f"{name} is {array.dtype}; it may be float32, float16, or bf16 as uint16 bits")
    return DTYPES[str(array.dtype)]


def _param_dtype(arrays: dict[str, Any], hidden: int) -> str | None:
    """The one type of gamma and beta, or None where both are absent."""
    found = {name: arrays[name] for name in PARAMETERS if name in arrays}
    for name, array in found.items():
        if array.shape != (hidden,):
            raise BadInput(f"{name} has shape {array.shape}, x has {hidden} columns")
    dtypes = {_dtype(name, array) for name, array in found.items()}
    if len(dtypes) > 1:
        raise BadInput(f"gamma is {arrays['gamma'].dtype}, beta is {arrays['beta'].dtype}; they share one type")
    return dtypes.pop() if dtypes else None


def _inputs(arrays: dict[str, Any], point: Point, gpu: Gpu) -> dict[str, Any]:
    def tensor(name: str) -> Any:
        if name not in arrays:
            return None
        found = gpu.torch.from_numpy(numpy.ascontiguousarray(arrays[name]))
        if arrays[name].dtype == numpy.uint16:
            found = found.view(gpu.torch.bfloat16)
        return found.to(gpu.device)

    large = {name: tensor(name).reshape(ops.extent(point, name)[0]) for name in ("x", *LARGE) if name in arrays}
    return large | {"gamma": tensor("gamma"), "beta": tensor("beta")} | saved_statistics(point, large["x"])


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
