// /// kernel
// summary = "A block a row for dx, then the columns in 64 slices of the rows, then their sums: three launches, scalar loads."
// ops = ["layernorm_bwd", "rmsnorm_bwd"]
// dtypes = ["fp32", "fp16", "bf16"]
// skip = [{when = "rows > 2147483647", reason = "a grid holds at most 2147483647 rows"}]
//
// [axes]
// block = "study"
// slices = [64]
//
// [scratch]
// moments = "rows * 8"
// partial = "slices * hidden * 8"
//
// [[launches]]
// name = "naive_bwd_rows<{T}, {W}, {NORM}>"
// grid = "rows"
// block = "block"
// args = ["x", "dy", "residual", "gamma", "mean", "rstd", "dx", "moments", "hidden", "x_stride", "y_stride", "eps"]
//
// [[launches]]
// name = "naive_bwd_slices<{T}, {NORM}>"
// part = "reduction"
// grid = "cdiv(hidden, 32) * slices"
// block = "block"
// args = ["x", "dy", "moments", "partial", "rows", "hidden", "slices", "x_stride"]
//
// [[launches]]
// name = "naive_bwd_columns<{W}>"
// part = "reduction"
// grid = "cdiv(hidden, block)"
// block = "block"
// args = ["partial", "dgamma", "dbeta", "hidden", "slices"]
// ///
// Decomposition: (1) a block a row forms the two sums of the row and then dx, one element a thread at a time. (2) A block
// takes 32 columns of a slice of the rows: lane j its j-th column, warp w every so many rows; the warps' sums are added in
// shared memory. (3) A thread a column adds up the slices. x and dy are read three times, twice by the row and once by the
// columns.
// Statistics: those of the forward pass where they are given; else as in naive, with what the rounded mean left taken away
// again. (1) leaves what it used in `moments` for (2).
// Numerics: fp32; xhat from the centred value; one rounding of dx, after a residual gradient was added, and one of each
// column sum.
// Determinism: every sum has one order, which the number of multiprocessors does not enter: the same bits on every GPU.
// Boundaries: any hidden size, alignment and row stride; a slice without rows adds zero.
// Known limits: three reads in place of one, and loads of one element.

#include "common/element.cuh"
#include "common/moments.cuh"
#include "common/reduce.cuh"

// The statistics of a row, by the whole block. scratch: 3 * 32 floats of shared memory that nothing else uses.
template <typename T, int NORM>
__device__ __forceinline__ Moments recomputed(const T* in, int hidden, float eps, float* scratch) {
    const float inverse = 1.0f / static_cast<float>(hidden);
    float pivot = 0.0f;
    if constexpr (NORM == LAYERNORM) {
        float total[1] = {0.0f};
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) total[0] += Element<T>::widen(in[i]);
        Group<0>::sum(total, scratch);
        pivot = total[0] * inverse;
    }
    float sums[2] = {0.0f, 0.0f};
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float centred = Element<T>::widen(in[i]) - pivot;
        sums[0] += centred;
        sums[1] = fmaf(centred, centred, sums[1]);
    }
    Group<0>::sum(sums, scratch + 32);
    return NORM == LAYERNORM ? Moments::centred(pivot, sums[0], sums[1], inverse, eps)
                             : Moments::uncentred(sums[1], inverse, eps);
}

template <typename T, typename W, int NORM>
__global__ void __launch_bounds__(1024)
naive_bwd_rows(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ residual,
               const W* __restrict__ gamma, const float* __restrict__ mean, const float* __restrict__ rstd,
               T* __restrict__ dx, float2* __restrict__ moments, int hidden, long long x_stride, long long y_stride,
               float eps) {
    __shared__ float scratch[5 * 32];
    const long long row = blockIdx.x;
    const T* in = x + row * x_stride;
    const T* upstream = dy + row * x_stride;

    Moments found = {0.0f, 0.0f, 0.0f, 0.0f};
    if (rstd != nullptr) {
        found.rstd = rstd[row];
        if constexpr (NORM == LAYERNORM) found.pivot = mean[row];
    } else {
        found = recomputed<T, NORM>(in, hidden, eps, scratch);
        found.pivot -= found.shift / found.rstd;  // one number for (2): the mean, as a forward pass would save it
        found.shift = 0.0f;
    }
    if (threadIdx.x == 0) moments[row] = make_float2(found.pivot, found.rstd);

    const auto gradient = [&](int i) {
        const float value = Element<T>::widen(upstream[i]);
        return gamma == nullptr ? value : value * Element<W>::widen(gamma[i]);
    };
    float sums[2] = {0.0f, 0.0f};  // of g, and of g * xhat
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float g = gradient(i);
        sums[0] += g;
        sums[1] = fmaf(g, found.normalise(Element<T>::widen(in[i])), sums[1]);
    }
    Group<0>::sum(sums, scratch + 96);
    const float level = NORM == LAYERNORM ? sums[0] / static_cast<float>(hidden) : 0.0f;
    const float slope = sums[1] / static_cast<float>(hidden);

    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float xhat = found.normalise(Element<T>::widen(in[i]));
        float value = found.rstd * ((gradient(i) - level) - xhat * slope);
        if (residual != nullptr) value += Element<T>::widen(residual[row * x_stride + i]);
        dx[row * y_stride + i] = Element<T>::narrow(value);
    }
}

// partial: slices rows of sums for dgamma, then as many for dbeta, `hidden` apart.
template <typename T, int NORM>
__global__ void __launch_bounds__(1024)
naive_bwd_slices(const T* __restrict__ x, const T* __restrict__ dy, const float2* __restrict__ moments,
                 float* __restrict__ partial, long long rows, int hidden, int slices, long long x_stride) {
    __shared__ float2 part[32][32];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int warps = blockDim.x / 32;
    const int tiles = (hidden + 31) / 32;
    const int column = static_cast<int>(blockIdx.x % tiles) * 32 + lane;
    const int slice = blockIdx.x / tiles;
    float2 sum = make_float2(0.0f, 0.0f);
    if (column < hidden) {
        for (long long row = slice * warps + warp; row < rows; row += slices * warps) {
            const float value = Element<T>::widen(dy[row * x_stride + column]);
            const float2 its = moments[row];
            sum.x = fmaf(value, (Element<T>::widen(x[row * x_stride + column]) - its.x) * its.y, sum.x);
            sum.y += value;
        }
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < hidden) {
        for (int other = 1; other < warps; ++other) {
            sum.x += part[other][lane].x;
            sum.y += part[other][lane].y;
        }
        const long long at = static_cast<long long>(slice) * hidden + column;
        partial[at] = sum.x;
        partial[static_cast<long long>(slices) * hidden + at] = sum.y;
    }
}

template <typename W>
__global__ void __launch_bounds__(1024)
naive_bwd_columns(const float* __restrict__ partial, W* __restrict__ dgamma, W* __restrict__ dbeta, int hidden,
                  int slices) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= hidden) return;
    float2 total = make_float2(0.0f, 0.0f);
    for (int slice = 0; slice < slices; ++slice) {
        const long long at = static_cast<long long>(slice) * hidden + column;
        total.x += partial[at];
        total.y += partial[static_cast<long long>(slices) * hidden + at];
    }
    if (dgamma != nullptr) dgamma[column] = Element<W>::narrow(total.x);
    if (dbeta != nullptr) dbeta[column] = Element<W>::narrow(total.y);
}
