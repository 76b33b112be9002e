// The same functions without PTX: what was copied is there at once, or when somebody waits for its barrier and not before.
#pragma once

#include "common/async_ptx.cuh"
#include "common/barrier_ptx.cuh"

inline void before_copies() {}

template <bool KEEP>
void copy_bulk(Place to, const void* from, unsigned bytes, unsigned long long* barrier) {
    if (bytes == 0 || bytes % 16) throw std::logic_error("a bulk copy of no whole vectors");
    host::Barrier& state = host::barriers.at(barrier);
    state.coming.push_back(host::Copy::of<16>(to.address, from, bytes));
    if (host::draw() % 2) state.bring();
}
