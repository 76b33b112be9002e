// Blocks that run side by side and reach into each other's shared memory: the instructions (sm_90 on).
#pragma once

#include "common/barrier_ptx.cuh"

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ unsigned cluster_blocks() {
    unsigned blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

// Every thread of the cluster arrives, then waits for all the others. It also waits for the thread's own writes to memory,
// so it is not for every row.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Address in shared memory of what block `rank` of the cluster has where this block has `mine`.
__device__ __forceinline__ unsigned there(const void* mine, unsigned rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(rank));
    return address;
}

// Sends values to where block `rank` has what this block has at `mine`; their bytes count for its barrier. That block must
// have made the barrier, and must wait for it before it ends.
__device__ __forceinline__ void send(const float (&values)[1], float* mine, unsigned rank, unsigned long long* barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there(mine, rank)),
                 "f"(values[0]), "r"(there(barrier, rank))
                 : "memory");
}

__device__ __forceinline__ void send(const float (&values)[2], float* mine, unsigned rank, unsigned long long* barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there(mine, rank)),
                 "f"(values[0]), "f"(values[1]), "r"(there(barrier, rank))
                 : "memory");
}
