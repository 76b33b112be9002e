# /// kernel
# summary = "Triton: several short rows a program, each whole in a masked block."
# ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"]
# dtypes = ["fp32", "fp16", "bf16"]
# where = [
#     # 16 to 64 elements a thread, less where no program holds so many rows
#     "rows_each * hidden < 2048 * num_warps",
#     "rows_each * hidden >= 512 * num_warps or (num_warps == 1 and rows_each == 64)",
# ]
# skip = [{when = "hidden > 1024", reason = "for rows of 1024 elements at most; triton_row takes longer ones"}]
#
# [axes]
# rows_each = [2, 4, 8, 16, 32, 64]  # rows a program
# num_warps = [1, 4]
# ///
# Decomposition: a program takes a tile of rows, each in a masked block of the next power of two. The compiler lays 16
# bytes a thread along the rows, so a warp has one row or several, sums are shuffles inside it, and a short row wastes
# neither threads nor a program.
# Statistics: as triton_row: the mean, then squares of deviations and what the rounding of the mean left in one
# reduction, so a constant row gives exactly beta; RMSNorm squares alone.
# Numerics: fp32, tree sums; eps inside the root; one rounding at the end, with the cast order llama also one before
# gamma.
# Boundaries: places past the end of a row, and rows past the last, are masked in every load and store, and set to zero
# again after the mean is subtracted, so that they never enter the variance. A hidden size of whole 128s is a constant
# to the compiler, as in triton_row. Row strides are arguments and row offsets 64-bit.
# Residual: added in fp32 and kept so, or as rounded for the sum that is handed out. y may be x, and sum may be
# residual.
# Saved tensors: mean and rstd in fp32 where they are given.
# Known limits: 1024 elements; a row that is just past a power of two wastes half of its block.

import triton
import triton.language as tl


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _norm_rows(
    x,
    residual,
    gamma,
    beta,
    y,
    total,
    mean,
    rstd,
    rows,
    columns_given,
    x_stride,
    y_stride,
    eps,
    offset,
    CENTRED: tl.constexpr,
    ADD: tl.constexpr,
    ROUND: tl.constexpr,
    GAMMA: tl.constexpr,
    LLAMA: tl.constexpr,
    OFFSET: tl.constexpr,
    BETA: tl.constexpr,
    MEAN: tl.constexpr,
    RSTD: tl.constexpr,
    ROWS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    hidden = HIDDEN if HIDDEN else columns_given
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    present = row < rows
    inside = columns < hidden
    mask = present[:, None] & inside[None, :]
    taken = row[:, None] * x_stride + columns[None, :]
    given = row[:, None] * y_stride + columns[None, :]
    values = tl.load(x + taken, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if ADD:
        values += tl.load(residual + taken, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + given, rounded, mask=mask)
        if ROUND:
            values = rounded.to(tl.float32)
    centre = tl.zeros((ROWS,), dtype=tl.float32)
    if CENTRED:
        centre = tl.sum(values, axis=1) / hidden
        values = tl.where(mask, values - centre[:, None], 0.0)
        left, squares = tl.reduce((values, values * values), 1, _both)
        left /= hidden
        # squares that overflow stay so, where inf less inf would be NaN
        squares = tl.where(squares < float("inf"), tl.maximum(squares - left * left * hidden, 0.0), squares)
        values -= left[:, None]
        centre += left
    else:
        squares = tl.sum(values * values, axis=1)
    scale = 1.0 / tl.sqrt(squares / hidden + eps)
    values *= scale[:, None]
    if LLAMA:
        values = values.to(y.dtype.element_ty).to(tl.float32)
    if GAMMA:
        factor = tl.load(gamma + columns, mask=inside, other=0.0).to(tl.float32)
        if OFFSET:
            factor += offset
        values *= factor[None, :]
    if BETA:
        values += tl.load(beta + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(y + given, values.to(y.dtype.element_ty), mask=mask)
    if MEAN:
        tl.store(mean + row, centre, mask=present)
    if RSTD:
        tl.store(rstd + row, scale, mask=present)


def launch(t, rows_each, num_warps):
    """Enqueue one launch over ``t``, the names of contenders.namespace."""
    return _norm_rows[(triton.cdiv(t.rows, rows_each),)](
        t.x,
        t.residual,
        t.gamma,
        t.beta,
        t.y,
        t.sum,
        t.mean,
        t.rstd,
        t.rows,
        t.hidden,
        t.x_stride,
        t.y_stride,
        t.eps,
        t.offset,
        CENTRED=t.norm == "layernorm",
        ADD=t.residual is not None,
        ROUND=t.residual_mode == "round",
        GAMMA=t.gamma is not None,
        LLAMA=t.cast == "llama",
        OFFSET=t.offset != 0,
        BETA=t.beta is not None,
        MEAN=t.mean is not None,
        RSTD=t.rstd is not None,
        ROWS=rows_each,
        HIDDEN=0 if t.hidden % 128 else t.hidden,  # else programs are shared by sizes with one block
        BLOCK=triton.next_power_of_2(t.hidden),
        num_warps=num_warps,
    )
