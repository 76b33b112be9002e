// /// kernel
// summary = "A block a row, one pass for the statistics by Welford's update, partial results merged by weight."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// skip = [{when = "rows > 2147483647", reason = "a grid holds at most 2147483647 rows"}]
//
// [axes]
// block = "study"
//
// [[launches]]
// name = "welford<{T}, {W}, {NORM}, {ADD}, {GAMMA}>"
// grid = "rows"
// block = "block"
// args = ["x", "residual", "gamma", "beta", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: as naive, one block a row and coalesced loads of one element, but the row is read twice in place of
// three times: once for both moments and once to write.
// Statistics: Welford's update in each thread (Technometrics 4, 1962), then the weighted merge of Chan, Golub and LeVeque
// (1983) in the warp and in the block. The weights matter: threads hold different counts, or none, when the row is no
// multiple of the block. RMSNorm has no mean to track and adds squares.
// Numerics: fp32. A running mean is rounded at every element, so a thread works relative to its first element and the
// merges carry the mean as a pair, high and low part; otherwise an offset of 1e6 costs more than the mean's own rounding.
// eps inside the root; one rounding at the end.
// Boundaries: any hidden size, any alignment, any row stride; the loop ends where the row ends.
// Residual: added in fp32 anew in each pass; the sum is written in the last one. y may be x, and sum may be residual.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: the update is a chain of two dependent operations and a reciprocal an element; scalar loads; the second
// read comes from L2 or L1 only while the rows in flight fit there.

#include "common/element.cuh"
#include "common/moments.cuh"
#include "common/reduce.cuh"
#include "common/row.cuh"
#include "common/weights.cuh"

// Count, mean and sum of squared deviations of some elements. The mean is mean + low.
struct Partial {
    float count;
    float mean;
    float low;
    float squares;

    __device__ __forceinline__ void merge(const Partial& other) {
        if (other.count == 0.0f) return;
        if (count == 0.0f) {
            *this = other;
            return;
        }
        const float total = count + other.count;
        const float weight = __fdividef(other.count, total);
        const float delta = (other.mean - mean) + (other.low - low);
        squares += other.squares + delta * delta * count * weight;
        move(mean, fmaf(delta, weight, low));
        count = total;
    }

    // Sets the mean to base + offset without losing what the sum rounds away (Knuth's two-sum).
    __device__ __forceinline__ void move(float base, float offset) {
        mean = base + offset;
        const float added = mean - base;
        low = (base - (mean - added)) + (offset - added);
    }

    __device__ __forceinline__ Partial from_lane_above(int distance) const {
        return {__shfl_down_sync(0xffffffffu, count, distance), __shfl_down_sync(0xffffffffu, mean, distance),
                __shfl_down_sync(0xffffffffu, low, distance), __shfl_down_sync(0xffffffffu, squares, distance)};
    }

    // Lane 0 gets the merge of the warp. Lanes near the end merge with themselves; nobody reads what they get.
    __device__ __forceinline__ void merge_warp() {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) merge(from_lane_above(distance));
    }

    // Every thread gets the merge of the block.
    __device__ __forceinline__ void merge_block(Partial* scratch) {
        merge_warp();
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = *this;
        __syncthreads();
        if (threadIdx.x < 32) {
            *this = threadIdx.x < blockDim.x / 32 ? scratch[threadIdx.x] : Partial{0.0f, 0.0f, 0.0f, 0.0f};
            merge_warp();
            if (threadIdx.x == 0) scratch[32] = *this;
        }
        __syncthreads();
        *this = scratch[32];
    }
};

template <typename T, typename W, int NORM, int ADD, int GAMMA>
__global__ void __launch_bounds__(1024)
welford(const T* __restrict__ x, const T* __restrict__ residual, const W* __restrict__ gamma, const W* __restrict__ beta,
        T* __restrict__ y, T* __restrict__ sum, float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden,
        long long x_stride, long long y_stride, float eps, float offset) {
    const long long row = blockIdx.x;
    const Row<T, ADD> in{x + row * x_stride, residual + row * x_stride};
    T* out = y + row * y_stride;
    const float inverse = 1.0f / static_cast<float>(hidden);

    Moments moments;
    if constexpr (NORM == LAYERNORM) {
        __shared__ Partial scratch[33];
        const float origin = threadIdx.x < hidden ? in[threadIdx.x] : 0.0f;
        float count = 0.0f, running = 0.0f, squares = 0.0f;
#pragma unroll 4
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            const float value = in[i] - origin;
            const float delta = value - running;
            count += 1.0f;
            running += __fdividef(delta, count);
            squares = fmaf(delta, value - running, squares);
        }
        Partial partial{count, 0.0f, 0.0f, squares};
        partial.move(origin, running);
        partial.merge_block(scratch);
        const float root = rsqrtf(fmaf(partial.squares, inverse, eps));
        moments = {partial.mean, -partial.low * root, root, partial.mean};
    } else {
        __shared__ float scratch[32];
        float squares[1] = {0.0f};
#pragma unroll 4
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            const float value = in[i];
            squares[0] = fmaf(value, value, squares[0]);
        }
        Group<0>::sum(squares, scratch);
        moments = Moments::uncentred(squares[0], inverse, eps);
    }

    const Weights<T, W, GAMMA> weights{gamma, beta, offset};
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float entered = in[i];
        if constexpr (ADD != ADD_NONE) sum[row * y_stride + i] = Element<T>::narrow(entered);
        out[i] = Element<T>::narrow(weights.applied(moments.normalise(entered), i));
    }
    if (threadIdx.x == 0) moments.save(mean, rstd, row);
}
