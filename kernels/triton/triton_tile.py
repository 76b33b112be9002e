# /// kernel
# summary = "Triton: scale-only norms of a tile of rows, whose elements lie side by side or an image's pixels apart."
# ops = ["rmsnorm_channels", "l1norm", "l2norm"]
# dtypes = ["fp32", "fp16", "bf16"]
# layouts = ["rows", "channels"]
# where = [
#     "hidden * rows_each <= 2048 * num_warps or (rows_each == 16 and num_warps == 8)",
#     "hidden * rows_each >= 256 * num_warps or (rows_each == 16 and num_warps == 4)",
# ]
# skip = [{when = "hidden > 1024", reason = "one program holds rows of at most 1024; triton_row holds longer"}]
#
# [axes]
# rows_each = [16, 32, 64, 128, 256]  # rows a program
# num_warps = [4, 8]
# ///
# Decomposition: one program takes a tile of rows over a block of the next power of two of their elements. Where the
# channels are an image's pixels apart, the rows of the tile are neighbouring pixels, and it is they that coalesce;
# where the channels lie side by side, the tile is one run of memory. The compiler lays it over the warps.
# Statistics: one sum a row, of squares or magnitudes, over the values in registers.
# Numerics: fp32, tree sums; eps inside the root; l1norm and l2norm have none, so a row of zeros is NaN, as in torch;
# one rounding at the end.
# Boundaries: places past the last element and the last row are masked in every load and store, as zeros, which add
# nothing. Offsets are 64-bit; pixels are counted through all images, and a tile that lies in one image says so, since
# the compiler then sees that its pixels are neighbours.
# Saved tensors: none.
# Known limits: 1024 elements a row; just past a power of two half of the block is wasted.

import triton
import triton.language as tl


@triton.jit
def _normalise(x, y, at, to, inside, hidden, eps, AXIS: tl.constexpr, L1: tl.constexpr, L2: tl.constexpr):
    """Read a tile, divide along AXIS, write it."""
    values = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if L1:
        scale = hidden / tl.sum(tl.abs(values), axis=AXIS)
    elif L2:
        scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=AXIS))
    else:
        scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=AXIS) / hidden + eps)
    values *= tl.expand_dims(scale, AXIS)
    tl.store(y + to, values.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _rows(
    x,
    y,
    rows,
    hidden,
    x_stride,
    y_stride,
    eps,
    L1: tl.constexpr,
    L2: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < hidden)[None, :]
    at = row[:, None] * x_stride + column[None, :]
    to = row[:, None] * y_stride + column[None, :]
    _normalise(x, y, at, to, inside, hidden, eps, 1, L1, L2)


@triton.jit
def _channels(
    x,
    y,
    rows,
    hidden,
    inner,
    eps,
    L1: tl.constexpr,
    L2: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * ROWS
    pixel = first + tl.arange(0, ROWS)
    image = first // inner if WHOLE else pixel // inner
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = (column < hidden)[:, None] & (pixel < rows)[None, :]
    place = image * (hidden - 1) * inner + pixel
    at = column[:, None] * inner + place[None, :]
    _normalise(x, y, at, at, inside, hidden, eps, 0, L1, L2)


def launch(t, rows_each, num_warps):
    """Enqueue one launch over ``t``, the names of contenders.namespace."""
    grid = (triton.cdiv(t.rows, rows_each),)
    sizes = {"BLOCK": triton.next_power_of_2(t.hidden), "ROWS": rows_each, "num_warps": num_warps}
    kind = {"L1": t.norm == "l1norm", "L2": t.norm == "l2norm"}
    if t.inner == 1:
        return _rows[grid](t.x, t.y, t.rows, t.hidden, t.x_stride, t.y_stride, t.eps, **kind, **sizes)
    whole = t.inner % rows_each == 0
    return _channels[grid](t.x, t.y, t.rows, t.hidden, t.inner, t.eps, WHOLE=whole, **kind, **sizes)
