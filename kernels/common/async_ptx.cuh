// Copies into shared memory that a thread starts and later waits for, and nobody else need know: the instructions (sm_80 on).
// Loads in flight then cost neither registers nor a barrier.
#pragma once

// 16 bytes, by L1.
__device__ __forceinline__ void copy_ahead(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}

// What the thread has started since the last call is one batch, which may be empty.
__device__ __forceinline__ void copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until no more than `pending` of the thread's batches, 0 to 6, are on their way.
__device__ __forceinline__ void copies_awaited(int pending) {
    switch (pending) {
        case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
        case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
        case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
        case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
        case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
        case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
        default: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
    }
}

// Brings a line to L2, for whoever loads from it later.
__device__ __forceinline__ void bring_to_l2(const void* place) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(place)));
}
