# /// kernel
# summary = "Triton: one program a row, the whole row in a masked block."
# ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "rmsnorm_channels", "l1norm", "l2norm"]
# dtypes = ["fp32", "fp16", "bf16"]
# where = ["hidden <= 2048 * num_warps", "num_warps == 1 or hidden >= 128 * num_warps"]
# skip = [{when = "hidden > 65536", reason = "one program holds the row, and 65536 elements are what 32 warps hold"}]
#
# [axes]
# num_warps = [1, 2, 4, 8, 16, 32]
# ///
# Decomposition: one program a row over a block of the next power of two; the compiler lays it over the warps. 64
# elements a thread at most, so a long row takes many warps, and 4 at least, so a short row does not spread over threads
# without work.
# Statistics: corrected two-pass on the values in registers (Chan, Golub and LeVeque 1983), one reduction each: the
# mean; then squares of deviations together with the deviations, whose sum is what the rounding of the mean left. It is
# taken away again, so a constant row gives exactly beta. Norms without a mean take one sum alone.
# Numerics: fp32, tree sums; eps inside the root; one rounding at the end, with the cast order llama also one before
# gamma.
# Boundaries: places past the end are masked in every load and store, and set to zero again after the mean is
# subtracted, so that they never enter the variance. A hidden size of whole 128s is a constant to the compiler, which
# then leaves out the masks and what lies past the end. Row strides are arguments and row offsets 64-bit.
# Residual: added in fp32 and kept so, or as rounded for the sum that is handed out. y may be x, and sum may be
# residual.
# Saved tensors: mean and rstd in fp32 where they are given.
# Known limits: 65536 elements; a row that is just past a power of two wastes half of the block.

import triton
import triton.language as tl


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _norm_row(
    x,
    residual,
    gamma,
    beta,
    y,
    total,
    mean,
    rstd,
    columns_given,
    x_stride,
    y_stride,
    eps,
    offset,
    CENTRED: tl.constexpr,
    L1: tl.constexpr,
    L2: tl.constexpr,
    ADD: tl.constexpr,
    ROUND: tl.constexpr,
    GAMMA: tl.constexpr,
    LLAMA: tl.constexpr,
    OFFSET: tl.constexpr,
    BETA: tl.constexpr,
    MEAN: tl.constexpr,
    RSTD: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    hidden = HIDDEN if HIDDEN else columns_given
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if ADD:
        other = tl.load(residual + row * x_stride + columns, mask=inside, other=0.0, eviction_policy="evict_last")
        values += other.to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row * y_stride + columns, rounded, mask=inside)
        if ROUND:
            values = rounded.to(tl.float32)
    centre = 0.0
    squares = 0.0
    if CENTRED:
        centre = tl.sum(values, axis=0) / hidden
        values = tl.where(inside, values - centre, 0.0)
        left, squares = tl.reduce((values, values * values), 0, _both)
        left /= hidden
        # squares that overflow stay so, where inf less inf would be NaN
        squares = tl.where(squares < float("inf"), tl.maximum(squares - left * left * hidden, 0.0), squares)
        values -= left
        centre += left
    elif not L1:
        squares = tl.sum(values * values, axis=0)
    if L1:
        scale = hidden / tl.sum(tl.abs(values), axis=0)
    elif L2:
        scale = 1.0 / tl.sqrt(squares)
    else:
        scale = 1.0 / tl.sqrt(squares / hidden + eps)
    values *= scale
    if LLAMA:
        values = values.to(y.dtype.element_ty).to(tl.float32)
    if GAMMA:
        factor = tl.load(gamma + columns, mask=inside, other=0.0).to(tl.float32)
        if OFFSET:
            factor += offset
        values *= factor
    if BETA:
        values += tl.load(beta + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * y_stride + columns, values.to(y.dtype.element_ty), mask=inside)
    if MEAN:
        tl.store(mean + row, centre)
    if RSTD:
        tl.store(rstd + row, scale)


def launch(t, num_warps):
    """Enqueue one launch over ``t``, the names of contenders.namespace."""
    return _norm_row[(t.rows,)](
        t.x,
        t.residual,
        t.gamma,
        t.beta,
        t.y,
        t.sum,
        t.mean,
        t.rstd,
        t.hidden,
        t.x_stride,
        t.y_stride,
        t.eps,
        t.offset,
        CENTRED=t.norm == "layernorm",
        L1=t.norm == "l1norm",
        L2=t.norm == "l2norm",
        ADD=t.residual is not None,
        ROUND=t.residual_mode == "round",
        GAMMA=t.gamma is not None,
        LLAMA=t.cast == "llama",
        OFFSET=t.offset != 0,
        BETA=t.beta is not None,
        MEAN=t.mean is not None,
        RSTD=t.rstd is not None,
        HIDDEN=0 if t.hidden % 128 else t.hidden,  # else programs are shared by sizes with one block
        BLOCK=triton.next_power_of_2(t.hidden),
        num_warps=num_warps,
    )
