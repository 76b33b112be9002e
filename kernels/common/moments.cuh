// From sums to the numbers that normalise a row.
#pragma once

#include "common/element.cuh"

// y = ((x - pivot) * rstd + shift) * gamma + beta, where pivot is a first mean and shift = -drift * rstd takes away what
// its rounding left. RMSNorm: pivot and shift are 0.
struct Moments {
    float pivot;
    float shift;
    float rstd;
    float mean;

    __device__ __forceinline__ float normalise(float value) const { return fmaf(value - pivot, rstd, shift); }

    // The corrected two-pass formula (Chan, Golub, LeVeque 1983, eq. 1.7): with d = x - pivot,
    // mean = pivot + sum(d) / n and variance = (sum(d^2) - sum(d)^2 / n) / n. A pivot that is off by a rounding
    // error (0.002 at 33333.3) would otherwise give a constant row a variance, and outputs of -0.78 in place of 0.
    static __device__ __forceinline__ Moments centred(float pivot, float sum, float squares, float inverse, float eps) {
        const float drift = sum * inverse;
        const float variance = fmaf(-drift, drift, squares * inverse);
        const float positive = variance < 0.0f ? 0.0f : variance;  // fmaxf would turn NaN into 0
        const float rstd = rsqrtf(positive + eps);
        return {pivot, -drift * rstd, rstd, pivot + drift};
    }

    static __device__ __forceinline__ Moments uncentred(float squares, float inverse, float eps) {
        return {0.0f, 0.0f, rsqrtf(fmaf(squares, inverse, eps)), 0.0f};
    }

    // Writes what was asked for; one thread a row calls it.
    __device__ __forceinline__ void save(float* means, float* rstds, long long row) const {
        if (means != nullptr) means[row] = mean;
        if (rstds != nullptr) rstds[row] = rstd;
    }
};
