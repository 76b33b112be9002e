// /// kernel
// summary = "Clusters that stay, for long rows: gamma and beta in registers once, rows ahead in a ring, a meeting that nobody waits for."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "arch in (90, 100, 103)",
//     "w_bytes == x_bytes",
//     "block in (128, 256, 512) if odd == 0 else 128 <= block <= 512",
//     "vecs == 4 or (vecs == 7) == (odd == 1)",
//     "vecs == 4 or block == 512 or (vecs == 8 and block == 256)",
//     "vecs * block * (96 if ADD > 0 else 48) + 16544 <= 230400",
//     "fixed == 0 or (x_bytes == 2 and ADD == 0 and cluster > 2)",
//     # 16-byte boundaries where rows have them
//     "(odd == 0) == (aligned >= 16 and hidden * x_bytes % 16 == 0)",
//     # the threads must hold the row, not with half of them idle
//     "vecs * cluster * block >= hidden * x_bytes // 16",
//     "vecs * cluster * block < hidden * x_bytes // 8",
// ]
// skip = [
//     {when = "arch not in (90, 100, 103)", reason = "needs clusters of blocks with 200 KB of shared memory each (sm_90, sm_100)"},
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; cta_row takes others"},
//     {when = "hidden * x_bytes < 16384", reason = "made for long rows; cta_row and span_row take others"},
//     {when = "hidden * x_bytes > 524288", reason = "the registers of a cluster hold gamma and beta of no longer rows"},
// ]
//
// zeroed = ["counters"]
//
// [axes]
// block = "study"
// cluster = [1, 2, 4, 8]   # blocks a row
// vecs = [4, 7, 8]         # 16-byte vectors of a row that a thread has
// odd = [0, 1]             # rows may begin and end between 16-byte boundaries
// fixed = [0, 1]           # a cluster's rows are its own from the beginning
//
// [scratch]
// counters = "64"
//
// [[launches]]
// name = "ring_row<{T}, {W}, {NORM}, {ADD}, {vecs}, {odd}, {GAMMA}>"
// grid = "cluster * (even(rows, clusters, 16 // x_bytes if odd else 1) if fixed else max(clusters // (16 // x_bytes), 1) * (16 // x_bytes) if odd else min(clusters, rows))"
// block = "block"
// cluster = "cluster"
// smem = "vecs * block * (96 if ADD > 0 else 48) + 16544"
// args = ["x", "residual", "gamma", "beta", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset", "counters", "fixed"]
// ///
// Decomposition: a cluster stays and takes one row after the other, each thread the same columns of each. Which row, it learns as it
// has room for it (common/shares.cuh); or all are its own from the beginning (`fixed`), where a row of time is too short to learn. What is the
// same for all rows, gamma and beta, it has in registers from the beginning, so that x alone comes from L2. Rows to come are
// on their way to a ring in shared memory, each thread's own vectors in its own places: nobody waits for anybody to use them.
// A row is walked over twice there: for its sums, and, when the threads have met, to write it. The first walk over the next row lies
// between the two, so that a meeting takes nobody's time: what is waited for was handed out a row before.
// Statistics: as all of ours (common/statistics.cuh, common/tensor.cuh).
// Numerics: fp32; sums in chains of at most 64 a thread, then a tree; eps inside the root; one rounding at the end, with the
// cast order llama also one before gamma.
// Boundaries: any hidden size up to what a cluster holds, any base and stride. With `odd` vectors lie where the boundaries are and
// single elements at the ends of a row; a cluster stays with rows that begin alike. Tensors that lie differently go
// element by element.
// Residual: added when it is used; the sum is written with y. y may be x, and sum may be residual.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: needs sm_90 or sm_100. Few rows leave multiprocessors idle.

#include "common/async_ptx.cuh"
#include "common/cluster.cuh"
#include "common/hints_ptx.cuh"
#include "common/piece.cuh"
#include "common/shares.cuh"

constexpr int DEPTH = 3;  // rows in the ring: one that is written, the next one, and one on its way

template <typename T, typename W, int NORM, int ADD, int VECS, bool ODD, int GAMMA>
struct Ring {
    static constexpr int N = Span<T>::N;
    static constexpr int EACH = ADD == ADD_NONE ? 1 : 2;  // tensors that are read
    static constexpr int PITCH = EACH * VECS * 32;  // of a warp, from one row's places to the next row's
    static constexpr bool TENSOR = BY_TENSOR<NORM, Held<T, ADD>>;
    using Values = Slot<Held<T, ADD>, N, 1>;

    // What a thread asks for a row ahead, since it comes to registers: its element of the ends.
    struct Ends {
        T x, residual;
    };

    ClusterMeeting& meeting;
    const Weights<T, W, GAMMA>& weights;
    const T* x;
    const T* residual;
    T* y;
    T* sum;
    Shares<DEPTH>& shares;
    long long x_stride, y_stride;
    int hidden;
    float eps;
    Span<T> span;
    int next_row, coming_row;  // the rows after the one that is written
    int at;       // this thread's first element
    uint4* mine;  // its places in the ring; those of the vectors that it has not hold 0
    Slot<W, N, 1> gamma[VECS], beta[VECS];
    W end_gamma, end_beta;  // of its element of the ends

    __device__ __forceinline__ bool holds(int p) const { return p * 32 < span.left; }
    __device__ __forceinline__ bool exists(int row) const { return row < shares.rows; }

    __device__ __forceinline__ void begin(uint4* memory) {
        const int lane = meeting.vector(VECS);
        span = Span<T>::template of<ODD>(x + shares.first * x_stride, hidden, lane);
        at = span.head + lane * N;
        mine = memory + threadIdx.x / 32 * (DEPTH * PITCH) + threadIdx.x % 32;
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if (holds(p)) continue;
#pragma unroll
            for (int i = 0; i < DEPTH * EACH; ++i) mine[(i * VECS + p) * 32] = uint4{};
        }
        request(next_row = shares.next(), 0);
        request(coming_row = shares.next(), 1);
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            parameters(gamma[p], weights.gamma, 1.0f, p);
            if constexpr (NORM == LAYERNORM) parameters(beta[p], weights.beta, 0.0f, p);
        }
        end_gamma = ODD && span.edge >= 0 && weights.gamma != nullptr ? weights.gamma[span.edge] : Element<W>::narrow(1.0f);
        end_beta = ODD && span.edge >= 0 && weights.beta != nullptr ? weights.beta[span.edge] : Element<W>::narrow(0.0f);
    }

    __device__ __forceinline__ void parameters(Slot<W, N, 1>& slot, const W* from, float absent, int p) const {
        slot.fill(absent);
        if (from == nullptr || !holds(p)) return;
        if constexpr (ODD) {
            float values[N];
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = Element<W>::widen(from[at + p * 32 * N + j]);
            slot.pack(values);
        } else {
            slot.load(from + at + p * 32 * N, N);
        }
    }

    __device__ __forceinline__ void request(int row, int stage) const {
        if (exists(row)) {
            const long long from = row * x_stride + at;
            uint4* const to = mine + stage * PITCH;
            const T* const own = kept(x + from);
            const T* const other = ADD != ADD_NONE ? kept(residual + from) : nullptr;
#pragma unroll
            for (int p = 0; p < VECS; ++p) {
                if (!holds(p)) continue;
                copy_async_by(to + p * 32, own + p * 32 * N, policy_keep());
                if constexpr (ADD != ADD_NONE) copy_async_by(to + (VECS + p) * 32, other + p * 32 * N, policy_keep());
            }
        }
        copy_commit();
    }

    __device__ __forceinline__ Ends look(int row) const {
        Ends ends{Element<T>::narrow(0.0f), Element<T>::narrow(0.0f)};
        if (ODD && span.edge >= 0 && exists(row)) {
            ends.x = x[row * x_stride + span.edge];
            if constexpr (ADD != ADD_NONE) ends.residual = residual[row * x_stride + span.edge];
        }
        return ends;
    }

    static __device__ __forceinline__ float end(const Ends& ends) {
        float value = Element<T>::widen(ends.x);
        if constexpr (ADD != ADD_NONE) value += Element<T>::widen(ends.residual);
        return ADD == ADD_ROUND ? Element<T>::widen(Element<T>::narrow(value)) : value;
    }

    // Vector p of a row that has come; 0 where the thread has none.
    __device__ __forceinline__ Values held(int stage, int p) const {
        Slot<T, N, 1> own;
        own.set(mine[stage * PITCH + p * 32]);
        if constexpr (ADD == ADD_NONE) {
            return own;
        } else {
            Slot<T, N, 1> other;
            other.set(mine[stage * PITCH + (VECS + p) * 32]);
            return added<ADD>(own, other);
        }
    }

    __device__ __forceinline__ Part part(int stage, const Ends& ends) const {
        const auto each = [&](auto visit) {
#pragma unroll(TENSOR ? 1 : VECS)
            for (int p = 0; p < VECS; ++p) {
                float values[N];
                held(stage, p).unpack(values);
                visit(values, [&](int) { return holds(p); });
            }
            if constexpr (ODD) {
                const float value[1] = {end(ends)};
                visit(value, [&](int) { return span.edge >= 0; });
            }
        };
        const auto count = [&] {
            int found = ODD && span.edge >= 0 ? 1 : 0;
#pragma unroll
            for (int p = 0; p < VECS; ++p) found += holds(p) ? N : 0;
            return found;
        };
        return part_of<NORM, Cluster>(each, count, !ODD || span.left > 0 ? held(stage, 0).first() : end(ends), hidden);
    }

    // The first walk; what it found is for `post`.
    __device__ __forceinline__ auto gather(int stage, const Ends& ends) const {
        if constexpr (TENSOR) {
            TensorSums<T, 2> sums;
#pragma unroll
            for (int p = 0; p < VECS; ++p) sums.add(held(stage, p).quad());
            if constexpr (ODD) sums.add(Element<T>::narrow(end(ends)));
            return sums;
        } else {
            return part(stage, ends);
        }
    }

    template <typename Found>
    __device__ __forceinline__ void hand_out(const Found& found) const {
        if constexpr (TENSOR) post_sums<NORM>(meeting.sums(), found);
        else post<NORM>(meeting.sums(), found);
    }

    __device__ __forceinline__ Moments handed_out(int stage, const Ends& ends) {
        if constexpr (TENSOR) {
            return by_tensor<NORM>(meeting.sums(), float2{}, hidden, eps,
                                   [&] { return met<NORM>(meeting.team(), part(stage, ends), hidden, eps); });
        } else {
            return posted<NORM>(meeting.sums(), Part{}, hidden, eps);
        }
    }

    __device__ __forceinline__ void write(int row, int stage, const Ends& ends, const Moments& moments) {
        T* const line = y + row * y_stride;
        T* const line_sum = ADD != ADD_NONE ? sum + row * y_stride : nullptr;
        T* const to = kept(line + at);
        T* const sums = ADD != ADD_NONE ? kept(line_sum + at) : nullptr;
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if (!holds(p)) continue;
            const Values slot = held(stage, p);
            if constexpr (ADD != ADD_NONE) as<T>(slot).store(sums + p * 32 * N, 1);
            float values[N], scale[N], shift[N];
            slot.unpack(values);
            if constexpr (sizeof(W) == 2 && VECS > 4) {
                // else their elements would be kept as floats, in registers that there are not
                gamma[p].forget();
                if constexpr (NORM == LAYERNORM) beta[p].forget();
            }
            gamma[p].unpack(scale);
            if constexpr (NORM == LAYERNORM) beta[p].unpack(shift);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = moments.template applied<NORM>(values[j]);
            weights.template apply<NORM>(values, scale, shift);
            Slot<T, N, 1> result;
            result.pack(values);
            result.store(to + p * 32 * N, 1);
            if constexpr (VECS > 4) in_turn();
        }
        if (ODD && span.edge >= 0) {
            const float value = end(ends);
            if constexpr (ADD != ADD_NONE) line_sum[span.edge] = Element<T>::narrow(value);
            float values[1] = {moments.template applied<NORM>(value)};
            const float scale[1] = {Element<W>::widen(end_gamma)}, shift[1] = {Element<W>::widen(end_beta)};
            weights.template apply<NORM>(values, scale, shift);
            line[span.edge] = Element<T>::narrow(values[0]);
        }
    }

    __device__ __forceinline__ void run(float* mean, float* rstd) {
        int row = shares.rows;
        Ends now{}, next = look(next_row);
        int stage = DEPTH - 1;
        // one turn before the first row, in which the first one is only gathered
#pragma unroll 1
        while (exists(next_row) || exists(row)) {
            const int other = stage + 1 < DEPTH ? stage + 1 : 0;
            const bool more = exists(next_row), begun = exists(row);
            const Ends coming = look(coming_row);
            copy_wait<DEPTH - 2>();
            const auto found = gather(other, next);  // of what was there before, where there is no such row, and not used
            Moments moments{};
            if (begun) {
                moments = handed_out(stage, now);
                meeting.pass();
            }
            if (more) hand_out(found);
            if (begun) {
                if (meeting.lane() == 0) moments.save(mean, rstd, row);
                write(row, stage, now, moments);
            }
            row = next_row;
            next_row = coming_row;
            coming_row = shares.next();
            request(coming_row, stage);
            stage = other;
            now = next;
            next = coming;
        }
        copy_wait<0>();
    }
};

template <typename T, typename W, int NORM, int ADD, int VECS, int ODD, int GAMMA>
__global__ void __launch_bounds__(512, 1)
ring_row(const T* x, const T* residual, const W* __restrict__ gamma, const W* __restrict__ beta, T* y, T* sum,
         float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden, long long x_stride,
         long long y_stride, float eps, float offset, unsigned* __restrict__ counters, int fixed) {
    constexpr int MAILS = ClusterMeeting::MAILS;
    static_assert(MAILS * sizeof(Cluster::Mail) == 16448, "the header asks for it");
    Cluster::Mail* const mails = reinterpret_cast<Cluster::Mail*>(launch_memory());
    using Queue = Shares<DEPTH>::Queue;
    auto* const queue = reinterpret_cast<Queue*>(mails + MAILS);
    static_assert(sizeof(Queue) == 96, "the header asks for it");
    uint4* const memory = reinterpret_cast<uint4*>(queue + 1);
    Shares<DEPTH>::prepare(queue);
    ClusterMeeting meeting = ClusterMeeting::arrive(mails);
    const Weights<T, W, GAMMA> weights{gamma, NORM == LAYERNORM ? beta : nullptr, offset};
    const int first = cluster_index(), step = cluster_count();
    const Line<T> line{x, residual, y, sum};
    constexpr int N = Span<T>::N;
    if (ODD && (!line.template alike<ADD>() || (x_stride - y_stride) % N != 0 || step * x_stride % N != 0)) {
        cluster_wait();
        for (long long row = first; row < rows; row += step) {
            const Line<T> at = line.template at<ADD>(row, x_stride, y_stride);
            const Moments moments =
                plain_row<NORM, ADD>(at, weights, hidden, meeting.lane(), meeting.size(), eps, meeting.team());
            if (meeting.lane() == 0) moments.save(mean, rstd, row);
        }
        return;
    }
    Shares<DEPTH> shares{queue, counters, static_cast<int>(rows), first, step, ODD ? N : 1, fixed != 0};
    Ring<T, W, NORM, ADD, VECS, ODD != 0, GAMMA> ring{meeting, weights,  x,        residual, y,  sum,
                                                      shares,  x_stride, y_stride, hidden,   eps};
    shares.begin();
    ring.begin(memory);
    if (ring.span.body > VECS * meeting.size()) __trap();  // a fault, rather than a row cut short
    cluster_wait();                                        // all blocks can be sent to
    ring.run(mean, rstd);
    shares.leave();
}
