// The threads of a cluster as those that share a row (sm_90 on).
#pragma once

#include "common/cluster_ptx.cuh"
#include "common/reduce.cuh"

struct Cluster {
    using Near = Group<32>;
    static constexpr bool WHOLE = false;
    static constexpr int WARPS = 256;  // of all blocks together, at most

    // What one row needs, at the same place in every block.
    struct Mail {
        float4 part[WARPS];
        unsigned long long arrived;
        unsigned long long unused;  // to a whole number of 16-byte vectors
    };

    Mail* mail;
    int rank;
    int blocks;

    static __device__ __forceinline__ Cluster here(Mail* mail) {
        return {mail, static_cast<int>(cluster_rank()), static_cast<int>(cluster_blocks())};
    }

    __device__ __forceinline__ int size() const { return blocks * static_cast<int>(blockDim.x); }
    __device__ __forceinline__ int lane() const { return rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ long long row() const { return blockIdx.x / blocks; }
    __device__ __forceinline__ int warps() const { return size() / 32; }

    // Hands out what a warp has in its first lane: it sends it to every block. All blocks have started (cluster_wait).
    template <typename V>
    __device__ __forceinline__ void post(V mine) const {
        const int lane = threadIdx.x % 32;
        const int warp = rank * static_cast<int>(blockDim.x / 32) + static_cast<int>(threadIdx.x / 32);
        if (threadIdx.x == 0) barrier_expect(&mail->arrived, warps() * sizeof(V));
        if (lane < blocks) send(mine, reinterpret_cast<V*>(mail->part) + warp, lane, &mail->arrived);
    }

    // What all warps have handed out, in their order, once for each mail. A block has it when its barrier has counted the
    // bytes; nobody writes to it any more then, so it may end.
    template <typename V>
    __device__ __forceinline__ const V* posted() const {
        barrier_wait(&mail->arrived, 0);
        return reinterpret_cast<const V*>(mail->part);
    }
};
