// /// kernel
// summary = "Scale-only norms of short rows: part of a warp a row, several rows in flight a thread, no barrier."
// ops = ["rmsnorm_channels", "l1norm", "l2norm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = ["lanes > 4 or x_bytes == 2", "lanes * 16 == hidden * x_bytes"]
// skip = [
//     {when = "aligned < 16", reason = "takes rows that begin and end on 16 bytes; cta_row and naive take others"},
//     {when = "hidden * x_bytes not in (128, 256, 512) and (hidden, x_bytes) != (32, 2)", reason = "takes rows of 128, 256 or 512 bytes, and in 16 bits of 64; cta_row and naive take others"},
//     {when = "rows > 8589934592", reason = "a grid holds at most 2147483647 blocks, of 4 rows at least"},
// ]
//
// [axes]
// block = "study"
// lanes = [4, 8, 16, 32]   # threads a row, with one 16-byte vector each
// rows_each = [1, 2, 4]    # rows a thread shares in
//
// [[launches]]
// name = "short_row<{T}, {NORM}, {lanes}, {rows_each}>"
// grid = "cdiv(rows * lanes, block * rows_each)"
// block = "block"
// args = ["x", "y", "rows", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Decomposition: for images with their channels last a row is a pixel: 128 bytes of 32 channels in fp32, 64 in 16 bits. A
// thread holds one 16-byte vector of a row and 4 to 32 threads share it, so a warp takes 1 to 8 rows at a time, and of as
// many groups of rows as `rows_each` says all loads are in flight before the first is used. A block takes a run of rows and
// ends.
// Statistics: each thread over its 4 or 8 elements, then its row's threads by shuffles. No shared memory, no barrier.
// Numerics: fp32; tree sums; eps inside the root; l1norm and l2norm have none, so a row of zeros is NaN, as in torch; one
// rounding at the end.
// Boundaries: rows of 128, 256 or 512 bytes, or of 64 in 16 bits, on 16-byte boundaries, any row stride that keeps them there.
// Saved tensors: none. y may be x.
// Known limits: other rows are refused.

#include "common/element.cuh"
#include "common/reduce.cuh"
#include "common/scale.cuh"

template <typename T, int NORM, int LANES, int EACH>
__global__ void __launch_bounds__(1024)
short_row(const T* __restrict__ x, T* __restrict__ y, long long rows, int hidden, long long x_stride, long long y_stride,
          float eps) {
    constexpr int N = 16 / sizeof(T);
    using Near = Group<LANES>;
    const int lane = Near::lane();
    const int side_by_side = blockDim.x / LANES;
    const long long first = static_cast<long long>(blockIdx.x) * side_by_side * EACH + threadIdx.x / LANES;

    Slot<T, N, 1> held[EACH];
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const long long row = first + r * side_by_side;
        // threads past the last row stay for the shuffles and hold nothing
        held[r].template load<true>(x + row * x_stride + lane * N, row < rows ? 1 : 0);
    }
    float scale[EACH];
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        float values[N];
        held[r].unpack(values);
        scale[r] = 0.0f;
#pragma unroll
        for (int j = 0; j < N; ++j) scale[r] = Scale<NORM>::add(scale[r], values[j]);
    }
    Near::sum(scale);
    const float inverse = 1.0f / static_cast<float>(hidden);
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const long long row = first + r * side_by_side;
        if (row >= rows) break;
        const float by = Scale<NORM>::of(scale[r], inverse, eps);
        float values[N];
        held[r].unpack(values);
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] *= by;
        held[r].pack(values);
        held[r].store(y + row * y_stride + lane * N, 1);
    }
}
