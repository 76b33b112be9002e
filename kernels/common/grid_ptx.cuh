// Words that blocks of one grid hand each other while all of them are resident (a cooperative launch): the instructions.
//
// A word carries a value and the number of its turn in eight bytes that are written and read at once, so whoever sees the
// turn has the value: no fence, and no counter between the two. A place may be written for turn n + 2 once its writer has
// seen everybody's word of turn n + 1, so with two places by turns nothing is lost.
#pragma once

__device__ __forceinline__ void post_word(unsigned long long* place, float value, unsigned turn) {
    const unsigned long long word = static_cast<unsigned long long>(turn) << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
}

// The value of this turn, once it is there.
__device__ __forceinline__ float await_word(const unsigned long long* place, unsigned turn) {
    unsigned long long word;
    do {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    } while (static_cast<unsigned>(word >> 32) != turn);
    return __uint_as_float(static_cast<unsigned>(word));
}
