"""Each op once: formula, float64 reference, inputs and outputs, compulsory bytes, flops, tolerance.

Nobody else multiplies shapes: every contender's GB/s uses ``compulsory_bytes`` of the point, every check uses
``reference`` and ``tolerance``. torch is imported only inside the functions that compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normbench.points import ELEMENT_BYTES, Point, Semantics

if TYPE_CHECKING:
    import torch

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}
EXPONENT = 0x7FF0000000000000  # its bits in a float64
MAX_HIDDEN = 2**24


@dataclass(frozen=True)
class Op:
    """One operation.

    inputs, outputs: names of the tensors it may have; which of them a point has is said by ``inputs`` and ``outputs``
    of this module. The first output is the one with an element for every element of x.
    mix: the access mix its ceiling is measured with. flops: floating-point operations an element, for the roofline.
    norm: the norm it ends in or is the gradient of: layernorm, rmsnorm, l1norm or l2norm. has_beta: whether its default
    has one. scale: of a scale-only norm, what a row is divided by, ``rms``, ``l1`` or ``l2``; it has neither parameters
    nor statistics. axis: of the shape, the one that is normalised where the semantics name none.
    """

    name: str
    formula: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mix: str
    flops: int
    subtract_mean: bool
    has_beta: bool
    scale: str = ""
    axis: int = -1

    @property
    def norm(self) -> str:
        if self.scale in ("l1", "l2"):
            return self.name
        return "layernorm" if self.subtract_mean else "rmsnorm"

    @property
    def has_eps(self) -> bool:
        """Whether eps is part of the formula."""
        return self.scale not in ("l1", "l2")

    @property
    def prepared_by(self) -> str:
        """The function of a baseline that prepares its launches."""
        return "prepare_backward" if self.backward else "prepare_scale" if self.scale else "prepare"

    @property
    def main(self) -> str:
        """The output that is as large as x: y or dx."""
        return self.outputs[0]

    @property
    def adds(self) -> bool:
        """Whether a residual is added to x first, and the sum handed out."""
        return "sum" in self.outputs

    @property
    def casts(self) -> bool:
        """Whether its cast orders differ: RMSNorm's."""
        return "gamma" in self.inputs and not self.subtract_mean and not self.backward

    @property
    def backward(self) -> bool:
        return self.main == "dx"


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
            ("x", "gamma", "beta"),
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
            ("x", "residual", "gamma", "beta"),
            ("y", "sum", "rstd"),
            "read2_write2",
            5,
            subtract_mean=False,
            has_beta=False,
        ),
        # a residual gradient is a third read, for which there is no mix of its own
        Op(
            "layernorm_bwd",
            "dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), dgamma = sum over rows of dy * xhat, "
            "dbeta = sum over rows of dy; xhat = (x - mean) * rstd, g = dy * gamma",
            ("x", "dy", "residual", "gamma", "mean", "rstd"),
            ("dx", "dgamma", "dbeta"),
            "read2_write1",
            13,
            subtract_mean=True,
            has_beta=True,
        ),
        Op(
            "rmsnorm_bwd",
            "dx = rstd * (g - xhat * mean(g * xhat)), dgamma = sum over rows of dy * xhat; "
            "xhat = x * rstd, g = dy * gamma",
            ("x", "dy", "residual", "gamma", "rstd"),
            ("dx", "dgamma", "dbeta"),
            "read2_write1",
            9,
            subtract_mean=False,
            has_beta=False,
        ),
        # KernelBench level 1, problems 36, 38 and 39
        Op(
            "rmsnorm_channels",
            "y = x / sqrt(mean(x^2) + eps), the mean over axis 1",
            ("x",),
            ("y",),
            "copy",
            3,
            subtract_mean=False,
            has_beta=False,
            scale="rms",
            axis=1,
        ),
        Op(
            "l1norm",
            "y = x / mean(|x|)",
            ("x",),
            ("y",),
            "copy",
            3,
            subtract_mean=False,
            has_beta=False,
            scale="l1",
        ),
        Op(
            "l2norm",
            "y = x / sqrt(sum(x^2))",
            ("x",),
            ("y",),
            "copy",
            3,
            subtract_mean=False,
            has_beta=False,
            scale="l2",
        ),
    )
}
LARGE = ("x", "y", "residual", "sum", "dy", "dx")  # tensors with an element for every element of x
PARAMETERS = ("gamma", "beta", "dgamma", "dbeta")  # with an element for every column, of the parameters' type
STATISTICS = ("mean", "rstd")  # with an element for every row, fp32
COLUMN_SUMS = ("dgamma", "dbeta")  # outputs that every row adds to


def point_of(
    op: str, dtype: str, dims: Sequence[int], regime: str = "stream", semantics: Semantics | None = None
) -> Point:
    """The work of an op on an x of this shape.

    Raises:
        ValueError: the axis to be normalised is none of its axes, or holds nothing.
    """
    semantics = semantics or Semantics()
    which = _axis(op, semantics)
    if not -len(dims) <= which < len(dims) or dims[which] < 1:
        raise ValueError(f"shape: {'x'.join(map(str, dims))} has nothing to normalise along axis {which}")
    hidden = dims[which]
    return Point(op, dtype, math.prod(dims) // hidden, hidden, regime, semantics, "x".join(map(str, dims)))


def _axis(op: str, semantics: Semantics) -> int:
    return OPS[op].axis if semantics.axis is None else semantics.axis


def inner(point: Point) -> int:
    """Elements of x from one element of a row to its next: 1, or of a channel form the pixels of an image, which are
    all that lies behind axis 1 of its shape."""
    return math.prod(point.dims[2:]) if _axis(point.op, point.semantics) == 1 else 1


def layout(point: Point) -> str:
    """How x lies in memory: ``rows``, one after the other, or ``channels``, the rows of an image side by side."""
    return "channels" if inner(point) > 1 else "rows"


def as_rows(point: Point, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as large as x, whatever its shape, as (rows, hidden); of a channel form that is a copy."""
    rows = tensor.numel() // point.hidden
    if layout(point) == "channels" and tensor.dim() > 2:
        pixels = inner(point)
        tensor = tensor.reshape(rows // pixels, point.hidden, pixels).transpose(1, 2)
    return tensor.reshape(rows, point.hidden)


def some_rows(point: Point, tensor: torch.Tensor, rows: slice | list[int]) -> torch.Tensor:
    """Some rows of a tensor as large as x, (rows, hidden), without a copy of the others."""
    import torch

    if layout(point) == "rows" or tensor.dim() == 2:
        return tensor[rows]
    wanted = torch.arange(point.rows, device=tensor.device)[rows]
    pixels = inner(point)
    return tensor.reshape(-1, point.hidden, pixels)[wanted // pixels, :, wanted % pixels]


def laid_out(point: Point, rows: torch.Tensor) -> torch.Tensor:
    """Inverse of ``as_rows``: (rows, hidden) values in the shape that ``extent`` says, as a view."""
    if layout(point) == "rows":
        return rows
    pixels = inner(point)
    return rows.view(len(rows) // pixels, pixels, point.hidden).transpose(1, 2)


def has_gamma(point: Point) -> bool:
    return point.semantics.gamma and "gamma" in OPS[point.op].inputs


def has_beta(point: Point) -> bool:
    wanted = point.semantics.beta
    return not OPS[point.op].scale and (OPS[point.op].has_beta if wanted is None else wanted)


def saves_stats(point: Point) -> bool:
    """Whether statistics are an output."""
    return bool(point.semantics.stats) and "rstd" in OPS[point.op].outputs


def takes_stats(point: Point) -> bool:
    """Whether statistics are an input, as a forward pass saved them."""
    return OPS[point.op].backward and point.semantics.stats is not False


def residual_mode(point: Point) -> str | None:
    """How an add op takes the sum into its norm: ``fp32`` as it was formed, ``round`` as it is handed out.

    Backward: ``fp32`` where a residual gradient is added to dx before its one rounding, else None.

    Raises:
        ValueError: a backward op is asked for another mode.
    """
    op, mode = OPS[point.op], point.semantics.residual
    if op.adds:
        return mode or "fp32"
    if op.backward and mode not in (None, "fp32"):
        raise ValueError(f"semantics: residual of {op.name} is 'fp32' (added to dx before it is rounded), not {mode!r}")
    return mode if op.backward else None


def cast_order(point: Point) -> str:
    """When RMSNorm casts: ``torch`` once, at the end, or ``llama`` also before gamma.

    Raises:
        ValueError: another op is asked for ``llama``.
    """
    if point.semantics.cast == "llama" and not OPS[point.op].casts:
        raise ValueError(f"semantics: cast 'llama' is an order of rmsnorm, not of {point.op}")
    return point.semantics.cast


def factor(point: Point, gamma: torch.Tensor) -> torch.Tensor:
    """What gamma multiplies by, float64."""
    import torch

    return gamma.to(torch.float64) + point.semantics.offset


def has(point: Point, name: str) -> bool:
    """Whether the work has this tensor of its op."""
    if name in ("gamma", "dgamma"):
        return has_gamma(point)
    if name in ("beta", "dbeta"):
        return has_beta(point)
    if name in STATISTICS:
        return saves_stats(point) or takes_stats(point)
    return name != "residual" or residual_mode(point) is not None


def inputs(point: Point) -> list[str]:
    """Names of the tensors the work reads."""
    return [name for name in OPS[point.op].inputs if has(point, name)]


def outputs(point: Point) -> list[str]:
    """Names of the tensors the work writes, the largest first."""
    return [name for name in OPS[point.op].outputs if has(point, name)]


def large_tensors(point: Point) -> list[str]:
    """Inputs and outputs that are as large as x."""
    return [name for name in inputs(point) + outputs(point) if name in LARGE]


def extent(point: Point, name: str) -> tuple[tuple[int, ...], str]:
    """(shape, element type) of a tensor of the work."""
    if name in LARGE:
        pixels = inner(point)
        shape = (point.rows, point.hidden) if pixels == 1 else (point.rows // pixels, point.hidden, pixels)
        return shape, point.dtype
    return ((point.hidden,), point.param_dtype) if name in PARAMETERS else ((point.rows,), "fp32")


def compulsory_bytes(point: Point) -> int:
    """Bytes a launch must move: each input read once, each output written once, each by its own element size."""
    found = (extent(point, name) for name in inputs(point) + outputs(point))
    return sum(math.prod(shape) * ELEMENT_BYTES[dtype] for shape, dtype in found)


def moved_bytes(point: Point, copies: bool) -> int:
    """Bytes that the bandwidth of a contender is counted in.

    copies: it is the device copy, which moves tensors as large as x alone, and never a residual gradient; at one row of
    16,777,216 fp32 elements gamma and beta are half of the compulsory bytes.
    """
    if not copies:
        return compulsory_bytes(point)
    names = (name for name in large_tensors(point) if not (OPS[point.op].backward and name == "residual"))
    return sum(math.prod(extent(point, name)[0]) * point.element_bytes for name in names)


def flops(point: Point) -> int:
    """Floating-point operations of a launch, an fma as two, by the formula (not by what a kernel happens to do)."""
    return OPS[point.op].flops * point.rows * point.hidden


def reference(point: Point, tensors: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Outputs in float64 of the inputs as rounded to their dtype; x, residual and dy are (rows, hidden), or of a
    channel form as ``extent`` says.

    Returns y (rows, hidden), the statistics the op has, shaped (rows,), and for an add op the exact sum; with the cast
    order llama also xhat, the normalised value before it is rounded. Of a backward op what ``gradients.reference``
    returns.
    """
    import torch

    from normbench import gradients

    if OPS[point.op].backward:
        return gradients.reference(point, tensors)
    if OPS[point.op].scale:
        rows = as_rows(point, tensors["x"]).to(torch.float64)  # type: ignore[arg-type]
        return {"y": rows / row_scale(point, rows)[:, None]}
    x = tensors["x"].to(torch.float64)  # type: ignore[union-attr]
    results: dict[str, torch.Tensor] = {}
    if OPS[point.op].adds:
        x = x + tensors["residual"].to(torch.float64)  # type: ignore[union-attr]
        results["sum"] = x
        if residual_mode(point) == "round":
            # as every kernel forms it: the fp32 sum rounded to the type of x
            x = x.to(torch.float32).to(torch_dtype(point.dtype)).to(torch.float64)
    centred, found = statistics(point, x)
    results |= found
    rstd = found["rstd"][:, None]
    y = centred.mul_(rstd) if OPS[point.op].subtract_mean else centred * rstd
    if cast_order(point) == "llama":
        results["xhat"] = y
        y = rounded(point, y)
    if (gamma := tensors.get("gamma")) is not None:
        y = y * factor(point, gamma)
    if tensors.get("beta") is not None:
        y = y + tensors["beta"].to(torch.float64)  # type: ignore[union-attr]
    return results | {"y": y}


def statistics(point: Point, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """x, less its mean where the norm subtracts it, and the statistics the norm has, (rows,); x is float64."""
    import torch

    found: dict[str, torch.Tensor] = {}
    if OPS[point.op].subtract_mean:
        mean = x.mean(dim=1, keepdim=True)
        # the mean of a float64 row is itself rounded; removing the residual makes constant rows exactly zero
        mean = mean + (x - mean).mean(dim=1, keepdim=True)
        x = x - mean
        found["mean"] = mean[:, 0]
    found["rstd"] = torch.rsqrt((x * x).mean(dim=1) + point.semantics.eps)
    return x, found


def row_scale(point: Point, x: torch.Tensor) -> torch.Tensor:
    """What a scale-only norm divides each row of x by, (rows,); x is (rows, hidden) and float64."""
    kind = OPS[point.op].scale
    if kind == "l1":
        return x.abs().mean(dim=1)
    squares = x * x
    return squares.sum(dim=1).sqrt() if kind == "l2" else (squares.mean(dim=1) + point.semantics.eps).sqrt()


def tolerance(point: Point, tensors: dict[str, torch.Tensor | None], exact: dict[str, torch.Tensor]) -> torch.Tensor:
    """Absolute error allowed at each element of y, shaped (rows, hidden), float64.

    These terms, with u the unit roundoff and fp32 accumulation throughout:

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
    * the sum of an add op in fp32: u32 |sum|, in units of the output u32 |sum| rstd |gamma|;
    * with the cast order llama, where xhat lies so near the middle of two values of the type that the errors above may
      round it to the other one: the distance of the two, times |gamma|.

    gamma stands for gamma + offset.
    A scale-only norm has the first two. Its row sum has no term below zero, so it is as good, relatively, as its worst
    running sum; the root halves that, and the reciprocal and the product add a rounding each.

    Of a backward op: of each element of dx, as ``gradients.tolerance`` says.
    """
    import torch

    from normbench import gradients

    if OPS[point.op].backward:
        return gradients.tolerance(point, tensors, exact)
    u32 = UNIT_ROUNDOFF["fp32"]
    y = exact["y"]
    ones = torch.ones(point.hidden, dtype=torch.float64, device=y.device)
    gamma, beta = (tensors.get(name) for name in ("gamma", "beta"))
    scale = ones if gamma is None else factor(point, gamma).abs()
    depth = sum_depth(point.hidden)
    allowed = ulp(y, point.dtype)
    if beta is None:
        allowed.add_(y.abs(), alpha=4 * depth * u32)
    else:
        shift = beta.to(torch.float64)
        allowed.add_((y - shift).abs_(), alpha=4 * depth * u32).add_(shift.abs(), alpha=2 * u32)
    if OPS[point.op].subtract_mean:
        allowed.addcmul_(mean_drift(point, exact["mean"], exact["rstd"])[:, None], scale)
    if "sum" in exact:
        allowed.addcmul_(exact["sum"].abs().mul_(exact["rstd"][:, None]), scale, value=u32)
    if "xhat" in exact:
        allowed.addcmul_(rounding_flip(point, exact), scale)
    return allowed


def rounding_flip(point: Point, exact: dict[str, torch.Tensor]) -> torch.Tensor:
    """How far the rounding of xhat to the type of x may move by the errors of fp32 before it, (rows, hidden)."""
    import torch

    u32, xhat = UNIT_ROUNDOFF["fp32"], exact["xhat"]
    error = xhat.abs() * (4 * sum_depth(point.hidden) * u32)
    if "sum" in exact:
        error.addcmul_(exact["sum"].abs(), exact["rstd"][:, None], value=u32)
    right = rounded(point, xhat)
    return torch.maximum(*((rounded(point, near) - right).abs_() for near in (xhat - error, xhat + error)))


def rounded(point: Point, values: torch.Tensor) -> torch.Tensor:
    """float64 values as the type of x holds them, in float64."""
    import torch

    return values.to(torch_dtype(point.dtype)).to(torch.float64)


def sum_depth(count: int) -> float:
    """Roundings that a blocked sum of ``count`` terms is granted."""
    return 8 + math.log2(max(count, 2))


def mean_drift(point: Point, mean: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
    """What an fp32 mean may move every normalised value of its row by, (rows,); the third term of ``tolerance``."""
    import torch

    drift = UNIT_ROUNDOFF["fp32"] * (sum_depth(point.hidden) + 2 * mean.abs() * rstd)
    constant = rstd * math.sqrt(point.semantics.eps) > 0.5
    return torch.where(constant, drift.clamp(max=1e-3), drift)


def output_ulp(point: Point, tensors: dict[str, torch.Tensor | None], exact: dict[str, torch.Tensor]) -> torch.Tensor:
    """Unit in the last place of the output type at max(|y|, |gamma|, |beta|), float64: the unit of ``err_ulp_max``.

    At y itself it would mean nothing where xhat * gamma and beta cancel, or x lies at the mean; a normalised value is
    of size one before scaling. Of dx: ``gradients.output_ulp``.
    """
    import torch

    from normbench import gradients

    if OPS[point.op].backward:
        return gradients.output_ulp(point, tensors, exact)
    scale = exact["y"].abs()
    if (gamma := tensors.get("gamma")) is not None:
        scale = torch.maximum(scale, factor(point, gamma).abs())
    if (beta := tensors.get("beta")) is not None:
        scale = torch.maximum(scale, beta.to(torch.float64).abs())
    return ulp(scale, point.dtype)


def ulp(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """Distance between neighbouring ``dtype`` values at |value| (float64), never below the smallest denormal."""
    import torch

    powers = (value.contiguous().view(torch.int64) & EXPONENT).view(torch.float64)  # 2 ** floor(log2 |value|)
    return powers.mul_(2 * UNIT_ROUNDOFF[dtype]).clamp_(min=SMALLEST[dtype])


def out_of_range(point: Point, tensors: dict[str, torch.Tensor | None]) -> bool:
    """True where fp32 cannot hold what a row is divided by, or the sum it is made of.

    A sum of squares: |x| > 1.8e19 / sqrt(hidden) somewhere; that of l2norm, to which no eps is added, also where a row
    is not zero and all of it below 1.1e-19 sqrt(hidden), for its squares are rounded as denormals are, to 2^-150. A sum
    of magnitudes: |x| > 3.4e38 / hidden; and where the largest of a row is below 2^-126, the reciprocal of the mean may
    be infinite.
    """
    x = tensors["x"]
    if x is None or x.numel() == 0 or takes_stats(point):
        return False
    kind = OPS[point.op].scale
    if kind in ("l1", "l2"):
        largest = as_rows(point, x).abs().amax(dim=1)
        least = 2.0**-126 if kind == "l1" else 1.1e-19 * point.hidden**0.5
        if bool(((largest > 0) & (largest < least)).any()):
            return True
    finite = x[x.isfinite()]
    most = 3.4e38 / point.hidden if kind == "l1" else 1.8e19 / point.hidden**0.5
    return bool(finite.numel() and float(finite.abs().max()) > most)


def torch_dtype(dtype: str) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
