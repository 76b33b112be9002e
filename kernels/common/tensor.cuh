// Sums of a row of 16-bit elements that the tensor cores take, and when they are good enough.
//
// Two instructions take the sum and the sum of squares of a warp's 32 vectors; by additions these are some 30 a vector, with
// what it takes to widen the elements. But a sum of squares of the elements themselves cancels where the mean is large: the
// variance is its difference from mean^2. Products of 16-bit numbers are exact in fp32, and their sums are cut off at each
// instruction, in one direction: up to 2 n u for the n <= 16 of a row's vectors a thread (u = 2^-24). Where mean^2 <= 4 variance,
// that is at most 160 u of the variance, 5e-6 of rstd. Any other row, and one with a NaN, an infinity or squares beyond fp32, is
// walked over once more in the way of statistics.cuh: it is still in the registers.
#pragma once

#include "common/moments.cuh"
#include "common/reduce.cuh"
#include "common/scale.cuh"
#include "common/tensor_ptx.cuh"

// Whether a norm of elements held as T takes its sums so. Magnitudes have no such product.
template <int NORM, typename T>
constexpr bool BY_TENSOR = TENSOR_CORES && sizeof(T) == 2 && NORM != L1NORM;

// What a warp's lanes add up. All of them call `add` together; what is not in the row is 0. No more than 16 instructions a chain:
// what is longer is added up in parts.
// CHAINS: 2, by turns, so that one instruction need not wait for the other; 1 where four registers are worth more.
template <typename T, int CHAINS>
struct TensorSums {
    float sums[CHAINS][4] = {};

    __device__ __forceinline__ void add(uint4 words) {
        add_products<T>(sums[0], words.x, words.y);
        add_products<T>(sums[CHAINS - 1], words.z, words.w);
    }

    __device__ __forceinline__ void add(T element) {
        unsigned short bits;
        memcpy(&bits, &element, sizeof bits);
        add_products<T>(sums[0], bits, 0u);
    }

    // The sums of other elements, rounded to nearest.
    __device__ __forceinline__ void add(const TensorSums<T, 1>& other) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[0][k] += other.sums[0][k];
    }

    // (sum, sum of squares) over the LANES threads of a row; without a mean the squares only.
    template <int NORM, int LANES>
    __device__ __forceinline__ float2 total() const {
        static_assert(LANES == 8 || LANES == 16 || LANES == 32, "whole groups of four lanes");
        const int lane = threadIdx.x % 32, group = lane / 4;
        // the diagonal's element of a group is in its lane group / 2
        const float diagonal = group % 2 != 0 ? of(1) : of(0);
        float squares = __shfl_sync(0xffffffffu, diagonal, 4 * group + group / 2);
#pragma unroll
        for (int offset = 4; offset < LANES; offset *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
        if constexpr (NORM != LAYERNORM) return make_float2(0.0f, squares);
        // of two groups; those of a row's groups are in LANES / 8 neighbouring lanes
        float sum = of(2) + of(3);
#pragma unroll
        for (int offset = 1; offset < LANES / 8; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if constexpr (LANES < 32) sum = __shfl_sync(0xffffffffu, sum, lane / 4 * 4 + lane / LANES * (LANES / 8));
        return make_float2(sum, squares);
    }

private:
    __device__ __forceinline__ float of(int k) const { return CHAINS == 1 ? sums[0][k] : sums[0][k] + sums[CHAINS - 1][k]; }
};

// Hands such sums to a team; what its warp found of them.
template <int NORM, typename Team, typename T, int CHAINS>
__device__ __forceinline__ float2 post_sums(const Team& team, const TensorSums<T, CHAINS>& mine) {
    const float2 sums = mine.template total<NORM, Team::LANES>();
    if constexpr (!Team::WHOLE && NORM == LAYERNORM) team.post(sums);
    else if constexpr (!Team::WHOLE) team.post(sums.y);
    return sums;
}

// The row's numbers by what was handed out, in every thread. exact(): the same by another walk and another meeting, for all
// threads that meet, where the sums do not tell.
template <int NORM, typename Team, typename Exact>
__device__ __forceinline__ Moments by_tensor(const Team& team, float2 sums, int hidden, float eps, const Exact& exact) {
    const float inverse = 1.0f / static_cast<float>(hidden);
    if constexpr (!Team::WHOLE && NORM == LAYERNORM) sums = sum_posted(team.template posted<float2>(), team.warps());
    else if constexpr (!Team::WHOLE) sums.y = sum_posted(team.template posted<float>(), team.warps());
    if constexpr (NORM != LAYERNORM) {
        return Moments::without_mean<NORM>(sums.y, inverse, eps);
    } else {
        const float mean = sums.x * inverse;
        const float variance = fmaf(-mean, mean, sums.y * inverse);
        const bool good = mean * mean <= 4.0f * variance && variance < 3e38f;
        const Moments mine = Moments::centred(0.0f, sums.x, sums.y, inverse, eps);
        if constexpr (Team::WHOLE && Team::LANES < 32) {  // rows of one warp stay together, each with its own
            if (__all_sync(0xffffffffu, good)) return mine;
            const Moments other = exact();
            return good ? mine : other;
        } else {
            if (good) return mine;
            return exact();
        }
    }
}
