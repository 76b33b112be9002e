# /// kernel
# summary = "Triton: programs that stay, a row at a time, column sums in registers; a second kernel adds them up."
# ops = ["layernorm_bwd", "rmsnorm_bwd"]
# dtypes = ["fp32", "fp16", "bf16"]
# where = [
#     "hidden <= 1024 * num_warps",
#     "num_warps == 1 or hidden >= 64 * num_warps",
#     "num_warps * per_sm <= 32",
# ]
# skip = [{when = "hidden > 32768", reason = "one program holds a row and its sums, of 32768 elements at most"}]
#
# [axes]
# num_warps = [1, 2, 4, 8, 16, 32]
# per_sm = [1, 2, 4, 8, 16]
#
# [scratch]
# partial = "even(rows, sm_count * per_sm) * hidden * 8"
# ///
# Decomposition: as many programs as stay on the GPU share the rows out evenly, each row in one masked block of the next
# power of two. A program keeps fp32 sums of its rows for every column in registers and writes them once, at its end; a
# second kernel adds up the programs' sums, a few columns each.
# Statistics: those of the forward pass where they are given; else an exact two-pass on the values in registers.
# Numerics: fp32; xhat from the centred value; the two sums of a row are trees; one rounding of dx, after a residual
# gradient was added, and one of each column sum.
# Determinism: every sum has a fixed order for a given number of programs, so the same bits every run; another number of
# multiprocessors means another order.
# Boundaries: places past the end read dy as 0 and so add nothing to any sum. Row strides are arguments and row offsets
# 64-bit.
# Known limits: 32768 elements. The sums take as many registers as the row itself, and from 16384 on they spill.

import torch
import triton
import triton.language as tl

from normbench.kernelfile import even

COLUMNS = 64  # of one program of the second kernel
SUMS = 32  # of the programs', in one step of it


@triton.jit
def _gradient_rows(
    x,
    dy,
    residual,
    gamma,
    mean,
    rstd,
    dx,
    partial,
    rows,
    hidden,
    x_stride,
    dx_stride,
    eps,
    CENTRED: tl.constexpr,
    GIVEN: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GAMMA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    dgamma = tl.zeros((BLOCK,), dtype=tl.float32)
    dbeta = tl.zeros((BLOCK,), dtype=tl.float32)
    scale = tl.full((BLOCK,), 1.0, dtype=tl.float32)
    if GAMMA:
        scale = tl.load(gamma + columns, mask=inside, other=0.0).to(tl.float32)
    for row in range(program, rows, programs):
        at = tl.cast(row, tl.int64) * x_stride + columns
        values = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        given = tl.load(dy + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if GIVEN:
            if CENTRED:
                values -= tl.load(mean + row)
            factor = tl.load(rstd + row)
        else:
            if CENTRED:
                values = tl.where(inside, values - tl.sum(values, axis=0) / hidden, 0.0)
                values = tl.where(inside, values - tl.sum(values, axis=0) / hidden, 0.0)
            factor = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / hidden + eps)
        xhat = tl.where(inside, values * factor, 0.0)
        g = given * scale
        out = g - xhat * (tl.sum(g * xhat, axis=0) / hidden)
        if CENTRED:
            out -= tl.sum(g, axis=0) / hidden
        out *= factor
        if RESIDUAL:
            out += tl.load(residual + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        tl.store(dx + tl.cast(row, tl.int64) * dx_stride + columns, out.to(dx.dtype.element_ty), mask=inside)
        dgamma += given * xhat
        dbeta += given
    mine = partial + tl.cast(program, tl.int64) * hidden + columns
    tl.store(mine, dgamma, mask=inside)
    tl.store(mine + tl.cast(programs, tl.int64) * hidden, dbeta, mask=inside)


@triton.jit
def _add_up(partial, programs, hidden, columns, inside, SUMS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums over the programs of a few columns."""
    total = tl.zeros((SUMS, COLUMNS), dtype=tl.float32)
    for first in range(0, programs, SUMS):
        which = first + tl.arange(0, SUMS)
        mask = (which < programs)[:, None] & inside[None, :]
        total += tl.load(partial + which.to(tl.int64)[:, None] * hidden + columns[None, :], mask=mask, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _gradient_columns(
    partial,
    dgamma,
    dbeta,
    programs,
    hidden,
    DGAMMA: tl.constexpr,
    DBETA: tl.constexpr,
    SUMS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < hidden
    if DGAMMA:
        total = _add_up(partial, programs, hidden, columns, inside, SUMS, COLUMNS)
        tl.store(dgamma + columns, total.to(dgamma.dtype.element_ty), mask=inside)
    if DBETA:
        second = partial + tl.cast(programs, tl.int64) * hidden
        total = _add_up(second, programs, hidden, columns, inside, SUMS, COLUMNS)
        tl.store(dbeta + columns, total.to(dbeta.dtype.element_ty), mask=inside)


def launch(t, num_warps, per_sm):
    """Enqueue both launches over ``t``, the names of contenders.namespace; the first is the one that is described.

    The second only forms dgamma and dbeta, and is left out where ``t.reduces`` is False.
    """
    programs = even(t.rows, t.sm_count * per_sm)
    partial = t.scratch.partial.view(torch.float32)
    compiled = _gradient_rows[(programs,)](
        t.x,
        t.dy,
        t.residual,
        t.gamma,
        t.mean,
        t.rstd,
        t.dx,
        partial,
        t.rows,
        t.hidden,
        t.x_stride,
        t.y_stride,
        t.eps,
        CENTRED=t.norm == "layernorm",
        GIVEN=t.rstd is not None,
        RESIDUAL=t.residual is not None,
        GAMMA=t.gamma is not None,
        BLOCK=triton.next_power_of_2(t.hidden),
        num_warps=num_warps,
    )
    if t.reduces and (t.dgamma is not None or t.dbeta is not None):
        _gradient_columns[(triton.cdiv(t.hidden, COLUMNS),)](
            partial,
            t.dgamma,
            t.dbeta,
            programs,
            t.hidden,
            DGAMMA=t.dgamma is not None,
            DBETA=t.dbeta is not None,
            SUMS=SUMS,
            COLUMNS=COLUMNS,
            num_warps=4,
        )
    return compiled
