// The same functions without PTX: what was copied is there when it was waited for, and not before.
#pragma once

#include "common/copy.cuh"

namespace host {

struct Copies {
    std::vector<std::vector<Copy>> groups{1};

    void wait(std::size_t left) {
        while (groups.size() > left + 1) {
            for (const Copy& copy : groups.front()) copy.make();
            groups.erase(groups.begin());
        }
    }
};

// A copy that nobody waited for ends with its thread: what it would write to is another's by then.
inline Copies& own_copies() {
    std::any& own = block->threads[block->current].own;
    if (!own.has_value()) own = Copies{};
    return *std::any_cast<Copies>(&own);
}

}  // namespace host

template <int BYTES>
void copy_async(void* to, const void* from) {
    host::own_copies().groups.back().push_back(host::Copy::of<BYTES>(to, from, BYTES));
}

struct Place {
    uint4* address;
    explicit Place(uint4* place) : address(place) {}
    Place operator+(int vectors) const { return Place(address + vectors); }
    uint4 load() const { return *address; }
    void clear() const { *address = uint4{}; }
};

inline void copy_async(Place to, const void* from) { copy_async<16>(to.address, from); }

inline void store_where(bool wanted, void* to, uint4 quad) {
    if (wanted) *static_cast<uint4*>(to) = quad;
}

inline void in_turn() {}

inline void copy_commit() { host::own_copies().groups.emplace_back(); }

template <int LEFT>
void copy_wait() {
    host::own_copies().wait(LEFT);
}

inline void copy_wait(int left) { host::own_copies().wait(static_cast<std::size_t>(left)); }

inline void bring_to_l2(const void*) {}
