// Barriers in shared memory that count bytes, and the asynchronous copies that bring them: the instructions (sm_90 on).
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// A barrier whose phases end with one arrival and all expected bytes. One thread makes it; it may be used after a barrier
// of all who will.
__device__ __forceinline__ void barrier_init(unsigned long long* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // seen by copies and by other blocks too
}

// The one arrival of a phase, with the bytes it shall wait for; some of them may have come already.
__device__ __forceinline__ void barrier_expect(unsigned long long* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits for the end of the phase of this parity: 0 for the first one, 1 for the second, and so on by turns. What the
// phase's bytes are is seen afterwards.
__device__ __forceinline__ void barrier_wait(unsigned long long* barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred ended;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// Starts to copy `bytes`, a multiple of 16, between 16-byte boundaries; they count for the barrier's phase. Whoever calls it
// knows that nobody reads any more what was in the way.
__device__ __forceinline__ void bulk_load(uint4* to, const void* from, unsigned bytes, unsigned long long* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
