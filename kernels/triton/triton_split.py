# /// kernel
# summary = "Triton: a row split over programs; a second kernel merges their parts and writes, rows inner."
# ops = ["layernorm", "rmsnorm"]
# dtypes = ["fp32", "fp16", "bf16"]
# regimes = ["wide"]
# where = [
#     "rows_each == 1 or rows_each < 2 * rows",
#     "splits == 16 or splits * chunk <= hidden",
#     "chunk <= 2 * hidden or chunk == 2048",
# ]
# skip = [
#     {when = "rows > 8388607", reason = "a grid holds at most 8388607 rows of 256 programs"},
# ]
#
# [axes]
# splits = [16, 64, 256]   # programs that share a row's statistics
# chunk = [2048, 4096]     # elements of a program in flight
# rows_each = [1, 4, 16]   # rows for which a program that writes reads gamma and beta once
# num_warps = [4, 8]
#
# [scratch]
# parts = "rows * splits * 16"
# ///
# Decomposition: what Inductor plans for such rows, and the counterpart of wide_split: `splits` programs take a row's
# chunks by turns and leave one part each; a program of the second kernel merges the parts of a row and writes a chunk
# of it, for `rows_each` rows with gamma and beta in registers, from the last columns to the first.
# Statistics: each chunk exact two-pass on the values in registers, chunks and parts merged by weight (Chan, Golub and
# LeVeque 1983), the mean in two floats, as triton_loop. RMSNorm adds squares.
# Numerics: fp32; eps inside the root; one rounding at the end.
# Boundaries: places past the end are masked and never enter a sum. Row strides are arguments and row offsets 64-bit.
# Saved tensors: mean and rstd in fp32 where they are given.
# Known limits: the row is read twice.

import torch
import triton
import triton.language as tl


@triton.jit
def _split_parts(
    x,
    parts,
    hidden,
    x_stride,
    CENTRED: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program's part of a row: count, mean in two floats, centred squares."""
    program = tl.program_id(0)
    x += tl.cast(program // SPLITS, tl.int64) * x_stride
    columns = tl.arange(0, CHUNK)
    seen = tl.zeros((), dtype=tl.float32)
    centre = tl.zeros((), dtype=tl.float32)
    low = tl.zeros((), dtype=tl.float32)
    squares = tl.zeros((), dtype=tl.float32)
    for start in range(program % SPLITS * CHUNK, hidden, SPLITS * CHUNK):
        inside = start + columns < hidden
        values = tl.load(x + start + columns, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if CENTRED:
            count = tl.minimum(hidden - start, CHUNK).to(tl.float32)
            first = tl.sum(values, axis=0) / count
            values = tl.where(inside, values - first, 0.0)
            left = tl.sum(values, axis=0) / count
            values = tl.where(inside, values - left, 0.0)
            weight = count / (seen + count)
            delta = (first - centre) + (left - low)
            squares += delta * delta * seen * weight
            # the first chunk starts from its own mean: 0 + first would lose `left`
            step = tl.where(seen == 0, left, low + delta * weight)
            base = tl.where(seen == 0, first, centre)
            centre = base + step
            added = centre - base
            low = (base - (centre - added)) + (step - added)
            seen += count
        squares += tl.sum(values * values, axis=0)
    parts += tl.cast(program, tl.int64) * 4
    tl.store(parts, seen)
    tl.store(parts + 1, centre)
    tl.store(parts + 2, low)
    tl.store(parts + 3, squares)


@triton.jit
def _split_apply(
    x,
    gamma,
    beta,
    y,
    mean,
    rstd,
    parts,
    rows,
    hidden,
    x_stride,
    y_stride,
    eps,
    CENTRED: tl.constexpr,
    GAMMA: tl.constexpr,
    BETA: tl.constexpr,
    MEAN: tl.constexpr,
    RSTD: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    bands = tl.cdiv(rows, ROWS)
    top = tl.program_id(0) % bands * ROWS
    chunk = tl.cdiv(hidden, CHUNK) - 1 - tl.program_id(0) // bands
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = columns < hidden
    scale = tl.full((CHUNK,), 1.0, dtype=tl.float32)
    offset = tl.zeros((CHUNK,), dtype=tl.float32)
    if GAMMA:
        scale = tl.load(gamma + columns, mask=inside, other=0.0).to(tl.float32)
    if BETA:
        offset = tl.load(beta + columns, mask=inside, other=0.0).to(tl.float32)
    each = tl.arange(0, SPLITS) * 4
    for row in range(top, tl.minimum(top + ROWS, rows)):
        at = tl.cast(row, tl.int64)
        mine = parts + at * (SPLITS * 4) + each
        squares = tl.sum(tl.load(mine + 3), axis=0)
        own = tl.load(x + at * x_stride + columns, mask=inside, other=0.0, eviction_policy="evict_first")
        values = own.to(tl.float32)
        if CENTRED:
            count = tl.load(mine)
            # empty parts weigh nothing, whatever their mean
            centre = tl.load(mine + 1)
            whole = tl.sum(centre * (count / hidden), axis=0)
            apart = (centre - whole) + tl.load(mine + 2)
            shift = tl.sum(apart * count, axis=0) / hidden
            apart -= shift
            squares += tl.sum(apart * apart * count, axis=0)
            values = (values - whole) - shift
        factor = 1.0 / tl.sqrt(squares / hidden + eps)
        values = values * factor * scale + offset
        tl.store(y + at * y_stride + columns, values.to(y.dtype.element_ty), mask=inside)
        if chunk == 0:
            if MEAN:
                tl.store(mean + row, whole + shift)
            if RSTD:
                tl.store(rstd + row, factor)


def launch(t, splits, chunk, rows_each, num_warps):
    """Enqueue both launches over ``t``, the names of contenders.namespace; the first is the one that is described."""
    parts = t.scratch.parts.view(torch.float32)
    centred = t.norm == "layernorm"
    compiled = _split_parts[(t.rows * splits,)](
        t.x,
        parts,
        t.hidden,
        t.x_stride,
        CENTRED=centred,
        SPLITS=splits,
        CHUNK=chunk,
        num_warps=num_warps,
    )
    _split_apply[(triton.cdiv(t.hidden, chunk) * triton.cdiv(t.rows, rows_each),)](
        t.x,
        t.gamma,
        t.beta,
        t.y,
        t.mean,
        t.rstd,
        parts,
        t.rows,
        t.hidden,
        t.x_stride,
        t.y_stride,
        t.eps,
        CENTRED=centred,
        GAMMA=t.gamma is not None,
        BETA=t.beta is not None,
        MEAN=t.mean is not None,
        RSTD=t.rstd is not None,
        SPLITS=splits,
        CHUNK=chunk,
        ROWS=rows_each,
        num_warps=num_warps,
    )
    return compiled
