// How long L2 should keep what passes through it: the words that a load or a store says it with. Before sm_80 they say nothing.
#pragma once

// Wanted again, or before all else: what others bring in, and what is written, is thrown out first.
__device__ __forceinline__ unsigned long long policy_keep() {
    unsigned long long policy = 0;
#if __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// Not wanted again soon.
__device__ __forceinline__ unsigned long long policy_pass() {
    unsigned long long policy = 0;
#if __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// As without a hint.
__device__ __forceinline__ unsigned long long policy_usual() {
    unsigned long long policy = 0;
#if __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
