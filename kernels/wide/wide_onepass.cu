// /// kernel
// summary = "The whole chip holds a row in its registers while the next one arrives in shared memory: one read, one write."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// regimes = ["wide"]
// where = [
//     "arch >= 80",
//     "w_bytes == x_bytes",
//     "aligned >= 16",
//     # 16-bit elements in registers are half of what they are unpacked
//     "vecs == (16 if x_bytes == 4 and arch in (90, 100, 103, 110) else 8)",
//     "squads == 1 or vecs == 16",
//     "squads == 1 or squads < rows and sm_count * 16384 < hidden * x_bytes <= sm_count * 32768",
// ]
// skip = [
//     {when = "arch < 80", reason = "needs asynchronous copies (sm_80 on)"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; wide_split takes others"},
//     {when = "aligned < 16 or hidden * x_bytes % 16", reason = "rows must begin and end on 16-byte boundaries; wide_split takes others"},
//     {when = "sm_count > (160 if x_bytes == 4 and arch in (90, 100, 103, 110) else 256)", reason = "more multiprocessors than a warp collects the words of"},
//     {when = "hidden * x_bytes > sm_count * (131072 if x_bytes == 4 and arch in (90, 100, 103, 110) else 65536)", reason = "a row does not fit the chip; wide_split reads it twice"},
//     {when = "hidden * x_bytes < 32768", reason = "a row shorter than 32 KB leaves most of a block without work; cta_row keeps it in one"},
// ]
// zeroed = ["mail", "turns"]
//
// [axes]
// vecs = [8, 16]   # 16-byte vectors of the row in a thread's registers
// squads = [1, 4]  # rows that a multiprocessor has in hand
//
// [scratch]
// mail = "sm_count * squads * 32"
// turns = "sm_count * squads * 4"
//
// [[launches]]
// name = "wide_onepass<{T}, {NORM}, {vecs}, {squads}>"
// grid = "sm_count if squads > 1 else min(rows, sm_count // cdiv(hidden * x_bytes, vecs * 8192)) * (sm_count // min(rows, sm_count // cdiv(hidden * x_bytes, vecs * 8192)))"
// block = "512"
// smem = "vecs * 8192 + (16 * 4096 if squads > 1 else 6 * 16384 if vecs == 16 else 0) + squads * 304"
// cooperative = true
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "mail", "turns", "rows", "hidden", "x_stride", "y_stride", "eps", "sm_count"]
// ///
// Decomposition: one block a multiprocessor, all of them resident. As many as hold a row are a team, the others make more teams,
// each with rows of its own. A block keeps its slice of a row in registers, the next row's in shared memory, and asks for
// that of the row after it by asynchronous copies. So a row goes through three steps: it arrives; its statistics are taken
// where it lies, and posted; and while it moves to the registers, vector by vector, the row that was there is written and
// the one after it requested. Between posting and use lies the writing of a whole row, and nobody waits for the meeting. A
// thread copies, reads and writes the same columns of every row, so warps need no barrier but the one at the end of a row.
// Squads: where a quarter of the chip holds a row, a block is four squads, and a squad of all blocks is a team: four rows are in
// hand, in different steps, and gamma and beta of their columns stay in shared memory for all four. There a thread takes the
// statistics of what has arrived while it writes, all but the last of them.
// Gamma and beta would otherwise be read from L2 for each row, twice the bytes of x: of 16 vectors 6 keep theirs in the
// shared memory that is left. L2 is asked to hold the rest against x and y, which pass where a block has one row, and a
// thread asks for two or four vectors of them ahead.
// The meeting: the warp that is the last of its squad to have its part posts the squad's, one word of 16 bytes that carries
// the number of its turn; the first that has written its columns collects those of the team (common/team.cuh), merges them,
// and leaves what the next row is normalised with. One trip to L2 and back, no counter. The turns go on from launch to
// launch, all of which have one geometry.
// A word queues behind what its multiprocessor has asked for before; so in squads a thread waits where more than two of its
// vectors are on their way.
// Safety: a cooperative launch, which fails rather than starting some of the blocks; no other kernel is needed to go on.
// Statistics: in parts of 16 elements of a thread, merged by weight (common/parts.cuh); the mean in two floats. Numerics: fp32; eps
// inside the root; one rounding at the end. The order, and so the last bit, follows the size of a team: the number of
// multiprocessors, of rows and of squads.
// Boundaries: rows of whole 16-byte vectors, aligned so. Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: 128 KB of a row a multiprocessor, 64 KB in 16 bits (4.3 million elements on 132 of them; (1, 2^24) is refused). The
// first row's loads and the last one's stores overlap with nothing.

#include "common/async_ptx.cuh"
#include "common/grid_ptx.cuh"
#include "common/hints_ptx.cuh"
#include "common/parts.cuh"
#include "common/team.cuh"

constexpr int BLOCK = 512;

// What a squad has in shared memory besides vectors.
struct Desk {
    float4 warps[BLOCK / 32];
    Moments moments[2];  // by turns
    unsigned parts;    // warps that have left their part, of all rows
    unsigned written;  // warps that have written their columns, of all rows
    unsigned unused[2];
};

// A warp's part, of which it has the same in all lanes, for the last of its squad. By atomic operations, since a counter is all that lies
// between writing and reading it; four lanes at once are faster than one store, too.
__device__ __forceinline__ void leave(float4* place, const Part& part) {
    const unsigned lane = threadIdx.x % 32;
    const float4 word = word_of(part);
    const float value = lane == 0 ? word.x : lane == 1 ? word.y : lane == 2 ? word.z : word.w;
    if (lane < 4) atomicExch(reinterpret_cast<unsigned*>(place) + lane, __float_as_uint(value));
}

__device__ __forceinline__ Part left_at(float4* place) {
    unsigned* const words = reinterpret_cast<unsigned*>(place);
    const auto read = [&](int i) { return __uint_as_float(atomicAdd(words + i, 0u)); };
    return {read(0), read(1), read(2), read(3)};
}

// How many warps of the squad have come here before this one, in all its lanes.
__device__ __forceinline__ unsigned counted(unsigned* counter) {
    return __shfl_sync(0xffffffffu, threadIdx.x % 32 == 0 ? atomicAdd(counter, 1u) : 0u, 0);
}

template <typename T, int NORM, int VECS, int SQUADS>
__global__ void __launch_bounds__(BLOCK, 1)
wide_onepass(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta, T* __restrict__ y,
             float* __restrict__ mean, float* __restrict__ rstd, uint4* __restrict__ mail, unsigned* __restrict__ turns,
             long long rows, int hidden, long long x_stride, long long y_stride, float eps, int sm_count) {
    using Values = Pack<T, 16 / static_cast<int>(sizeof(T))>;
    constexpr int THREADS = BLOCK / SQUADS;  // of a squad
    constexpr int WARPS = THREADS / 32;
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    constexpr int TAKE = 16 / N;  // vectors whose elements are added up together
    constexpr int GROUPS = VECS / TAKE;
    constexpr int TOGETHER = SQUADS > 1 ? 1 : TAKE;                 // vectors that are waited for together
    constexpr bool EARLY = SQUADS > 1;                              // statistics of what has arrived while a row is written
    constexpr int PACE = EARLY ? 2 : GROUPS;                        // of these, as many as may be on their way
    constexpr int MANY = VECS == 16 ? 5 : 8;                        // members of a team, in 32s
    constexpr int PINNED = SQUADS > 1 ? VECS : VECS == 16 ? 6 : 0;  // vectors whose gamma and beta are here
    constexpr int AHEAD = VECS == 16 ? 4 : 2;                       // vectors whose gamma and beta are on their way from L2
    // vectors written before one moves, whose registers are for what is on its way: the least that spills least
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    constexpr int DELAY = 4;
#else
    constexpr int DELAY = EARLY ? 1 : 2;
#endif
    static_assert(VECS % TAKE == 0, "statistics take whole groups");
    static_assert(sizeof(Desk) == 304, "the header asks for it");
    const int squad = SQUADS == 1 ? 0 : threadIdx.x / THREADS, thread = threadIdx.x - squad * THREADS;
    Desk* const desk = reinterpret_cast<Desk*>(launch_memory()) + squad;
    uint4* const vectors = reinterpret_cast<uint4*>(launch_memory() + SQUADS * sizeof(Desk) / sizeof(uint4)) + thread;
    uint4* const ring = vectors + squad * VECS * THREADS;   // [VECS][THREADS]
    uint4* const kept = vectors + SQUADS * VECS * THREADS;  // [PINNED][2][THREADS]
    // x and y: for one row at a time they pass, since gamma and beta are worth their place more; in squads, which have these in
    // shared memory, both are kept, as that was timed
    const unsigned long long pass = SQUADS > 1 ? policy_keep() : policy_pass(), stay = policy_keep();

    const int all = hidden / N;
    const int needed = (all + VECS * BLOCK - 1) / (VECS * BLOCK);
    const int teams = SQUADS > 1 ? SQUADS : rows < sm_count / needed ? static_cast<int>(rows) : sm_count / needed;
    const int size = SQUADS > 1 ? sm_count : sm_count / teams, slice = (all + size - 1) / size;
    const int me = squad * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x), team = me / size;
    const TeamMail meeting{mail, SQUADS * static_cast<int>(gridDim.x), team * size, size, me % size};
    const auto held_by = [&](int member) {
        const int left = all - member * slice;
        return left < 0 ? 0 : left < slice ? left : slice;
    };
    const int rounds = team < rows ? static_cast<int>((rows - team + teams - 1) / teams) : 0;  // rows of this team
    const unsigned before = turns[me];
    if (thread == 0) desk->parts = desk->written = 0;

    const int left = held_by(meeting.rank) - thread;              // vectors from this thread's first on
    int present = left > 0 ? (left + THREADS - 1) / THREADS : 0;  // of them, this thread's
    int column = (meeting.rank * slice + thread) * N;
    const auto has = [&](int v) { return v < present; };
    const auto row_of = [&](int round) { return team + static_cast<long long>(round) * teams; };
    const auto request = [&](bool wanted, const T* from, int v) {
        if (wanted && has(v)) copy_async_by(ring + v * THREADS, from + v * THREADS * N, pass);
        if (v % TOGETHER == TOGETHER - 1) copy_commit();
    };
    // of vectors that are not there, the first: no branch, and the values are used for nothing
    const auto parameter = [&](const T* all_of, int v, float absent) -> uint4 {
        if (all_of == nullptr) return Values::filled(absent).word;
        return load_by(all_of + (has(v) ? column + v * THREADS * N : 0), stay);
    };
    Running<NORM> running;
    const auto take = [&](int group) {
        Values some[TAKE];
#pragma unroll
        for (int k = 0; k < TAKE; ++k) some[k].word = ring[(group * TAKE + k) * THREADS];
        running.take(some, present - group * TAKE);
    };
    const auto take_when_there = [&](int from, int to) {
#pragma unroll
        for (int group = from; group < to; ++group) {
            copy_wait((VECS - (group + 1) * TAKE) / TOGETHER);
            take(group);
        }
    };
    // posts what this squad has of the row in the ring, once its last warp has it
    const auto statistics = [&](unsigned turn) {
        take_when_there(EARLY ? GROUPS - 1 : 0, GROUPS);
        const Part mine = running.of_warp();
        running = {};
        leave(desk->warps + thread / 32, mine);
        __syncwarp();
        __threadfence_block();
        if (counted(&desk->parts) % WARPS != WARPS - 1) return;
        __threadfence_block();
        Part parts[1] = {left_at(desk->warps + thread % WARPS)};
        if (thread % 32 >= WARPS) parts[0] = {};
        const Part part = merged<NORM>(parts);
        if (thread % 32 == 0) meeting.post(part, turn);
    };
    // leaves what a row is normalised with: done by the first warp that comes
    const auto collect = [&](int round, unsigned turn) {
        if (counted(&desk->written) % WARPS != 0) return;
        const auto count = [&](int member) { return static_cast<float>(held_by(member)) * N; };
        const Moments moments = moments_of<NORM>(meeting.of_team<NORM, MANY>(turn, count), hidden, eps);
        if (thread % 32 == 0) {
            desk->moments[turn % 2] = moments;
            if (meeting.rank == 0) moments.save(mean, rstd, row_of(round));
        }
    };

#pragma unroll
    for (int v = 0; v < VECS; ++v) request(rounds > 0, x + team * x_stride + column, v);
#pragma unroll
    for (int v = 0; v < PINNED; ++v) {
        if (v % SQUADS != squad) continue;
        kept[2 * v * THREADS] = parameter(gamma, v, 1.0f);
        kept[(2 * v + 1) * THREADS] = parameter(beta, v, 0.0f);
    }
    __syncthreads();
    if (EARLY) take_when_there(0, GROUPS - 1);
    Values held[VECS];
    Moments moments{};
    // the row of `round` is in the registers, and in the first round there is none
#pragma unroll 1
    for (int round = -1; round < rounds; ++round) {
        const bool writes = round >= 0, more = round + 1 < rounds;
        const unsigned turn = before + 2 + round;
        // else every address of a row would be kept from row to row, in registers that there are not
        asm volatile("" : "+r"(present), "+r"(column), "+l"(gamma), "+l"(beta));
        if (more) statistics(turn);
        const T* const from = x + row_of(round + 2) * x_stride + column;
        T* const to = y + row_of(round) * y_stride + column;
        uint4 scale[AHEAD], offset[AHEAD];
        const auto fetch = [&](int v) {
            if (v < PINNED || v >= VECS) return;
            scale[v % AHEAD] = parameter(gamma, v, 1.0f);
            offset[v % AHEAD] = parameter(beta, v, 0.0f);
        };
#pragma unroll
        for (int v = 0; v < AHEAD; ++v) fetch(v);
#pragma unroll
        for (int v = 0; v < VECS + DELAY; ++v) {
            if (v < VECS) {
                float values[N], by[N], on[N];
                held[v].unpack(values);
                Values{v < PINNED ? kept[2 * v * THREADS] : scale[v % AHEAD]}.unpack(by);
                Values{v < PINNED ? kept[(2 * v + 1) * THREADS] : offset[v % AHEAD]}.unpack(on);
#pragma unroll
                for (int j = 0; j < N; ++j) values[j] = fmaf(moments.normalise(values[j]), by[j], on[j]);
                if (writes && has(v)) store_by(to + v * THREADS * N, Values::packed(values).word, pass);
            }
            fetch(v + AHEAD);
            if (v >= DELAY) {
                held[v - DELAY].word = ring[(v - DELAY) * THREADS];
                request(round + 2 < rounds, from, v - DELAY);
                if (PACE < GROUPS && (v - DELAY) % TOGETHER == TOGETHER - 1) copy_wait<PACE>();
                const int arrived = v - DELAY - PACE * TOGETHER;  // the last vector of which that is sure
                if (EARLY && arrived > 0 && arrived % TAKE == TAKE - 1 && round + 2 < rounds) take(arrived / TAKE);
            }
        }
        if (more) {
            collect(round + 1, turn);
            barrier_of<THREADS>(squad);
            moments = desk->moments[turn % 2];
        }
    }
    // teams of fewer rows go on by as many turns as the others
    if (thread == 0) turns[me] = before + static_cast<unsigned>((rows + teams - 1) / teams);
}
