// Bulk copies from global to shared memory, which the copy engine makes and a barrier counts: the instructions (sm_90 on).
#pragma once

#include "common/async_ptx.cuh"
#include "common/barrier_ptx.cuh"

// What this thread wrote to shared memory lies before what bulk copies will write there.
__device__ __forceinline__ void before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// bytes: a multiple of 16, as both addresses are; the barrier expects them. What was read there before has come to whoever read
// it. KEEP: L2 keeps what comes before what is written. The policy is made for each copy: kept over a loop it would take two
// registers of every thread, where only one of a warp copies.
template <bool KEEP>
__device__ __forceinline__ void copy_bulk(Place to, const void* from, unsigned bytes, unsigned long long* barrier) {
    const auto origin = __cvta_generic_to_global(from);
    if constexpr (KEEP) {
        asm volatile(
            "{\n.reg .b64 policy;\n"
            "createpolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy;\n}" ::"r"(
                to.address),
            "l"(origin), "r"(bytes), "r"(shared_address(barrier))
            : "memory");
    } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to.address),
                     "l"(origin), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
    }
}
