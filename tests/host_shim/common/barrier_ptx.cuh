// The same functions without PTX.
#pragma once

#include "common/memory.cuh"

namespace host {

struct Barrier {
    unsigned run = runs;  // in which it was made
    unsigned ended = 0;   // phases
    bool arrived = false;
    long bytes = 0;  // expected, less those that have come

    void settle() {
        cluster->progress = true;
        if (!arrived || bytes) return;
        arrived = false;
        ++ended;
    }

    void come(unsigned count) {
        bytes -= count;
        settle();
    }
};

inline std::map<const void*, Barrier> barriers;

}  // namespace host

inline void barrier_init(unsigned long long* barrier) { host::barriers[barrier] = {}; }

inline void barrier_expect(unsigned long long* barrier, unsigned bytes) {
    host::Barrier& state = host::barriers.at(barrier);
    if (state.arrived) throw std::logic_error("two arrivals in one phase");
    state.arrived = true;
    state.bytes += bytes;
    state.settle();
}

inline void barrier_wait(unsigned long long* barrier, unsigned parity) {
    host::Barrier& state = host::barriers.at(barrier);
    while (state.ended % 2 == parity) host::give_turn();
    host::cluster->progress = true;
}
