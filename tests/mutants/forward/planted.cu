// /// kernel
// summary = "A copy with one fault for each tool of compute-sanitizer."
// ops = ["layernorm"]
// dtypes = ["fp32"]
// [axes]
// block = "study"
// fault = [0, 1, 2, 3, 4]
// [scratch]
// partial = "rows * 4"
// [[launches]]
// name = "planted<{T}, {fault}>"
// grid = "rows"
// block = "block"
// args = ["x", "y", "partial", "hidden", "x_stride", "y_stride"]
// ///
// Not for use. Faults: 0 none, 1 a write past the end, 2 a race in shared memory, 3 a read of memory that nobody wrote, 4 a
// barrier that part of a warp waits at.

template <typename T, int FAULT>
__global__ void planted(const T* x, T* y, float* partial, int hidden, long long x_stride, long long y_stride) {
    __shared__ float turned[1024];
    const T* in = x + blockIdx.x * x_stride;
    T* out = y + blockIdx.x * y_stride;
    const int end = FAULT == 1 && blockIdx.x + 1 == gridDim.x ? hidden + 1 : hidden;
    for (int i = threadIdx.x; i < end; i += blockDim.x) out[i] = i < hidden ? in[i] : T(0);
    if constexpr (FAULT == 2) {
        turned[threadIdx.x] = static_cast<float>(threadIdx.x);
        partial[blockIdx.x] = turned[blockDim.x - 1 - threadIdx.x];
    }
    if constexpr (FAULT == 3) {
        if (threadIdx.x == 0 && partial[blockIdx.x] == 1.0f) out[0] = T(1);
    }
    if constexpr (FAULT == 4) {
        if (threadIdx.x < 16) __syncthreads();
    }
}
