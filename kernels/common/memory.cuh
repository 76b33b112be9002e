// Loads that say how long what they bring is wanted, places that are kept, and the shared memory of a launch.
#pragma once

#include "common/policy_ptx.cuh"

// Of the compilation: 900 for sm_90.
constexpr int ARCH = __CUDA_ARCH__;

// The shared memory that the launch asked for, aligned to 16 bytes.
__device__ __forceinline__ uint4* launch_memory() {
    extern __shared__ uint4 memory[];
    return memory;
}

// 16 bytes under a policy for L2. They pass by L1, which then keeps gamma and beta.
__device__ __forceinline__ uint4 load_by(const void* from, unsigned long long policy) {
    uint4 quad;
#if __CUDA_ARCH__ >= 800
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
                 : "l"(from), "l"(policy));
#else
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
                 : "l"(from));
#endif
    return quad;
}

// x, or what else a launch reads once: L2 keeps it before what is written, which then leaves for memory early and in order. On an
// H200 memory moves 2 to 3 % more that way. These are plain loads to the compiler; it is what cuda::associate_access_property calls.
template <typename E>
__device__ __forceinline__ const E* kept_in_l2(const E* from) {
#if __CUDA_ARCH__ >= 800
    return static_cast<const E*>(__nv_associate_access_property(from, policy_keep()));
#else
    return from;
#endif
}

// 16 bytes of them, which pass by L1.
__device__ __forceinline__ uint4 load_once(const uint4* from) { return load_by(from, policy_keep()); }

__device__ __forceinline__ void store(uint4* to, uint4 quad) { *to = quad; }

// A place in global memory, to be kept in registers: knowing how it was made, the compiler makes it anew, with an offset, for each
// vector that a block's thread moves, by some ten instructions in place of one.
template <typename E>
__device__ __forceinline__ E* kept(E* place) {
    asm volatile("" : "+l"(place));
    __builtin_assume(__isGlobal(place));
    return place;
}

// The same of a number.
__device__ __forceinline__ int kept(int number) {
    asm volatile("" : "+r"(number));
    return number;
}
