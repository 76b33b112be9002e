// The threads of a cluster as the group that shares a row (sm_90 on).
#pragma once

#include "common/cluster_ptx.cuh"
#include "common/reduce.cuh"

struct Cluster {
    static constexpr int WARPS = 256;  // of all blocks together, at most

    // What one call of sum needs, at the same place in every block.
    struct Mail {
        float part[2 * WARPS];
        unsigned long long arrived;
        unsigned long long unused;  // to a whole number of 16-byte vectors
    };

    int rank;
    int blocks;

    static __device__ __forceinline__ Cluster here() {
        return {static_cast<int>(cluster_rank()), static_cast<int>(cluster_blocks())};
    }

    __device__ __forceinline__ int size() const { return blocks * static_cast<int>(blockDim.x); }
    __device__ __forceinline__ int lane() const { return rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ long long row() const { return blockIdx.x / blocks; }

    // Replaces each value by its sum over the cluster, in every thread. Each warp sends its part to every block, and every
    // warp adds up all parts in the same order when its block has them; there is no other barrier. mail: another one than the
    // call before used. parity: of the times this mail was used before.
    template <int COUNT>
    __device__ __forceinline__ void sum(float (&values)[COUNT], Mail* mail, unsigned parity) const {
        Group<32>::sum(values, nullptr);
        const int warps = blockDim.x / 32;
        const int lane = threadIdx.x % 32;
        if (threadIdx.x == 0) barrier_expect(&mail->arrived, blocks * warps * sizeof(values));
        if (lane < blocks) send(values, mail->part + (rank * warps + threadIdx.x / 32) * COUNT, lane, &mail->arrived);
        barrier_wait(&mail->arrived, parity);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) values[k] = 0.0f;
        for (int part = lane; part < blocks * warps; part += 32) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) values[k] += mail->part[part * COUNT + k];
        }
        Group<32>::sum(values, nullptr);
    }
};
