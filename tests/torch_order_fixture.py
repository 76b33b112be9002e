"""The arithmetic of torch's vectorised CUDA LayerNorm, and of ATen's RMSNorm, in NumPy: what has its bits agrees here.

Written from the description in words that kernels/common/torch_order.cuh gives too, apart from its code: all rows and
chains at once, every operation in float32, and an fma that rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

F = np.float32
CHAINS = 128
Array = Any


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 arrays, rounded once.

    The product is exact in float64. Of the sum, TwoSum gives what float64 loses; where that is not nothing the sum is
    made odd in its last bit on the side of the loss, so that rounding it to float32 is rounding the exact value (Boldo
    and Melquiond 2008).
    """
    with np.errstate(all="ignore"):
        product, added = np.float64(a) * np.float64(b), np.float64(c)
        total = np.asarray(product + added)
        back = total - product
        lost = (product - (total - back)) + (added - back)
        bits = total.view(np.int64)
        inexact = np.isfinite(total) & (lost != 0) & (bits % 2 == 0)
        away = np.where((lost > 0) == (total > 0), 1, -1)
        return np.where(inexact, (bits + away).view(np.float64), total).astype(F)


@dataclass
class Chains:
    """Mean, sum of squares and count, float32 arrays of one shape."""

    mean: Array
    m2: Array
    count: Array

    def __getitem__(self, part: Any) -> Chains:
        return Chains(self.mean[part], self.m2[part], self.count[part])


def merge(own: Chains, other: Chains, centred: bool) -> Chains:
    """``own`` takes in ``other``, of a lane or a warp behind it."""
    if not centred:
        return Chains(own.mean, own.m2 + other.m2, own.count)
    with np.errstate(all="ignore"):
        count = other.count + own.count
        reciprocal = F(1) / count
        theirs, ours = other.count * reciprocal, own.count * reciprocal
        apart = own.mean - other.mean
        mean = fma(theirs, other.mean, ours * own.mean)
        m2 = fma(apart * apart * other.count, ours, other.m2 + own.m2)
    some = count > 0
    return Chains(np.where(some, mean, F(0)), np.where(some, m2, F(0)), count)


def statistics(x: Array, eps: float, centred: bool) -> tuple[Array, Array]:
    """(mean, rstd) of each row of float32 ``x``, (rows, hidden) with hidden a multiple of 4."""
    rows, hidden = x.shape
    groups = -(-hidden // (4 * CHAINS))
    padded = np.zeros((rows, groups * CHAINS * 4), F)
    padded[:, :hidden] = x
    steps = padded.reshape(rows, groups, CHAINS, 4)
    chains = Chains(*(np.zeros((rows, CHAINS), F) for _ in range(3)))
    with np.errstate(all="ignore"):
        for group in range(groups):
            held = group * CHAINS + np.arange(CHAINS) < hidden // 4
            for j in range(4):
                value = steps[:, group, :, j]
                count = chains.count + F(1)
                if centred:
                    d = value - chains.mean
                    mean = fma(d, F(1) / count, chains.mean)
                    m2 = fma(d, value - mean, chains.m2)
                else:
                    mean, m2 = chains.mean, fma(value, value, chains.m2)
                pairs = ((mean, chains.mean), (m2, chains.m2), (count, chains.count))
                chains = Chains(*(np.where(held, new, old) for new, old in pairs))
    warps = Chains(*(part.reshape(rows, 4, 32) for part in (chains.mean, chains.m2, chains.count)))
    for offset in (16, 8, 4, 2, 1):
        warps = merge(warps[..., :offset], warps[..., offset : 2 * offset], centred)
    row = warps[..., 0]
    for offset in (2, 1):
        row = merge(row[:, :offset], row[:, offset : 2 * offset], centred)
    with np.errstate(all="ignore"):
        variance = row.m2[:, 0] / F(hidden) + F(eps)
        return row.mean[:, 0], (F(1) / np.sqrt(variance)).astype(F)


def norm(x: Array, gamma: Array | None, beta: Array | None, eps: float, centred: bool) -> tuple[Array, Array, Array]:
    """(y, mean, rstd) in float32, y before it is rounded to the type of x; all arguments float32."""
    mean, rstd = statistics(x, eps, centred)
    scale = rstd[:, None]
    with np.errstate(all="ignore"):
        values = x - mean[:, None] if centred else x
        if gamma is None and beta is not None:
            y = fma(scale, values, beta)
            y[:, ::4] = (scale * values + beta)[:, ::4]  # of each four elements torch rounds this product alone
        elif gamma is None:
            y = scale * values
        else:
            y = gamma * (scale * values) if beta is None else fma(gamma, scale * values, beta)
    return y, mean, rstd
