// The same functions without PTX; whoever waits gives its turn away.
#pragma once

inline void tell(unsigned* place, unsigned count) {
    *place = count;
    host::cluster->progress = true;
}

inline void tell_read(unsigned* place, unsigned count) { tell(place, count); }
inline unsigned told(const unsigned* place) { return *place; }

inline void await_told(const unsigned* place, unsigned count, unsigned known = 0) {
    while (known < count && *place < count) host::give_turn();
    host::cluster->progress = true;
}
