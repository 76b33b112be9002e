// The same functions without PTX.
#pragma once

#include "common/copy.cuh"
#include "common/memory.cuh"

namespace host {

struct Barrier {
    unsigned run = runs;  // in which it was made
    unsigned ended = 0;   // phases
    unsigned arrivals = 1;  // that end a phase
    unsigned there = 0;     // of them
    long bytes = 0;  // expected, less those that have come
    std::vector<Copy> coming;  // made for whoever waits

    void settle() {
        cluster->progress = true;
        if (there < arrivals || bytes) return;
        there = 0;
        ++ended;
    }

    void arrive() {
        if (there == arrivals) throw std::logic_error("more arrivals than end a phase");
        ++there;
        settle();
    }

    void come(unsigned count) {
        bytes -= count;
        settle();
    }

    void bring() {
        const std::vector<Copy> all = std::move(coming);
        coming.clear();
        for (const Copy& copy : all) {
            copy.make();
            come(static_cast<unsigned>(copy.bytes));
        }
    }
};

inline std::map<const void*, Barrier> barriers;

}  // namespace host

inline void barrier_init(unsigned long long* barrier, unsigned arrivals = 1) {
    host::barriers[barrier] = {};
    host::barriers[barrier].arrivals = arrivals;
}

inline void barrier_arrive(unsigned long long* barrier) { host::barriers.at(barrier).arrive(); }

inline void barrier_expect(unsigned long long* barrier, unsigned bytes) {
    host::Barrier& state = host::barriers.at(barrier);
    state.bytes += bytes;
    state.arrive();
}

inline void barrier_wait(unsigned long long* barrier, unsigned parity) {
    host::Barrier& state = host::barriers.at(barrier);
    while (state.ended % 2 == parity) {
        state.bring();
        if (state.ended % 2 == parity) host::give_turn();
    }
    host::cluster->progress = true;
}
