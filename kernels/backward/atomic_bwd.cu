// /// kernel
// summary = "A contrast, not deterministic: as persistent_bwd, but every block adds its column sums to one slice atomically."
// ops = ["layernorm_bwd", "rmsnorm_bwd"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     "arch >= 80",
//     "w_bytes == x_bytes",
//     "block <= 256",
//     "block * 384 <= (230400 if arch in (90, 100, 103) else 164864 if arch in (80, 87) else 99328)",
//     "4 * block >= hidden * x_bytes // 16",
//     "block <= 128 or 2 * block < hidden * x_bytes // 16",
// ]
// skip = [
//     {when = "arch < 80", reason = "needs asynchronous copies to shared memory (sm_80 on)"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma in the type of x; persistent_bwd takes others"},
//     {when = "hidden * x_bytes > 16384", reason = "a block's threads hold rows of at most 16384 bytes"},
//     {when = "aligned < 16 or hidden * x_bytes % 16 > 0", reason = "a contrast for rows that begin and end on 16 bytes"},
// ]
//
// [axes]
// block = "study"
//
// [scratch]
// partial = "cdiv(hidden, 4) * 32"
// count = "16"
//
// [[launches]]
// name = "clear_columns<{W}>"
// grid = "cdiv(hidden, 128)"
// block = "128"
// args = ["partial", "count", "hidden"]
//
// [[launches]]
// name = "atomic_bwd<{T}, {W}, {NORM}>"
// grid = "even(rows, sm_count * max(1, 384 // block))"
// block = "block"
// smem = "block * 384"
// args = ["x", "dy", "residual", "gamma", "mean", "rstd", "dx", "dbeta", "partial", "rows", "hidden", "x_stride", "y_stride", "eps"]
//
// [[launches]]
// name = "column_sums<{W}>"
// part = "reduction"
// grid = "2 * cdiv(hidden, 32)"
// block = "128"
// args = ["partial", "count", "dgamma", "dbeta", "hidden"]
// ///
// Decomposition: as persistent_bwd with a block a row and four vectors a thread. In place of a slice a block there is one
// for all: it is cleared first, each block adds to it at its end, and the last kernel rounds it.
// Statistics, numerics, residual: as persistent_bwd.
// Determinism: none. The blocks add in the order in which they end, so dgamma and dbeta differ in their last bits from run to
// run; that is what this file is there to show, beside what it gains: no slices to write and to read.
// Boundaries: rows that begin and end on 16 bytes. Tensors that lie otherwise, and an RMSNorm with beta, are one block's work,
// element by element: right, and very slow.
// Known limits: not deterministic; three launches.

#include "common/columns.cuh"

template <typename W>
__global__ void __launch_bounds__(128) clear_columns(float* __restrict__ partial, int* __restrict__ count, int hidden) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (column == 0) *count = 1;
    if (column >= hidden) return;
    const Slice all = Slice::of(partial, 0, 1, hidden, true);
    all.scale[column] = all.offset[column] = 0.0f;
}

template <typename T, typename W, int NORM>
__global__ void __launch_bounds__(256, 1)
atomic_bwd(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ residual, const W* __restrict__ gamma,
           const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ dx, const W* dbeta,
           float* __restrict__ partial, long long rows, int hidden, long long x_stride, long long y_stride, float eps) {
    constexpr int N = Span<T>::N;
    constexpr int VECS = 4, DEPTH = 3;
    __shared__ float4 scratch[Meeting<0>::SCRATCH];
    const Backward<T, W> work{x, dy, residual, gamma, mean, rstd, dx, rows, hidden, x_stride, y_stride, eps};
    const Slice all = Slice::of(partial, 0, 1, hidden, dbeta != nullptr);
    Meeting<0> meeting(scratch);
    const bool on_boundaries = work.alike(1) && reinterpret_cast<unsigned long long>(x) % 16 == 0 && hidden % N == 0;
    if (!on_boundaries || (NORM == RMSNORM && dbeta != nullptr)) {
        if (blockIdx.x == 0) plain_rows<NORM>(work, meeting, all, 0, 1);
        return;
    }
    Arrivals<false> arrivals(nullptr);
    Walk<NORM, VECS, false, false, T, W, Meeting<0>> walk(work, meeting, arrivals, launch_memory(), blockIdx.x);
    if (walk.span.body > VECS * static_cast<int>(blockDim.x)) __trap();  // rather than a row cut short
    walk.rows(blockIdx.x, gridDim.x, DEPTH);
#pragma unroll
    for (int p = 0; p < VECS; ++p) {
        if (!walk.holds(p)) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            atomicAdd(all.scale + walk.column(p) + j, walk.sums.scale[p][j]);
            if (NORM == LAYERNORM && all.offset != nullptr) atomicAdd(all.offset + walk.column(p) + j, walk.sums.offset[p][j]);
        }
    }
}
