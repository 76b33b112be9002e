"""Each op once: formula, float64 reference, inputs and outputs, compulsory bytes, flops, tolerance.

Nobody else multiplies shapes: every contender's GB/s uses ``compulsory_bytes`` of the point, every check uses
``reference`` and ``tolerance``. torch is imported only inside the functions that compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normbench.points import ELEMENT_BYTES, Point

if TYPE_CHECKING:
    import torch

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}
EXPONENT = 0x7FF0000000000000  # its bits in a float64
MAX_HIDDEN = 2**24


@dataclass(frozen=True)
class Op:
    """One operation.

    inputs, outputs: tensor names; x-sized ones are counted per element, gamma and beta per column, statistics per row.
    mix: the access mix its ceiling is measured with. flops: floating-point operations an element, for the roofline.
    norm: the norm it ends in, layernorm or rmsnorm.
    """

    name: str
    formula: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mix: str
    flops: int
    subtract_mean: bool
    has_beta: bool

    @property
    def norm(self) -> str:
        return "layernorm" if self.subtract_mean else "rmsnorm"

    @property
    def adds(self) -> bool:
        """Whether a residual is added to x first, and the sum handed out."""
        return "residual" in self.inputs


OPS = {
    op.name: op
    for op in (
        Op(
            "layernorm",
            "y = (x - mean) * rstd * gamma + beta, rstd = 1 / sqrt(mean((x - mean)^2) + eps)",
            ("x", "gamma", "beta"),
            ("y", "mean", "rstd"),
            "copy",
            8,
            subtract_mean=True,
            has_beta=True,
        ),
        Op(
            "rmsnorm",
            "y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + eps)",
            ("x", "gamma"),
            ("y", "rstd"),
            "copy",
            4,
            subtract_mean=False,
            has_beta=False,
        ),
        Op(
            "add_layernorm",
            "sum = x + residual, y = layernorm(sum)",
            ("x", "residual", "gamma", "beta"),
            ("y", "sum", "mean", "rstd"),
            "read2_write2",
            9,
            subtract_mean=True,
            has_beta=True,
        ),
        Op(
            "add_rmsnorm",
            "sum = x + residual, y = rmsnorm(sum)",
            ("x", "residual", "gamma"),
            ("y", "sum", "rstd"),
            "read2_write2",
            5,
            subtract_mean=False,
            has_beta=False,
        ),
    )
}
LARGE = ("x", "y", "residual", "sum", "dy", "dx")  # tensors with an element for every element of x


def has_gamma(point: Point) -> bool:
    return point.semantics.gamma


def has_beta(point: Point) -> bool:
    wanted = point.semantics.beta
    return OPS[point.op].has_beta if wanted is None else wanted


def saves_stats(point: Point) -> bool:
    return bool(point.semantics.stats)


def residual_mode(point: Point) -> str | None:
    """How an add op takes the sum into its norm: ``fp32`` as it was formed, ``round`` as it is handed out."""
    return point.semantics.residual or "fp32" if OPS[point.op].adds else None


def large_tensors(point: Point) -> list[str]:
    """Inputs and outputs that are as large as x."""
    op = OPS[point.op]
    return [name for name in op.inputs + op.outputs if name in LARGE]


def compulsory_bytes(point: Point) -> int:
    """Bytes a launch must move: each input read once, each output written once, each by its own element size."""
    op = OPS[point.op]
    params = has_gamma(point) + has_beta(point)
    stats = sum(name in ("mean", "rstd") for name in op.outputs) if saves_stats(point) else 0
    return (
        len(large_tensors(point)) * point.rows * point.hidden * point.element_bytes
        + params * point.hidden * ELEMENT_BYTES[point.param_dtype]
        + stats * point.rows * 4
    )


def flops(point: Point) -> int:
    """Floating-point operations of a launch, an fma as two, by the formula (not by what a kernel happens to do)."""
    return OPS[point.op].flops * point.rows * point.hidden


def reference(point: Point, tensors: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Outputs in float64 of the inputs as rounded to their dtype; x and residual are (rows, hidden) with any strides.

    Returns y, the statistics the op has, shaped (rows,), and for an add op the exact sum.
    """
    import torch

    eps = point.semantics.eps
    x = tensors["x"].to(torch.float64)  # type: ignore[union-attr]
    results: dict[str, torch.Tensor] = {}
    if OPS[point.op].adds:
        x = x + tensors["residual"].to(torch.float64)  # type: ignore[union-attr]
        results["sum"] = x
        if residual_mode(point) == "round":
            # as every kernel forms it: the fp32 sum rounded to the type of x
            x = x.to(torch.float32).to(torch_dtype(point.dtype)).to(torch.float64)
    if OPS[point.op].subtract_mean:
        mean = x.mean(dim=1, keepdim=True)
        # the mean of a float64 row is itself rounded; removing the residual makes constant rows exactly zero
        mean = mean + (x - mean).mean(dim=1, keepdim=True)
        x = x - mean
        results["mean"] = mean[:, 0]
    rstd = torch.rsqrt((x * x).mean(dim=1, keepdim=True) + eps)
    results["rstd"] = rstd[:, 0]
    y = x.mul_(rstd) if OPS[point.op].subtract_mean else x * rstd
    if point.semantics.cast == "llama":
        y = y.to(torch_dtype(point.dtype)).to(torch.float64)
    if tensors.get("gamma") is not None:
        y = y * (tensors["gamma"].to(torch.float64) + point.semantics.offset)  # type: ignore[union-attr]
    if tensors.get("beta") is not None:
        y = y + tensors["beta"].to(torch.float64)  # type: ignore[union-attr]
    return results | {"y": y}


def tolerance(point: Point, tensors: dict[str, torch.Tensor | None], exact: dict[str, torch.Tensor]) -> torch.Tensor:
    """Absolute error allowed at each element of y, shaped (rows, hidden), float64.

    Three terms, with u the unit roundoff and fp32 accumulation throughout:

    * the output's own rounding: one ulp of |y| (half an ulp is unavoidable; the other half is for the double rounding
      of a value formed in fp32), and for the 16-bit types nothing more is granted for it;
    * the fp32 arithmetic of the row: normalising, scaling and the sums of a pairwise or blocked order lose at most
      (8 + log2 hidden) u32 of |xhat * gamma| (Higham, Accuracy and Stability, 4.2: blocked sums grow with their depth,
      not with n; a plain running sum of each thread is granted by the factor 4);
    * the error of the mean (LayerNorm), which moves every centred value of the row alike: its sum loses up to
      (8 + log2 hidden) u32 of mean |x| <= |mean| + std, its rounding and the subtraction u32 |mean| each. In units of
      the output that is u32 (8 + log2 hidden + 2 |mean| rstd) |gamma|. At |mean|/std = 1e6 it is 0.1 and at 1e2 it is
      1e-5: a flat tolerance would either pass a cancelling kernel or fail a right one. A constant row has
      rstd = 1/sqrt(eps); there the term is capped at 1e-3, which an exact two-pass meets by removing the residual of
      the mean, and a plain one does not;
    * the sum of an add op in fp32: u32 |sum|, in units of the output u32 |sum| rstd |gamma|.
    """
    import math

    import torch

    u32 = UNIT_ROUNDOFF["fp32"]
    y = exact["y"]
    ones = torch.ones(point.hidden, dtype=torch.float64, device=y.device)
    gamma, beta = (tensors.get(name) for name in ("gamma", "beta"))
    scale = ones if gamma is None else gamma.to(torch.float64).abs()
    depth = 8 + math.log2(max(point.hidden, 2))
    allowed = ulp(y, point.dtype)
    if beta is None:
        allowed.add_(y.abs(), alpha=4 * depth * u32)
    else:
        shift = beta.to(torch.float64)
        allowed.add_((y - shift).abs_(), alpha=4 * depth * u32).add_(shift.abs(), alpha=2 * u32)
    if OPS[point.op].subtract_mean:
        drift = u32 * (depth + 2 * exact["mean"].abs() * exact["rstd"])
        constant = exact["rstd"] * math.sqrt(point.semantics.eps) > 0.5
        allowed.addcmul_(torch.where(constant, drift.clamp(max=1e-3), drift)[:, None], scale)
    if "sum" in exact:
        allowed.addcmul_(exact["sum"].abs().mul_(exact["rstd"][:, None]), scale, value=u32)
    return allowed


def output_ulp(point: Point, tensors: dict[str, torch.Tensor | None], exact: dict[str, torch.Tensor]) -> torch.Tensor:
    """Unit in the last place of the output type at max(|y|, |gamma|, |beta|), float64: the unit of ``err_ulp_max``.

    At y itself it would mean nothing where xhat * gamma and beta cancel, or x lies at the mean; a normalised value is
    of size one before scaling.
    """
    import torch

    present = [tensors[name] for name in ("gamma", "beta") if tensors.get(name) is not None]
    scale = exact["y"].abs()
    for tensor in present:
        scale = torch.maximum(scale, tensor.to(torch.float64).abs())  # type: ignore[union-attr]
    return ulp(scale, point.dtype)


def ulp(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """Distance between neighbouring ``dtype`` values at |value| (float64), never below the smallest denormal."""
    import torch

    powers = (value.contiguous().view(torch.int64) & EXPONENT).view(torch.float64)  # 2 ** floor(log2 |value|)
    return powers.mul_(2 * UNIT_ROUNDOFF[dtype]).clamp_(min=SMALLEST[dtype])


def out_of_range(point: Point, tensors: dict[str, torch.Tensor | None]) -> bool:
    """True where an fp32 accumulator cannot hold the sum of squares: |x| > 1.8e19 / sqrt(hidden) somewhere."""
    x = tensors["x"]
    if x is None or x.numel() == 0:
        return False
    finite = x[x.isfinite()]
    return bool(finite.numel() and float(finite.abs().max()) > 1.8e19 / point.hidden**0.5)


def torch_dtype(dtype: str) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
