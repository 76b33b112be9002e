// /// kernel
// summary = "A block a row, scalar loads, two passes for the statistics and one to write."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// skip = [{when = "rows > 2147483647", reason = "a grid holds at most 2147483647 rows"}]
//
// [axes]
// block = "study"
//
// [[launches]]
// name = "naive<{T}, {W}, {NORM}>"
// grid = "rows"
// block = "block"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Decomposition: one block a row; thread t takes the elements t, t + block, t + 2 block ... one at a time. Neighbouring
// threads read neighbouring elements, so the loads coalesce, but each moves only 2 or 4 bytes a thread. The row is read
// again for every pass: from L2 or L1 while it fits, from memory once the rows in flight outgrow L2.
// Statistics: the mean, then the centred squares (RMSNorm: the squares alone). The second pass also adds up what the
// rounded mean left, and the formula takes it away again, so a constant row gives exactly beta.
// Numerics: fp32 sums, a running sum a thread and a tree over the block; eps inside the root; one rounding at the end.
// Boundaries: any hidden size, any alignment, any row stride; the loop ends where the row ends.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: LayerNorm reads the row three times and RMSNorm twice, which is what the other kernels are there to avoid.

#include "common/element.cuh"
#include "common/moments.cuh"
#include "common/reduce.cuh"

template <typename T, typename W, int NORM>
__global__ void __launch_bounds__(1024)
naive(const T* __restrict__ x, const W* __restrict__ gamma, const W* __restrict__ beta, T* __restrict__ y,
      float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden, long long x_stride,
      long long y_stride, float eps) {
    __shared__ float scratch[3 * 32];
    const long long row = blockIdx.x;
    const T* in = x + row * x_stride;
    T* out = y + row * y_stride;
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
    const Moments moments = NORM == LAYERNORM ? Moments::centred(pivot, sums[0], sums[1], inverse, eps)
                                              : Moments::uncentred(sums[1], inverse, eps);

    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float value = moments.normalise(Element<T>::widen(in[i]));
        if (gamma != nullptr) value *= Element<W>::widen(gamma[i]);
        if (beta != nullptr) value += Element<W>::widen(beta[i]);
        out[i] = Element<T>::narrow(value);
    }
    if (threadIdx.x == 0) moments.save(mean, rstd, row);
}
