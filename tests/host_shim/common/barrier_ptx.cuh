// The same functions without PTX. Every second copy is made at once, the others when somebody waits for them: a buffer that
// is overwritten too early is seen by the former, one that is read too early by the latter.
#pragma once

#include "common/memory.cuh"

namespace host {

struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
};

struct Barrier {
    unsigned ended = 0;  // phases
    bool arrived = false;
    long bytes = 0;  // expected, less those that have come
    std::vector<Copy> pending;

    void settle() {
        cluster->progress = true;
        if (!arrived || bytes) return;
        arrived = false;
        ++ended;
    }

    void make(const Copy& copy) {
        std::memcpy(copy.to, copy.from, copy.bytes);
        bytes -= copy.bytes;
        settle();
    }
};

inline std::map<const void*, Barrier> barriers;
inline unsigned copies = 0;

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
    while (state.ended % 2 == parity) {
        if (state.pending.empty()) {
            host::give_turn();
        } else {
            const host::Copy copy = state.pending.front();
            state.pending.erase(state.pending.begin());
            state.make(copy);
        }
    }
    host::cluster->progress = true;
}

inline void bulk_load(uint4* to, const void* from, unsigned bytes, unsigned long long* barrier) {
    if (bytes == 0 || bytes % 16) throw std::logic_error("a bulk copy of no whole number of vectors");
    const auto* const end = host::block->memory.data() + host::block->memory.size() - host::kGuard;
    if (to < host::block->memory.data() || to + bytes / 16 > end) throw std::logic_error("a bulk copy outside the memory");
    host::Barrier& state = host::barriers.at(barrier);
    const host::Copy copy{aligned(to), aligned(static_cast<const uint4*>(from)), bytes};
    if (++host::copies % 2) state.make(copy);
    else state.pending.push_back(copy);
}
