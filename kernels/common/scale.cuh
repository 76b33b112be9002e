// Norms without a mean: what they add up of a row, and what its elements are then multiplied by.
#pragma once

#include "common/element.cuh"

template <int NORM>
struct Scale {
    static_assert(NORM == RMSNORM || NORM == L1NORM || NORM == L2NORM, "LayerNorm has a mean");

    static __device__ __forceinline__ float add(float sum, float value) {
        return NORM == L1NORM ? sum + fabsf(value) : fmaf(value, value, sum);
    }

    // sum: over the whole row. inverse: one over the number of its elements. A row of zeros has no l1norm or l2norm: NaN.
    static __device__ __forceinline__ float of(float sum, float inverse, float eps) {
        if constexpr (NORM == L1NORM) return 1.0f / (sum * inverse);
        else if constexpr (NORM == L2NORM) return rsqrtf(sum);
        else return rsqrtf(fmaf(sum, inverse, eps));
    }
};
