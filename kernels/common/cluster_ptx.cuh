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

// Which cluster of the launch, and how many there are: registers of their own, so that the compiler knows them to be the same for
// all threads, and what follows from them too.
__device__ __forceinline__ int cluster_index() {
    unsigned index;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return static_cast<int>(index);
}

__device__ __forceinline__ int cluster_count() {
    unsigned count;
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
    return static_cast<int>(count);
}

// Every thread of the cluster arrives, then waits for all the others. Arriving says nothing about what a thread wrote, so that it
// waits for no memory; barriers that were made before are seen (barrier_init).
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Address in shared memory of what block `rank` of the cluster has where this block has `mine`.
__device__ __forceinline__ unsigned there(const void* mine, unsigned rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(rank));
    return address;
}

// Sends a value to where block `rank` has what this block has at `mine`; its bytes count for that block's barrier. That block
// must have made the barrier, and must wait for it before it ends. For clusters of several blocks (mail.cuh).
__device__ __forceinline__ void send(float value, float* mine, unsigned rank, unsigned long long* barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there(mine, rank)),
                 "f"(value), "r"(there(barrier, rank))
                 : "memory");
}

__device__ __forceinline__ void send(float2 value, float2* mine, unsigned rank, unsigned long long* barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there(mine, rank)),
                 "f"(value.x), "f"(value.y), "r"(there(barrier, rank))
                 : "memory");
}

__device__ __forceinline__ void send(float4 value, float4* mine, unsigned rank, unsigned long long* barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     there(mine, rank)),
                 "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(there(barrier, rank))
                 : "memory");
}

// Adds 1 to a counter in global memory, below 2^31, for the thread that calls; what was there, which is waited for where it is used. Of
// plain additions the compiler makes one for all threads of a warp that may be there, and waits at once to tell them apart.
__device__ __forceinline__ unsigned count_up(unsigned* counter) {
    unsigned before;
    asm volatile("atom.global.inc.u32 %0, [%1], 0x7fffffff;" : "=r"(before) : "l"(__cvta_generic_to_global(counter)) : "memory");
    return before;
}
