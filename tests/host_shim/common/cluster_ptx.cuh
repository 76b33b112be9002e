// The same functions without PTX.
#pragma once

inline unsigned cluster_blocks() { return host::cluster->blocks.size(); }
inline unsigned cluster_rank() { return blockIdx.x % cluster_blocks(); }
inline void cluster_arrive() { host::cluster_arrive(); }
inline void cluster_wait() { host::cluster_wait(); }

inline void store_remote(float* mine, unsigned rank, float value) {
    const auto place = mine - reinterpret_cast<float*>(host::block->memory.data());
    reinterpret_cast<float*>(host::cluster->blocks.at(rank)->memory.data())[place] = value;
}
