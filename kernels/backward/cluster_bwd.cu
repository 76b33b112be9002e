// /// kernel
// summary = "Clusters that stay: a row's columns over two to sixteen blocks, both sums through distributed shared memory."
// ops = ["layernorm_bwd", "rmsnorm_bwd"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "arch >= 90",
//     "w_bytes == x_bytes",
//     "block in (128, 256, 512) if vecs < 5 else block == 384",
//     "block < 512 or vecs == 2 or x_bytes == 4 or op == 'rmsnorm_bwd' or odd == 0",
//     "vecs < 5 or (x_bytes == 2 and op == 'layernorm_bwd' and odd == 1)",
//     "block > 128 or (vecs, cluster) == (4, 2)",
//     "cluster < 16 or arch in (90, 100)",
//     # bulk copies where those were timed faster, on sm_90 only
//     "(bulk == 1) == (arch == 90 and odd == 1 and vecs == 4 and (x_bytes == 4 or op == 'rmsnorm_bwd'))",
//     "depth * vecs * block * 32 + 16448 + 512 * bulk <= (230400 if arch in (90, 100, 103) else 99328)",
//     # 16-byte boundaries where rows have them
//     "(odd == 0) == (aligned >= 16 and hidden * x_bytes % 16 == 0)",
//     # the threads must hold the row, not with half of them idle, nor in the largest cluster where a smaller one does
//     "vecs * cluster * block >= hidden * x_bytes // 16",
//     "vecs * cluster * block < hidden * x_bytes // 8 or (vecs, cluster, block) == (4, 2, 128)",
//     "cluster < 16 or hidden * x_bytes > 131072",
// ]
// skip = [
//     {when = "arch < 90", reason = "needs thread block clusters (sm_90 on)"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma in the type of x; persistent_bwd takes others"},
//     {when = "hidden > 131072 or (hidden > 65536 and arch not in (90, 100))", reason = "the threads of a cluster hold no longer rows"},
// ]
//
// [axes]
// block = "study"
// cluster = [2, 4, 8, 16]  # blocks a row
// vecs = [2, 4, 5]         # 16-byte vectors of a row that a thread has
// odd = [0, 1]             # rows may begin and end between 16-byte boundaries
// bulk = [0, 1]            # how rows come to the ring: by each thread's copies or by one bulk copy a warp
// depth = [3, 4]           # rows in the ring, of which two are being used
// slices = [0, 60]         # of the rows, one a cluster; 0: as many as there are clusters at a time
//
// [scratch]
// partial = "(even(rows, slices or clusters) + (16 // x_bytes - 1 if odd else 0)) * cdiv(hidden, 4) * 32"
// count = "16"
//
// [[launches]]
// name = "cluster_bwd<{T}, {W}, {NORM}, {vecs}, {odd}, {bulk}>"
// grid = "cluster * even(rows, slices or clusters)"
// block = "block"
// cluster = "cluster"
// smem = "depth * vecs * block * 32 + 16448 + 512 * bulk"
// args = ["x", "dy", "residual", "gamma", "mean", "rstd", "dx", "dbeta", "partial", "count", "rows", "hidden", "x_stride", "y_stride", "eps", "depth"]
//
// [[launches]]
// name = "column_sums<{W}>"
// part = "reduction"
// pdl = "1"
// grid = "2 * cdiv(hidden, 32)"
// block = "128"
// args = ["partial", "count", "dgamma", "dbeta", "hidden"]
// ///
// Decomposition: as persistent_bwd, its copies included, with the columns of a row over the threads of two to sixteen blocks on neighbouring
// multiprocessors. A thread keeps the sums of 2, 4 or 5 vectors of columns in registers whatever the length of the row, and there is
// one slice of partial sums a cluster, not one a block: 16 of them and more, where blocks of their own would write hundreds of
// 131072 columns each. The warps of all blocks take turns in vectors, so that every block has its share of a row of any length.
// As many clusters stay as the device runs at once, which the driver counts. The row's two sums are sent
// to every block's shared memory (st.async) and counted there; they are wanted a row later, so that nobody waits for the way
// there, and there is no barrier of the cluster but the first.
// Statistics: saved ones, asked for a row ahead; or made anew (common/statistics.cuh), for which the cluster meets once more.
// Numerics: fp32; xhat from the centred value; sums in chains of at most 32 a thread, then a tree; one rounding of dx, after a
// residual gradient was added, and one of each column sum.
// Determinism: every sum has one order for a given number of clusters. With `slices` it is fixed: the same bits on
// every GPU.
// Boundaries: any hidden size up to 131072, any base and stride. With `odd` vectors lie where the boundaries are and single elements
// at the ends of a row. Rows 16 bytes' elements apart begin alike; in the order of where they begin, every cluster has an equal share
// of them, and so once or twice moves on to rows that begin elsewhere: gamma is shifted anew, and the columns' sums so far
// are a slice of their own. Tensors that lie differently go element by element.
// Residual: asked for to L2 with the row, read with the second walk.
// Known limits: needs sm_90; a cluster of 16 asks for what the architecture does not promise, and few of them fit. Few rows
// leave multiprocessors idle.

#include "common/cluster.cuh"
#include "common/columns.cuh"

// Threads of the largest block.
template <typename T>
constexpr int most_threads(int norm, int vecs, int odd) {
    return odd && norm == LAYERNORM && vecs > 2 && sizeof(T) == 2 ? 384 : 512;
}

template <typename T, typename W, int NORM, int VECS, int ODD, int BULK>
__global__ void __launch_bounds__(most_threads<T>(NORM, VECS, ODD), 1)
cluster_bwd(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ residual, const W* __restrict__ gamma,
            const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ dx, const W* dbeta,
            float* __restrict__ partial, int* __restrict__ count, long long rows, int hidden, long long x_stride,
            long long y_stride, float eps, int depth) {
    constexpr int MAILS = ClusterMeeting::MAILS;
    static_assert(MAILS * sizeof(Cluster::Mail) == 16448, "the header asks for it");
    Cluster::Mail* const mails = reinterpret_cast<Cluster::Mail*>(launch_memory());
    uint4* const barriers = reinterpret_cast<uint4*>(mails + MAILS);
    uint4* const ring = Arrivals<BULK>::after(barriers);
    Arrivals<BULK> arrivals(barriers);
    ClusterMeeting meeting = ClusterMeeting::arrive(mails);
    const int first = cluster_index(), clusters = cluster_count();
    const Backward<T, W> work{x, dy, residual, gamma, mean, rstd, dx, rows, hidden, x_stride, y_stride, eps};
    constexpr int N = Span<T>::N, KINDS = ODD ? N : 1;  // ways in which rows begin
    const int slices = clusters + KINDS - 1;
    const auto slice = [&](int number) { return Slice::of(partial, number, slices, hidden, dbeta != nullptr); };
    if (blockIdx.x == 0 && threadIdx.x == 0) *count = slices;
    let_next_begin();

    cluster_wait();  // all blocks can be sent to
    const bool unusual = NORM == RMSNORM && dbeta != nullptr;
    if (unusual || (ODD && !work.alike(N))) {
        plain_rows<NORM>(work, meeting, slice(first), first, clusters);
        // of the others nobody has anything
        for (int other = clusters + first; other < slices; other += clusters) slice(other).clear(hidden, meeting.lane(), meeting.size());
        return;
    }
    const auto rows_of = [&](long long begin, long long step, long long end, int number) {
        Backward<T, W> some = work;
        some.rows = end;
        Walk<NORM, VECS, ODD, BULK, T, W, ClusterMeeting> walk(some, meeting, arrivals, ring, begin);
        if (walk.span.body > VECS * meeting.size()) __trap();  // rather than a row cut short
        walk.rows(begin, step, depth);
        hand_in(walk, slice(number));
    };
    if constexpr (ODD) {
        // in the order of where rows begin, those of kind k are k, k + N, ...: this cluster's are from `begin` on
        const Kinds<N> kinds{rows};
        const long long begin = rows * first / clusters, end = rows * (first + 1) / clusters;
        const int last = first + 1 < clusters ? kinds.before(end) : N - 1;
#pragma unroll 1
        for (int kind = kinds.before(begin); kind <= last; ++kind) {
            const long long start = kinds.start(kind), stop = kinds.start(kind + 1);
            const long long from = begin > start ? begin - start : 0, to = (end < stop ? end : stop) - start;
            rows_of(kind + from * N, N, kind + to * N, first + kind);
        }
    } else {
        rows_of(first, clusters, rows, first);
    }
}
