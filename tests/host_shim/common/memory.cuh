// The same functions without PTX; this folder is searched before the kernels' own.
#pragma once

constexpr int ARCH = 900;

inline uint4* launch_memory() { return host::block->memory.data(); }

template <typename Pointer>
Pointer aligned(Pointer place) {
    if (reinterpret_cast<std::uintptr_t>(place) % sizeof(uint4)) throw std::logic_error("16 bytes off their alignment");
    return place;
}

template <typename E>
const E* kept_in_l2(const E* from) {
    return from;
}

inline unsigned long long policy_keep() { return 0; }
inline unsigned long long policy_pass() { return 0; }
inline unsigned long long policy_usual() { return 0; }
inline uint4 load_by(const void* from, unsigned long long) { return *aligned(static_cast<const uint4*>(from)); }
inline uint4 load_once(const uint4* from) { return load_by(from, policy_keep()); }
inline void store(uint4* to, uint4 quad) { *aligned(to) = quad; }

template <typename Value>
Value kept(Value value) {
    return value;
}
