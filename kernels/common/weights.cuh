// Gamma and beta, and the ways to apply them.
#pragma once

#include "common/element.cuh"

// T: type of x. W: type of gamma and beta. GAMMA: bits of GAMMA_LLAMA and GAMMA_OFFSET.
template <typename T, typename W, int GAMMA>
struct Weights {
    const W* gamma;  // null where absent, and beta too; with GAMMA_OFFSET there is a gamma
    const W* beta;
    float offset;

    // What gamma multiplies, of normalised values.
    template <int N>
    static __device__ __forceinline__ void enter(float (&values)[N]) {
        if constexpr ((GAMMA & GAMMA_LLAMA) != 0) {
            constexpr int PER = N % Element<T>::PER == 0 ? Element<T>::PER : 1;
#pragma unroll
            for (int j = 0; j < N; j += PER) {
                if constexpr (PER > 1) Element<T>::unpack(Element<T>::pack(values + j), values + j);
                else values[j] = Element<T>::widen(Element<T>::narrow(values[j]));
            }
        }
    }

    // What it is multiplied by, of an element of gamma in fp32.
    __device__ __forceinline__ float factor(float gamma) const {
        return (GAMMA & GAMMA_OFFSET) != 0 ? gamma + offset : gamma;
    }

    // Normalised values of a vector, scaled and shifted by its elements of gamma and beta in fp32; what the norm does not take is not read.
    template <int NORM, int N>
    __device__ __forceinline__ void apply(float (&values)[N], const float (&scale)[N], const float (&shift)[N]) const {
        if constexpr (!TAKES_GAMMA<NORM>) return;
        enter(values);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float factor = this->factor(scale[j]);
            values[j] = NORM == LAYERNORM ? fmaf(values[j], factor, shift[j]) : values[j] * factor;
        }
    }

    // One element: its normalised value, scaled and shifted.
    __device__ __forceinline__ float applied(float value, int index) const {
        float entered[1] = {value};
        enter(entered);
        value = entered[0];
        if (gamma != nullptr) value *= factor(Element<W>::widen(gamma[index]));
        if (beta != nullptr) value += Element<W>::widen(beta[index]);
        return value;
    }
};
