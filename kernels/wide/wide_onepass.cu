// /// kernel
// summary = "The whole chip holds a row in its registers while the next one arrives in shared memory: one read, one write."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// regimes = ["wide"]
// where = [
//     "arch >= 80",
//     "w_bytes == x_bytes",
//     "aligned >= 16",
//     # what a block may have of shared memory
//     "vecs * 8192 + pinned * 16384 + 4624 <= (232448 if arch in (90, 100, 103, 110) else 166912 if arch in (80, 87) else 101376)",
//     # the registers hold a row; not twice as many of them as it needs
//     "sm_count * vecs * 8192 >= hidden * x_bytes",
//     "vecs == 8 or x_bytes == 4",
//     "vecs == 8 or sm_count * vecs * 4096 < hidden * x_bytes * min(rows, sm_count)",
//     "pinned or not keep",
//     "pinned or NORM == 0 or vecs == 8",
// ]
// skip = [
//     {when = "arch < 80", reason = "needs asynchronous copies (sm_80 on)"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; wide_split takes others"},
//     {when = "aligned < 16 or hidden * x_bytes % 16", reason = "rows must begin and end on 16-byte boundaries; wide_split takes others"},
//     {when = "sm_count > 256", reason = "256 blocks hand each other what they find, at most"},
//     {when = "hidden * x_bytes > sm_count * (131072 if x_bytes == 4 and arch in (80, 87, 90, 100, 103, 110) else 65536)", reason = "a row does not fit the chip; wide_split reads it twice"},
//     {when = "hidden * x_bytes < 32768", reason = "a row shorter than 32 KB leaves most of a block without work; cta_row keeps it in one"},
// ]
// zeroed = ["mail", "turns"]
//
// [axes]
// block = [512]
// vecs = [8, 16]     # 16-byte vectors of the row in a thread's registers
// pinned = [0, 5]    # of them, those whose gamma and beta stay in shared memory
// keep = [0, 1]      # whether L2 is asked to keep gamma and beta and to let x and y pass
//
// [scratch]
// mail = "sm_count * 48"
// turns = "sm_count * 4"
//
// [[launches]]
// name = "wide_onepass<{T}, {NORM}, {vecs}, {pinned}, {keep}>"
// grid = "min(rows, sm_count // cdiv(hidden * x_bytes, 8192 * vecs)) * (sm_count // min(rows, sm_count // cdiv(hidden * x_bytes, 8192 * vecs)))"
// block = "block"
// smem = "vecs * 8192 + pinned * 16384 + 4624"
// cooperative = true
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "mail", "turns", "rows", "hidden", "x_stride", "y_stride", "eps", "sm_count"]
// ///
// Decomposition: a block a multiprocessor, all of them resident. As many as hold a row are a team, the others make more teams,
// each with rows of its own. A block keeps its slice of the row in registers and asks for that of the next row, by
// asynchronous copies into shared memory, as it moves the slice over: from there on the next row is on its way, while the team
// meets and while this row is written. A thread copies, reads and writes the same columns of every row, so nobody waits for
// anybody but at the two barriers of a block around the meeting.
// Gamma and beta would be read from L2 for each row, twice the bytes of x: `pinned` of the vectors keep theirs in the shared
// memory that is left, and `keep` asks L2 to hold the rest against x and y, which pass.
// The meeting: each block posts what it found as three words that carry the number of their turn, and its first warp waits for
// those of the team (common/grid_ptx.cuh); one trip to L2 and back, no counter. The turns go on from launch to launch.
// Safety: a cooperative launch, which fails rather than starting some of the blocks; no other kernel is needed to go on.
// Statistics: in shared parts of 32 elements, merged by weight (common/parts.cuh); the mean in two floats. Numerics: fp32; eps
// inside the root; one rounding at the end. The order, and so the last bit, follows the number of multiprocessors.
// Boundaries: rows of whole 16-byte vectors, aligned so. Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: 128 KB of a row a multiprocessor, 64 KB in 16 bits (4.3 million elements on 132 of them; (1, 2^24) is refused). Rows of a team that is
// alone wait for the meeting with their stores; only the loads of the next row fill that time.

#include "common/async_ptx.cuh"
#include "common/grid_ptx.cuh"
#include "common/hints_ptx.cuh"
#include "common/parts.cuh"

constexpr int THREADS = 512;
constexpr int MOST = 256;  // blocks

// What a block has in shared memory besides vectors.
struct Desk {
    float4 seen[MOST];
    float4 warps[32];
    Moments moments;
};

// The blocks that share a row, as one of them sees them.
struct Meeting {
    unsigned long long* mail;  // [2][3][blocks of the grid]
    int first;                 // block of the team
    int size;
    int rank;

    __device__ __forceinline__ unsigned long long* place(unsigned turn, int word, int member) const {
        return mail + (turn % 2 * 3 + word) * gridDim.x + first + member;
    }

    // What the team has found of its row, in all lanes of the first warp, which alone calls it. count(member): elements that
    // it holds; seen: MOST vectors of shared memory.
    template <int NORM, typename Count>
    __device__ __forceinline__ Part of_team(const Part& mine, unsigned turn, const Count& count, float4* seen) const {
        const int lane = threadIdx.x;
        if (lane == 0) {
            if constexpr (NORM == LAYERNORM) {
                post_word(place(turn, 0, rank), mine.pivot, turn);
                post_word(place(turn, 1, rank), mine.sum, turn);
            }
            post_word(place(turn, 2, rank), mine.squares, turn);
        }
#pragma unroll 1
        for (int i = lane; i < size; i += 32) {
            float4 word = make_float4(count(i), 0.0f, 0.0f, await_word(place(turn, 2, i), turn));
            if constexpr (NORM == LAYERNORM) {
                word.y = await_word(place(turn, 0, i), turn);
                word.z = await_word(place(turn, 1, i), turn);
            }
            seen[i] = word;  // read by this lane alone
        }
        return merged<NORM>([&](int i) { return seen[i]; }, size);
    }
};

template <typename T, int NORM, int VECS, int PINNED, int KEEP>
__global__ void __launch_bounds__(THREADS, 1)
wide_onepass(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta, T* __restrict__ y,
             float* __restrict__ mean, float* __restrict__ rstd, unsigned long long* __restrict__ mail,
             unsigned* __restrict__ turns, long long rows, int hidden, long long x_stride, long long y_stride, float eps,
             int sm_count) {
    using Values = Pack<T, 16 / static_cast<int>(sizeof(T))>;
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    constexpr int TAKE = 32 / N;  // vectors whose elements are added up together
    static_assert(VECS % TAKE == 0, "statistics take whole groups");
    static_assert(sizeof(Desk) == 4624, "the header asks for it");
    Desk* const desk = reinterpret_cast<Desk*>(launch_memory());
    uint4* const ring = reinterpret_cast<uint4*>(desk + 1) + threadIdx.x;  // [VECS][THREADS]
    uint4* const kept = ring + VECS * THREADS;                            // [PINNED][2][THREADS]
    const unsigned long long pass = KEEP ? policy_pass() : 0, stay = KEEP ? policy_keep() : 0;

    const int all = hidden / N;
    const int needed = (all + VECS * THREADS - 1) / (VECS * THREADS);
    const int teams = rows < sm_count / needed ? static_cast<int>(rows) : sm_count / needed;
    const int size = sm_count / teams, slice = (all + size - 1) / size;
    const Meeting meeting{mail, static_cast<int>(blockIdx.x) / size * size, size, static_cast<int>(blockIdx.x) % size};
    const auto held_by = [&](int member) {
        const int left = all - member * slice;
        return left < 0 ? 0 : left < slice ? left : slice;
    };
    const int left = held_by(meeting.rank) - static_cast<int>(threadIdx.x);  // vectors from this thread's first on
    const int column = (meeting.rank * slice + static_cast<int>(threadIdx.x)) * N;
    const auto has = [&](int v) { return v * THREADS < left; };
    const unsigned before = turns[blockIdx.x];
    const long long team = blockIdx.x / size;

    const auto request = [&](long long row, int v) {
        const T* const from = x + row * x_stride + column + v * THREADS * N;
        if (row < rows && has(v)) {
            if constexpr (KEEP) copy_async_by(ring + v * THREADS, from, pass);
            else copy_async<16>(ring + v * THREADS, from);
        }
    };
    const auto parameter = [&](const T* from, int v) -> Values {
        if constexpr (KEEP) return {load_by(from + column + v * THREADS * N, stay)};
        else return {__ldg(reinterpret_cast<const uint4*>(from + column + v * THREADS * N))};
    };

#pragma unroll
    for (int v = 0; v < VECS; ++v) request(team, v);
#pragma unroll
    for (int v = 0; v < PINNED && v < VECS; ++v) {
        if (has(v)) {
            kept[2 * v * THREADS] = gamma != nullptr ? parameter(gamma, v).word : Values::filled(1.0f).word;
            kept[(2 * v + 1) * THREADS] = beta != nullptr ? parameter(beta, v).word : Values::filled(0.0f).word;
        }
    }
    copy_commit();

    unsigned turn = before;
#pragma unroll 1
    for (long long row = team; row < rows; row += teams) {
        ++turn;
        copy_wait<0>();
        Values held[VECS];
        Running<NORM> running;
#pragma unroll
        for (int start = 0; start < VECS; start += TAKE) {
            Values some[TAKE];
#pragma unroll
            for (int k = 0; k < TAKE; ++k) {
                if (has(start + k)) some[k].word = ring[(start + k) * THREADS];
                held[start + k] = some[k];
            }
            running.take(some, [&](int k) { return has(start + k); });
            // its values have been used, so the place is free
#pragma unroll
            for (int k = 0; k < TAKE; ++k) request(row + teams, start + k);
        }
        copy_commit();

        const Part part = of_block<NORM>(running.of_warp(), desk->warps);
        if (threadIdx.x < 32) {
            const auto count = [&](int member) { return static_cast<float>(held_by(member)) * N; };
            const Moments moments = moments_of<NORM>(meeting.of_team<NORM>(part, turn, count, desk->seen), hidden, eps);
            if (threadIdx.x == 0) {
                desk->moments = moments;
                if (meeting.rank == 0) moments.save(mean, rstd, row);
            }
        }
        __syncthreads();
        const Moments moments = desk->moments;
        T* const to = y + row * y_stride + column;
#pragma unroll
        for (int v = 0; v < VECS; ++v) {
            if (!has(v)) break;
            float values[N], scale[N], offset[N];
            held[v].unpack(values);
            const auto get = [&](const T* from, int which, float absent, float(&found)[N]) {
                if (v < PINNED) Values{kept[(2 * v + which) * THREADS]}.unpack(found);
                else (from != nullptr ? parameter(from, v) : Values::filled(absent)).unpack(found);
            };
            get(gamma, 0, 1.0f, scale);
            get(beta, 1, 0.0f, offset);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = fmaf(moments.normalise(values[j]), scale[j], offset[j]);
            const Values result = Values::packed(values);
            if constexpr (KEEP) store_by(to + v * THREADS * N, result.word, pass);
            else result.to(to + v * THREADS * N);
        }
    }
    // teams of fewer rows go on by as many turns as the others
    if (threadIdx.x == 0) turns[blockIdx.x] = before + static_cast<unsigned>((rows + teams - 1) / teams);
}
