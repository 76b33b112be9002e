// Rows for clusters that stay, each taken when its cluster has room for it (sm_90 on).
//
// Equal shares are not done in equal times: by where it lies a multiprocessor moves up to half as many bytes again as another
// one, and at the end the fast ones wait for the slow ones. So only the first rows of a cluster are its own from the beginning.
// One warp of it takes the later ones from a counter in memory, each two rows' time before its number is sent to the cluster's
// blocks, and that one row's time before it is wanted.
//
// Rows of one class only, where a cluster must stay with rows that begin alike: `classes` of them take turns in memory.
#pragma once

#include "common/mail.cuh"

// OWN: rows that are the cluster's from the beginning.
template <int OWN>
struct Shares {
    static constexpr unsigned PLACES = 8;  // a power of two, more than rows whose numbers are on their way

    // The numbers of a cluster's rows, in each of its blocks.
    struct Queue {
        int row[PLACES];
        unsigned long long sent[PLACES];
    };

    Queue* queue;
    unsigned* counters;  // one for each class, then one of clusters that have ended; zero before the first launch, and after each
    int rows;
    int first, step;     // this cluster's number, and how many there are: a multiple of the classes
    int classes;
    bool fixed;          // all rows of a cluster are its own
    bool sends = false;  // this warp says what its block waits for; that of the first block takes the rows, too
    bool open = true;    // there may be more rows than have been asked for
    int round = 0;       // rows that have been asked for
    unsigned taken[2] = {};  // what the counter gave for the rows that will be sent next

    // Before the block arrives at the cluster's first meeting.
    static __device__ __forceinline__ void prepare(Queue* queue) {
        if (threadIdx.x != 0) return;
#pragma unroll
        for (unsigned i = 0; i < PLACES; ++i) mail_init(&queue->sent[i], 1);
    }

    // Before the first row is asked for.
    __device__ __forceinline__ void begin() {
        sends = !fixed && threadIdx.x / 32 == blockDim.x / 32 - 1;  // which has the least of a row
        if (!sends || threadIdx.x % 32 > 0 || cluster_rank() > 0) return;
        taken[0] = take();
        taken[1] = take();
    }

    // The next row; not less than `rows` where there is none. From the OWN-th on after all have waited for the cluster (cluster_wait).
    // Whoever asks until there is none has waited for all that was sent.
    __device__ __forceinline__ int next() {
        int row = rows;
        if (fixed || round < OWN) {
            row = first + round * step;
        } else if (open) {
            wait(round - OWN);
            row = queue->row[(round - OWN) % PLACES];
        }
        open = row < rows;
        ++round;
        if (open && sends && round >= OWN) send_taken(round - OWN);
        return row;
    }

    // The end of a kernel: the last cluster leaves the counters as they were.
    __device__ __forceinline__ void leave() const {
        if (!sends || threadIdx.x % 32 > 0 || cluster_rank() > 0) return;
        __threadfence();
        if (count_up(&counters[classes]) != static_cast<unsigned>(step) - 1) return;
        __threadfence();
        for (int i = 0; i <= classes; ++i) counters[i] = 0;
    }

private:
    __device__ __forceinline__ void wait(unsigned turn) const {
        barrier_wait(&queue->sent[turn % PLACES], turn / PLACES % 2);
    }

    // The row that was taken first.
    __device__ __forceinline__ void send_taken(unsigned turn) {
        const unsigned lane = threadIdx.x % 32, place = turn % PLACES;
        if (lane == 0) mail_expect(&queue->sent[place], sizeof(int));
        if (cluster_rank() > 0) return;
        const float value = __int_as_float(row_of(__shfl_sync(0xffffffffu, taken[0], 0)));
        if (lane < cluster_blocks()) mail(value, reinterpret_cast<float*>(&queue->row[place]), lane, &queue->sent[place]);
        if (lane > 0) return;
        taken[0] = taken[1];
        taken[1] = take();
    }

    __device__ __forceinline__ unsigned take() const { return count_up(&counters[first % classes]); }

    __device__ __forceinline__ int row_of(unsigned taken) const {
        return OWN * step + first % classes + static_cast<int>(taken) * classes;
    }
};
