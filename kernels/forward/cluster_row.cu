// /// kernel
// summary = "A cluster of blocks a row, in their registers; partial sums through distributed shared memory, once a row."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "l1norm", "l2norm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "arch >= 90",
//     "w_bytes == x_bytes",
//     "block in (128, 256, 512)",
//     "vecs == 4 or (ADD == 0 and ((odd == 0 and NORM < 3) or (NORM > 1 and x_bytes == 4)))",
//     "block <= (256 if vecs == 8 else 512)",
//     "cluster < 16 or arch in (90, 100)",
//     # 16-byte boundaries where rows have them
//     "(odd == 0) == (aligned >= 16 and hidden * x_bytes % 16 == 0)",
//     # the registers must hold the row; not twice as many of them as it needs, nor the largest cluster where a smaller one does
//     "vecs * cluster * block >= hidden * x_bytes // 16",
//     "vecs * cluster * block < hidden * x_bytes // 8 or (vecs, cluster, block) == (4, 2, 128)",
//     "block > 128 or (vecs, cluster) == (4, 2) or (NORM > 1 and x_bytes == 4 and (vecs, cluster) == (8, 16))",
//     "cluster < 16 or hidden * x_bytes > (131072 if NORM > 1 else 262144)",
// ]
// skip = [
//     {when = "arch < 90", reason = "needs thread block clusters (sm_90 on)"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; cta_row takes others"},
//     {when = "hidden * x_bytes > (524288 if arch in (90, 100) else 262144)", reason = "the registers of a cluster hold no longer rows"},
//     {when = "rows > 134217727", reason = "a grid holds at most 2147483647 blocks"},
// ]
//
// [axes]
// block = "study"
// cluster = [2, 4, 8, 16]  # blocks a row
// vecs = [4, 8]            # 16-byte vectors of the row in a thread's registers
// odd = [0, 1]             # rows may begin and end between 16-byte boundaries
//
// [scratch]
// copies = "max(16, 16 // x_bytes * cdiv(hidden * x_bytes // 16, 32) * 1024 * odd * (NORM < 2))"
//
// [[launches]]
// name = "shifted_copies<{T}, {NORM}>"
// when = "odd"
// grid = "cdiv((2 - NORM) * hidden, block) if NORM < 2 and hidden * x_bytes >= 16 else 0"
// block = "block"
// args = ["gamma", "beta", "copies", "hidden"]
//
// [[launches]]
// name = "cluster_row<{T}, {W}, {NORM}, {ADD}, {vecs}, {odd}, {GAMMA}>"
// grid = "cluster * rows"
// block = "block"
// cluster = "cluster"
// smem = "4112 * (2 if NORM == 0 and x_bytes == 2 and ADD != 1 else 1)"
// pdl = "odd and NORM < 2 and hidden * x_bytes >= 16"
// args = ["x", "residual", "gamma", "beta", "copies", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: two to sixteen blocks on neighbouring multiprocessors share a row; together their registers hold what
// those of one block cannot, so a row of a megabyte is read once. The threads of all blocks take turns in 16-byte vectors, so
// that every block has its share of a row of any length. A cluster takes one row and ends; several are
// resident on a multiprocessor, and while one meets the others load and store.
// Gamma and beta are as long as the row, so without care they are twice the traffic of x on its way from L2. x passes by L1,
// which then keeps the slices of gamma and beta that a multiprocessor's blocks want; for the blocks that are past their wait
// for the cluster only: that wait empties L1 (CCTL.IVALL in the machine code).
// Statistics: as all of ours (common/statistics.cuh). Each warp sends what it found to every block (st.async), and a block goes
// on when its barrier has counted the bytes: one meeting a row. The cluster's own barrier is waited for once, while the
// row is on its way, so that nobody sends to a block that has not started.
// Numerics: fp32; sums in chains of at most 64 a thread, then a tree; eps inside the root; one rounding at the end.
// Boundaries: any hidden size, base and stride, as span_row (`odd`), with its copies of gamma and beta, which a launch before
// writes; without `odd` they are read where they are.
// Residual: as cta_row. Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: needs sm_90. Clusters of 16 ask for what the architecture does not promise. Few rows leave multiprocessors idle.

#include "common/cluster.cuh"
#include "common/piece.cuh"

template <typename T, typename W, int NORM, int ADD, int VECS, int ODD, int GAMMA>
__global__ void __launch_bounds__(VECS == 8 ? 256 : 512, VECS == 8 ? 3 : ADD == ADD_NONE ? 2 : 1)
cluster_row(const T* __restrict__ x, const T* __restrict__ residual, const W* __restrict__ gamma, const W* __restrict__ beta,
            const uint4* copies, T* __restrict__ y, T* __restrict__ sum, float* __restrict__ mean, float* __restrict__ rstd,
            long long rows, int hidden, long long x_stride, long long y_stride, float eps, float offset) {
    static_assert(sizeof(Cluster::Mail) == 4112, "the header asks for one or two");
    Cluster::Mail* const mails = reinterpret_cast<Cluster::Mail*>(launch_memory());
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < MEETINGS<NORM, T, ADD>; ++i) mails[i].prepare();
    }
    __syncwarp();
    cluster_arrive();

    const Cluster cluster = Cluster::here(mails);
    const int threads = cluster.size();
    const int lane = cluster.lane();
    const long long row = cluster.row();
    if (hidden / Span<T>::N > VECS * threads) __trap();  // a fault, rather than a row cut short

    constexpr bool adds = ADD != ADD_NONE;
    const Line<T> line = Line<T>{x, residual, y, sum}.template at<ADD>(row, x_stride, y_stride);
    const Weights<T, W, GAMMA> weights{gamma, NORM == LAYERNORM ? beta : nullptr, offset};
    Moments moments;
    if (ODD && !line.template alike<ADD>()) {
        cluster_wait();
        await_copies<NORM>();
        moments = plain_row<NORM, ADD>(line, weights, hidden, lane, threads, eps, cluster);
        if (lane == 0) moments.save(mean, rstd, row);
    } else {
        if constexpr (ODD && adds) await_copies<NORM>();  // the sum is written as the row arrives
        const Span<T> span = Span<T>::template of<ODD>(line.x, hidden, lane);
        Piece<T, ADD, VECS, ODD> piece;
        piece.load(line, span, lane, threads);
        cluster_wait();  // all blocks can be sent to
        moments = take<NORM>(piece, cluster, span, threads, hidden, eps);
        if constexpr (ODD && !adds) await_copies<NORM>();
        if (lane == 0) moments.save(mean, rstd, row);
        store<NORM>(piece, moments, line.y, span, hidden, lane, threads, weights, copies);
    }
}
