// What the blocks of a cluster send each other, and the barrier that tells when it has come (sm_90 on). In a cluster of one block nothing
// is sent: values are written, and each sender arrives. (compute-sanitizer takes a send to oneself for an error, and follows arrivals.)
#pragma once

#include "common/cluster_ptx.cuh"

// One thread makes the barrier. senders: of this block, that mail something in each phase.
__device__ __forceinline__ void mail_init(unsigned long long* barrier, unsigned senders) {
    barrier_init(barrier, cluster_blocks() == 1 ? 1 + senders : 1);
}

// One thread a phase says what the phase waits for; some of it may have come already.
__device__ __forceinline__ void mail_expect(unsigned long long* barrier, unsigned bytes) {
    if (cluster_blocks() == 1) barrier_arrive(barrier);
    else barrier_expect(barrier, bytes);
}

// A value to where block `rank` has what this block has at `place`, by a thread that is one sender.
template <typename V>
__device__ __forceinline__ void mail(V value, V* place, unsigned rank, unsigned long long* barrier) {
    if (cluster_blocks() == 1) {
        *place = value;
        barrier_arrive(barrier);
    } else {
        send(value, place, rank, barrier);
    }
}
