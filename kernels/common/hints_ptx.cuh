// Moves that say how long L2 should keep what passes through it: the instructions. Before sm_80 load_by says nothing, and the
// others are not there.
#pragma once

#include "common/pack.cuh"

// Wanted again: what others bring in is thrown out first.
__device__ __forceinline__ unsigned long long policy_keep() {
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Not wanted again soon.
__device__ __forceinline__ unsigned long long policy_pass() {
    unsigned long long policy = 0;
#if __CUDA_ARCH__ >= 800
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// As without a hint.
__device__ __forceinline__ unsigned long long policy_usual() {
    unsigned long long policy = 0;
#if __CUDA_ARCH__ >= 800
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

__device__ __forceinline__ uint4 load_by(const void* from, unsigned long long policy) {
#if __CUDA_ARCH__ >= 800
    uint4 quad;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
                 : "l"(from), "l"(policy));
    return quad;
#else
    return load_once(static_cast<const uint4*>(from));
#endif
}

__device__ __forceinline__ void store_by(void* to, uint4 quad, unsigned long long policy) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(quad.x), "r"(quad.y),
                 "r"(quad.z), "r"(quad.w), "l"(policy)
                 : "memory");
}

// 16 bytes to shared memory, as copy_async (sm_80 on).
__device__ __forceinline__ void copy_async_by(void* to, const void* from, unsigned long long policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(from), "l"(policy)
                 : "memory");
}
