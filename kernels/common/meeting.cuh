// How the threads of a row meet once a row, over many rows: two sums each time, handed out a row before they are wanted.
//
// Of a norm without a mean the first sum is 0, and not wanted (BOTH).
// The calls come in turns: hand_out, then for every further row handed_out (of the row before) and hand_out. So what is handed
// out at one turn is written where nobody reads any more: the reads of the turn before last lie before a barrier that all
// have passed.
#pragma once

#include "common/reduce.cuh"

// LANES threads of a warp. STRIDE: threads between two vectors of one thread. ALONE: nobody need be waited for. SHARED: a
// warp has several rows, so that it goes on as long as any of them does. TIGHT: a thread may have no more than 128 registers,
// however many columns it keeps.
template <int LANES>
struct Meeting {
    static constexpr bool ALONE = true;
    static constexpr bool SHARED = LANES < 32;
    static constexpr bool TIGHT = false;
    static constexpr int STRIDE = LANES;
    float2 held;

    __device__ __forceinline__ Meeting(float4*) : held{} {}
    __device__ __forceinline__ int vector(int) const { return Group<LANES>::lane(); }
    __device__ __forceinline__ Team<LANES> team() { return {nullptr}; }

    template <bool BOTH>
    __device__ __forceinline__ void hand_out(float2 mine) {
        if constexpr (LANES == 32) {
            held = sum_of_warp<BOTH>(mine);
        } else {
            float values[2] = {mine.x, mine.y};
            Group<LANES>::sum(values);
            held = make_float2(values[0], values[1]);
        }
    }

    template <bool BOTH>
    __device__ __forceinline__ float2 handed_out() {
        return held;
    }
};

// A block. A warp has VECS * 32 vectors side by side, so that a thread's addresses are one base and constants.
template <>
struct Meeting<0> {
    static constexpr bool ALONE = false;
    static constexpr bool SHARED = false;
    static constexpr bool TIGHT = false;
    static constexpr int STRIDE = 32;
    static constexpr int SCRATCH = 4 * 32;  // float4
    float4* scratch;
    int turn = 0, statistics = 0;

    __device__ __forceinline__ Meeting(float4* scratch) : scratch(scratch) {
        // behind the warps' sums, of which four are read at a time
        if (threadIdx.x < 3) {
            for (turn = 1; turn >= 0; --turn) place()[blockDim.x / 32 + threadIdx.x] = make_float2(0.0f, 0.0f);
            turn = 0;
        }
    }

    __device__ __forceinline__ int size() const { return static_cast<int>(blockDim.x); }
    __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ int vector(int vecs) const {
        return static_cast<int>(threadIdx.x / 32) * vecs * 32 + static_cast<int>(threadIdx.x % 32);
    }

    // For one more meeting before the row's own, by turns in two places.
    __device__ __forceinline__ Team<0> team() {
        statistics ^= 1;
        return {scratch + 64 + 32 * statistics};
    }

    template <bool BOTH>
    __device__ __forceinline__ void hand_out(float2 mine) {
        const float2 sum = sum_of_warp<BOTH>(mine);
        if (threadIdx.x % 32 == 0) place()[threadIdx.x / 32] = sum;
    }

    // Every thread adds up what all warps have handed out: all read one place, and none waits for one shuffle after the other.
    template <bool BOTH>
    __device__ __forceinline__ float2 handed_out() {
        __syncthreads();
        const float4* const all = scratch + 32 * turn;  // two warps' sums each
        float2 found = make_float2(0.0f, 0.0f);
#pragma unroll 1
        for (int i = 0; 2 * i < static_cast<int>(blockDim.x / 32); i += 2) {
            const float4 one = all[i], other = all[i + 1];
            if constexpr (BOTH) found.x += (one.x + one.z) + (other.x + other.z);
            found.y += (one.y + one.w) + (other.y + other.w);
        }
        turn ^= 1;
        return found;
    }

private:
    __device__ __forceinline__ float2* place() const { return reinterpret_cast<float2*>(scratch + 32 * turn); }
};
