// LayerNorm's statistics in the order of torch's vectorised CUDA kernel, so that no bit differs. Every operation is spelled
// out with its rounding, which keeps the compiler from contracting or reordering any.
//
// A row has 128 chains: chain t takes the groups of four elements t, t + 128, t + 256 ... one element after the other. The
// chains are merged by shuffles down a warp of 32 of them (by 16, 8, 4, 2, 1), then warp 0 with 2, 1 with 3, and 0 with 1.
// RMSNorm's are ATen's for rms_norm: sums of squares over the same tree.
#pragma once

#include "common/pack.cuh"
#include "common/reciprocal_ptx.cuh"

constexpr int CHAINS = 128;  // of a row
constexpr int GROUP = 4;     // elements

template <int NORM>
struct Chain {
    float mean;
    float m2;
    float count;

    // One more element; reciprocal is that of the count with it, rounded to nearest. Two operations wait for each other,
    // which is what a chain costs; the count is the caller's, since it is the same in all chains of a step.
    __device__ __forceinline__ void add(float value, float reciprocal) {
        if constexpr (NORM == LAYERNORM) {
            const float d = __fsub_rn(value, mean);
            mean = __fmaf_rn(d, reciprocal, mean);
            m2 = __fmaf_rn(d, __fsub_rn(value, mean), m2);
        } else {
            m2 = __fmaf_rn(value, value, m2);
        }
    }

    // This one with another that stands behind it; never skipped because one of them is empty, since even that rounds.
    __device__ __forceinline__ Chain with(const Chain& other) const {
        if constexpr (NORM == LAYERNORM) {
            const float all = __fadd_rn(other.count, count);
            if (!(all > 0.0f)) return {0.0f, 0.0f, all};
            const float reciprocal = reciprocal_of(all);
            const float theirs = __fmul_rn(other.count, reciprocal), ours = __fmul_rn(count, reciprocal);
            const float apart = __fsub_rn(mean, other.mean);
            const float between = __fmul_rn(__fmul_rn(apart, apart), other.count);
            return {__fmaf_rn(theirs, other.mean, __fmul_rn(ours, mean)),
                    __fmaf_rn(between, ours, __fadd_rn(other.m2, m2)), all};
        } else {
            return {0.0f, __fadd_rn(m2, other.m2), 0.0f};
        }
    }

    // The chains of a warp as one, in lane 0.
    __device__ __forceinline__ Chain of_warp() const {
        Chain merged = *this;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            Chain other{0.0f, __shfl_down_sync(0xffffffffu, merged.m2, offset), 0.0f};
            if constexpr (NORM == LAYERNORM) {
                other.mean = __shfl_down_sync(0xffffffffu, merged.mean, offset);
                other.count = __shfl_down_sync(0xffffffffu, merged.count, offset);
            }
            merged = merged.with(other);
        }
        return merged;
    }

    __device__ __forceinline__ float4 word() const { return make_float4(mean, m2, count, 0.0f); }
    static __device__ __forceinline__ Chain of(const float4& word) { return {word.x, word.y, word.z}; }
};

// What a row is normalised with, from what its four warps found.
struct TorchMoments {
    float mean;
    float rstd;

    template <int NORM>
    static __device__ __forceinline__ TorchMoments of(const float4* warps, int hidden, float eps) {
        using One = Chain<NORM>;
        const One even = One::of(warps[0]).with(One::of(warps[2])), odd = One::of(warps[1]).with(One::of(warps[3]));
        const One row = even.with(odd);
        return {row.mean, rsqrtf(__fadd_rn(__fdiv_rn(row.m2, static_cast<float>(hidden)), eps))};
    }

    __device__ __forceinline__ void save(float* means, float* rstds, long long row) const {
        if (means != nullptr) means[row] = mean;
        if (rstds != nullptr) rstds[row] = rstd;
    }

    // values = fma(gamma, rstd (x - mean), beta), with the product in the middle rounded. Without gamma torch's compiler
    // rounds that product for the first of each four elements only and contracts it for the others (torch 2.11, CUDA 13,
    // by comparison of bits); columns begin at a multiple of four. An absent gamma is 1, an absent beta -0, which no sum
    // shows: with it fma rounds the product alone, its zero's sign included.
    template <int NORM, int N>
    __device__ __forceinline__ void apply(float (&values)[N], bool scaled, const float (&gamma)[N], const float (&beta)[N]) const {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float centred = NORM == LAYERNORM ? __fsub_rn(values[j], mean) : values[j];
            const bool rounded = scaled || j % GROUP == 0;
            values[j] = __fmaf_rn(rounded ? gamma[j] : rstd, rounded ? __fmul_rn(rstd, centred) : centred, beta[j]);
        }
    }
};

// N elements of gamma and beta, as `apply` takes them.
template <typename T, int N>
struct TorchAffine {
    float gamma[N];
    float beta[N];
    bool scaled;

    __device__ __forceinline__ TorchAffine(const T* from_gamma, const T* from_beta, int column) : scaled(from_gamma != nullptr) {
        const auto get = [&](const T* from, float absent, float (&values)[N]) {
            if (from != nullptr) {
                Pack<T, N>::of(from + column).unpack(values);
            } else {
#pragma unroll
                for (int j = 0; j < N; ++j) values[j] = absent;
            }
        };
        get(from_gamma, 1.0f, gamma);
        get(from_beta, -0.0f, beta);
    }
};
