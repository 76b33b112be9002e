// Words that blocks of one grid hand each other while all of them are resident (a cooperative launch): the instructions.
//
// A word is three values and the number of its turn, 16 bytes that are written and read at once, so whoever sees the turn has
// the values: no fence, and no counter between the two. A place may be written for turn n + 2 once its writer has seen
// everybody's word of turn n + 1, so with two places by turns nothing is lost.
#pragma once

constexpr int WORDS = 5;  // that a lane waits for at a time

__device__ __forceinline__ void post_words(uint4* place, float a, float b, float c, unsigned turn) {
    asm volatile(
        "{\n.reg .b64 low, high;\n.reg .b128 word;\n"
        "mov.b64 low, {%1, %2};\nmov.b64 high, {%3, %4};\nmov.b128 word, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], word;\n}" ::"l"(place),
        "f"(a), "f"(b), "f"(c), "r"(turn)
        : "memory");
}

// Up to WORDS words, `many` of them, `apart` places from each other: each(k, a, b, c) once all are of this turn. They are asked for
// together, so that all of them take one trip to L2.
template <typename Each>
__device__ __forceinline__ void await_words(const uint4* place, int apart, int many, unsigned turn, const Each& each) {
    float a[WORDS], b[WORDS], c[WORDS];
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
        if (!there) __nanosleep(100);
    } while (!there);
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
        if (k < many) each(k, a[k], b[k], c[k]);
    }
}
