// /// kernel
// summary = "Blocks that stay, rows ahead by bulk asynchronous copies into shared memory, one read and one write."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "arch >= 90",
//     "block <= (1024 if vecs <= 3 else 512)",
//     "stages < 4 or vecs * block <= 512",
//     "w_bytes == x_bytes or (vecs in (2, 8) and stages == 1)",
//     "vecs * block * 16 * (stages + 2 * w_bytes // x_bytes) <= (98304 if arch == 120 else 229376)",
//     # the registers must hold the body of a row; not more of them, nor threads without work, where fewer would do
//     "vecs * block >= hidden * x_bytes // 16",
//     "vecs == 1 or w_bytes != x_bytes or (5 if vecs == 8 else vecs - 1) * block < hidden * x_bytes // 16",
//     "w_bytes != x_bytes or block == 64 or block * 8 < hidden * x_bytes",
// ]
// skip = [
//     {when = "arch < 90", reason = "needs bulk asynchronous copies (sm_90 on)"},
//     {when = "hidden * x_bytes > 65536", reason = "a block's registers hold rows of at most 65536 bytes here; cluster_row takes longer ones"},
// ]
//
// [axes]
// block = "study"
// vecs = [1, 2, 3, 4, 5, 8]  # 16-byte vectors of the row in a thread's registers
// stages = [1, 2, 4]         # rows on their way while one is in registers
//
// [[launches]]
// name = "bulk_row<{T}, {W}, {NORM}, {vecs}>"
// grid = "even(rows, sm_count * blocks_per_sm, 1 if aligned >= 16 else 8)"
// block = "block"
// smem = "vecs * block * 16 * (stages + 2 * w_bytes // x_bytes)"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "stages"]
// ///
// Decomposition: a block a row, and blocks that stay. One thread asks for whole rows ahead by bulk copies into a ring in
// shared memory, so what is in flight costs no registers and no instructions of the others. A row's place in the ring is
// asked for again as soon as all threads have the row in registers, which the barrier of its first sum says anyway: with one
// stage a row is loaded while the one before it is summed and written. Gamma and beta lie in shared memory too, each
// thread's own, for as long as rows begin at the same offset from 16-byte boundaries (span_row tells of those).
// Statistics: exact two-pass from registers, the mean's rounding taken away. RMSNorm needs the squares only.
// Numerics: fp32; sums in chains of at most 64 a thread, then a tree; eps inside the root; one rounding at the end.
// Boundaries: any hidden size up to 65536 bytes, base and stride, as span_row: the copies bring the body of a row, whole
// vectors between 16-byte boundaries; the elements at its two ends are loaded singly, one row ahead.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: needs sm_90. Shared memory for gamma, beta and the ring bounds the resident blocks: from 32768 bytes a row
// there is one or two a multiprocessor.

#include "common/barrier_ptx.cuh"
#include "common/piece.cuh"
#include "common/reduce.cuh"

template <typename T, typename W, int NORM, int VECS>
__global__ void __launch_bounds__(VECS <= 3 ? 1024 : 512, 1)
bulk_row(const T* __restrict__ x, const W* __restrict__ gamma, const W* __restrict__ beta, T* __restrict__ y,
         float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden, long long x_stride,
         long long y_stride, float eps, int stages) {
    using Threads = Group<0>;
    using Row = Piece<T, VECS>;
    constexpr bool FORGET = sizeof(T) == 2 && VECS >= 2;
    constexpr int MOST_STAGES = 4;

    __shared__ float scratch[4 * 32];
    __shared__ unsigned long long filled[MOST_STAGES];
    const int threads = Threads::size();
    const int lane = Threads::lane();
    const int pitch = VECS * threads;  // vectors a stage
    uint4* const ring = launch_memory();
    const long long step = gridDim.x;
    const float inverse = 1.0f / static_cast<float>(hidden);
    if (hidden / Row::N > pitch || stages > MOST_STAGES) __trap();  // a fault, rather than a row cut short

    const auto request = [&](long long row, int stage) {
        if (lane == 0 && row < rows) {
            const T* const source = x + row * x_stride;
            const Span<T> span = Span<T>::of(source, hidden, lane);
            barrier_expect(filled + stage, span.body * 16);
            if (span.body > 0) bulk_load(ring + stage * pitch, source + span.head, span.body * 16, filled + stage);
        }
    };
    const auto edge_of = [&](long long row) {
        const T* const source = x + row * x_stride;
        return row < rows ? Row::edge_of(source, Span<T>::of(source, hidden, lane)) : Element<T>::narrow(0.0f);
    };

    if (lane == 0) {
        for (int stage = 0; stage < MOST_STAGES; ++stage) barrier_init(filled + stage);
    }
    __syncthreads();
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) request(blockIdx.x + stage * step, stage);

    Affine<W, Row::N, VECS> affine(gamma, beta, ring + stages * pitch);
    T edge = edge_of(blockIdx.x);
    int stage = 0, turn = 0;
    unsigned parity = 0;
    for (long long row = blockIdx.x; row < rows; row += step) {
        const T* const source = x + row * x_stride;
        const Span<T> span = Span<T>::of(source, hidden, lane);
        affine.seek(span.head, span.body, lane, threads);
        Row now;
        now.edge = edge;
        edge = edge_of(row + step);
        barrier_wait(filled + stage, parity);
        now.take(ring + stage * pitch, span, lane, threads);

        // RMSNorm adds up once a row, in one half and the other by turns, so that no row's sums meet the last row's
        const auto sum = [&](auto& values, int which) {
            Threads::sum(values, scratch + 64 * (NORM == LAYERNORM ? which : turn));
            // behind the barrier of the first sum all threads have their part of the row in registers
            if (which == 0) request(row + stages * step, stage);
        };
        const Moments moments = now.template moments<NORM, FORGET>(span, threads, inverse, eps, sum);
        now.template store<NORM>(y + row * y_stride, source, span, hidden, lane, threads, moments, affine);
        if (lane == 0) moments.save(mean, rstd, row);

        turn ^= 1;
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
}
