// Gamma and beta for rows that begin anywhere. Where `head` elements lie before a row's first 16-byte boundary, the vectors of its
// body want gamma and beta from element `head` on. So a launch before the kernel's own writes a copy of them for every `head` there
// may be, which begins with that element on a boundary; an absent gamma is all 1, an absent beta all 0. In the row's own
// kernel a vector's share of each is then one aligned load, where shifting it took up to 4 loads and some 15 instructions.
#pragma once

#include "common/dependent_ptx.cuh"
#include "common/element.cuh"
#include "common/memory.cuh"

// How the copies lie: 32 vectors of gamma, then the same 32 of beta, and so on, so that both are at one place and a constant.
template <typename W>
struct Copies {
    static constexpr int N = 16 / sizeof(W);
    static constexpr int BETA = 32 * N;  // elements from a vector of gamma to the same of beta

    // Vectors of one copy.
    static __device__ __forceinline__ int pitch(int hidden) { return (hidden / N + 31) / 32 * 64; }

    // Where a vector of gamma is in a copy. That of the vector a multiple of 32 further on is twice as far on.
    static __device__ __forceinline__ int place(int vector) { return vector / 32 * 64 + vector % 32; }
};

// The launch that writes them: a thread a vector, those of gamma first.
template <typename W, int NORM>
__global__ void __launch_bounds__(512)
shifted_copies(const W* __restrict__ gamma, const W* __restrict__ beta, uint4* __restrict__ copies, int hidden) {
    constexpr int N = Copies<W>::N;
    let_next_begin();
    const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int vectors = hidden / N;
    const int copy = at / vectors, vector = at % vectors;
    if (copy >= (NORM == LAYERNORM ? 2 * N : N)) return;
    const bool second = copy >= N;
    const int head = copy % N;
    const W* const from = second ? beta : gamma;
    const W absent = Element<W>::narrow(second ? 0.0f : 1.0f);
    alignas(16) W held[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const int i = head + vector * N + j;
        held[j] = from != nullptr && i < hidden ? from[i] : absent;
    }
    store(copies + head * Copies<W>::pitch(hidden) + Copies<W>::place(vector) + (second ? Copies<W>::BETA / N : 0),
          *reinterpret_cast<const uint4*>(held));
}

// Before the copies are read, and before anything is written: the launch that writes them waits for all before it, so that
// what those wrote may be read earlier. Without gamma there is no such launch.
template <int NORM>
__device__ __forceinline__ void await_copies() {
    if constexpr (TAKES_GAMMA<NORM>) await_previous();
}
