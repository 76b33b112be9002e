// Barriers in shared memory that count arrivals, and bytes sent to them: the instructions (sm_90 on).
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// A barrier whose phases end with as many arrivals and all expected bytes. One thread makes it; it may be used after a barrier
// of all who will.
__device__ __forceinline__ void barrier_init(unsigned long long* barrier, unsigned arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // seen by other blocks too
}

// An arrival. What this thread wrote in shared memory is seen by those who have waited for the end of the phase.
__device__ __forceinline__ void barrier_arrive(unsigned long long* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// The one arrival of a phase, with the bytes it shall wait for; some of them may have come already.
__device__ __forceinline__ void barrier_expect(unsigned long long* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits for the end of the phase of this parity: 0 for the first one, 1 for the second, and so on by turns. What the
// phase's bytes are is seen afterwards: it lies in this block's own shared memory, which nothing caches. So the wait acquires
// for the block only; with the scope of the cluster each one empties L1 (CCTL.IVALL), and gamma and beta are there.
__device__ __forceinline__ void barrier_wait(unsigned long long* barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred ended;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}
