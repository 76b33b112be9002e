// The same functions without PTX.
#pragma once

#include "common/async_ptx.cuh"
#include "common/memory.cuh"

inline void store_by(void* to, uint4 quad, unsigned long long) { store(static_cast<uint4*>(to), quad); }
inline void copy_async_by(Place to, const void* from, unsigned long long) { copy_async(to, from); }
inline void copy_async_by(void* to, const void* from, unsigned long long) { copy_async<16>(to, from); }
