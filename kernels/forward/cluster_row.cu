// /// kernel
// summary = "A cluster of blocks a row, in their registers; partial sums through distributed shared memory."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "arch >= 90",
//     "cluster < 16 or arch in (90, 100)",
//     "cluster * block <= 8192",
//     "cluster < 16 or hidden * x_bytes > 131072",
//     "ahead == 0 or vecs <= 4",
//     "block <= (1024 if vecs * (1 + ahead) <= 3 else 512)",
//     "w_bytes == x_bytes or (vecs in (2, 8) and ahead == 0 and cluster == 8)",
//     "4096 + vecs * block * 32 * w_bytes // x_bytes <= (101376 if arch == 120 else 232448)",
//     # the registers must hold the body of a row; not more of them, nor more threads, where fewer would do
//     "vecs * cluster * block >= hidden * x_bytes // 16",
//     "vecs == 2 or w_bytes != x_bytes or (4 if vecs == 8 else vecs - 1) * cluster * block < hidden * x_bytes // 16",
//     "w_bytes != x_bytes or cluster * block * 16 < hidden * x_bytes or (cluster == 2 and block == 64)",
// ]
// skip = [
//     {when = "arch < 90", reason = "needs thread block clusters (sm_90 on)"},
//     {when = "hidden * x_bytes > 1048576", reason = "the registers of a cluster hold rows of at most 1048576 bytes"},
// ]
//
// [axes]
// block = "study"
// cluster = [2, 4, 8, 16]  # blocks a row
// vecs = [2, 3, 4, 8]      # 16-byte vectors of the row in a thread's registers
// ahead = [0, 1]           # the next row is requested before this one is used
//
// [[launches]]
// name = "cluster_row<{T}, {W}, {NORM}, {vecs}, {ahead}>"
// grid = "cluster * min(rows, max(8, sm_count * blocks_per_sm // cluster // 8 * 8 if aligned < 16 else sm_count * blocks_per_sm // cluster))"
// block = "block"
// cluster = "cluster"
// smem = "4096 + vecs * block * 32 * w_bytes // x_bytes"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Decomposition: two to sixteen blocks on neighbouring multiprocessors share a row; together their registers hold what
// those of one block cannot, so a row of a megabyte is still read once. The threads of all blocks take turns in 16-byte
// vectors, so that every block has its share of a row of any length. Clusters stay and take one row after the other, with
// gamma and beta in shared memory, each thread its own: beside rows this long they would otherwise be read from L2 as often
// as x from memory. With `ahead` the next row is requested before this one is used: a row has two barriers of the whole
// cluster (RMSNorm: one), and without requests in flight memory would wait for them.
// Statistics: exact two-pass from registers, the mean's rounding taken away. Each warp writes its sums into the shared
// memory of every block, one barrier, and every warp adds up the same numbers in the same order.
// Numerics: fp32; sums in chains of at most 64 a thread, then a tree; eps inside the root; one rounding at the end.
// Boundaries: any hidden size, base and stride, as span_row.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: needs sm_90. Clusters of 16 ask for what the architecture does not promise. Few rows leave multiprocessors idle.

#include "common/cluster.cuh"
#include "common/piece.cuh"

template <typename T, typename W, int NORM, int VECS, int AHEAD>
__global__ void __launch_bounds__(VECS * (1 + AHEAD) <= 3 ? 1024 : 512, VECS * (1 + AHEAD) == 4 ? 2 : 1)
cluster_row(const T* __restrict__ x, const W* __restrict__ gamma, const W* __restrict__ beta, T* __restrict__ y,
            float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden, long long x_stride,
            long long y_stride, float eps) {
    using Row = Piece<T, VECS>;
    constexpr bool FORGET = sizeof(T) == 2;
    constexpr int PART = 2 * Cluster::WARPS;  // floats for the sums of one call

    cluster_arrive();  // nobody writes to a block that has not started
    const Cluster cluster = Cluster::here();
    const int threads = cluster.size();
    const int lane = cluster.lane();
    const long long step = gridDim.x / cluster.blocks;
    const long long first = cluster.row();
    const float inverse = 1.0f / static_cast<float>(hidden);
    if (hidden / Row::N > VECS * threads) __trap();  // a fault, rather than a row cut short

    // RMSNorm adds up once a row, in one part and the other by turns, so that no row's sums meet the last row's
    float* const scratch = reinterpret_cast<float*>(launch_memory());
    int turn = 0;
    const auto sum = [&](auto& values, int which) {
        cluster.sum(values, scratch + PART * (NORM == LAYERNORM ? which : turn));
    };

    Affine<W, Row::N, VECS> affine(gamma, beta, launch_memory() + 2 * PART / 4);
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

    // A block may end after its last barrier: by then all that others write to it has been written.
    if constexpr (AHEAD) {
        Row now, next;
        for (long long row = first - step; row < rows; row += step) {  // before the first row there is only its request
            if (row + step < rows) load(next, row + step);
            if (row >= 0) finish(now, row);
            else cluster_wait();
            now = next;
        }
    } else {
        bool started = false;
        for (long long row = first; row < rows; row += step) {
            Row now;
            load(now, row);
            if (!started) cluster_wait();
            started = true;
            finish(now, row);
        }
        if (!started) cluster_wait();
    }
}
