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

// N elements that begin `bytes` bytes, 0 to 6, behind an 8-byte boundary, on their way: the aligned pairs of words that they fill,
// then the word and the half word in which they end, and nothing else behind them. What is read before them belongs to the array where
// its base is a multiple of 8 bytes. When they have come the words move down by the difference: for 8 elements of
// 2 bytes that is 2 to 4 loads, 4 selections and 4 funnel shifts in place of 8 loads. (Aligned vectors of 16 bytes are 2
// loads, but 11 selections, and end outside the array.)
template <typename E, int N>
struct Shifted {
    static constexpr int WORDS = Slot<E, N, 1>::WORDS;
    unsigned word[WORDS + 1];
    unsigned half = 0;

    __device__ __forceinline__ void ask(const uint2* boundary, unsigned bytes) {
        const unsigned* const end = reinterpret_cast<const unsigned*>(boundary) + WORDS;
#pragma unroll
        for (int k = 0; k < WORDS; k += 2) {
            const uint2 pair = __ldg(boundary + k / 2);
            word[k] = pair.x;
            word[k + 1] = pair.y;
        }
        word[WORDS] = bytes & 4 ? __ldg(end) : 0u;
        if constexpr (sizeof(E) == 2) {
            half = bytes & 2 ? __ldg(reinterpret_cast<const unsigned short*>(end) + bytes / 4 * 2) : 0u;
        }
    }

    __device__ __forceinline__ void take(Slot<E, N, 1>& slot, unsigned bytes) {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) word[k] = bytes & 4 ? word[k + 1] : word[k];
        if constexpr (sizeof(E) == 2) word[WORDS] = half;
#pragma unroll
        for (int k = 0; k < WORDS; ++k) {
            slot.word[k] = sizeof(E) == 2 ? __funnelshift_r(word[k], word[k + 1], bytes & 2 ? 16 : 0) : word[k];
        }
    }
};

template <typename E, int N>
__device__ __forceinline__ void load_shifted(Slot<E, N, 1>& slot, const uint2* boundary, unsigned bytes) {
    Shifted<E, N> shifted;
    shifted.ask(boundary, bytes);
    shifted.take(slot, bytes);
}
