// Rows that begin and end anywhere. Seen from 16-byte boundaries a row is a body of whole vectors between two ends of less
// than one each; nothing outside the row is touched. Where the pitch is no multiple of 16 bytes, rows start at every
// offset, but rows 16 / sizeof(T) apart start at the same one, whatever the pitch.
#pragma once

#include "common/element.cuh"
#include "common/memory.cuh"

// How a row lies, seen by one of the threads that share it.
template <typename T>
struct Span {
    static constexpr int N = 16 / sizeof(T);

    int head;  // elements before the first boundary, 0 to N - 1
    int body;  // vectors from there on
    int left;  // vectors from this thread's first one, which is its lane's, to the end of the body
    int edge;  // this thread's element of the ends, or -1: lanes 0 to N - 1 hold the head, N to 2 N - 1 the tail

    // ODD: false where rows are known to begin and end on boundaries.
    template <bool ODD = true>
    static __device__ __forceinline__ Span of(const T* row, int hidden, int lane) {
        if constexpr (!ODD) return {0, hidden / N, hidden / N - lane, -1};
        const int before = -static_cast<int>(reinterpret_cast<unsigned long long>(row) / sizeof(T)) & (N - 1);
        const int head = before < hidden ? before : hidden;
        const int body = static_cast<unsigned>(hidden - head) / N;
        const int edge = lane < N ? lane : head + (body - 1) * N + lane;
        const int limit = lane < N ? head : lane < 2 * N ? hidden : 0;
        return {head, body, body - lane, edge < limit ? edge : -1};
    }
};
