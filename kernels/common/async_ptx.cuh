// Copies from global to shared memory that a thread starts now and waits for later: the instructions (sm_80 on). Before,
// they are plain copies. A thread sees its own copies once it has waited; others after a barrier besides.
#pragma once

#include "common/pack.cuh"

// BYTES: 4, 8 or 16, of which both addresses are a multiple. Of 16 bytes nothing passes through L1.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(from), "n"(BYTES) : "memory");
    }
#else
    using Word = typename Bits<BYTES>::Type;
    *static_cast<Word*>(to) = *static_cast<const Word*>(from);
#endif
}

// Ends a group of copies, which may be empty.
__device__ __forceinline__ void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all groups of this thread but the latest LEFT.
template <int LEFT>
__device__ __forceinline__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
