// /// kernel
// summary = "Short rows: part of a warp a row, several rows in flight a thread, no barrier."
// ops = ["layernorm", "rmsnorm", "rmsnorm_channels", "l1norm", "l2norm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     "aligned >= 16",
//     "w_bytes == x_bytes",
//     "lanes > 4 or x_bytes == 2",
//     "block <= 512 or NORM > 1",
//     "rows_each < 4 or NORM != 1 or x_bytes == 4 or arch != 120",  # spills
//     "vecs * lanes * 16 == hidden * x_bytes",
//     "op not in ('layernorm', 'rmsnorm') or (lanes in (8, 16) and arch == 90)",
//     "vecs == 1 or (lanes, rows_each, x_bytes, op) == (8, 2, 2, 'layernorm')",
// ]
// skip = [
//     {when = "aligned < 16", reason = "takes rows that begin and end on 16 bytes; cta_row and naive take others"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; cta_row takes others"},
//     {when = "hidden * x_bytes not in (128, 256, 512) and (hidden, x_bytes) != (32, 2)", reason = "takes rows of 128, 256 or 512 bytes, and in 16 bits of 64; cta_row and naive take others"},
//     {when = "op in ('layernorm', 'rmsnorm') and hidden * x_bytes not in (128, 256)", reason = "takes rows of 128 or 256 bytes where there is a gamma; cta_row takes others"},
//     {when = "op in ('layernorm', 'rmsnorm') and arch != 90", reason = "rows with a gamma were timed on sm_90 only; cta_row takes them"},
//     {when = "rows > 8589934592", reason = "a grid holds at most 2147483647 blocks, of 4 rows at least"},
// ]
//
// [axes]
// block = "study"
// lanes = [4, 8, 16, 32]   # threads a row
// vecs = [1, 2]            # 16-byte vectors of a row that a thread has
// rows_each = [1, 2, 4]    # rows a thread shares in
//
// [[launches]]
// name = "short_row<{T}, {NORM}, {lanes}, {vecs}, {rows_each}, {GAMMA}>"
// grid = "cdiv(rows * lanes, block * rows_each)"
// block = "block"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: for images with their channels last a row is a pixel: 128 bytes of 32 channels in fp32, 64 in 16 bits; and for
// a norm of heads it is a head. A thread holds one 16-byte vector of a row, or two, and 4 to 32 threads share it, so a warp takes 1 to 8
// rows at a time, and of as many groups of rows as `rows_each` says all loads are in flight before the first is used: one row a
// thread is too little in flight to fill the memory. Gamma and beta a thread loads once for all its rows. A block takes a run of
// rows and ends.
// Statistics: each thread over its 4 to 16 elements, then its row's threads by shuffles; LayerNorm in two passes over registers, the
// mean first, in 16 bits only where the sums of the tensor cores do not tell (common/tensor.cuh). No shared memory, no barrier.
// Numerics: fp32; short chains, then a tree; eps inside the root; l1norm and l2norm have none, so a row of zeros is NaN, as in torch; one
// rounding at the end, with the cast order llama also one before gamma.
// Boundaries: rows of 128, 256 or 512 bytes, or of 64 in 16 bits, on 16-byte boundaries, any row stride that keeps them there;
// LayerNorm and RMSNorm take those of 128 and 256, with gamma in the type of x.
// Saved tensors: mean and rstd in fp32 where their pointers are given. y may be x.
// Known limits: other rows are refused.

#include "common/element.cuh"
#include "common/moments.cuh"
#include "common/reduce.cuh"
#include "common/tensor.cuh"
#include "common/weights.cuh"

// The numbers of the rows that a thread has VECS vectors each of, by the threads that share them.
template <int NORM, int LANES, int EACH, int VECS, typename T, int N>
__device__ __forceinline__ void take(Slot<T, N, 1> (&held)[EACH][VECS], int hidden, float eps, Moments (&moments)[EACH]) {
    using Near = Group<LANES>;
    const float inverse = 1.0f / static_cast<float>(hidden);
    const auto each = [&](auto visit) {
#pragma unroll
        for (int i = 0; i < EACH * VECS; ++i) {
            float values[N];
            held[i / VECS][i % VECS].forget();  // else they would be kept as floats
            held[i / VECS][i % VECS].unpack(values);
#pragma unroll
            for (int j = 0; j < N; ++j) visit(i / VECS, values[j]);
        }
    };
    float sums[EACH] = {};
    if constexpr (NORM == LAYERNORM) {
        each([&](int r, float value) { sums[r] += value; });
        Near::sum(sums);
#pragma unroll
        for (int r = 0; r < EACH; ++r) sums[r] *= inverse;
        float about[2 * EACH] = {};  // of what is left of each element without its row's mean: sums, and sums of squares
        each([&](int r, float value) {
            const float d = value - sums[r];
            about[r] += d;
            about[EACH + r] = fmaf(d, d, about[EACH + r]);
        });
        Near::sum(about);
#pragma unroll
        for (int r = 0; r < EACH; ++r) moments[r] = Moments::centred(sums[r], about[r], about[EACH + r], inverse, eps);
    } else {
        each([&](int r, float value) { sums[r] = Scale<NORM>::add(sums[r], value); });
        Near::sum(sums);
#pragma unroll
        for (int r = 0; r < EACH; ++r) moments[r] = Moments::without_mean<NORM>(sums[r], inverse, eps);
    }
}

template <typename T, int NORM, int LANES, int VECS, int EACH, int GAMMA>
__global__ void __launch_bounds__(TAKES_GAMMA<NORM> ? 512 : 1024)
short_row(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta, T* __restrict__ y,
          float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden, long long x_stride,
          long long y_stride, float eps, float offset) {
    constexpr int N = 16 / sizeof(T);
    using Vector = Slot<T, N, 1>;
    const int lane = Group<LANES>::lane();
    const int side_by_side = blockDim.x / LANES;
    const long long first = static_cast<long long>(blockIdx.x) * side_by_side * EACH + threadIdx.x / LANES;
    const auto column = [&](int v) { return (lane + v * LANES) * N; };

    Vector held[EACH][VECS], factors[VECS], shifts[VECS];
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const long long row = first + r * side_by_side;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            // threads past the last row stay for the shuffles and hold nothing
            held[r][v].template load<true>(x + row * x_stride + column(v), row < rows ? 1 : 0);
        }
    }
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        if constexpr (TAKES_GAMMA<NORM>) factors[v].load_parameter(gamma + column(v), gamma != nullptr, 1.0f);
        if constexpr (NORM == LAYERNORM) shifts[v].load_parameter(beta + column(v), beta != nullptr, 0.0f);
    }
    Moments moments[EACH];
    if constexpr (NORM == LAYERNORM && BY_TENSOR<NORM, T>) {
        const Team<LANES> team{};
#pragma unroll
        for (int r = 0; r < EACH; ++r) {
            TensorSums<T, 2> sums;
#pragma unroll
            for (int v = 0; v < VECS; ++v) sums.add(held[r][v].quad());
            moments[r] = by_tensor<NORM>(team, post_sums<NORM>(team, sums), hidden, eps, [&] {
                Vector one[1][VECS];
#pragma unroll
                for (int v = 0; v < VECS; ++v) one[0][v] = held[r][v];
                Moments exact[1];
                take<NORM, LANES>(one, hidden, eps, exact);
                return exact[0];
            });
        }
    } else {
        take<NORM, LANES>(held, hidden, eps, moments);
    }
    const Weights<T, T, GAMMA> weights{gamma, beta, offset};
    float scale[VECS][N], shift[VECS][N];
#pragma unroll
    for (int v = 0; v < VECS; ++v) {
        if constexpr (TAKES_GAMMA<NORM>) factors[v].unpack(scale[v]);
        if constexpr (NORM == LAYERNORM) shifts[v].unpack(shift[v]);
    }
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const long long row = first + r * side_by_side;
        if (row >= rows) break;
        if (TAKES_GAMMA<NORM> && lane == 0) moments[r].save(mean, rstd, row);
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            float values[N];
            held[r][v].unpack(values);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = moments[r].template applied<NORM>(values[j]);
            weights.template apply<NORM>(values, scale[v], shift[v]);
            held[r][v].pack(values);
            held[r][v].store(y + row * y_stride + column(v), 1);
        }
    }
}
