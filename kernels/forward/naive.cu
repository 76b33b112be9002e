// /// kernel
// summary = "A block a row, scalar loads, two passes for the statistics and one to write."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "rmsnorm_channels", "l1norm", "l2norm"]
// dtypes = ["fp32", "fp16", "bf16"]
// skip = [{when = "rows > 2147483647", reason = "a grid holds at most 2147483647 rows"}]
//
// [axes]
// block = "study"
//
// [[launches]]
// name = "naive<{T}, {W}, {NORM}, {ADD}, {GAMMA}>"
// grid = "rows"
// block = "block"
// args = ["x", "residual", "gamma", "beta", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: one block a row; thread t takes the elements t, t + block, t + 2 block ... one at a time. Neighbouring
// threads read neighbouring elements, so the loads coalesce, but each moves only 2 or 4 bytes a thread. The row is read
// again for every pass: from L2 or L1 while it fits, from memory once the rows in flight outgrow L2.
// Statistics: the mean, then the centred squares (norms without a mean: the squares alone, l1norm the magnitudes). The second pass also adds up what the
// rounded mean left, and the formula takes it away again, so a constant row gives exactly beta.
// Numerics: fp32 sums, a running sum a thread and a tree over the block; eps inside the root; one rounding at the end.
// Boundaries: any hidden size, any alignment, any row stride; the loop ends where the row ends.
// Residual: added in fp32 anew in each pass; the sum is written in the last one. y may be x, and sum may be residual.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: LayerNorm reads the row three times and RMSNorm twice, which is what the other kernels are there to avoid.

#include "common/element.cuh"
#include "common/moments.cuh"
#include "common/reduce.cuh"
#include "common/row.cuh"
#include "common/weights.cuh"

template <typename T, typename W, int NORM, int ADD, int GAMMA>
__global__ void __launch_bounds__(1024)
naive(const T* __restrict__ x, const T* __restrict__ residual, const W* __restrict__ gamma, const W* __restrict__ beta,
      T* __restrict__ y, T* __restrict__ sum, float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden,
      long long x_stride, long long y_stride, float eps, float offset) {
    constexpr int WITHOUT_MEAN = NORM == LAYERNORM ? RMSNORM : NORM;
    __shared__ float scratch[3 * 32];
    const long long row = blockIdx.x;
    const Row<T, ADD> in{x + row * x_stride, residual + row * x_stride};
    T* out = y + row * y_stride;
    const float inverse = 1.0f / static_cast<float>(hidden);

    float pivot = 0.0f;
    if constexpr (NORM == LAYERNORM) {
        float total[1] = {0.0f};
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) total[0] += in[i];
        Group<0>::sum(total, scratch);
        pivot = total[0] * inverse;
    }

    float sums[2] = {0.0f, 0.0f};
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float centred = in[i] - pivot;
        if constexpr (NORM == LAYERNORM) {
            sums[0] += centred;
            sums[1] = fmaf(centred, centred, sums[1]);
        } else {
            sums[1] = Scale<NORM>::add(sums[1], centred);
        }
    }
    Group<0>::sum(sums, scratch + 32);
    const Moments moments = NORM == LAYERNORM ? Moments::centred(pivot, sums[0], sums[1], inverse, eps)
                                              : Moments::without_mean<WITHOUT_MEAN>(sums[1], inverse, eps);

    const Weights<T, W, GAMMA> weights{gamma, beta, offset};
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float entered = in[i];
        if constexpr (ADD != ADD_NONE) sum[row * y_stride + i] = Element<T>::narrow(entered);
        out[i] = Element<T>::narrow(weights.applied(moments.normalise(entered), i));
    }
    if (threadIdx.x == 0) moments.save(mean, rstd, row);
}
