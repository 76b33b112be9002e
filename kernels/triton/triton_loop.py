# /// kernel
# summary = "Triton: one program a row, in chunks, walked once for the statistics and once to write."
# ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "l1norm", "l2norm"]
# dtypes = ["fp32", "fp16", "bf16"]
# where = [
#     "chunk <= 1024 or chunk < 2 * hidden",
#     "chunk <= 2048 * num_warps",
#     "chunk >= 128 * num_warps",
# ]
#
# [axes]
# chunk = [1024, 2048, 4096, 8192, 16384]
# num_warps = [4, 8, 16]
# ///
# Decomposition: one program a row that walks it in chunks, once for the statistics and once to write; so any hidden
# size is served with the registers of one chunk, and not even a chunk is kept where one is the row: it is read again
# from cache, and more rows are under way. The second walk goes backwards: what was read last is still in cache.
# Statistics: one walk and one reduction of it, of the distances from a pivot and of their squares, each element of a
# chunk a chain of its own. The pivot is the mean of the first 16 elements. Where the mean turns out further from it
# than the standard deviation, which would cost digits, the walk is done once more from there; what is then left of the
# mean is taken away (Chan, Golub and LeVeque 1983). Norms without a mean add squares, or magnitudes.
# Numerics: fp32; eps inside the root; one rounding at the end, with the cast order llama also one before gamma.
# Boundaries: places past the end are masked in every load and store and never enter a sum; where chunks fill the row
# the compiler knows that there are none. Row strides are arguments and row offsets 64-bit.
# Residual: added in fp32 and kept so, or as rounded for the sum that is handed out; both are read again for the second
# walk, which writes the sum. y may be x, and sum may be residual.
# Saved tensors: mean and rstd in fp32 where they are given.
# Known limits: the row is read twice, three times where the pivot was far off; after the first time from L2 only while
# the rows in flight fit there.

import triton
import triton.language as tl


@triton.jit
def _chunk(x, residual, total, at, inside, ADD: tl.constexpr, ROUND: tl.constexpr, STORE: tl.constexpr):
    """Values of one chunk in fp32, the residual added; STORE: the sum is written."""
    policy: tl.constexpr = "evict_first" if STORE else "evict_last"
    values = tl.load(x + at, mask=inside, other=0.0, eviction_policy=policy).to(tl.float32)
    if ADD:
        values += tl.load(residual + at, mask=inside, other=0.0, eviction_policy=policy).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        if STORE:
            tl.store(total + at, rounded, mask=inside)
        if ROUND:
            values = rounded.to(tl.float32)
    return values


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _sums(
    x,
    residual,
    total,
    hidden,
    pivot,
    CENTRED: tl.constexpr,
    L1: tl.constexpr,
    ADD: tl.constexpr,
    ROUND: tl.constexpr,
    WHOLE: tl.constexpr,
    ONCE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Sums of one walk: the distances from ``pivot`` (0 without a mean), and their squares or magnitudes."""
    columns = tl.arange(0, CHUNK)
    first = tl.zeros((CHUNK,), dtype=tl.float32)
    second = tl.zeros((CHUNK,), dtype=tl.float32)
    for start in range(0, CHUNK if ONCE else hidden, CHUNK):
        inside = columns < (CHUNK if WHOLE else hidden - start)
        values = _chunk(x, residual, total, start + columns, inside, ADD, ROUND, False)
        if CENTRED:
            values = tl.where(inside, values - pivot, 0.0)
            first += values
        second += tl.abs(values) if L1 else values * values
    if CENTRED:
        found = tl.reduce((first, second), 0, _both)
    else:
        found = (pivot, tl.sum(second, axis=0))
    return found


@triton.jit
def _about_mean(left, squares, hidden):
    """The mean less the pivot, and the squares of the distances from the mean; squares that overflowed stay so."""
    left /= hidden
    return left, tl.where(squares < float("inf"), tl.maximum(squares - left * left * hidden, 0.0), squares)


@triton.jit
def _norm_loop(
    x,
    residual,
    gamma,
    beta,
    y,
    total,
    mean,
    rstd,
    hidden,
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
    WHOLE: tl.constexpr,
    ONCE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    y += row * y_stride
    if ADD:
        residual += row * x_stride
        total += row * y_stride
    columns = tl.arange(0, CHUNK)
    pivot = tl.zeros((), dtype=tl.float32)
    if CENTRED:
        near = tl.arange(0, 16)
        few = tl.minimum(hidden, 16)
        pivot = tl.sum(_chunk(x, residual, total, near, near < few, ADD, ROUND, False) / few, axis=0)
    left, squares = _sums(x, residual, total, hidden, pivot, CENTRED, L1, ADD, ROUND, WHOLE, ONCE, CHUNK)
    centre, low = pivot, tl.zeros((), dtype=tl.float32)
    if CENTRED:
        left, squares = _about_mean(left, squares, hidden)
        # the pivot was far off, or the squares about it overflowed, which those about the mean need not
        if left * left * hidden > tl.where(squares < float("inf"), squares, -1.0):
            pivot += left
            left, squares = _sums(x, residual, total, hidden, pivot, CENTRED, L1, ADD, ROUND, WHOLE, ONCE, CHUNK)
            left, squares = _about_mean(left, squares, hidden)
        # the mean is pivot + left, as the sum of two floats
        centre = pivot + left
        added = centre - pivot
        low = (pivot - (centre - added)) + (left - added)
    if L1:
        scale = hidden / squares
    elif L2:
        scale = 1.0 / tl.sqrt(squares)
    else:
        scale = 1.0 / tl.sqrt(squares / hidden + eps)
    for back in range(0, CHUNK if ONCE else hidden, CHUNK):
        start = 0 if ONCE else (hidden - 1) // CHUNK * CHUNK - back
        inside = columns < (CHUNK if WHOLE else hidden - start)
        values = _chunk(x, residual, total, start + columns, inside, ADD, ROUND, True)
        if CENTRED:
            values = (values - centre) - low
        values *= scale
        if LLAMA:
            values = values.to(y.dtype.element_ty).to(tl.float32)
        if GAMMA:
            factor = tl.load(gamma + start + columns, mask=inside, other=0.0).to(tl.float32)
            if OFFSET:
                factor += offset
            values *= factor
        if BETA:
            values += tl.load(beta + start + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + start + columns, values.to(y.dtype.element_ty), mask=inside)
    if MEAN:
        tl.store(mean + row, centre)
    if RSTD:
        tl.store(rstd + row, scale)


def launch(t, chunk, num_warps):
    """Enqueue one launch over ``t``, the names of contenders.namespace."""
    return _norm_loop[(t.rows,)](
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
        WHOLE=t.hidden % chunk == 0,
        ONCE=t.hidden <= chunk,
        CHUNK=chunk,
        num_warps=num_warps,
    )
