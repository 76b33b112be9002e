// /// kernel
// summary = "Rows that begin anywhere: 16-byte loads and stores inside the row, single elements at its two ends."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "(lanes, vecs) in ((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 8), (32, 2), (32, 3), (32, 4), (32, 8))",
//     "ahead == 0 or vecs <= 5",
//     "w_bytes == x_bytes or (lanes == 0 and vecs in (2, 8) and ahead == 0)",
//     "block <= (1024 if vecs * (1 + ahead) <= 3 else 512)",
//     "vecs * block * 32 * w_bytes // x_bytes <= (65536 if arch >= 80 else 32768)",
//     # the registers must hold the body of a row; not more of them, nor threads without work, where fewer would do
//     "vecs * (lanes or block) >= hidden * x_bytes // 16",
//     "vecs == 1 or w_bytes != x_bytes or (4 + (lanes == 0) if vecs == 8 else vecs - 1) * (lanes or block) < hidden * x_bytes // 16",
//     "lanes > 0 or w_bytes != x_bytes or block == 64 or block * 8 < hidden * x_bytes",
// ]
// skip = [
//     {when = "hidden * x_bytes > 32768", reason = "a block's registers hold rows of at most 32768 bytes here; cluster_row takes longer ones"},
//     {when = "rows > 2147483647", reason = "a grid holds at most 2147483647 rows"},
// ]
//
// [axes]
// block = "study"
// lanes = [0, 32]               # threads a row; 0: the whole block
// vecs = [1, 2, 3, 4, 5, 8]     # 16-byte vectors of the row in a thread's registers
// ahead = [0, 1]                # the next row is requested before this one is used
//
// [[launches]]
// name = "span_row<{T}, {W}, {NORM}, {lanes}, {vecs}, {ahead}>"
// grid = "min(cdiv(rows * lanes, block) if lanes else rows, max(8, sm_count * blocks_per_sm // 8 * 8))"
// block = "block"
// smem = "vecs * block * 32 * w_bytes // x_bytes"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Decomposition: seen from 16-byte boundaries a row is a body of whole vectors between two ends of less than one vector.
// The body is loaded and stored 16 bytes at a time where it lies, the ends one element each by the first threads: nothing
// is shifted, no neighbour's element is touched, no vector needs a mask. That y lies to the boundaries as x does is what
// makes it work; it does where pitch and base agree, whatever they are. A warp or a block takes a row.
// Gamma and beta are what is shifted against the boundaries, by the row's offset. Blocks stay, as many as are resident,
// and take every 8th row or a multiple of it, so that all their rows begin at one offset: each thread shifts its own gamma
// and beta once and keeps them in shared memory (two 16-byte reads a vector and row, without bank conflicts or barriers).
// With `ahead` the next row is requested before this one is used, so that memory is busy during the sums.
// Statistics: exact two-pass from registers, the mean's rounding taken away. RMSNorm needs the squares only.
// Numerics: fp32; sums in chains of at most 64 a thread, then a tree; eps inside the root; one rounding at the end.
// Boundaries: any hidden size up to 32768 bytes, any base, any stride. Where y lies differently from x (an odd row stride
// of x alone, one misaligned base), the row is read again and written element by element. A grid that is no multiple of 8
// is right too: gamma and beta are then shifted anew for each row.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: two barriers a row, one for RMSNorm; 16-bit rows of one or two vectors a thread spend more
// instructions on sums and addresses than on elements.

#include "common/piece.cuh"
#include "common/reduce.cuh"

template <typename T, typename W, int NORM, int LANES, int VECS, int AHEAD>
__global__ void __launch_bounds__(VECS * (1 + AHEAD) <= 3 ? 1024 : 512, 1)
span_row(const T* __restrict__ x, const W* __restrict__ gamma, const W* __restrict__ beta, T* __restrict__ y,
         float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden, long long x_stride,
         long long y_stride, float eps) {
    using Threads = Group<LANES>;
    using Row = Piece<T, VECS>;
    constexpr bool FORGET = sizeof(T) == 2 && VECS * (1 + AHEAD) >= 2;

    // RMSNorm adds up once a row, in one half and the other by turns, so that no row's sums meet the last row's
    __shared__ float scratch[Threads::IN_WARP ? 1 : 4 * 32];
    int turn = 0;
    const auto sum = [&](auto& values, int which) {
        Threads::sum(values, scratch + (Threads::IN_WARP ? 0 : 64 * (NORM == LAYERNORM ? which : turn)));
    };

    const int threads = Threads::size();
    const int lane = Threads::lane();
    const long long step = static_cast<long long>(gridDim.x) * (Threads::IN_WARP ? blockDim.x / threads : 1);
    const float inverse = 1.0f / static_cast<float>(hidden);
    if (hidden / Row::N > VECS * threads) __trap();  // a fault, rather than a row cut short

    Affine<W, Row::N, VECS> affine(gamma, beta, launch_memory());
    const auto load = [&](Row& piece, long long row) {
        const T* const source = x + row * x_stride;
        piece.load(source, Span<T>::of(source, hidden, lane), lane, threads);
    };
    const auto finish = [&](Row& piece, long long row) {
        const T* const source = x + row * x_stride;
        const Span<T> span = Span<T>::of(source, hidden, lane);
        affine.seek(span.head, span.body, lane, threads);
        const Moments moments = piece.template moments<NORM, FORGET>(span, threads, inverse, eps, sum);
        piece.template store<NORM>(y + row * y_stride, source, span, hidden, lane, threads, moments, affine);
        if (lane == 0) moments.save(mean, rstd, row);
        turn ^= 1;
    };

    const long long first = Threads::row();
    if constexpr (AHEAD) {
        Row now, next;
        for (long long row = first - step; row < rows; row += step) {  // before the first row there is only its request
            if (row + step < rows) load(next, row + step);
            if (row >= 0) finish(now, row);
            now = next;
        }
    } else {
        for (long long row = first; row < rows; row += step) {
            Row now;
            load(now, row);
            finish(now, row);
        }
    }
}
