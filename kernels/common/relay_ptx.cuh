// Counts that warps of a block hand each other while both go on: the instructions.
//
// One warp writes what another reads, in pieces, and tells how many are there; the other tells how many it has read.
#pragma once

__device__ __forceinline__ unsigned relay_address(const void* place) {
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// What this thread wrote before is seen by whoever is told. In shared memory.
__device__ __forceinline__ void tell(unsigned* place, unsigned count) {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(relay_address(place)), "r"(count) : "memory");
}

// How much this thread has read, and used: what it read is not looked at again, so no fence holds up what it does next.
__device__ __forceinline__ void tell_read(unsigned* place, unsigned count) {
    asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(relay_address(place)), "r"(count) : "memory");
}

// How many there are now.
__device__ __forceinline__ unsigned told(const unsigned* place) {
    unsigned count;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(count) : "r"(relay_address(place)) : "memory");
    return count;
}

// Waits until there are so many. known: what was told before.
__device__ __forceinline__ void await_told(const unsigned* place, unsigned count, unsigned known = 0) {
    while (known < count) known = told(place);
}
