// The threads of a cluster as the group that shares a row (sm_90 on).
#pragma once

#include "common/cluster_ptx.cuh"
#include "common/reduce.cuh"

// The threads that share a row: all of a cluster's.
struct Cluster {
    static constexpr int WARPS = 256;  // of all blocks together, at most

    int rank;
    int blocks;

    static __device__ __forceinline__ Cluster here() {
        return {static_cast<int>(cluster_rank()), static_cast<int>(cluster_blocks())};
    }

    __device__ __forceinline__ int size() const { return blocks * static_cast<int>(blockDim.x); }
    __device__ __forceinline__ int lane() const { return rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ long long row() const { return blockIdx.x / blocks; }

    // Replaces each value by its sum over the cluster, in every thread, with one barrier: each warp hands its part to every
    // block, and every warp adds up all parts, in the same order. scratch: COUNT * WARPS floats of shared memory, at the same
    // place in every block, that the call before did not use.
    template <int COUNT>
    __device__ __forceinline__ void sum(float (&values)[COUNT], float* scratch) const {
        Group<32>::sum(values, scratch);
        const int warps = blockDim.x / 32;
        const int lane = threadIdx.x % 32;
        if (lane < blocks) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                store_remote(scratch + k * WARPS + rank * warps + threadIdx.x / 32, lane, values[k]);
            }
        }
        cluster_arrive();
        cluster_wait();
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            values[k] = 0.0f;
            for (int part = lane; part < blocks * warps; part += 32) values[k] += scratch[k * WARPS + part];
        }
        Group<32>::sum(values, scratch);
    }
};
