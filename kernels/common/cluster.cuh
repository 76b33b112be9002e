// The threads of a cluster as those that share a row (sm_90 on).
#pragma once

#include "common/mail.cuh"
#include "common/reduce.cuh"

struct Cluster {
    using Near = Group<32>;
    static constexpr int LANES = 32;  // that reach each other by shuffles
    static constexpr bool WHOLE = false;
    static constexpr int WARPS = 256;  // of all blocks together, at most

    // What one meeting of a row needs, at the same place in every block.
    struct Mail {
        float4 part[WARPS];
        unsigned long long arrived;
        unsigned long long unused;  // to a whole number of 16-byte vectors

        // One thread makes it, before the block arrives at the cluster's first meeting.
        __device__ __forceinline__ void prepare() { mail_init(&arrived, blockDim.x / 32); }
    };

    Mail* mail;
    int rank;
    int blocks;
    unsigned parity = 0;  // of the times this mail was used before

    static __device__ __forceinline__ Cluster here(Mail* mail) {
        return {mail, static_cast<int>(cluster_rank()), static_cast<int>(cluster_blocks())};
    }

    // The same threads, for another meeting, in the mail after this one.
    __device__ __forceinline__ Cluster next() const { return {mail + 1, rank, blocks}; }

    __device__ __forceinline__ int size() const { return blocks * static_cast<int>(blockDim.x); }
    __device__ __forceinline__ int lane() const { return rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ long long row() const { return blockIdx.x / blocks; }
    __device__ __forceinline__ int warps() const { return size() / 32; }

    // Hands out what a warp has in all its lanes, of which each sends it to one block. All blocks have started (cluster_wait).
    template <typename V>
    __device__ __forceinline__ void post(V mine) const {
        const int lane = threadIdx.x % 32;
        const int warp = rank * static_cast<int>(blockDim.x / 32) + static_cast<int>(threadIdx.x / 32);
        if (threadIdx.x == 0) mail_expect(&mail->arrived, warps() * sizeof(V));
        if (lane < blocks) ::mail(mine, reinterpret_cast<V*>(mail->part) + warp, lane, &mail->arrived);
    }

    // What all warps have handed out, in their order, once for each mail and parity. A block has it when its barrier has counted
    // all; nobody writes to it any more then, so it may end.
    template <typename V>
    __device__ __forceinline__ const V* posted() const {
        barrier_wait(&mail->arrived, parity);
        return reinterpret_cast<const V*>(mail->part);
    }
};

// How the threads of a cluster meet once a row, over many rows; as meeting.cuh says. Nobody sends to a mail that is still
// read: whoever sends for the row after next has what all sent for the next one, after they had read this one's.
struct ClusterMeeting {
    static constexpr bool ALONE = false;
    static constexpr bool SHARED = false;
    static constexpr bool TIGHT = true;
    static constexpr int STRIDE = 32;
    static constexpr int MAILS = 4;  // of the sums by turns, of the statistics by turns
    Cluster::Mail* mails;
    int rank;
    int blocks;
    unsigned turn = 0, statistics = 0;

    // The beginning of a kernel: its mails are ready for all blocks once it has waited for the cluster (cluster_wait).
    static __device__ __forceinline__ ClusterMeeting arrive(Cluster::Mail* mails) {
        if (threadIdx.x == 0) {
#pragma unroll
            for (int i = 0; i < MAILS; ++i) mails[i].prepare();
        }
        __syncwarp();
        cluster_arrive();
        return ClusterMeeting(mails);
    }

    __device__ __forceinline__ explicit ClusterMeeting(Cluster::Mail* mails)
        : mails(mails), rank(static_cast<int>(cluster_rank())), blocks(static_cast<int>(cluster_blocks())) {}

    __device__ __forceinline__ int size() const { return sums().size(); }
    __device__ __forceinline__ int lane() const { return sums().lane(); }
    // The warps of all blocks take turns, so that every block has its share of a row of any length.
    __device__ __forceinline__ int vector(int vecs) const {
        return (static_cast<int>(threadIdx.x / 32) * blocks + rank) * vecs * 32 + static_cast<int>(threadIdx.x % 32);
    }

    // For what is handed out a row before it is wanted: of this turn, and then of the next one.
    __device__ __forceinline__ Cluster sums() const { return {mails + turn % 2, rank, blocks, turn / 2 % 2}; }
    __device__ __forceinline__ void pass() { ++turn; }

    // For one more meeting before the row's own, by turns in two places.
    __device__ __forceinline__ Cluster team() {
        const unsigned now = statistics++;
        return {mails + 2 + now % 2, rank, blocks, now / 2 % 2};
    }

    template <bool BOTH>
    __device__ __forceinline__ void hand_out(float2 mine) {
        sums().post(sum_of_warp<BOTH>(mine));
    }

    template <bool BOTH>
    __device__ __forceinline__ float2 handed_out() {
        const Cluster cluster = sums();
        const float2* const all = cluster.posted<float2>();
        float2 found = make_float2(0.0f, 0.0f);
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < cluster.warps(); i += 32) {
            if constexpr (BOTH) found.x += all[i].x;
            found.y += all[i].y;
        }
        pass();
        return sum_of_warp<BOTH>(found);
    }
};
