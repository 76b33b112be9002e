"""Is an output right: errors against float64, the contracts with torch, and the signs of work not done.

``Expected`` is computed once per buffer set and serves every contender of the point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from normbench import ops
from normbench.points import Point
from normbench.tensors import integers, poisoned

if TYPE_CHECKING:
    import torch

INFINITY = float("inf")
CHUNK_ELEMENTS = 1 << 25  # float64 temporaries of a check stay under 300 MB each


@dataclass
class Expected:
    """Reference output of one buffer set: y and statistics in float64, tolerance and ulp of y in float32."""

    point: Point
    y: torch.Tensor
    allowed: torch.Tensor
    ulp: torch.Tensor
    stats: dict[str, torch.Tensor]
    out_of_range: bool
    sum: torch.Tensor | None = None
    torch_y: torch.Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """Outcome of one check; the fields are columns of the tables."""

    status: str
    reason: str | None = None
    err_max_abs: float | None = None
    err_ulp_max: float | None = None
    tolerance: float | None = None
    tolerance_used: float | None = None
    failing_elements: int | None = None
    accurate: bool | None = None
    allclose_torch: bool | None = None
    allclose_seed: bool | None = None
    bitwise_torch: bool | None = None

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def _chunks(point: Point) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // max(point.hidden, 1))
    return [slice(start, min(start + step, point.rows)) for start in range(0, point.rows, step)]


def expect(point: Point, inputs: dict[str, torch.Tensor | None], with_torch: bool = False) -> Expected:
    """Reference and tolerances of ``inputs``; ``with_torch`` also keeps torch eager's output for the contracts."""
    import torch

    x = inputs["x"]
    assert x is not None
    y = torch.empty(point.rows, point.hidden, dtype=torch.float64, device=x.device)
    allowed = torch.empty(point.rows, point.hidden, dtype=torch.float32, device=x.device)
    step = torch.empty_like(allowed)
    stats: dict[str, list[torch.Tensor]] = {}
    for rows in _chunks(point):
        part = inputs | {name: inputs[name][rows] for name in ops.LARGE if inputs.get(name) is not None}  # type: ignore[index]
        exact = ops.reference(point, part)
        y[rows] = exact["y"]
        allowed[rows] = ops.tolerance(point, part, exact).to(torch.float32)
        step[rows] = ops.output_ulp(point, part, exact).to(torch.float32)
        for name in ("mean", "rstd"):
            if name in exact:
                stats.setdefault(name, []).append(exact[name])
    joined = {name: torch.cat(parts) for name, parts in stats.items()}
    summed = rounded_sum(x, inputs["residual"]) if ops.OPS[point.op].adds else None
    eager = torch_eager(point, inputs) if with_torch else None
    return Expected(point, y, allowed, step, joined, ops.out_of_range(point, inputs), summed, eager)


def rounded_sum(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """x + residual formed in fp32 and rounded once to their type: what torch, and every kernel, hands out."""
    assert residual is not None
    return x + residual


def torch_eager(point: Point, inputs: dict[str, Any]) -> torch.Tensor | None:
    """Torch's own answer, or None where it refuses (mixed parameter types, an overflow of its limits)."""
    import torch

    functional = torch.nn.functional
    shape, eps = (point.hidden,), point.semantics.eps
    x, gamma, beta = inputs["x"], inputs["gamma"], inputs["beta"]
    if ops.OPS[point.op].adds:
        x = rounded_sum(x, inputs["residual"])  # torch has no fused form; composed, it rounds the sum
        if ops.residual_mode(point) == "fp32":
            return None
    try:
        if ops.OPS[point.op].norm == "layernorm":
            return functional.layer_norm(x, shape, gamma, beta, eps)
        return functional.rms_norm(x, shape, gamma, eps)
    except RuntimeError:
        return None


def check(expected: Expected, outputs: dict[str, torch.Tensor]) -> Verdict:
    """Judge one set of outputs; the first thing wrong is the one named."""
    point = expected.point
    y = outputs["y"].reshape(point.rows, point.hidden)
    if not point.rows:
        return Verdict("ok", accurate=True)
    if bool(poisoned(y).all()):
        return Verdict("no_work", "the output was not written")
    verdict = _all_right(expected, y) or _errors(expected, y)
    if verdict.ok and (reason := _wrong_sum(expected, outputs) or _wrong_statistic(expected, outputs)):
        return replace(verdict, status="wrong", reason=reason, accurate=False)
    return verdict


def check_copy(x: torch.Tensor | None, y: torch.Tensor) -> Verdict:
    """The device copy is right when y has the bits of x; it has no error against a norm."""
    if bool(poisoned(y).all()) and y.numel():
        return Verdict("no_work", "the output was not written")
    import torch

    same = x is not None and torch.equal(integers(x), integers(y))
    return Verdict("ok") if same else Verdict("wrong", "the copy differs from its source")


def _all_right(expected: Expected, y: torch.Tensor) -> Verdict | None:
    """The verdict on an output that is finite and within its tolerance everywhere, in a third of the passes over it.

    None where anything else is met: a NaN or an infinity, which no maximum hides, or an error that is too large.
    """
    import torch

    if expected.out_of_range:
        return None
    largest = torch.zeros(2, dtype=torch.float64, device=y.device)
    used, at_worst = 0.0, 0.0
    for rows in _chunks(expected.point):
        error = y[rows].to(torch.float64).sub_(expected.y[rows]).abs_()
        share = (error / expected.allowed[rows]).flatten()
        worst = share.argmax()
        largest = torch.maximum(largest, torch.stack((error.max(), error.div_(expected.ulp[rows]).max())))
        found, allowed = torch.stack((share[worst], expected.allowed[rows].flatten()[worst])).tolist()
        if not found <= 1:
            return None
        if found >= used:
            used, at_worst = found, allowed
    error_max, ulp_max = largest.tolist()
    if not (math.isfinite(error_max) and math.isfinite(ulp_max)):
        return None
    facts = {"err_max_abs": error_max, "err_ulp_max": ulp_max, "tolerance": at_worst or None, "tolerance_used": used}
    return Verdict("ok", None, **facts, failing_elements=0, accurate=True, **_contracts(expected, y))


def _errors(expected: Expected, y: torch.Tensor) -> Verdict:
    import torch

    point = expected.point
    largest = torch.zeros(3, dtype=torch.float64, device=y.device)
    failing = torch.zeros((), dtype=torch.int64, device=y.device)
    unwritten = torch.zeros((), dtype=torch.int64, device=y.device)
    at_worst = 0.0
    for rows in _chunks(point):
        part, exact = y[rows], expected.y[rows]
        value = part.to(torch.float64)
        same = (value == exact) | (value.isnan() & exact.isnan())
        rounded_away = value.isinf() & (exact.abs() > torch.finfo(part.dtype).max) & (value.sign() == exact.sign())
        error = torch.where(same | rounded_away, 0.0, (value - exact).abs()).nan_to_num_(nan=INFINITY, posinf=INFINITY)
        used, ulps = _share(error, expected.allowed[rows]), _share(error, expected.ulp[rows])
        worst = torch.stack((error.max(), ulps.max(), used.max()))
        if bool(worst[2] > largest[2]):
            at_worst = float(expected.allowed[rows].flatten()[used.argmax()].nan_to_num())
        largest = torch.maximum(largest, worst)
        failing += (used > 1).sum()
        unwritten += poisoned(part).sum()
    found = [float(value) if value < INFINITY else None for value in largest.tolist()]
    bad = int(failing)
    facts: dict[str, Any] = {
        "err_max_abs": found[0],
        "err_ulp_max": found[1],
        "tolerance": at_worst or None,
        "tolerance_used": found[2],
        "failing_elements": bad,
        "accurate": bad == 0,
    } | _contracts(expected, y)
    if expected.out_of_range:
        return Verdict("out_of_range", "the sum of squares overflows fp32 for this input", **facts)
    if int(unwritten):
        return Verdict("wrong", f"{int(unwritten)} elements were not written", **facts)
    if bad:
        return Verdict("wrong", f"{bad} elements outside the tolerance, the worst {_times(found[2])}", **facts)
    return Verdict("ok", None, **facts)


def _share(error: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """error / unit; where the reference is no number its unit is none either, and any error counts as infinite."""
    share = error / unit
    return share.nan_to_num_(nan=INFINITY, posinf=INFINITY).masked_fill_(error == 0, 0.0)


def _times(used: float | None) -> str:
    return "without a finite value" if used is None else f"at {used:.3g} times it"


def _wrong_sum(expected: Expected, outputs: dict[str, torch.Tensor]) -> str | None:
    """What is wrong with the sum of an add op, which has one right value."""
    if expected.sum is None:
        return None
    if "sum" not in outputs:
        return "the sum was not handed out"
    found = outputs["sum"].reshape(expected.sum.shape)
    bad = int(((found != expected.sum) & ~(found.isnan() & expected.sum.isnan())).sum())
    return f"{bad} elements of the sum differ from x + residual, rounded once" if bad else None


def _wrong_statistic(expected: Expected, outputs: dict[str, torch.Tensor]) -> str | None:
    """What is wrong with the saved statistics, where the point asks for them."""
    if not ops.saves_stats(expected.point):
        return None
    for name, exact in expected.stats.items():
        if name not in outputs:
            return f"{name} was asked for and not handed out"
        if not _stat_close(outputs[name], exact, name, expected):
            return f"{name} is off by more than its tolerance"
    return None


def _stat_close(value: torch.Tensor, exact: torch.Tensor, name: str, expected: Expected) -> bool:
    """Saved statistics are fp32; mean may be off by a few roundings of the row's largest value, rstd relatively."""
    import torch

    u32 = ops.UNIT_ROUNDOFF["fp32"]
    found = value.to(torch.float64)
    error = (found - exact).abs()
    if name == "rstd":
        drift = u32 * expected.stats["mean"].abs() * exact if "mean" in expected.stats else 0.0
        allowed = exact * (1e-5 + drift**2)
    else:
        allowed = 8 * u32 * (exact.abs() + 1 / expected.stats["rstd"])
    return bool((error <= allowed).logical_or(found.isnan() & exact.isnan()).all())


def _contracts(expected: Expected, y: torch.Tensor) -> dict[str, bool]:
    """Contracts with torch eager's output, where there is one.

    allclose_torch: atol = rtol = 1e-4 in fp32 (KernelBench); 16-bit types one output ulp where that is more.
    allclose_seed: atol = rtol 1e-5 in fp32, 1e-4 in 16-bit types, as the Triton seed asks.
    """
    import torch

    theirs = expected.torch_y
    if theirs is None:
        return {}
    bits = {4: torch.int32, 2: torch.int16}[y.element_size()]
    same = bool((theirs.contiguous().view(bits) == y.contiguous().view(bits)).all())
    if same:
        return {"bitwise_torch": True, "allclose_torch": True, "allclose_seed": True}
    dtype = expected.point.dtype
    rtol = max(1e-4, 2 * ops.UNIT_ROUNDOFF[dtype])
    seed = 1e-5 if dtype == "fp32" else 1e-4
    rows = _chunks(expected.point)
    close = all(torch.allclose(theirs[part], y[part], rtol, 1e-4, equal_nan=True) for part in rows)
    seeded = all(torch.allclose(theirs[part], y[part], seed, seed, equal_nan=True) for part in rows)
    return {"bitwise_torch": False, "allclose_torch": close, "allclose_seed": seeded}
