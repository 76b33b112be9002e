// Loads that say how long what they bring is wanted, places that are kept, and the shared memory of a launch.
#pragma once

// Of the compilation: 900 for sm_90.
constexpr int ARCH = __CUDA_ARCH__;

// The shared memory that the launch asked for, aligned to 16 bytes.
__device__ __forceinline__ uint4* launch_memory() {
    extern __shared__ uint4 memory[];
    return memory;
}

// 16 bytes that this multiprocessor reads once: they pass by L1, which then keeps gamma and beta.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
    uint4 quad;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
                 : "l"(from));
    return quad;
}

__device__ __forceinline__ void store(uint4* to, uint4 quad) { *to = quad; }

// A place in global memory, to be kept in registers: knowing how it was made, the compiler makes it anew, with an offset, for each
// vector that a block's thread moves, by some ten instructions in place of one.
template <typename E>
__device__ __forceinline__ E* kept(E* place) {
    asm volatile("" : "+l"(place));
    __builtin_assume(__isGlobal(place));
    return place;
}
