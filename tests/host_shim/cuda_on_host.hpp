// Runs a CUDA kernel's source as C++ on the CPU, to find wrong indices and missing barriers where there is no GPU.
//
// A CUDA thread is a fiber, the threads of a block take turns, blocks run one after another. Barriers and warp shuffles are
// rendezvous: a fiber that waits gives its turn away until the others have come. What real hardware adds (memory order,
// warps that run side by side, approximate arithmetic, alignment faults, time) is not there, so a pass here is not a pass
// on a GPU. Kernels with inline PTX do not compile here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#undef __global__
#undef __device__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#define __global__ static
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace host {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStackBytes = 128 * 1024;

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    uint3 index;
    bool done;
};

struct Warp {
    unsigned arrived = 0;
    unsigned generation = 0;
    std::uint64_t value[2][kWarp] = {};
};

struct Block {
    explicit Block(unsigned size) : size{size, 1, 1}, threads(size), warps((size + kWarp - 1) / kWarp) {
        for (Thread& thread : threads) thread.stack = std::make_unique<char[]>(kStackBytes);
    }
    uint3 index{};
    uint3 size;
    uint3 grid{};
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<uint4> memory;  // what the launch asked for, and a guard
    ucontext_t scheduler;
    const std::function<void()>* body = nullptr;
    unsigned current = 0;
    unsigned at_barrier = 0;
    unsigned barrier_generation = 0;
    bool progress = false;
    std::string error;
};

inline Block* block = nullptr;

inline void give_turn() { swapcontext(&block->threads[block->current].context, &block->scheduler); }

// Waits until `generation` has moved on from `from`.
inline void wait(const unsigned& generation, unsigned from) {
    while (generation == from) give_turn();
    block->progress = true;
}

inline void barrier() {
    const unsigned from = block->barrier_generation;
    block->progress = true;
    if (++block->at_barrier == block->size.x) {
        block->at_barrier = 0;
        ++block->barrier_generation;
    } else {
        wait(block->barrier_generation, from);
    }
}

// The value that lane `source` of this thread's warp handed in at the same call.
inline std::uint64_t exchange(std::uint64_t value, unsigned source) {
    Warp& warp = block->warps[block->current / kWarp];
    const unsigned from = warp.generation;
    const unsigned size = std::min(kWarp, block->size.x - block->current / kWarp * kWarp);
    warp.value[from % 2][block->current % kWarp] = value;
    block->progress = true;
    if (++warp.arrived == size) {
        warp.arrived = 0;
        ++warp.generation;
    } else {
        wait(warp.generation, from);
    }
    return warp.value[from % 2][source];
}

template <typename V>
V shuffle(unsigned mask, V value, unsigned source) {
    static_assert(sizeof(V) <= sizeof(std::uint64_t));
    if (mask != 0xffffffffu) throw std::logic_error("a shuffle of part of a warp");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = exchange(bits, source);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned lane() { return block->current % kWarp; }

inline void enter() {
    try {
        (*block->body)();
    } catch (const std::exception& error) {
        block->error = error.what();
    }
    block->threads[block->current].done = true;
    block->progress = true;
    give_turn();
}

inline void run_block(const std::function<void()>& body) {
    block->body = &body;
    block->at_barrier = 0;
    for (Warp& warp : block->warps) warp = Warp{};
    for (unsigned i = 0; i < block->size.x; ++i) {
        Thread& thread = block->threads[i];
        thread.index = {i, 0, 0};
        thread.done = false;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = kStackBytes;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, reinterpret_cast<void (*)()>(enter), 0);
    }
    for (unsigned running = block->size.x; running > 0;) {
        block->progress = false;
        for (block->current = 0; block->current < block->size.x; ++block->current) {
            Thread& thread = block->threads[block->current];
            if (thread.done) continue;
            swapcontext(&block->scheduler, &thread.context);
            running -= thread.done;
        }
        if (!block->error.empty()) throw std::runtime_error(block->error);
        if (!block->progress) {
            throw std::runtime_error("block " + std::to_string(block->index.x) + ": " + std::to_string(running) +
                                     " threads wait for threads that have ended or wait elsewhere");
        }
    }
}

constexpr unsigned kPoison = 0x7fedu << 16 | 0x7fedu;  // NaN in fp32, fp16 and bf16
constexpr std::size_t kGuard = 64;

// Runs body once for every thread of every block; each block finds its memory poisoned.
inline void launch(unsigned grid, unsigned size, unsigned memory_bytes, const std::function<void()>& body) {
    Block state(size);
    state.grid = {grid, 1, 1};
    block = &state;
    for (state.index = {0, 0, 0}; state.index.x < grid; ++state.index.x) {
        state.memory.assign(memory_bytes / sizeof(uint4) + kGuard, make_uint4(kPoison, kPoison, kPoison, kPoison));
        run_block(body);
        for (std::size_t i = memory_bytes / sizeof(uint4); i < state.memory.size(); ++i) {
            if (state.memory[i].x != kPoison || state.memory[i].w != kPoison) throw std::runtime_error("shared memory overrun");
        }
    }
    block = nullptr;
}

[[noreturn]] inline void trap() { throw std::runtime_error("__trap"); }

}  // namespace host

#define threadIdx (::host::block->threads[::host::block->current].index)
#define blockIdx (::host::block->index)
#define blockDim (::host::block->size)
#define gridDim (::host::block->grid)
#define __syncthreads() ::host::barrier()
#define __shfl_xor_sync(mask, value, offset) ::host::shuffle(mask, value, ::host::lane() ^ unsigned(offset))
#define __shfl_down_sync(mask, value, offset) \
    ::host::shuffle(mask, value, ::host::lane() + unsigned(offset) < 32 ? ::host::lane() + unsigned(offset) : ::host::lane())
#define __trap() ::host::trap()

inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float __fdividef(float a, float b) { return a / b; }
template <typename To, typename From>
To bit_copy(From from) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
template <typename V>
V __ldg(const V* from) {
    return *from;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((static_cast<std::uint64_t>(high) << 32) | low) >> (shift & 31));
}
inline float __uint_as_float(unsigned bits) { return bit_copy<float>(bits); }
inline unsigned __float_as_uint(float value) { return bit_copy<unsigned>(value); }
