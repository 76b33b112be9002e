// /// kernel
// summary = "A right LayerNorm and its mutants, each one fault met in public."
// ops = ["layernorm"]
// dtypes = ["fp32", "fp16", "bf16"]
//
// [axes]
// block = "study"
// fault = [0, 1, 2, 3, 4, 5, 6, 7, 8]
//
// [[launches]]
// name = "mutant<{T}, {W}, {fault}>"
// grid = "rows"
// block = "block"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Not for use: fault 0 is right, so that it is the fault that is rejected and not the kernel around it. The numbers are
// those of FAULTS in tests/mutants_fixture.py. It includes nothing of kernels/, whose own faults these are not.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum Fault { RIGHT, PADDING, MEAN_TWICE, EPS_OUTSIDE, GAMMA_BY_ROW, NO_GAMMA, UNWEIGHTED, NO_BARRIER, LAST_COLUMNS };

template <typename T>
__device__ float widen(T value) {
    return static_cast<float>(value);
}

template <typename T>
__device__ T narrow(float value) {
    return static_cast<T>(value);
}

// The sum over the block in every thread; scratch: 32 floats that no earlier call used.
template <int FAULT>
__device__ float block_sum(float value, float* scratch) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
#ifdef __CUDA_ARCH__
    // without the barrier the result depends on who comes first; here the first warp does
    if constexpr (FAULT == NO_BARRIER) {
        if (threadIdx.x >= 32) __nanosleep(50000);
    }
#endif
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    if constexpr (FAULT != NO_BARRIER) __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

template <typename T, typename W, int FAULT>
__global__ void mutant(const T* x, const W* gamma, const W* beta, T* y, float* mean, float* rstd, long long rows,
                       int hidden, long long x_stride, long long y_stride, float eps) {
    __shared__ float scratch[3 * 32];
    const long long row = blockIdx.x;
    const T* in = x + row * x_stride;
    T* out = y + row * y_stride;
    const int block = static_cast<int>(blockDim.x);
    const int thread = static_cast<int>(threadIdx.x);
    // a fault that takes the block for the row: places past the end hold zeros and are centred like the others
    const int places = FAULT == PADDING ? (hidden + block - 1) / block * block : hidden;

    float centre, variance;
    if constexpr (FAULT == UNWEIGHTED) {  // every thread's Welford counts the same in the merge, however much it saw
        float mine = 0.0f, squares = 0.0f, count = 0.0f;
        for (int i = thread; i < hidden; i += block) {
            const float value = widen(in[i]), delta = value - mine;
            count += 1.0f;
            mine += delta / count;
            squares += delta * (value - mine);
        }
        centre = block_sum<FAULT>(mine, scratch) / blockDim.x;
        const float between = (mine - centre) * (mine - centre) * hidden / blockDim.x;
        variance = block_sum<FAULT>(squares + between, scratch + 32) / hidden;
    } else {
        float total = 0.0f;
        for (int i = thread; i < hidden; i += block) total += widen(in[i]);
        centre = block_sum<FAULT>(total, scratch) / hidden;
        float squares = 0.0f;
        for (int i = thread; i < places; i += block) {
            const float centred = (i < hidden ? widen(in[i]) : 0.0f) - centre;
            squares += centred * centred;
        }
        variance = block_sum<FAULT>(squares, scratch + 32) / hidden;
    }
    const float scale = FAULT == EPS_OUTSIDE ? 1.0f / (sqrtf(variance) + eps) : 1.0f / sqrtf(variance + eps);

    const int end = FAULT == LAST_COLUMNS ? hidden / 8 * 8 : hidden;
    for (int i = thread; i < end; i += block) {
        float value = (widen(in[i]) - centre) * scale;
        if constexpr (FAULT == MEAN_TWICE) value -= centre * scale;
        if (FAULT != NO_GAMMA && gamma != nullptr) {
            value *= widen(gamma[FAULT == GAMMA_BY_ROW ? static_cast<int>(row % hidden) : i]);
        }
        if (beta != nullptr) value += widen(beta[i]);
        out[i] = narrow<T>(value);
    }
    if (thread == 0 && mean != nullptr) mean[row] = centre;
    if (thread == 0 && rstd != nullptr) rstd[row] = scale;
}
