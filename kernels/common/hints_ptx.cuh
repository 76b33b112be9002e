// Stores and copies that say how long L2 should keep what passes through it: the instructions (sm_80 on).
#pragma once

#include "common/async_ptx.cuh"
#include "common/policy_ptx.cuh"

__device__ __forceinline__ void store_by(void* to, uint4 quad, unsigned long long policy) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(quad.x), "r"(quad.y),
                 "r"(quad.z), "r"(quad.w), "l"(policy)
                 : "memory");
}

// 16 bytes to shared memory, as copy_async (sm_80 on).
__device__ __forceinline__ void copy_async_by(Place to, const void* from, unsigned long long policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to.address),
                 "l"(__cvta_generic_to_global(from)), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void copy_async_by(void* to, const void* from, unsigned long long policy) {
    copy_async_by(Place(to), from, policy);
}
