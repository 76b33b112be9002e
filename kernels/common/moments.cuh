// From sums to the numbers that normalise a row.
#pragma once

#include "common/element.cuh"
#include "common/scale.cuh"

// y = ((x - pivot) * rstd + shift) * gamma + beta, where pivot is a first mean and shift = -drift * rstd takes away what
// its rounding left. Norms without a mean: pivot and shift are 0, rstd is one over what the row is divided by.
struct Moments {
    float pivot;
    float shift;
    float rstd;
    float mean;

    __device__ __forceinline__ float normalise(float value) const { return fmaf(value - pivot, rstd, shift); }

    // The same, where norms without a mean need not subtract a 0.
    template <int NORM>
    __device__ __forceinline__ float applied(float value) const {
        return NORM == LAYERNORM ? normalise(value) : value * rstd;
    }

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
        return without_mean<RMSNORM>(squares, inverse, eps);
    }

    // sum: of what Scale<NORM>::add takes.
    template <int NORM>
    static __device__ __forceinline__ Moments without_mean(float sum, float inverse, float eps) {
        return {0.0f, 0.0f, Scale<NORM>::of(sum, inverse, eps), 0.0f};
    }

    // Writes what was asked for; one thread a row calls it.
    __device__ __forceinline__ void save(float* means, float* rstds, long long row) const {
        if (means != nullptr) means[row] = mean;
        if (rstds != nullptr) rstds[row] = rstd;
    }
};

// Of some elements: how many they are, a value near their mean, and the sums of d and d^2 with d = x - pivot.
struct Part {
    float count;
    float pivot;
    float sum;
    float squares;

    // The same of the same elements about another pivot. Exact algebra: with b = pivot - to, the sums become
    // S + n b and Q + b (2 S + n b), so that nothing cancels which was not as large before.
    __device__ __forceinline__ void move(float to) {
        const float by = pivot - to;
        squares = fmaf(by, fmaf(count, by, 2.0f * sum), squares);
        sum = fmaf(count, by, sum);
        pivot = to;
    }
};
