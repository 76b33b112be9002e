"""Is an output right: errors against float64, the contracts with torch, and the signs of work not done.

``Expected`` is computed once per buffer set and serves every contender of the point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from normbench import gradients, ops
from normbench.points import Point
from normbench.tensors import integers, poisoned

if TYPE_CHECKING:
    import torch

INFINITY = float("inf")
CHUNK_ELEMENTS = 1 << 25  # float64 temporaries of a check stay under 300 MB each
KEPT_ELEMENTS = 1 << 29  # beyond them the references of two buffer sets, 16 bytes an element, take more than 17 GB


@dataclass
class Target:
    """One output that is judged element by element, as (rows, hidden): the reference in float64, tolerance and ulp of
    each element in float32, and torch eager's own answer where there is one."""

    exact: torch.Tensor
    allowed: torch.Tensor
    ulp: torch.Tensor
    torch: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.exact.shape)

    def part(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(exact, allowed, ulp) of some rows."""
        return self.exact[rows], self.allowed[rows], self.ulp[rows]


@dataclass
class MadeTarget:
    """The same where 16 bytes an element are too many to keep, and torch's answer another 2 or 4: made anew, of the
    inputs, whenever they are asked for."""

    point: Point
    inputs: dict[str, torch.Tensor | None]
    with_torch: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.point.rows, self.point.hidden)

    def part(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(exact, allowed, ulp) of some rows, float64."""
        part = _rows_of(self.point, self.inputs, rows)
        found = ops.reference(self.point, part)
        exact = found[ops.OPS[self.point.op].main]
        return exact, ops.tolerance(self.point, part, found), ops.output_ulp(self.point, part, found)

    @property
    def torch(self) -> Any:
        """Torch eager's answer to the inputs as they are now."""
        return (torch_eager(self.point, self.inputs) or {}).get("y") if self.with_torch else None


@dataclass
class Expected:
    """What the outputs of one buffer set should be. targets: those judged by a tolerance, by name, the largest first.

    sum: of an add op, which has one right value. stats: saved statistics in float64. torch_stats: as torch eager saves
    them, where it was asked.
    """

    point: Point
    targets: dict[str, Target | MadeTarget]
    stats: dict[str, torch.Tensor]
    out_of_range: bool
    sum: torch.Tensor | None = None
    torch_stats: dict[str, torch.Tensor] = field(default_factory=dict)


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


def _chunks(rows: int, hidden: int) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // max(hidden, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _parts(point: Point, inputs: dict[str, torch.Tensor | None]) -> Iterator[tuple[slice, dict[str, Any]]]:
    """The inputs of some rows after the other; of no rows once."""
    for rows in _chunks(point.rows, point.hidden) or [slice(0, 0)]:
        yield rows, _rows_of(point, inputs, rows)


def _rows_of(point: Point, inputs: dict[str, torch.Tensor | None], rows: slice) -> dict[str, Any]:
    """The inputs of some rows."""
    found: dict[str, Any] = dict(inputs)
    for name in (*ops.LARGE, *ops.STATISTICS):
        if (tensor := inputs.get(name)) is not None:
            found[name] = ops.some_rows(point, tensor, rows) if name in ops.LARGE else tensor[rows]
    return found


def kept_bytes(point: Point) -> int:
    """Bytes that an ``Expected`` keeps of the reference."""
    return 0 if _made(point) else point.rows * point.row_stride * (8 + 4 + 4)


def _made(point: Point) -> bool:
    """Whether the reference is made anew for every check."""
    return point.rows * point.hidden > KEPT_ELEMENTS and ops.outputs(point) == ["y"]


def expect(point: Point, inputs: dict[str, torch.Tensor | None], with_torch: bool = False) -> Expected:
    """Reference and tolerances of ``inputs``; ``with_torch`` also keeps torch eager's outputs for the contracts."""
    import torch

    x = inputs["x"]
    assert x is not None
    if _made(point):
        beyond = any(ops.out_of_range(point, part) for _, part in _parts(point, inputs))
        return Expected(point, {"y": MadeTarget(point, inputs, with_torch)}, {}, beyond)
    main = ops.OPS[point.op].main
    exact = torch.empty(point.rows, point.hidden, dtype=torch.float64, device=x.device)
    allowed = torch.empty(point.rows, point.hidden, dtype=torch.float32, device=x.device)
    target = Target(exact, allowed, torch.empty_like(allowed))
    stats: dict[str, list[torch.Tensor]] = {}
    sums: dict[str, torch.Tensor] = {}
    for rows, part in _parts(point, inputs):
        found = ops.reference(point, part)
        target.exact[rows] = found[main]
        target.allowed[rows] = ops.tolerance(point, part, found).to(torch.float32)
        target.ulp[rows] = ops.output_ulp(point, part, found).to(torch.float32)
        for name in ops.STATISTICS:
            if name in found:
                stats.setdefault(name, []).append(found[name])
        _add(sums, found)
    joined = {name: torch.cat(parts) for name, parts in stats.items()}
    targets: dict[str, Target] = {main: target, **_columns(point, sums)}
    eager = (torch_eager(point, inputs) or {}) if with_torch else {}
    for name in targets.keys() & eager.keys():
        targets[name].torch = eager[name] if name == main else eager[name][None]
    saved = {name: eager[name].flatten() for name in ops.STATISTICS if name in eager}
    summed = rounded_sum(x, inputs["residual"]) if ops.OPS[point.op].adds else None
    return Expected(point, {**targets}, joined, ops.out_of_range(point, inputs), summed, saved)


def expect_columns(point: Point, inputs: dict[str, torch.Tensor | None]) -> dict[str, Target]:
    """The column sums alone, for a point whose other outputs would not fit."""
    sums: dict[str, torch.Tensor] = {}
    if set(ops.outputs(point)) & set(ops.COLUMN_SUMS):
        for _, part in _parts(point, inputs):
            _add(sums, ops.reference(point, part))
    return _columns(point, sums)


def _add(sums: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    """Add what one part of the rows gives to each column sum, and to what stands beside it."""
    for name, part in found.items():
        if name.startswith(ops.COLUMN_SUMS):
            sums[name] = sums[name] + part if name in sums else part


def _columns(point: Point, sums: dict[str, torch.Tensor]) -> dict[str, Target]:
    import torch

    found = {}
    for name in ops.outputs(point):
        if name in ops.COLUMN_SUMS:
            unit = (gradients.column_tolerance(point, name, sums), gradients.column_ulp(point, name, sums))
            found[name] = Target(sums[name][None], *(one.to(torch.float32)[None] for one in unit))
    return found


def rounded_sum(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """x + residual formed in fp32 and rounded once to their type: what torch, and every kernel, hands out."""
    assert residual is not None
    return x + residual


def torch_eager(point: Point, inputs: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    """Torch's own answers, or None where it refuses (mixed parameter types, an overflow of its limits)."""
    import torch

    try:
        if ops.OPS[point.op].backward:
            return _torch_backward(point, inputs)
        if ops.OPS[point.op].scale:
            return {"y": torch_scaled(point, inputs["x"])}
        if ops.cast_order(point) == "llama" or point.semantics.offset:
            return None  # it has neither; a composition would be somebody's choice
        functional = torch.nn.functional
        shape, eps = (point.hidden,), point.semantics.eps
        x, gamma, beta = inputs["x"], inputs["gamma"], inputs["beta"]
        if ops.OPS[point.op].adds:
            x = rounded_sum(x, inputs["residual"])  # torch has no fused form; composed, it rounds the sum
            if ops.residual_mode(point) == "fp32":
                return None
        if ops.saves_stats(point) and not ops.OPS[point.op].adds:
            return _torch_with_statistics(point, x, gamma, beta)
        if ops.OPS[point.op].norm == "layernorm":
            return {"y": functional.layer_norm(x, shape, gamma, beta, eps)}
        return {"y": functional.rms_norm(x, shape, gamma, eps)}
    except RuntimeError:
        return None


def _torch_with_statistics(point: Point, x: Any, gamma: Any, beta: Any) -> dict[str, torch.Tensor]:
    """What the operators below layer_norm and rms_norm hand out; the latter has one from 2.9 on."""
    import torch

    shape, eps, aten = (point.hidden,), point.semantics.eps, torch.ops.aten
    if ops.OPS[point.op].norm == "layernorm":
        return dict(zip(("y", "mean", "rstd"), aten.native_layer_norm(x, shape, gamma, beta, eps), strict=True))
    if not hasattr(aten, "_fused_rms_norm"):
        return {"y": torch.nn.functional.rms_norm(x, shape, gamma, eps)}
    return dict(zip(("y", "rstd"), aten._fused_rms_norm(x, shape, gamma, eps), strict=True))


def torch_scaled(point: Point, x: Any) -> Any:
    """A scale-only norm as its definition in torch says it (KernelBench level 1, problems 36, 38 and 39), in fp32."""
    import torch

    kind, wide = ops.OPS[point.op].scale, x.float()
    if kind == "l1":
        scale = torch.mean(torch.abs(wide), dim=1, keepdim=True)
    elif kind == "l2":
        scale = torch.norm(wide, p=2, dim=1, keepdim=True)
    else:
        scale = torch.sqrt(torch.mean(wide**2, dim=1, keepdim=True) + point.semantics.eps)
    return torch.div(wide, scale, out=torch.empty_like(x))


def _torch_backward(point: Point, inputs: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    """Torch's own gradients from given statistics. It adds no residual gradient before it rounds dx, and before 2.9 has
    no operator for those of rmsnorm."""
    import torch

    if ops.residual_mode(point) is not None or not ops.takes_stats(point) or point.semantics.offset:
        return None
    names = ops.outputs(point)
    wanted = [name in names for name in ("dx", "dgamma", "dbeta")]
    x, dy, gamma, rstd = inputs["x"], inputs["dy"], inputs["gamma"], inputs["rstd"][:, None]
    if gamma is not None and gamma.dtype != x.dtype:
        return None
    if ops.OPS[point.op].norm == "layernorm":
        beta = x.new_empty(point.hidden) if wanted[2] else None  # dbeta is made like it
        mean = inputs["mean"][:, None]
        native = torch.ops.aten.native_layer_norm_backward
        found = native(dy, x, (point.hidden,), mean, rstd, gamma, beta, wanted)
    elif hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
        found = torch.ops.aten._fused_rms_norm_backward(dy, x, (point.hidden,), rstd, gamma, wanted[:2])
    else:
        return None
    return {name: tensor for name, tensor in zip(("dx", "dgamma", "dbeta"), found, strict=False) if name in names}


def check(expected: Expected, outputs: dict[str, torch.Tensor]) -> Verdict:
    """Judge one set of outputs; the first thing wrong is the one named."""
    point = expected.point
    verdicts = [_judge(expected, name, outputs) for name in expected.targets]
    verdict = next((one for one in verdicts if not one.ok), verdicts[0])
    if len(verdicts) > 1:
        verdict = replace(verdict, **_together(verdicts))
    if verdict.bitwise_torch and not _same_statistics(expected, outputs):
        verdict = replace(verdict, bitwise_torch=False)
    if point.rows and verdict.ok and (reason := _wrong_sum(expected, outputs) or _wrong_statistic(expected, outputs)):
        return replace(verdict, status="wrong", reason=reason, accurate=False)
    return verdict


def judge(expected: Expected, outputs: dict[str, torch.Tensor]) -> Verdict:
    """``check``; but where torch's bits are a contract of their own, an output that has them is ok whatever its error.

    It keeps that contract and not the other: ``accurate`` is false, and the reason says by how much.
    """
    verdict = check(expected, outputs)
    if verdict.status != "wrong" or not _is_torchs(expected, verdict, outputs):
        return verdict
    reason = f"torch eager's bits, and so its error: {verdict.reason}"
    return replace(verdict, status="ok", reason=reason, accurate=False)


def _is_torchs(expected: Expected, verdict: Verdict, outputs: dict[str, torch.Tensor]) -> bool:
    """Whether the contract of torch's bits is there and kept, in each of the statistics that were asked for as well."""
    point = expected.point
    asked = expected.stats.keys() if ops.saves_stats(point) else set()
    known = asked <= (expected.torch_stats.keys() & outputs.keys())
    return bool(point.has_two_contracts and verdict.bitwise_torch and known and expected.sum is None)


def _judge(expected: Expected, name: str, outputs: dict[str, torch.Tensor]) -> Verdict:
    """One output against its target; reasons name it unless it is the only one."""
    target = expected.targets[name]
    several = len(expected.targets) > 1
    if name not in outputs:
        return Verdict("wrong", f"{name} was not handed out", accurate=False)
    found = _shaped(expected.point, name, outputs[name])
    if not found.numel():
        return Verdict("ok", accurate=True)
    if bool(poisoned(found).all()):
        if several:
            return Verdict("no_work", f"{name} was not written", accurate=False)
        return Verdict("no_work", "the output was not written")
    verdict = _all_right(expected, target, found) or _errors(expected, target, found)
    return replace(verdict, reason=f"{name}: {verdict.reason}") if several and verdict.reason else verdict


def _shaped(point: Point, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """An output as its target is shaped."""
    return ops.as_rows(point, tensor) if name in ops.LARGE else tensor.reshape(1, -1)


def _together(verdicts: list[Verdict]) -> dict[str, Any]:
    """Numbers of several outputs as one: the largest error, the tolerance used most, the weakest contract."""
    known = [one for one in verdicts if one.tolerance_used is not None]
    used = max(known, key=lambda one: one.tolerance_used or 0.0, default=verdicts[0])
    found: dict[str, Any] = {"tolerance": used.tolerance, "tolerance_used": used.tolerance_used}
    if len(known) < sum(one.failing_elements is not None for one in verdicts):  # one had no finite value
        found["tolerance_used"] = None
    for name in ("err_max_abs", "err_ulp_max"):
        values = [getattr(one, name) for one in known]
        found[name] = None if None in values or not values else max(values)
    counts = [one.failing_elements for one in verdicts if one.failing_elements is not None]
    found["failing_elements"] = sum(counts) if counts else None
    for name in ("accurate", "allclose_torch", "allclose_seed", "bitwise_torch"):
        values = [getattr(one, name) for one in verdicts if getattr(one, name) is not None]
        found[name] = all(values) if values else None
    return found


def yardstick(inputs: dict[str, torch.Tensor | None]) -> torch.Tensor | None:
    """What the copy of an op hands out: x, or where dy is read too their sum, rounded once."""
    x, dy = inputs["x"], inputs.get("dy")
    return x if x is None or dy is None else x + dy


def check_copy(source: torch.Tensor | None, found: torch.Tensor) -> Verdict:
    """The device copy is right when it has the bits of its source (``yardstick``); it has no error against a norm."""
    if bool(poisoned(found).all()) and found.numel():
        return Verdict("no_work", "the output was not written")
    import torch

    same = source is not None and torch.equal(integers(source), integers(found))
    return Verdict("ok") if same else Verdict("wrong", "the copy differs from its source")


def _all_right(expected: Expected, target: Target | MadeTarget, y: torch.Tensor) -> Verdict | None:
    """The verdict on an output that is finite and within its tolerance everywhere, in a third of the passes over it.

    None where anything else is met: a NaN or an infinity, which no maximum hides, or an error that is too large.
    """
    import torch

    if expected.out_of_range:
        return None
    largest = torch.zeros(2, dtype=torch.float64, device=y.device)
    used, at_worst = 0.0, 0.0
    for rows in _chunks(*y.shape):
        exact, granted, ulp = target.part(rows)
        error = y[rows].to(torch.float64).sub_(exact).abs_()
        share = (error / granted).flatten()
        worst = share.argmax()
        largest = torch.maximum(largest, torch.stack((error.max(), error.div_(ulp).max())))
        found, allowed = torch.stack((share[worst], granted.flatten()[worst])).tolist()
        if not found <= 1:
            return None
        if found >= used:
            used, at_worst = found, allowed
    error_max, ulp_max = largest.tolist()
    if not (math.isfinite(error_max) and math.isfinite(ulp_max)):
        return None
    facts = {"err_max_abs": error_max, "err_ulp_max": ulp_max, "tolerance": at_worst or None, "tolerance_used": used}
    return Verdict("ok", None, **facts, failing_elements=0, accurate=True, **_contracts(expected.point, target, y))


def _errors(expected: Expected, target: Target | MadeTarget, y: torch.Tensor) -> Verdict:
    import torch

    largest = torch.zeros(3, dtype=torch.float64, device=y.device)
    failing = torch.zeros((), dtype=torch.int64, device=y.device)
    beyond = torch.zeros((), dtype=torch.int64, device=y.device)
    unwritten = torch.zeros((), dtype=torch.int64, device=y.device)
    at_worst = 0.0
    for rows in _chunks(*y.shape):
        part, (exact, granted, ulp) = y[rows], target.part(rows)
        value = part.to(torch.float64)
        same = (value == exact) | (value.isnan() & exact.isnan())
        rounded_away = value.isinf() & (exact.abs() > torch.finfo(part.dtype).max) & (value.sign() == exact.sign())
        error = torch.where(same | rounded_away, 0.0, (value - exact).abs()).nan_to_num_(nan=INFINITY, posinf=INFINITY)
        used, ulps = _share(error, granted), _share(error, ulp)
        worst = torch.stack((error.max(), ulps.max(), used.max()))
        if bool(worst[2] > largest[2]):
            at_worst = float(granted.flatten()[used.argmax()].nan_to_num())
        largest = torch.maximum(largest, worst)
        failing += (used > 1).sum()
        beyond += rounded_away.sum()
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
    } | _contracts(expected.point, target, y)
    if expected.out_of_range:
        return Verdict("out_of_range", "the sum of squares overflows fp32 for this input", **facts)
    if int(unwritten):
        return Verdict("wrong", f"{int(unwritten)} elements were not written", **facts)
    if bad:
        return Verdict("wrong", f"{bad} elements outside the tolerance, the worst {_times(found[2])}", **facts)
    if int(beyond) and ops.OPS[expected.point.op].backward:  # of a gradient, training code has to know
        return Verdict("out_of_range", f"{int(beyond)} elements are beyond their type: infinities, rightly", **facts)
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
    same = (found == exact) | (found.isnan() & exact.isnan())  # an rstd without epsilon may be infinite
    return bool((error <= allowed).logical_or(same).all())


def _same_statistics(expected: Expected, outputs: dict[str, torch.Tensor]) -> bool:
    """Whether the saved statistics have the bits of torch eager's, where those are known and these were handed out."""
    import torch

    theirs = expected.torch_stats
    return all(torch.equal(integers(theirs[name]), integers(outputs[name])) for name in theirs if name in outputs)


def _contracts(point: Point, target: Target | MadeTarget, y: torch.Tensor) -> dict[str, bool]:
    """Contracts with torch eager's output, where there is one.

    allclose_torch: atol = rtol = 1e-4 in fp32 (KernelBench); 16-bit types one output ulp where that is more.
    allclose_seed: atol = rtol 1e-5 in fp32, 1e-4 in 16-bit types, as the Triton seed asks.
    """
    import torch

    if (theirs := target.torch) is None:
        return {}
    theirs = theirs.reshape(y.shape) if theirs.dim() < 3 else ops.as_rows(point, theirs)
    bits = {4: torch.int32, 2: torch.int16}[y.element_size()]
    same = bool((theirs.contiguous().view(bits) == y.contiguous().view(bits)).all())
    if same:
        return {"bitwise_torch": True, "allclose_torch": True, "allclose_seed": True}
    dtype = point.dtype
    rtol = max(1e-4, 2 * ops.UNIT_ROUNDOFF[dtype])
    seed = 1e-5 if dtype == "fp32" else 1e-4
    rows = _chunks(*y.shape)
    close = all(torch.allclose(theirs[part], y[part], rtol, 1e-4, equal_nan=True) for part in rows)
    seeded = all(torch.allclose(theirs[part], y[part], seed, seed, equal_nan=True) for part in rows)
    return {"bitwise_torch": False, "allclose_torch": close, "allclose_seed": seeded}
