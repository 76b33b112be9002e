// /// kernel
// summary = "Blocks that stay: columns fixed to threads, rows ahead in a ring, column sums in registers, one meeting a row."
// ops = ["layernorm_bwd", "rmsnorm_bwd"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "arch >= 80",
//     "(lanes, vecs) in ((16, 1), (32, 2), (32, 4), (0, 2), (0, 4), (16, 2)) if x_bytes == 4 else (lanes, vecs) in ((8, 1), (16, 1), (32, 1), (32, 2), (32, 3), (32, 4), (0, 2), (0, 3), (0, 4), (0, 5))",
//     "odd == 0 or (lanes, vecs) in ((32, 4), (0, 2), (0, 4), (0, 5))",
//     "w_bytes == x_bytes or (lanes, vecs, odd) == (0, 2, 1)",
//     "block == 128 if lanes else block <= (512 if vecs == 2 or x_bytes == 4 else 384)",
//     # bulk copies where those were timed faster, on sm_90 only
//     "bulk == 0 or (arch == 90 and w_bytes == x_bytes)",
//     "bulk == 0 or (lanes, vecs, x_bytes) == (0, 4, 4) or (lanes, odd, op, x_bytes) == (32, 1, 'rmsnorm_bwd', 2) or (lanes, vecs, odd, block, op) == (0, 4, 0, 384, 'layernorm_bwd')",
//     "bulk == 0 or odd == 1 or (hidden <= 4096 if x_bytes == 4 else hidden > 8192)",
//     "bulk == 1 or arch != 90 or odd == 0 or ((lanes, vecs, x_bytes) != (0, 4, 4) and (lanes, op, x_bytes) != (32, 'rmsnorm_bwd', 2))",
//     "depth * vecs * block * 32 + 512 * bulk <= (230400 if arch in (90, 100, 103) else 164864 if arch in (80, 87) else 99328)",
//     # 16-byte boundaries where rows have them
//     "odd == 1 or (aligned >= 16 and hidden * x_bytes % 16 == 0)",
//     "odd == 0 or w_bytes != x_bytes or aligned < 16 or hidden * x_bytes % 16 > 0",
//     # the threads must hold the row; not with most of them idle where fewer would do
//     "vecs * (lanes or block) >= hidden * x_bytes // 16",
//     "vecs * (lanes or block) < hidden * x_bytes // 8 or (lanes, vecs) == (32, 1 if x_bytes == 2 else 2) or w_bytes != x_bytes or lanes * odd > 0 or lanes in (8, 16)",
//     # fewer blocks than fit only where that was timed faster
//     "at_once == 0 or (slices == 0 and (at_once in (2, 3, 5) if lanes else (block, at_once) == (64, 6) or (odd == 1 and block < 192 and at_once in (3, 4, 6))))",
//     # 3 vectors, and 5 but for the rows that need them, were timed on sm_90 only, and take a tenth of the time to compile
//     "vecs != 3 or arch == 90",
//     "vecs != 5 or arch == 90 or hidden > 8192",
//     # 3 and 5 vectors a thread of a block for the rows that these fill to the last warp
//     "lanes > 0 or vecs in (2, 4) or vecs * block == cdiv(hidden * x_bytes, 512) * 32",
// ]
// skip = [
//     {when = "arch < 80", reason = "needs asynchronous copies to shared memory (sm_80 on)"},
//     {when = "hidden > (12288 if x_bytes == 2 and w_bytes == 2 else 8192)", reason = "a block's threads hold rows of at most 8192 elements, 12288 in 16 bits; cluster_bwd takes longer ones"},
// ]
//
// [axes]
// block = "study"
// lanes = [0, 8, 16, 32]  # threads a row; 0: the whole block
// vecs = [1, 2, 3, 4, 5]  # 16-byte vectors of a row that a thread has
// odd = [0, 1]            # rows may begin and end between 16-byte boundaries
// bulk = [0, 1]           # how rows come to the ring: by each thread's copies or by one bulk copy a warp (sm_90)
// depth = [3, 4]          # rows in the ring, of which two are being used
// slices = [0, 512]       # of the rows, one a block; 0: as many as there are resident blocks
// at_once = [0, 2, 3, 4, 5, 6]  # blocks a multiprocessor, at most; 0: as many as are resident
//
// [scratch]
// partial = "even(cdiv(rows * lanes, block) if lanes else rows, slices or sm_count * min(blocks_per_sm, at_once or blocks_per_sm), 16 // x_bytes if odd else 1) * cdiv(hidden, 4) * 32"
// count = "16"
//
// [[launches]]
// name = "persistent_bwd<{T}, {W}, {NORM}, {lanes}, {vecs}, {odd}, {bulk}>"
// grid = "even(cdiv(rows * lanes, block) if lanes else rows, slices or sm_count * min(blocks_per_sm, at_once or blocks_per_sm), 16 // x_bytes if odd else 1)"
// block = "block"
// smem = "depth * vecs * block * 32 + 512 * bulk"
// args = ["x", "dy", "residual", "gamma", "mean", "rstd", "dx", "dbeta", "partial", "count", "rows", "hidden", "x_stride", "y_stride", "eps", "depth"]
//
// [[launches]]
// name = "column_sums<{W}>"
// part = "reduction"
// pdl = "arch >= 90"
// grid = "2 * cdiv(hidden, 32)"
// block = "512"
// args = ["partial", "count", "dgamma", "dbeta", "hidden"]
// ///
// Decomposition: a warp or a block takes a row, and blocks stay for many. A thread keeps to its columns: gamma and fp32 sums for
// dgamma and dbeta of up to five 16-byte vectors live in its registers all the while. x and dy of the rows ahead go to a ring in
// shared memory by asynchronous copies, each thread's vectors to its own places: loads in flight cost no registers, and no
// barrier says that they have come. With `bulk` one lane asks the copy engine for all that its warp will use, and barriers do say so.
// So `depth - 2` rows a warp or block are on their way while two are being used.
// A row is walked over twice, each time from the ring: for the row's two sums and the column sums, and for dx. Between the two
// lies the first walk over the next row, so that what the second walk waits for was handed out a row before: one
// barrier a row, at which nobody has shuffles to wait for. Where a warp has the row, or 8 or 16 of its threads have a row of 256 bytes
// or less, there is none, and what the first walk made of up to 24 elements a lane is kept for the second.
// No branch asks which vectors of a row there are: a warp that has any works on all of its places, in which zeros lie where the
// row has nothing, and a warp that has none only meets. With 3 or 5 vectors a thread rows of 1536, 3072 and 5120 elements of 16
// bits leave no place empty.
// At its end a block writes its slice of partial sums; the second kernel adds up the slices of 32 columns a block.
// Statistics: saved ones, asked for a row ahead; or made anew (common/statistics.cuh), for which the threads meet once more.
// Numerics: fp32; xhat from the centred value; sums in chains of at most 32 a thread, then a tree; one rounding of dx, after a
// residual gradient was added, and one of each column sum.
// Determinism: every sum has one order for a given number of blocks, so the same bits every run. With `slices` that number is
// fixed: the same bits on every GPU.
// Boundaries: any hidden size up to 8192, in 16 bits up to 12288, any base and stride. With `odd` whole vectors lie where the boundaries are and single
// elements at the two ends of a row; the blocks, a multiple of 16 bytes' elements of them, take rows so far apart, so that all rows
// of one begin alike, columns stay with threads, and gamma is shifted once. Tensors that lie differently, and an RMSNorm with
// beta, go element by element, with sums in the slice itself.
// Residual: asked for to L2 with the row, read with the second walk.
// Known limits: rows of at most 8192 elements, 12288 in 16 bits. A row of few vectors a thread spends more on sums and addresses than on
// elements; four vectors a thread in 16 bits leave 12 warps a multiprocessor. Few rows leave multiprocessors idle.

#include "common/columns.cuh"

// Threads of the largest block: those that leave each thread the registers for its sums.
template <typename T>
constexpr int most_threads(int lanes, int vecs) {
    return lanes > 0 ? 128 : vecs == 2 || sizeof(T) == 4 ? 512 : 384;
}

// Blocks of 128 threads that share a multiprocessor where a warp has a row: as many as leave registers for the sums. Unasked,
// ptxas took registers that cost a block, or spilled some bytes to have two more.
template <typename T>
constexpr int together(int norm, int vecs, bool odd) {
    if (vecs == 1 || (vecs == 2 && sizeof(T) == 4)) return norm == RMSNORM ? 7 : 6;
    if (sizeof(T) == 4) return odd && norm == LAYERNORM ? 3 : 4;
    return vecs == 2 || (vecs == 3 && norm == RMSNORM) ? 4 : 3;
}

template <typename T, typename W, int NORM, int LANES, int VECS, int ODD, int BULK>
__global__ void __launch_bounds__(most_threads<T>(LANES, VECS), LANES ? together<T>(NORM, VECS, ODD) : 1)
persistent_bwd(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ residual, const W* __restrict__ gamma,
               const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ dx, const W* dbeta,
               float* __restrict__ partial, int* __restrict__ count, long long rows, int hidden, long long x_stride,
               long long y_stride, float eps, int depth) {
    using Threads = Meeting<LANES>;
    __shared__ float4 scratch[Meeting<0>::SCRATCH];
    const Backward<T, W> work{x, dy, residual, gamma, mean, rstd, dx, rows, hidden, x_stride, y_stride, eps};
    const int blocks = static_cast<int>(gridDim.x);
    const auto slice = [&] { return Slice::of(partial, blockIdx.x, blocks, hidden, dbeta != nullptr); };
    if (blockIdx.x == 0 && threadIdx.x == 0) *count = blocks;
    let_next_begin();

    const bool unusual = NORM == RMSNORM && dbeta != nullptr;
    if (unusual || (ODD && !work.alike(blocks))) {
        Meeting<0> meeting(scratch);
        plain_rows<NORM>(work, meeting, slice(), blockIdx.x, blocks);
        return;
    }

    // whichever of its groups of threads takes a row of the block, it lies like the others, where `blocks` is a multiple of N
    constexpr int A_WARP = LANES ? 32 / LANES : 1;  // groups of one
    const int groups = LANES ? static_cast<int>(blockDim.x) / 32 * A_WARP : 1;
    // said so that the compiler sees it: a warp has one row, and its shuffles need no care for lanes gone astray
    const int warp = LANES ? __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) : 0;
    const int leading = warp * A_WARP;  // the first group of the warp
    const int group = Threads::SHARED ? leading + static_cast<int>(threadIdx.x) % 32 / LANES : leading;
    const long long earliest = blockIdx.x + static_cast<long long>(blocks) * leading;
    const long long first = blockIdx.x + static_cast<long long>(blocks) * group;
    Threads meeting(scratch);
    Arrivals<BULK> arrivals(launch_memory());
    uint4* const ring = Arrivals<BULK>::after(launch_memory());
    Walk<NORM, VECS, ODD, BULK, T, W, Threads> walk(work, meeting, arrivals, ring, first);
    if (walk.span.body > VECS * (LANES ? LANES : static_cast<int>(blockDim.x))) __trap();  // rather than a row cut short
    walk.rows(first, earliest, static_cast<long long>(blocks) * groups, depth);
    if constexpr (LANES > 0) {
        hand_in_together<LANES>(walk, slice(), reinterpret_cast<float*>(ring));
    } else {
        hand_in(walk, slice());
    }
}
