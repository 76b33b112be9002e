# /// kernel
# summary = "Triton: one program a row, in chunks; moments merged chunk by chunk."
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
# size is served with the registers of one chunk. The second walk goes backwards: the chunks that were read last are
# still in cache.
# Statistics: each chunk in two passes over registers, one reduction each, as triton_row, and the chunks merged by
# weight (Chan, Golub and LeVeque 1983). A chunk's mean is exact up to the rounding of what is left of it, and the merge
# adds only differences of means, so a constant row gives beta to 1e-6 and an offset costs no more than the rounding of
# the mean. Norms without a mean add squares, or magnitudes.
# Numerics: fp32; eps inside the root; one rounding at the end, with the cast order llama also one before gamma.
# Boundaries: places past the end are masked in every load and store and never enter a sum; where chunks fill the row
# the compiler knows that there are none. Row strides are arguments and row offsets 64-bit.
# Residual: added in fp32 and kept so, or as rounded for the sum that is handed out; both are read again for the second
# walk, which writes the sum. y may be x, and sum may be residual.
# Saved tensors: mean and rstd in fp32 where they are given.
# Known limits: the row is read twice, the second time from L2 only while the rows in flight fit there.

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
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    y += row * y_stride
    if ADD:
        residual += row * x_stride
        total += row * y_stride
    columns = tl.arange(0, CHUNK)
    centre = tl.zeros((), dtype=tl.float32)
    low = tl.zeros((), dtype=tl.float32)
    squares = tl.zeros((), dtype=tl.float32)
    for start in range(0, hidden, CHUNK):
        inside = columns < (CHUNK if WHOLE else hidden - start)
        values = _chunk(x, residual, total, start + columns, inside, ADD, ROUND, False)
        if CENTRED:
            count = tl.minimum(hidden - start, CHUNK).to(tl.float32)
            first = tl.sum(values, axis=0) / count
            values = tl.where(inside, values - first, 0.0)
            left, own = tl.reduce((values, values * values), 0, _both)
            left /= count
            own = tl.where(own < float("inf"), tl.maximum(own - left * left * count, 0.0), own)
            # the mean so far is centre + low, that of the chunk first + left
            weight = count / (start + count)
            delta = (first - centre) + (left - low)
            step = low + delta * weight
            squares += delta * delta * start * weight
            # the first chunk starts from its own mean: 0 + first would lose `left`
            step = tl.where(start == 0, left, step)
            base = tl.where(start == 0, first, centre)
            centre = base + step
            added = centre - base
            low = (base - (centre - added)) + (step - added)
        else:
            own = tl.sum(tl.abs(values) if L1 else values * values, axis=0)
        squares += own
    if L1:
        scale = hidden / squares
    elif L2:
        scale = 1.0 / tl.sqrt(squares)
    else:
        scale = 1.0 / tl.sqrt(squares / hidden + eps)
    for back in range(0, hidden, CHUNK):
        start = (hidden - 1) // CHUNK * CHUNK - back
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
        CHUNK=chunk,
        num_warps=num_warps,
    )
