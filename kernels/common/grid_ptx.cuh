// Words that blocks of one grid hand each other while all of them are resident (a cooperative launch): the instructions.
//
// A word is three values and the number of its turn, 16 bytes that are written and read at once, so whoever sees the turn has
// the values: no fence, and no counter between the two. A place may be written for turn n + 2 once its writer has seen
// everybody's word of turn n + 1, so with two places by turns nothing is lost.
#pragma once

__device__ __forceinline__ void post_words(uint4* place, float a, float b, float c, unsigned turn) {
    asm volatile(
        "{\n.reg .b64 low, high;\n.reg .b128 word;\n"
        "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 word, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], word;\n}" ::"l"(place),
        "f"(a), "f"(b), "f"(c), "r"(turn)
        : "memory");
}

// The first `many` of WORDS words, `apart` places from each other, once all are of this turn. They are asked for together, so
// that all of them take one trip to L2, and at once again where one is missing: __nanosleep, however short, took 2.6
// microseconds of a meeting that takes 0.8. The others are left as they are.
template <int WORDS>
__device__ __forceinline__ void await_words(const uint4* place, int apart, int many, unsigned turn, float (&a)[WORDS],
                                            float (&b)[WORDS], float (&c)[WORDS]) {
    bool there;
    do {
        there = true;
#pragma unroll
        for (int k = 0; k < WORDS; ++k) {
            unsigned seen = turn;
            if (k < many) {
                asm volatile(
                    "{\n.reg .b64 low, high;\n.reg .b128 word;\n"
                    "ld.relaxed.gpu.global.b128 word, [%4];\n"
                    "mov.b128 {low, high}, word;\nmov.b64 {%0, %1}, low;\nmov.b64 {%2, %3}, high;\n}"
                    : "=f"(a[k]), "=f"(b[k]), "=f"(c[k]), "=r"(seen)
                    : "l"(place + k * apart)
                    : "memory");
            }
            there = there && seen == turn;
        }
    } while (!there);
}

// A barrier of THREADS neighbouring threads of a block, the number-th of them; 15 at most have one of their own.
template <int THREADS>
__device__ __forceinline__ void barrier_of(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "n"(THREADS) : "memory");
}
