// The same functions without PTX; whoever waits gives its turn away.
#pragma once

inline void post_word(unsigned long long* place, float value, unsigned turn) {
    *place = static_cast<unsigned long long>(turn) << 32 | __float_as_uint(value);
    host::cluster->progress = true;
}

inline float await_word(const unsigned long long* place, unsigned turn) {
    while (static_cast<unsigned>(*place >> 32) != turn) host::give_turn();
    host::cluster->progress = true;
    return __uint_as_float(static_cast<unsigned>(*place));
}
