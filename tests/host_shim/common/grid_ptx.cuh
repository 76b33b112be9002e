// The same functions without PTX; whoever waits gives its turn away.
#pragma once

inline void post_words(uint4* place, float a, float b, float c, unsigned turn) {
    *place = {__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), turn};
    host::cluster->progress = true;
}

template <int WORDS>
void await_words(const uint4* place, int apart, int many, unsigned turn, float (&a)[WORDS], float (&b)[WORDS],
                 float (&c)[WORDS]) {
    for (int k = 0; k < WORDS && k < many; ++k) {
        const uint4& word = place[k * apart];
        while (word.w != turn) host::give_turn();
        host::cluster->progress = true;
        a[k] = __uint_as_float(word.x);
        b[k] = __uint_as_float(word.y);
        c[k] = __uint_as_float(word.z);
    }
}

template <int THREADS>
void barrier_of(int number) {
    host::gather(host::block->gatherings[number + 1], THREADS);
}
