// How the threads of a warp learn that a row has come to their places in a ring of shared memory.
#pragma once

#include "common/bulk_ptx.cuh"

// By asynchronous copies every thread brings what it will use, and nobody need be told. By bulk copies (sm_90 on) one lane
// brings what its warp will use, and a barrier for each place of the ring tells the others.
template <bool BULK>
struct Arrivals {
    __device__ __forceinline__ explicit Arrivals(uint4*) {}
    static __device__ __forceinline__ uint4* after(uint4* memory) { return memory; }
};

template <>
struct Arrivals<true> {
    static constexpr int PLACES = 4;                 // of a ring, at most
    static constexpr int VECTORS = 16 * PLACES / 2;  // of 16 bytes, for the barriers of up to 16 warps
    static_assert(VECTORS * 16 == 512, "the headers of the kernels ask for it");

    unsigned long long* barriers;  // of this warp
    unsigned parity = 0;           // of the next phase of each

    // memory: of the block, VECTORS.
    __device__ __forceinline__ explicit Arrivals(uint4* memory)
        : barriers(reinterpret_cast<unsigned long long*>(memory) + threadIdx.x / 32 * PLACES) {
        if (threadIdx.x % 32 == 0) {
#pragma unroll
            for (int i = 0; i < PLACES; ++i) barrier_init(barriers + i);
        }
        __syncwarp();
    }

    static __device__ __forceinline__ uint4* after(uint4* memory) { return memory + VECTORS; }

    // All lanes of the warp.
    __device__ __forceinline__ void wait(int place) {
        barrier_wait(barriers + place, parity >> place & 1);
        parity ^= 1u << place;
    }
};
