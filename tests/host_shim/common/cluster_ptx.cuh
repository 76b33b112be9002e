// The same functions without PTX.
#pragma once

#include "common/barrier_ptx.cuh"

inline unsigned cluster_blocks() { return host::cluster->size; }
inline unsigned cluster_rank() { return blockIdx.x % cluster_blocks(); }
inline int cluster_index() { return static_cast<int>(blockIdx.x / cluster_blocks()); }
inline int cluster_count() { return static_cast<int>(gridDim.x / cluster_blocks()); }
inline void cluster_arrive() { host::cluster_arrive(); }
inline void cluster_wait() { host::cluster_wait(); }

template <typename V>
V* there(V* mine, unsigned rank) {
    const auto place = reinterpret_cast<char*>(mine) - reinterpret_cast<char*>(host::block->memory.data());
    if (rank >= host::cluster->size) throw std::logic_error("a block that is not in the cluster");
    host::Block& other = *host::cluster->blocks.at(host::block->place / host::cluster->size * host::cluster->size + rank);
    return reinterpret_cast<V*>(reinterpret_cast<char*>(other.memory.data()) + place);
}

template <typename V>
void send(V value, V* mine, unsigned rank, unsigned long long* barrier) {
    const auto found = host::barriers.find(there(barrier, rank));
    if (found == host::barriers.end() || found->second.run != host::runs) {
        throw std::logic_error("values sent to a block that has not started");
    }
    *there(mine, rank) = value;
    found->second.come(sizeof value);
}

inline unsigned count_up(unsigned* counter) { return (*counter)++; }
