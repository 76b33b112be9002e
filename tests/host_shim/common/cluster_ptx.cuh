// The same functions without PTX.
#pragma once

#include "common/barrier_ptx.cuh"

inline unsigned cluster_blocks() { return host::cluster->blocks.size(); }
inline unsigned cluster_rank() { return blockIdx.x % cluster_blocks(); }
inline int cluster_index() { return static_cast<int>(blockIdx.x / cluster_blocks()); }
inline int cluster_count() { return static_cast<int>(gridDim.x / cluster_blocks()); }
inline void cluster_arrive() { host::cluster_arrive(); }
inline void cluster_wait() { host::cluster_wait(); }

template <typename V>
V* there(V* mine, unsigned rank) {
    const auto place = reinterpret_cast<char*>(mine) - reinterpret_cast<char*>(host::block->memory.data());
    return reinterpret_cast<V*>(reinterpret_cast<char*>(host::cluster->blocks.at(rank)->memory.data()) + place);
}

template <typename V>
void send(V value, V* mine, unsigned rank, unsigned long long* barrier) {
    const auto found = host::barriers.find(there(barrier, rank));
    if (found == host::barriers.end()) throw std::logic_error("values sent to a block that has not started");
    *there(mine, rank) = value;
    found->second.come(sizeof value);
}

inline unsigned count_up(unsigned* counter) { return (*counter)++; }
