// /// kernel
// summary = "Clusters that stay and share rows: gamma and beta in registers, rows ahead in a ring, meetings that go on while other rows are written."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// regimes = ["wide"]
// where = [
//     "arch in (90, 100, 103)",
//     "w_bytes == x_bytes",
//     "aligned >= 16",
//     # no cluster with most of it idle
//     "hidden * x_bytes >= cluster * 32768",
// ]
// skip = [
//     {when = "arch not in (90, 100, 103)", reason = "needs clusters of blocks with 225 KB of shared memory each (sm_90, sm_100)"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; wide_split takes others"},
//     {when = "aligned < 16 or hidden * x_bytes % 16", reason = "rows must begin and end on 16-byte boundaries; wide_split takes others"},
//     {when = "sm_count > 192", reason = "more clusters than a warp collects the words of"},
//     {when = "hidden * x_bytes > sm_count * 5 // 6 * 40960", reason = "a row does not fit the clusters that are resident; wide_split reads it twice"},
//     {when = "hidden * x_bytes < 65536", reason = "a row shorter than 64 KB leaves most of a cluster without work; cta_row keeps it in one block"},
// ]
// zeroed = ["words", "turns"]
//
// [axes]
// cluster = [2, 8]    # blocks of a cluster
// block = [256, 512]  # threads with columns
// ahead = [3, 4]      # rows whose sums are on their way while one is written
//
// [scratch]
// words = "sm_count * 256"
// turns = "sm_count * 4"
//
// [[launches]]
// name = "wide_ring<{T}, {NORM}, {block}>"
// grid = "cluster * clusters if rows > 0 else 0"
// block = "block + 128"
// cluster = "cluster"
// smem = "230400"
// cooperative = true
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "words", "turns", "rows", "hidden", "x_stride", "y_stride", "eps", "ahead"]
// ///
// Decomposition: all clusters that the device runs at once, one block a multiprocessor. As many as hold a row are a team, the others make
// more teams, each with rows of its own. A block has the same slice of every row: gamma and beta of it in registers from the
// beginning, so that x alone comes from L2, and rows to come on their way to a ring in shared memory, each thread's own vectors in
// its own places: nobody waits for anybody to use them. A row is walked over twice there: for its sums, and, `ahead` rows later,
// to write it.
// The meeting lies between the two, and takes nobody's time. Warps send their sums to the first block of their cluster, by the
// way from multiprocessor to multiprocessor. A warp there that has no columns, a courier, merges them and posts one word to L2
// (team.cuh), waits for the words of the team's other clusters, and sends every block of its own what the row is normalised with.
// So few words are waited for by few: 15 by 15 with clusters of 8 on 132 multiprocessors. There are four couriers, each with one
// row at a time. A word queues behind what its multiprocessor has asked for before, and so takes long: LayerNorm of (64, 2^20) in
// fp32 takes 150 us on one H200 with four rows ahead, 154 with three and 161 or more with two.
// Statistics: those of a thread's elements as all of ours (common/statistics.cuh), at most 40 in fp32 and 80 in 16 bits,
// whose own rounding is far coarser; parts of warps, then of clusters, merged by weight (common/parts.cuh).
// Numerics: fp32; eps inside the root; one rounding at the end. The order, and so the last bit, follows the block, the cluster and the
// size of a team: the number of clusters and of rows.
// Boundaries: rows of whole 16-byte vectors, aligned so.
// Safety: a cooperative launch of no more clusters than the driver says are resident; no other kernel is needed to go on.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: 40 KB of a row a block, and multiprocessors that no cluster covers are idle (12 of 132 with clusters of 8). Rows that are no
// multiple of the teams leave some of these idle at the end.

#include "common/cluster_ptx.cuh"
#include "common/hints_ptx.cuh"
#include "common/statistics.cuh"
#include "common/team.cuh"

constexpr int HELD = 2560;      // vectors of a row that a block has, at most
constexpr int DEPTH = 6;        // rows in the ring, or as many as there is room for: five of 40 KB a block, six of 34
constexpr int AHEAD = 4;        // at most: as many rows and the one that is written are being used, and more may be on their way
constexpr int COURIERS = 4;     // warps, each for every fourth row
constexpr int SLOTS = 8;        // places for what is sent of a row: more than `ahead`, and each of one courier alone
constexpr int BLOCKS = 8;       // of a cluster, at most
constexpr int MANY = 3;         // clusters of a team, in 32s
constexpr int MEMORY = 230400;  // bytes of shared memory
static_assert(AHEAD < SLOTS && SLOTS % COURIERS == 0, "as below");

// How a team meets, row by row; a round is a row's number in its team, round % COURIERS its courier, round % SLOTS its slot.
//
// Who may write when. A warp sends its part of round r with the numbers of round r - ahead - 1 and of all before in hand, and
// ahead < SLOTS: so with those of r - SLOTS, which had the same slot, and which the courier sent when it had read all parts of that
// round. So nobody sends to a part that is still to be read; and as a courier has every warp's part of r before it sends the numbers of
// r, nor to numbers that are. A barrier is told of a phase's bytes by one who has seen the phase before end, and so has whoever sends
// bytes; parts may come before it is told, and count all the same.
// Of words: a cluster posts that of round r with the numbers of r - SLOTS in hand, for which all posted, with those of
// r - 2 SLOTS in hand: so all have read the words of r - 2 SLOTS, and two places by turns are enough for each slot.
// Who waits for whom. After its part of round r a warp waits for the numbers of r - ahead. With ahead = COURIERS the same courier
// has both rounds, and comes to r when it has sent those.
// A block ends when its warps have the numbers of all rounds, the first one of a cluster when its couriers have all parts
// besides: then nobody has anything left to send it.
template <int WARPS>
struct Desk {
    float4 parts[SLOTS][BLOCKS * WARPS];  // used in the first block of a cluster
    float4 found[SLOTS];                  // Moments
    unsigned long long arrived[SLOTS];    // all parts
    unsigned long long ready[SLOTS];      // the numbers
};

// What a thread does with its columns. Rows are the team's.
template <typename T, int NORM, int THREADS>
struct Columns {
    static constexpr int N = 16 / static_cast<int>(sizeof(T));
    static constexpr int VECS = HELD / THREADS;
    static constexpr int WARPS = THREADS / 32;
    static_assert(VECS * THREADS == HELD, "all threads have as many");
    using Values = Pack<T, N>;

    Desk<WARPS>& desk;
    const T* x;  // its first element in the next row to ask for
    T* y;        // and in the next one to write
    long long x_step, y_step;
    uint4* ring;  // its first place
    int pitch;    // vectors from one row's places to the next row's
    int left;     // vectors from its first one to the end of its block's slice
    int rounds;
    int hidden;
    int part;  // the place of its warp's part
    Values gamma[VECS], beta[VECS];

    __device__ __forceinline__ bool holds(int p) const { return p * THREADS < left; }

    __device__ __forceinline__ void parameters(const T* scale, const T* shift) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            gamma[p] = Values::filled(1.0f);
            if (scale != nullptr && holds(p)) gamma[p] = Values::of(scale + p * THREADS * N);
            if constexpr (NORM == LAYERNORM) {
                beta[p] = Values::filled(0.0f);
                if (shift != nullptr && holds(p)) beta[p] = Values::of(shift + p * THREADS * N);
            }
        }
    }

    // The next row.
    __device__ __forceinline__ void request(bool exists, int stage) {
        if (exists) {
#pragma unroll
            for (int p = 0; p < VECS; ++p) {
                if (holds(p)) copy_async_by(ring + stage * pitch + p * THREADS, x + p * THREADS * N, policy_keep());
            }
        }
        x += x_step;
        copy_commit();
    }

    // Vector p of a row that has come; 0 where the thread has none.
    __device__ __forceinline__ void held(int stage, int p, float (&values)[N]) const {
        Values vector{};
        if (holds(p)) vector.word = ring[stage * pitch + p * THREADS];
        vector.unpack(values);
    }

    // The first walk.
    __device__ __forceinline__ void gather(int round, int stage) const {
        const auto each = [&](auto visit) {
#pragma unroll
            for (int p = 0; p < VECS; ++p) {
                float values[N];
                held(stage, p, values);
                visit(values, [&](int) { return holds(p); });
            }
        };
        const auto count = [&] {
            int many = 0;
#pragma unroll
            for (int p = 0; p < VECS; ++p) many += holds(p) ? N : 0;
            return many;
        };
        float first[N];
        held(stage, 0, first);
        const Part found = part_of<NORM, Team<0>>(each, count, first[0], hidden);
        const int slot = round % SLOTS;
        if (threadIdx.x == 0) barrier_expect(&desk.ready[slot], sizeof(float4));
        if (threadIdx.x % 32 == 0) send(word_of(found), desk.parts[slot] + part, 0, &desk.arrived[slot]);
    }

    __device__ __forceinline__ Moments numbers(int round) const {
        const int slot = round % SLOTS;
        barrier_wait(&desk.ready[slot], round / SLOTS % 2);
        const float4 found = desk.found[slot];
        return {found.x, found.y, found.z, found.w};
    }

    // As it is: 16-bit parameters widened once for all rows would take registers that there are not.
    static __device__ __forceinline__ Values unwidened(Values parameter) {
        auto& word = parameter.word;
        if constexpr (sizeof(T) == 2) asm volatile("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
        return parameter;
    }

    // The second walk, over the next row to write.
    __device__ __forceinline__ void write(int stage, const Moments& moments) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if (!holds(p)) continue;
            float values[N], scale[N], shift[N];
            held(stage, p, values);
            unwidened(gamma[p]).unpack(scale);
            if constexpr (NORM == LAYERNORM) unwidened(beta[p]).unpack(shift);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float value = moments.template applied<NORM>(values[j]);
                values[j] = NORM == LAYERNORM ? fmaf(value, scale[j], shift[j]) : value * scale[j];
            }
            Values::packed(values).to(y + p * THREADS * N);
        }
        y += y_step;
    }

    __device__ __forceinline__ void begin(int ahead, int depth) {
        for (int stage = 0; stage < depth - ahead; ++stage) request(stage < rounds, stage);
    }

    // depth: rows that the ring holds.
    __device__ __forceinline__ void run(int ahead, int depth) {
        // `ahead` turns before the first row, in which rows are only gathered: this one's place, and that of the row `ahead` of it
        int stage = depth - ahead, next = 0;
#pragma unroll 1
        for (int round = -ahead; round < rounds; ++round) {
            copy_wait(depth - 1 - ahead);
            if (round + ahead < rounds) gather(round + ahead, next);
            if (round >= 0) write(stage, numbers(round));
            request(round + depth < rounds, stage);
            stage = stage + 1 < depth ? stage + 1 : 0;
            next = next + 1 < depth ? next + 1 : 0;
        }
        copy_wait(0);
    }
};

template <typename T, int NORM, int THREADS>
__global__ void __launch_bounds__(THREADS + 32 * COURIERS, 1)
wide_ring(const T* x, const T* __restrict__ gamma, const T* __restrict__ beta, T* y, float* __restrict__ mean,
          float* __restrict__ rstd, uint4* __restrict__ words, unsigned* __restrict__ turns, long long rows, int hidden,
          long long x_stride, long long y_stride, float eps, int ahead) {
    constexpr int N = 16 / static_cast<int>(sizeof(T)), WARPS = THREADS / 32;
    auto& desk = *reinterpret_cast<Desk<WARPS>*>(launch_memory());
    const int thread = threadIdx.x, lane = thread % 32;
    const int rank = static_cast<int>(cluster_rank()), blocks = static_cast<int>(cluster_blocks());
    const int cluster = cluster_index(), clusters = cluster_count();

    const int all = hidden / N, needed = (all + HELD * blocks - 1) / (HELD * blocks);
    if (needed > clusters || blocks > BLOCKS || ahead > AHEAD) __trap();  // a fault, rather than a row cut short
    // the fewest teams that take as few rounds as all of them would
    const int most = clusters / needed, longest = static_cast<int>((rows + most - 1) / most);
    const int teams = static_cast<int>((rows + longest - 1) / longest), size = clusters / teams;
    const int team = cluster / size, member = cluster % size;
    const int rounds = team < teams ? static_cast<int>((rows - team + teams - 1) / teams) : 0;
    const int slice = (all + size * blocks - 1) / (size * blocks);
    // vectors of `many` neighbouring blocks of the team
    const auto held_by = [&](int first, int many) {
        const int left = all - first * slice;
        return left < 0 ? 0 : left < many * slice ? left : many * slice;
    };

    const unsigned before = rank == 0 ? turns[cluster] : 0;
    if (thread == 0) {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            barrier_init(&desk.arrived[i]);
            barrier_init(&desk.ready[i]);
        }
    }
    __syncthreads();
    // the same for all teams, so that any may have these words in the next launch
    if (thread == 0 && rank == 0) turns[cluster] = before + (longest + SLOTS - 1) / SLOTS;
    cluster_arrive();

    if (thread >= THREADS) {
        cluster_wait();
        if (rank > 0) return;
        const int courier = (thread - THREADS) / 32;
        const auto count = [&](int other) { return static_cast<float>(held_by(other * blocks, blocks) * N); };
#pragma unroll 1
        for (int round = courier; round < rounds; round += COURIERS) {
            const int slot = round % SLOTS;
            const TeamMail meeting{words + slot * 2 * clusters, clusters, team * size, size, member};
            if (lane == 0) barrier_expect(&desk.arrived[slot], blocks * WARPS * sizeof(float4));
            barrier_wait(&desk.arrived[slot], round / SLOTS % 2);
            Part part = merged<NORM>([&](int i) { return desk.parts[slot][i]; }, blocks * WARPS);
            if (size > 1) {
                const unsigned turn = before + 1 + round / SLOTS;
                if (lane == 0) meeting.post(part, turn);
                part = meeting.of_team<NORM, MANY>(turn, count);
            }
            const Moments moments = moments_of<NORM>(part, hidden, eps);
            const float4 found = make_float4(moments.pivot, moments.shift, moments.rstd, moments.mean);
            if (lane < blocks) send(found, &desk.found[slot], lane, &desk.ready[slot]);
            if (lane == 0 && member == 0) moments.save(mean, rstd, team + static_cast<long long>(round) * teams);
        }
        return;
    }

    const int place = member * blocks + rank, column = (place * slice + thread) * N;
    static_assert(sizeof(Desk<WARPS>) % 16 == 0, "rows lie behind it");
    static_assert(sizeof(Desk<WARPS>) + (AHEAD + 1) * HELD * 16 <= MEMORY, "all rows that are being used fit");
    const int room = (MEMORY - static_cast<int>(sizeof(Desk<WARPS>))) / (slice * 16), depth = DEPTH < room ? DEPTH : room;
    Columns<T, NORM, THREADS> columns{desk,
                                      x + team * x_stride + column,
                                      y + team * y_stride + column,
                                      teams * x_stride,
                                      teams * y_stride,
                                      launch_memory() + sizeof(Desk<WARPS>) / 16 + thread,
                                      slice,
                                      held_by(place, 1) - thread,
                                      rounds,
                                      hidden,
                                      rank * WARPS + thread / 32};
    columns.begin(ahead, depth);
    columns.parameters(gamma == nullptr ? nullptr : gamma + column, beta == nullptr ? nullptr : beta + column);
    cluster_wait();  // all blocks can be sent to
    columns.run(ahead, depth);
}
