// /// kernel
// summary = "Rows that begin anywhere: 16-byte loads and stores inside the row, single elements at its two ends."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "l1norm", "l2norm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "w_bytes == x_bytes",
//     "(lanes, vecs) in ((0, 4), (0, 5), (0, 8), (32, 4), (32, 8))",
//     "vecs == 4 or ADD == 0",
//     "block <= (128 if lanes else 256 if vecs > 4 and x_bytes == 2 else 512)",
//     # the registers must hold the body of a row; not more of them, nor threads without work, where fewer would do
//     "vecs * (lanes or block) >= hidden * x_bytes // 16",
//     "lanes == 0 or vecs == 4 or hidden * x_bytes // 16 > 128",
//     "lanes > 0 or block == 64 or vecs * block < hidden * x_bytes // 8",
//     "lanes > 0 or vecs == 4 or (4 if vecs == 5 else 5) * block < hidden * x_bytes // 16",
// ]
// skip = [
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; cta_row takes others"},
//     {when = "hidden * x_bytes > (65536 if x_bytes == 4 and ADD == 0 else 32768)", reason = "a block's registers hold no longer rows here; cluster_row takes them, and cta_row any"},
//     {when = "aligned >= 16 and hidden * x_bytes % 16 == 0", reason = "rows that begin and end on 16 bytes are cta_row's"},
//     {when = "rows > 2147483647", reason = "a grid holds at most 2147483647 blocks"},
// ]
//
// [axes]
// block = "study"
// lanes = [0, 32]      # threads a row; 0: the whole block
// vecs = [4, 5, 8]     # 16-byte vectors of the row in a thread's registers
//
// [scratch]
// copies = "max(16, 16 // x_bytes * cdiv(hidden * x_bytes // 16, 32) * 1024 * (NORM < 2))"
//
// [[launches]]
// name = "shifted_copies<{T}, {NORM}>"
// grid = "cdiv((2 - NORM) * hidden, block) if NORM < 2 and hidden * x_bytes >= 16 else 0"
// block = "block"
// args = ["gamma", "beta", "copies", "hidden"]
//
// [[launches]]
// name = "span_row<{T}, {W}, {NORM}, {ADD}, {lanes}, {vecs}, {GAMMA}>"
// grid = "cdiv(rows * lanes, block) if lanes else rows"
// block = "block"
// pdl = "arch >= 90 and NORM < 2 and hidden * x_bytes >= 16"
// args = ["x", "residual", "gamma", "beta", "copies", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: seen from 16-byte boundaries a row is a body of whole vectors between two ends of less than one vector.
// The body is loaded and stored 16 bytes at a time where it lies, the ends one element each by the first threads: nothing of
// x or y is shifted, no neighbour's element is touched, no vector needs a mask. That all tensors lie to the boundaries as x
// does is what makes it work; they do where pitch and base agree, whatever they are. A warp or a block takes a row and ends.
// Gamma and beta are what lies differently, by an offset that is the same for the whole row and one of 4 or 8. A first, small launch
// writes a copy of them for every offset (common/copies.cuh), from which a vector's share is one load each. They come from L1, which
// x passes by. On sm_90 the rows' launch begins while the first one runs, and waits for it once the statistics are taken.
// Statistics: as all of ours (common/statistics.cuh). One meeting of the warps a row, none for a warp a row.
// Numerics: fp32; sums in chains of at most 64 a thread, then a tree; eps inside the root; one rounding at the end.
// Boundaries: any base, any stride. Where the tensors of a row lie differently (an odd row stride of x alone, one misaligned
// base), the row is read again for each walk and goes element by element.
// Residual: as cta_row. Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: gamma and beta in the type of x. A launch more, some 2 us, where the norm has gamma: for few rows cta_row is
// faster. Rows that begin and end on 16 bytes gain nothing here and are refused.

#include "common/piece.cuh"
#include "common/reduce.cuh"

// Threads a block, at most.
template <typename T>
constexpr int most_threads(int lanes, int vecs) {
    return lanes > 0 ? 128 : vecs > 4 && sizeof(T) == 2 ? 256 : 512;
}

// Blocks of that size that are to share a multiprocessor: as many as leave 64 registers a thread, and 80 for 8 vectors of 8 elements.
// Unasked, ptxas took up to 22 more in fp32.
template <typename T>
constexpr int together(int lanes, int vecs, int add) {
    if (add != ADD_NONE) return 1;  // a sum takes what it takes
    const int registers = vecs == 8 && sizeof(T) == 2 ? 80 : 64;
    return 65536 / registers / most_threads<T>(lanes, vecs);
}

template <typename T, typename W, int NORM, int ADD, int LANES, int VECS, int GAMMA>
__global__ void __launch_bounds__(most_threads<T>(LANES, VECS), together<T>(LANES, VECS, ADD))
span_row(const T* __restrict__ x, const T* __restrict__ residual, const W* __restrict__ gamma, const W* __restrict__ beta,
         const uint4* copies, T* __restrict__ y, T* __restrict__ sum, float* __restrict__ mean, float* __restrict__ rstd,
         long long rows, int hidden, long long x_stride, long long y_stride, float eps, float offset) {
    using Threads = Group<LANES>;
    __shared__ float4 scratch[Threads::IN_WARP ? 1 : 32 * MEETINGS<NORM, T, ADD>];
    const Team<LANES> team{scratch};
    const int threads = Threads::size();
    const int lane = Threads::lane();
    // said so that the compiler sees it: a warp has one row, and its shuffles need no care for lanes gone astray
    const long long row = Threads::IN_WARP ? __shfl_sync(0xffffffffu, Threads::row(), 0) : Threads::row();
    if (row >= rows) return;
    if (hidden / Span<T>::N > VECS * threads) __trap();  // a fault, rather than a row cut short

    constexpr bool adds = ADD != ADD_NONE;
    const Line<T> line = Line<T>{x, residual, y, sum}.template at<ADD>(row, x_stride, y_stride);
    const Weights<T, W, GAMMA> weights{gamma, NORM == LAYERNORM ? beta : nullptr, offset};
    Moments moments;
    if (!line.template alike<ADD>()) {
        await_copies<NORM>();
        moments = plain_row<NORM, ADD>(line, weights, hidden, lane, threads, eps, team);
        if (lane == 0) moments.save(mean, rstd, row);
    } else {
        const Span<T> span = Span<T>::of(line.x, hidden, lane);
        Piece<T, ADD, VECS, true> piece;
        if constexpr (adds) await_copies<NORM>();  // the sum is written as the row arrives
        piece.load(line, span, lane, threads);
        moments = take<NORM>(piece, team, span, threads, hidden, eps);
        if constexpr (!adds) await_copies<NORM>();
        if (lane == 0) moments.save(mean, rstd, row);
        store<NORM>(piece, moments, line.y, span, hidden, lane, threads, weights, copies);
    }
}
