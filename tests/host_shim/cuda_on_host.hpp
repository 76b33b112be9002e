// Runs a CUDA kernel's source as C++ on the CPU, to find wrong indices and missing barriers where there is no GPU.
//
// A CUDA thread is a fiber, the threads of a block take turns, blocks (or clusters of them) run one after another. Barriers
// and warp shuffles are rendezvous: a fiber that waits gives its turn away until the others have come. What real hardware
// adds (memory order, warps that run side by side, approximate arithmetic, time) is not there, so a pass here is not a pass
// on a GPU. Inline PTX does not compile here; the functions that have it are written anew in common/. Static shared memory
// is one for all blocks, so the blocks of a cluster must keep what they share in the memory of the launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <setjmp.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <any>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
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
    ucontext_t context;  // to begin with
    jmp_buf waiting;     // to go on with: unlike swapcontext it asks nothing of the operating system
    bool begun;
    std::unique_ptr<char[]> stack;
    uint3 index;
    unsigned awaits;  // generation of the cluster's barrier it arrived at
    bool done;
    std::any own;  // what the functions written anew in common/ remember of it
};

struct Warp {
    unsigned asleep = 0;
    unsigned arrived = 0;
    unsigned generation = 0;
    std::uint64_t value[2][kWarp] = {};
};

inline std::vector<std::unique_ptr<char[]>> spare;  // stacks of blocks that are gone

// Threads of a block that wait for each other.
struct Gathering {
    unsigned there = 0;
    unsigned generation = 0;
};

struct Block {
    explicit Block(unsigned size) : size{size, 1, 1}, threads(size), warps((size + kWarp - 1) / kWarp) {
        for (Thread& thread : threads) {
            if (spare.empty()) spare.emplace_back(new char[kStackBytes]);  // not touched before it is used
            thread.stack = std::move(spare.back());
            spare.pop_back();
        }
    }
    ~Block() {
        for (Thread& thread : threads) spare.push_back(std::move(thread.stack));
    }
    uint3 index{};
    uint3 size;
    uint3 grid{};
    unsigned place = 0;  // among the blocks that run side by side
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<uint4> memory;  // what the launch asked for, and a guard
    jmp_buf scheduler;
    const std::function<void()>* body = nullptr;
    unsigned current = 0;
    Gathering gatherings[16];  // the first one is of all threads
    std::string error;
};

// The barrier of one cluster.
struct ClusterBarrier {
    unsigned running = 0;  // threads
    unsigned there = 0;
    unsigned generation = 0;
};

// Blocks that run side by side: one or more clusters of `size` each; a launch without clusters has one block in each.
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    unsigned size = 1;
    std::vector<ClusterBarrier> barriers;
    unsigned running = 0;   // threads
    unsigned awaiting = 0;  // threads, the end of the launch before
    unsigned await_generation = 0;
    bool progress = false;
};

// Memory that the launch before has in hand until it ends: it writes values there, or reads what is there (no values).
struct InHand {
    char* place;
    std::vector<char> values, found;
    std::size_t bytes;

    void take() {
        if (!values.empty()) std::memset(place, 0xff, bytes);  // NaN
        else found.assign(place, place + bytes);
    }

    void give() const {
        if (!values.empty()) std::memcpy(place, values.data(), bytes);
        else if (std::memcmp(place, found.data(), bytes)) throw std::logic_error("written before the launch before has ended");
    }
};

inline std::vector<InHand> in_hand;

inline Cluster* cluster = nullptr;
inline unsigned runs = 0;     // of blocks side by side, this one among them
inline Block* block = nullptr;  // of the thread whose turn it is

inline void give_turn() {
    if (_setjmp(block->threads[block->current].waiting) == 0) _longjmp(block->scheduler, 1);
}

// Waits until `generation` has moved on from `from`.
inline void wait(const unsigned& generation, unsigned from) {
    while (generation == from) give_turn();
    cluster->progress = true;
}

// A barrier of `many` threads of the block.
inline void gather(Gathering& gathering, unsigned many) {
    const unsigned from = gathering.generation;
    cluster->progress = true;
    if (++gathering.there == many) {
        gathering.there = 0;
        ++gathering.generation;
    } else {
        wait(gathering.generation, from);
    }
}

inline void barrier() { gather(block->gatherings[0], block->size.x); }

inline ClusterBarrier& cluster_barrier() { return cluster->barriers[block->place / cluster->size]; }

// Arriving and waiting are apart; a thread that has ended counts as arrived.
inline void cluster_arrive() {
    ClusterBarrier& barrier = cluster_barrier();
    block->threads[block->current].awaits = barrier.generation;
    cluster->progress = true;
    if (++barrier.there >= barrier.running) {
        barrier.there = 0;
        ++barrier.generation;
    }
}

inline void cluster_wait() { wait(cluster_barrier().generation, block->threads[block->current].awaits); }

// The launch before ends when all threads that run wait for that.
inline void end_previous() {
    cluster->awaiting = 0;
    for (const InHand& memory : in_hand) memory.give();
    ++cluster->await_generation;
}

inline void await_previous() {
    if (in_hand.empty()) return;
    const unsigned from = cluster->await_generation;
    cluster->progress = true;
    if (++cluster->awaiting >= cluster->running) end_previous();
    else wait(cluster->await_generation, from);
}

// What the lanes of this thread's warp handed in at the same call, until the warp's next call but one.
inline const std::uint64_t (&exchange_all(std::uint64_t value))[kWarp] {
    Warp& warp = block->warps[block->current / kWarp];
    const unsigned from = warp.generation;
    const unsigned size = std::min(kWarp, block->size.x - block->current / kWarp * kWarp);
    warp.value[from % 2][block->current % kWarp] = value;
    cluster->progress = true;
    if (++warp.arrived == size) {
        warp.arrived = 0;
        ++warp.generation;
    } else {
        wait(warp.generation, from);
    }
    return warp.value[from % 2];
}

inline std::uint64_t exchange(std::uint64_t value, unsigned source) { return exchange_all(value)[source]; }

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

inline bool all(unsigned mask, bool value) {
    for (unsigned offset = 1; offset < kWarp; offset *= 2) value &= shuffle(mask, value, lane() ^ offset);
    return value;
}

inline void enter() {
    const auto noting = [](const auto& step) {
        try {
            step();
        } catch (const std::exception& error) {
            block->error = error.what();
        }
    };
    noting(*block->body);
    block->threads[block->current].done = true;
    --cluster->running;
    --cluster_barrier().running;
    cluster->progress = true;
    if (cluster->awaiting > 0 && cluster->awaiting >= cluster->running) noting(end_previous);
    give_turn();
}

constexpr unsigned kPoison = 0x7fedu << 16 | 0x7fedu;  // NaN in fp32, fp16 and bf16
constexpr std::size_t kGuard = 64;

inline void prepare(Block& state, unsigned memory_bytes, const std::function<void()>& body) {
    state.body = &body;
    for (Gathering& gathering : state.gatherings) gathering = {};
    for (Warp& warp : state.warps) warp = Warp{};
    state.memory.assign(memory_bytes / sizeof(uint4) + kGuard, make_uint4(kPoison, kPoison, kPoison, kPoison));
    for (unsigned i = 0; i < state.size.x; ++i) {
        Thread& thread = state.threads[i];
        thread.index = {i, 0, 0};
        thread.begun = thread.done = false;
        thread.own.reset();
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = kStackBytes;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, reinterpret_cast<void (*)()>(enter), 0);
    }
}

// The same numbers in every run.
inline unsigned draw() {
    static std::uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>(state >> 33);
}

constexpr unsigned kSleep = 64;  // turns that a warp may miss

// A turn for every thread of a block but those of warps that sleep: warps that keep step would hide it when one must wait
// for another.
inline void take_turns(Block& state) {
    block = &state;
    for (unsigned first = 0; first < state.size.x; first += kWarp) {
        unsigned& asleep = state.warps[first / kWarp].asleep;
        if (asleep > 0) --asleep;
        else if (draw() % 32 == 0) asleep = draw() % kSleep;
        if (asleep > 0) continue;
        for (state.current = first; state.current < std::min(first + kWarp, state.size.x); ++state.current) {
            Thread& thread = state.threads[state.current];
            if (thread.done || _setjmp(state.scheduler) != 0) continue;  // the thread's turn is over
            if (thread.begun) _longjmp(thread.waiting, 1);
            thread.begun = true;
            setcontext(&thread.context);
        }
    }
    if (!state.error.empty()) throw std::runtime_error(state.error);
}

inline void run(Cluster& side_by_side) {
    cluster = &side_by_side;
    ++runs;
    for (int idle = 0; cluster->running > 0;) {
        cluster->progress = false;
        for (auto& state : cluster->blocks) take_turns(*state);
        idle = cluster->progress ? 0 : idle + 1;
        if (idle > 2 * static_cast<int>(kSleep)) {
            throw std::runtime_error("block " + std::to_string(block->index.x) + ": " + std::to_string(cluster->running) +
                                     " threads wait for threads that have ended or wait elsewhere");
        }
    }
    for (auto& state : cluster->blocks) {
        for (std::size_t i = state->memory.size() - kGuard; i < state->memory.size(); ++i) {
            if (state->memory[i].x != kPoison || state->memory[i].w != kPoison) throw std::runtime_error("shared memory overrun");
        }
    }
}

// Shape of a launch: blocks, threads a block, bytes of shared memory it asks for, blocks a cluster, blocks that run side by side.
struct Shape {
    unsigned grid, size, memory, cluster, together;
};

// Runs body once for every thread of every block; each block finds its memory poisoned.
inline void launch(const Shape& shape, const std::function<void()>& body) {
    if (shape.grid % shape.together || shape.together % shape.cluster) {
        throw std::runtime_error("the grid is no whole number of clusters");
    }
    Cluster side_by_side;
    side_by_side.size = shape.cluster;
    for (unsigned place = 0; place < shape.together; ++place) {
        side_by_side.blocks.push_back(std::make_unique<Block>(shape.size));
        side_by_side.blocks.back()->grid = {shape.grid, 1, 1};
        side_by_side.blocks.back()->place = place;
    }
    for (unsigned first = 0; first < shape.grid; first += shape.together) {
        side_by_side.running = shape.together * shape.size;
        side_by_side.awaiting = 0;
        side_by_side.barriers.assign(shape.together / shape.cluster, ClusterBarrier{shape.cluster * shape.size});
        for (InHand& memory : in_hand) memory.take();
        for (unsigned place = 0; place < shape.together; ++place) {
            side_by_side.blocks[place]->index = {first + place, 0, 0};
            prepare(*side_by_side.blocks[place], shape.memory, body);
            if (shape.together == shape.cluster || draw() % 4 > 0) continue;
            // of blocks that stay some begin late
            const unsigned late = draw() % kSleep;
            for (Warp& warp : side_by_side.blocks[place]->warps) warp.asleep = late;
        }
        run(side_by_side);
    }
}

[[noreturn]] inline void trap() { throw std::runtime_error("__trap"); }

}  // namespace host

#define threadIdx (::host::block->threads[::host::block->current].index)
#define blockIdx (::host::block->index)
#define blockDim (::host::block->size)
#define gridDim (::host::block->grid)
#define __syncthreads() ::host::barrier()
#define __shfl_sync(mask, value, source) ::host::shuffle(mask, value, unsigned(source))
#define __shfl_xor_sync(mask, value, offset) ::host::shuffle(mask, value, ::host::lane() ^ unsigned(offset))
#define __shfl_down_sync(mask, value, offset) \
    ::host::shuffle(mask, value, ::host::lane() + unsigned(offset) < 32 ? ::host::lane() + unsigned(offset) : ::host::lane())
#define __syncwarp() static_cast<void>(::host::exchange(0, 0))
#define __trap() ::host::trap()
#define __all_sync(mask, value) ::host::all(mask, value)
#define __clz(value) __builtin_clz(value)

template <typename V>
V atomicAdd(V* to, V value) {
    const V before = *to;
    *to = before + value;
    return before;
}
template <typename V>
V atomicExch(V* to, V value) {
    const V before = *to;
    *to = value;
    return before;
}
inline void __threadfence_block() {}  // threads take turns, and see what others wrote before
inline void __threadfence() {}
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float __fdividef(float a, float b) { return a / b; }
// the compiler is told not to contract, so each of these is one operation, rounded once
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
template <typename To, typename From>
To bit_copy(From from) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned bits) { return bit_copy<float>(bits); }
inline float __int_as_float(int bits) { return bit_copy<float>(bits); }
inline unsigned __float_as_uint(float value) { return bit_copy<unsigned>(value); }
