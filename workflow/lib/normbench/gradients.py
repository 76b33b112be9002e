"""The backward ops: float64 reference and tolerances of dx, dgamma and dbeta.

With xhat = (x - mean) * rstd and g = dy * gamma, from y = xhat * gamma + beta by the chain rule (Ba, Kiros and Hinton,
Layer Normalization, 2016): dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), dgamma = sum of dy * xhat and dbeta = sum
of dy over the rows. RMSNorm has no mean, so neither has its xhat, and mean(g) is absent from dx (Zhang and Sennrich,
Root Mean Square Layer Normalization, 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normbench import ops
from normbench.points import Point

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor | None"]
# beside a column sum: the sum of its terms' magnitudes, and what recomputed means may move it by
SIZE, DRIFT = "{}_size", "{}_drift"


@dataclass(frozen=True)
class Parts:
    """What the gradients of some rows are made of, in float64; statistics are (rows, 1), the others (rows, hidden)."""

    dy: torch.Tensor
    xhat: torch.Tensor
    g: torch.Tensor
    rstd: torch.Tensor
    mean: torch.Tensor | None

    @classmethod
    def of(cls, point: Point, tensors: Tensors) -> Parts:
        """Of the statistics that are given, or of those of x where the point gives none."""
        x, dy = _wide(tensors["x"]), _wide(tensors["dy"])
        if ops.takes_stats(point):
            found = {name: _wide(tensors[name]) for name in ops.inputs(point) if name in ops.STATISTICS}
            centred = x - found["mean"][:, None] if "mean" in found else x
        else:
            centred, found = ops.statistics(point, x)
        rstd, mean = found["rstd"][:, None], found.get("mean")
        g = dy
        if tensors.get("gamma") is not None:
            g = dy * (_wide(tensors["gamma"]) + point.semantics.offset)
        return cls(dy, centred * rstd, g, rstd, None if mean is None else mean[:, None])

    @property
    def slope(self) -> torch.Tensor:
        """mean(g * xhat) of each row."""
        return (self.g * self.xhat).mean(dim=1, keepdim=True)


def _wide(tensor: torch.Tensor | None) -> torch.Tensor:
    import torch

    assert tensor is not None
    return tensor.to(torch.float64)


def reference(point: Point, tensors: Tensors) -> dict[str, torch.Tensor]:
    """dx (rows, hidden) and, of these rows, dgamma and dbeta (hidden,) where the work has them.

    Beside a column sum stands what its tolerance is taken from, named by SIZE and DRIFT. All of these may be added up
    over several parts of the rows.
    """
    parts = Parts.of(point, tensors)
    dx = parts.g - parts.xhat * parts.slope
    if parts.mean is not None:
        dx = dx - parts.g.mean(dim=1, keepdim=True)
    dx = dx * parts.rstd
    if ops.has(point, "residual"):
        dx = dx + _wide(tensors["residual"])
    results = {"dx": dx}
    for name in ops.outputs(point):
        if name in ops.COLUMN_SUMS:
            terms = parts.dy * parts.xhat if name == "dgamma" else parts.dy
            results |= {name: terms.sum(dim=0), SIZE.format(name): terms.abs().sum(dim=0)}
    if "dgamma" in results and parts.mean is not None and not ops.takes_stats(point):
        drift = ops.mean_drift(point, parts.mean, parts.rstd)
        results[DRIFT.format("dgamma")] = (drift * parts.dy.abs()).sum(dim=0)
    return results


def tolerance(point: Point, tensors: Tensors, exact: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Absolute error allowed at each element of dx, shaped (rows, hidden), float64; of column sums: below.

    Given statistics are data: xhat follows from them with two roundings, however large the mean is, so a mean costs
    nothing here. With u the unit roundoff and fp32 accumulation throughout:

    * dx's own rounding: one ulp of |dx|, as in the forward ops;
    * the fp32 arithmetic of the row: each of the three parts of dx may be off by (8 + log2 hidden) u32 of what it is
      made of, and a plain running sum of each thread is granted by the factor 4 as in the forward ops. Parts that
      cancel do not take their error with them, so it is a share of |g|, of mean |g| (LayerNorm) and of
      |xhat| mean |g xhat|, times rstd;
    * where statistics are recomputed, the error of the mean moves every xhat of a row alike, as in the forward ops: by
      that drift times |mean(g xhat)| directly, and through mean(g xhat) by |xhat| mean |g| times it.

    dgamma and dbeta are sums over rows (``column_tolerance``): one ulp of the result, and 4 (8 + log2 rows) u32 of the
    sum of the terms' magnitudes. Partial sums whose terms are spread over the blocks of a GPU stay under it, since
    their errors are independent: 264 running sums of 2000 rows each use less than a tenth of it. One
    running sum down a million rows does not, and neither do partial sums kept in 16 bits: bf16 stops counting ones at
    256, fp16 at 2048 (llm.c#428).
    """
    parts = Parts.of(point, tensors)
    u32, depth = ops.UNIT_ROUNDOFF["fp32"], ops.sum_depth(point.hidden)
    size, steep = parts.g.abs(), (parts.g * parts.xhat).abs().mean(dim=1, keepdim=True)
    level = size.mean(dim=1, keepdim=True)
    made_of = size + parts.xhat.abs() * steep
    if parts.mean is not None:
        made_of = made_of + level
    allowed = ops.ulp(exact["dx"].abs(), point.dtype) + 4 * depth * u32 * parts.rstd * made_of
    if parts.mean is not None and not ops.takes_stats(point):
        drift = ops.mean_drift(point, parts.mean, parts.rstd)
        allowed = allowed + drift * parts.rstd * (parts.slope.abs() + parts.xhat.abs() * level)
    return allowed + u32 * exact["dx"].abs() if ops.has(point, "residual") else allowed


def output_ulp(point: Point, tensors: Tensors, exact: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Unit in the last place of dx at max(|dx|, rstd * mean |g|), which is its size where its parts do not cancel."""
    import torch

    parts = Parts.of(point, tensors)
    return ops.ulp(torch.maximum(exact["dx"].abs(), parts.rstd * parts.g.abs().mean(dim=1, keepdim=True)), point.dtype)


def column_tolerance(point: Point, name: str, sums: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Absolute error allowed at each element of a column sum, (hidden,), float64; ``tolerance`` says why.

    sums: what ``reference`` returned, added up over all rows of the point.
    """
    granted = 4 * ops.sum_depth(point.rows) * ops.UNIT_ROUNDOFF["fp32"]
    allowed = ops.ulp(sums[name].abs(), point.param_dtype) + granted * sums[SIZE.format(name)]
    drift = sums.get(DRIFT.format(name))
    return allowed if drift is None else allowed + drift


def column_ulp(point: Point, name: str, sums: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Unit in the last place at max(|sum|, size / sqrt(rows)): what such terms come to with random signs."""
    import torch

    typical = sums[SIZE.format(name)] / max(point.rows, 1) ** 0.5
    return ops.ulp(torch.maximum(sums[name].abs(), typical), point.param_dtype)
