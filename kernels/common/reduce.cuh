// Sums over the threads that share a row, in a fixed order: the same bits every run and on every GPU.
#pragma once

// The threads of one row: LANES of them, a power of two up to 32, so that a warp serves several rows; or, where LANES is 0,
// the whole block, of whatever size it was launched with (a multiple of 32).
template <int LANES>
struct Group {
    static constexpr bool IN_WARP = LANES > 0;
    static_assert(LANES >= 0 && LANES <= 32 && (LANES & (LANES - 1)) == 0, "part of a warp, or 0 for the block");

    static __device__ __forceinline__ int size() {
        if constexpr (IN_WARP) return LANES;
        else return static_cast<int>(blockDim.x);
    }

    static __device__ __forceinline__ int lane() {
        if constexpr (IN_WARP) return static_cast<int>(threadIdx.x) % LANES;
        else return static_cast<int>(threadIdx.x);
    }

    static __device__ __forceinline__ long long row() {
        if constexpr (IN_WARP) return static_cast<long long>(blockIdx.x) * (blockDim.x / LANES) + threadIdx.x / LANES;
        else return blockIdx.x;
    }

    // Replaces each value by its sum over the group, in every thread. All threads of the block call it together.
    // scratch: COUNT * 32 floats of shared memory that no earlier call used (so one barrier is enough), unused in a warp.
    template <int COUNT>
    static __device__ __forceinline__ void sum(float (&values)[COUNT], float* scratch = nullptr) {
        within_warp<IN_WARP ? LANES : 32>(values);
        if constexpr (!IN_WARP) {
            const int lane = threadIdx.x % 32;
            if (lane == 0) {
#pragma unroll
                for (int k = 0; k < COUNT; ++k) scratch[k * 32 + threadIdx.x / 32] = values[k];
            }
            __syncthreads();
            // every warp adds the partial sums again: cheaper than a second barrier to hand the result round
            const int warps = blockDim.x / 32;
#pragma unroll
            for (int k = 0; k < COUNT; ++k) values[k] = lane < warps ? scratch[k * 32 + lane] : 0.0f;
            within_warp<32>(values);
        }
    }

private:
    template <int WIDTH, int COUNT>
    static __device__ __forceinline__ void within_warp(float (&values)[COUNT]) {
#pragma unroll
        for (int offset = WIDTH / 2; offset > 0; offset /= 2) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) values[k] += __shfl_xor_sync(0xffffffffu, values[k], offset);
        }
    }
};

// Two sums over a warp, in all its lanes, by six shuffles: at the first one each half of the warp gives away what it does not go
// on with. BOTH: otherwise x is 0 everywhere.
template <bool BOTH>
__device__ __forceinline__ float2 sum_of_warp(float2 mine) {
    if constexpr (!BOTH) {
        float value[1] = {mine.y};
        Group<32>::sum(value);
        return make_float2(0.0f, value[0]);
    }
    const bool upper = threadIdx.x & 16;
    float held = upper ? mine.y : mine.x;
    held += __shfl_xor_sync(0xffffffffu, upper ? mine.x : mine.y, 16);
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) held += __shfl_xor_sync(0xffffffffu, held, offset);
    const float other = __shfl_xor_sync(0xffffffffu, held, 16);
    return upper ? make_float2(other, held) : make_float2(held, other);
}

// The threads of one row as statistics.cuh sees them: those that reach each other by shuffles, and how warps hand each
// other what they found. WHOLE: there is one warp, or a part of one, and nothing to hand.
template <int LANES_>
struct Team {
    using Near = Group<LANES_>;
    static constexpr int LANES = LANES_;
    static constexpr bool WHOLE = true;
    float4* scratch;  // unused

    __device__ __forceinline__ Team next() const { return *this; }
};

// The sum of what `warps` warps have handed out, in every lane of every warp: in the same order everywhere, and with as many
// shuffles as there are warps to tell apart.
__device__ __forceinline__ float sum_posted(const float* all, int warps) {
    const int apart = warps > 16 ? 32 : warps > 1 ? 1 << (32 - __clz(warps - 1)) : 1;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x & (apart - 1); i < warps; i += apart) sum += all[i];
#pragma unroll 1
    for (int offset = apart / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
}

__device__ __forceinline__ float2 sum_posted(const float2* all, int warps) {
    const int apart = warps > 16 ? 32 : warps > 1 ? 1 << (32 - __clz(warps - 1)) : 1;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int i = threadIdx.x & (apart - 1); i < warps; i += apart) {
        sum.x += all[i].x;
        sum.y += all[i].y;
    }
#pragma unroll 1
    for (int offset = apart / 2; offset > 0; offset /= 2) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
    }
    return sum;
}

// A block, for one row. scratch: 32 vectors of shared memory, and as many for each `next`.
template <>
struct Team<0> {
    using Near = Group<32>;
    static constexpr int LANES = 32;  // that reach each other by shuffles
    static constexpr bool WHOLE = false;
    float4* scratch;

    // The same threads, for another meeting.
    __device__ __forceinline__ Team next() const { return {scratch + 32}; }

    __device__ __forceinline__ int warps() const { return static_cast<int>(blockDim.x) / 32; }

    // Hands out what a warp has in its first lane.
    template <typename V>
    __device__ __forceinline__ void post(V mine) const {
        if (threadIdx.x % 32 == 0) reinterpret_cast<V*>(scratch)[threadIdx.x / 32] = mine;
    }

    // What all warps have handed out, in their order.
    template <typename V>
    __device__ __forceinline__ const V* posted() const {
        __syncthreads();
        return reinterpret_cast<const V*>(scratch);
    }
};
