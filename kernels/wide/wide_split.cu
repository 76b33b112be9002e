// /// kernel
// summary = "A row split over blocks: partial statistics, then a second kernel that merges them and writes."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// regimes = ["wide"]
// profiled = ["tiles"]
// where = [
//     "each in (1, 16 // x_bytes)",
//     "each == (16 // x_bytes if aligned >= 16 and hidden * x_bytes % 16 == 0 else 1)",
//     "tiles and each > 1 or rows_each == 1",
//     "rows_each == 1 or rows_each < 2 * rows",
//     # no more blocks for a row than have a few kilobytes each
//     "splits == 16 or splits * 1024 <= hidden",
// ]
// skip = [
//     {when = "rows > 8388607", reason = "a grid holds at most 8388607 rows of 256 blocks"},
// ]
//
// [axes]
// block = [256, 512]
// splits = [16, 64, 256]  # blocks that share a row's statistics, the same number on every GPU, at most
// tiles = [0, 1]          # blocks write a row after the other (0), or the same columns of all rows (1)
// rows_each = [1, 4, 16]  # rows for which a block that writes reads gamma and beta once
// each = [1, 4, 8]        # elements a thread moves at a time
//
// [scratch]
// parts = "rows * splits * 16"
//
// [[launches]]
// name = "split_parts<{T}, {NORM}, {each}>"
// grid = "rows * min(splits, cdiv(hidden, 32 * block))"
// block = "block"
// args = ["x", "parts", "splits", "rows", "hidden", "x_stride"]
//
// [[launches]]
// name = "split_apply<{T}, {W}, {NORM}, {each}, {tiles}, {rows_each}>"
// grid = "cdiv(hidden, block * each) * cdiv(rows, rows_each)"
// block = "block"
// pdl = "arch >= 90"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "parts", "splits", "rows", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Decomposition: `splits` blocks take a row's vectors by turns, from its beginning to its end, and leave one part each; every
// block of the second kernel merges the parts of its rows, a few kilobytes from L2, and writes its tile, for `rows_each` rows with
// gamma and beta in registers, the end of the rows first: what was read last is what L2 was not told to let go. No barrier
// between blocks but the end of the first kernel, so any architecture will do; on sm_90 the second one's blocks come as the
// first one's leave, and have the first of x, gamma and beta in hand.
// Statistics: up to 32 elements a thread at a time, about the first element of them, merged by weight (common/parts.cuh). Parts are
// merged in an order that the variant alone decides: the same bits on every run and every GPU.
// Numerics: fp32; the mean in two floats; eps inside the root; one rounding at the end.
// Boundaries: any hidden size, any alignment and row stride; rows that are not aligned are moved element by element.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: x is read twice, the second time from L2 only where it is small.

#include "common/band.cuh"
#include "common/dependent_ptx.cuh"
#include "common/hints_ptx.cuh"
#include "common/parts.cuh"

// Bytes of x, read last, that L2 is not told to let go: some are still there when the second kernel begins with them.
constexpr long long KEPT = 32 << 20;

// How many blocks share a row: as many as were asked for where each has 32 elements a thread.
__device__ __forceinline__ int sharing(int splits, int hidden) {
    const int step = 32 * static_cast<int>(blockDim.x);
    const int most = (hidden + step - 1) / step;
    return most < splits ? most : splits;
}

template <typename T, int NORM, int N>
__global__ void __launch_bounds__(512, 2)
split_parts(const T* __restrict__ x, float4* __restrict__ parts, int asked, long long rows, int hidden, long long x_stride) {
    constexpr int MANY = N == 8 ? 4 : 8;  // vectors of a thread in flight, of 32 elements at most
    using Values = Pack<T, N>;
    __shared__ float4 scratch[32];
    const int splits = sharing(asked, hidden);
    const T* const from = x + blockIdx.x / splits * x_stride;
    const int all = hidden / N, threads = blockDim.x;
    const long long kept = KEPT / (rows * (N * static_cast<int>(sizeof(T))));  // vectors of a row
    const unsigned long long pass = policy_pass(), usual = policy_usual();
    let_next_begin();

    Running<NORM> running;
#pragma unroll 1
    for (int turn = static_cast<int>(blockIdx.x) % splits; turn * MANY * threads < all; turn += splits) {
        const int at = turn * MANY * threads + static_cast<int>(threadIdx.x);
        const auto present = [&](int k) { return at + k * threads < all; };
        const unsigned long long policy = at < all - kept ? pass : usual;
        Values held[MANY];
#pragma unroll
        for (int k = 0; k < MANY; ++k) {
            const T* const place = from + static_cast<long long>(at + k * threads) * N;
            if (!present(k)) continue;
            if constexpr (Values::BYTES == 16) held[k].word = load_by(place, policy);
            else held[k] = Values::once(place);
        }
        running.take(held, (all - at + threads - 1) / threads);
    }
    const Part part = of_block<NORM>(running.of_warp(), scratch);
    if (threadIdx.x == 0) parts[blockIdx.x] = word_of(part);
}

template <typename T, typename W, int NORM, int N, int TILES, int ROWS>
__global__ void __launch_bounds__(512, 2)
split_apply(const T* __restrict__ x, const W* __restrict__ gamma, const W* __restrict__ beta, T* __restrict__ y,
            float* __restrict__ mean, float* __restrict__ rstd, const float4* parts, int asked, long long rows, int hidden,
            long long x_stride, long long y_stride, float eps) {
    __shared__ Moments moments[ROWS];
    const int splits = sharing(asked, hidden);
    Band<T, N, TILES, ROWS> band(rows, hidden);
    band.request(x, x_stride);
    float scale[N], offset[N];
    parameters(gamma, band.column, 1.0f, scale);
    parameters(beta, band.column, 0.0f, offset);
    await_previous();
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < band.count; r += blockDim.x / 32) {
        const float4* const mine = parts + (band.top + r) * splits;
        const Part part = merged<NORM>([&](int i) { return mine[i]; }, splits);
        if (threadIdx.x % 32 == 0) {
            moments[r] = moments_of<NORM>(part, hidden, eps);
            if (band.tile == 0) moments[r].save(mean, rstd, band.top + r);
        }
    }
    __syncthreads();
    band.write(x, x_stride, y, y_stride, [&](float(&values)[N], int row) {
        const Moments with = moments[row];
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = fmaf(with.normalise(values[j]), scale[j], offset[j]);
    });
}
