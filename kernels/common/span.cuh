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

    static __device__ __forceinline__ Span of(const T* row, int hidden, int lane) {
        const int before = -static_cast<int>(reinterpret_cast<unsigned long long>(row) / sizeof(T)) & (N - 1);
        const int head = before < hidden ? before : hidden;
        const int body = static_cast<unsigned>(hidden - head) / N;
        const int edge = lane < N ? lane : head + (body - 1) * N + lane;
        const int limit = lane < N ? head : lane < 2 * N ? hidden : 0;
        return {head, body, body - lane, edge < limit ? edge : -1};
    }
};

// Fills a slot with N elements from any element address. The words come in aligned vectors, one more than fit where they
// begin between two boundaries, and are moved down by the difference: 2 loads and some 15 operations in place of 8 loads
// of 2 bytes. A vector is read only where it holds a wanted element; the rest of it may lie outside the array, which no
// protection of memory can see, for that is by far larger units.
template <typename E, int N>
__device__ __forceinline__ void load_shifted(Slot<E, N, 1>& slot, const E* mine) {
    constexpr int WORDS = Slot<E, N, 1>::WORDS;
    const unsigned long long address = reinterpret_cast<unsigned long long>(mine);
    const unsigned shift = address % 16;
    const uint4* const from = reinterpret_cast<const uint4*>(address - shift);
    unsigned word[WORDS + 4];
#pragma unroll
    for (int k = 0; k <= WORDS; k += 4) {
        const uint4 quad = k < WORDS || shift ? __ldg(from + k / 4) : make_uint4(0u, 0u, 0u, 0u);
        word[k] = quad.x;
        word[k + 1] = quad.y;
        word[k + 2] = quad.z;
        word[k + 3] = quad.w;
    }
#pragma unroll
    for (int k = 0; k < WORDS + 2; ++k) word[k] = shift & 8 ? word[k + 2] : word[k];
#pragma unroll
    for (int k = 0; k < WORDS + 1; ++k) word[k] = shift & 4 ? word[k + 1] : word[k];
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        slot.word[k] = sizeof(E) == 2 ? __funnelshift_r(word[k], word[k + 1], shift % 4 * 8) : word[k];
    }
}
