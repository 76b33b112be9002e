// /// kernel
// summary = "16-byte loads, the row in registers, statistics in one walk: one read, one write."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm", "rmsnorm_channels", "l1norm", "l2norm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "vec == 1 or vec == 16 // x_bytes",
//     "vec > 1 or (lanes == 0 and vecs == x_bytes)",
//     "(lanes, vecs) in ((8, 1), (8, 2), (8, 4), (16, 2), (16, 4), (32, 2), (32, 3), (32, 4), (32, 6), (0, 2), (0, 3), (0, 4), (0, 5), (0, 8))",
//     "block <= 512 or (ADD == 0 and vecs % 2 == 0 and (vecs != 4 or lanes not in (8, 16)))",
//     "vecs in (2, 4) or (lanes, vecs) == (0, 5) or ADD == 0",
//     "vecs != 3 or hidden * x_bytes > 1024",
//     "vecs != 6 or (x_bytes == 2 and NORM < 2)",
//     "vecs < 8 or x_bytes == 2 or NORM > 0 or arch not in (75, 86, 87, 88, 89)",
//     "vecs != 6 or hidden * x_bytes > 2048",
//     "(lanes, vecs) != (0, 2) or vec == 1 or w_bytes != x_bytes",
//     "vecs not in (3, 5) or NORM < 2",
//     # timed on no other architecture, and a fifth of what it takes to compile
//     "arch == 90 or (vecs not in (3, 5, 6) and (vecs != 4 or lanes not in (8, 16)))",
//     "vecs != 3 or lanes > 0 or hidden * x_bytes == 48 * block",
//     "vecs != 4 or lanes not in (8, 16) or (NORM < 2 and ADD == 0)",
//     "vecs != 4 or lanes not in (8, 16) or hidden * x_bytes == 64 * lanes",
//     "vecs != 5 or (vec > 1 and w_bytes == x_bytes and ADD < 2)",
//     "vecs != 5 or hidden * x_bytes == 80 * block",
//     "w_bytes == x_bytes or (lanes == 0 and vecs == 2 and (ADD == 0 or vec == 1))",
//     # 16-byte vectors for rows that have them, single elements for the others
//     "(vec > 1) == (aligned >= 16 and hidden * x_bytes % 16 == 0 and (w_bytes == x_bytes or ADD == 0))",
//     # the registers of part of a warp must hold the row; those of a block should, unless they are as many as there are
//     "lanes == 0 or vecs * lanes * 16 >= hidden * x_bytes",
//     "vecs == (2 if w_bytes != x_bytes else x_bytes if vec == 1 else 8 if ADD == 0 else 4) or vecs * (lanes or block) * 16 >= hidden * x_bytes",
//     # not twice as many as the row needs, nor threads without work where fewer would do
//     "vecs == 1 or w_bytes != x_bytes or (vec == 1 and block == 64) or (0 if ADD > 0 and lanes == 8 else vecs // 2) * (lanes or block) * 16 < hidden * x_bytes",
//     "lanes > 0 or w_bytes != x_bytes or (vec == 1 and block == 64) or block * 4 < hidden * x_bytes or hidden * x_bytes > 2048",
// ]
// skip = [{when = "rows > 2147483647", reason = "a grid holds at most 2147483647 rows"}]
//
// [axes]
// block = "study"
// lanes = [0, 8, 16, 32]  # threads a row; 0: the whole block
// vecs = [1, 2, 3, 4, 5, 6, 8]  # 16-byte vectors of the row in a thread's registers
// vec = [1, 4, 8]         # elements a load
//
// [[launches]]
// name = "cta_row<{T}, {W}, {NORM}, {ADD}, {lanes}, {vecs}, {vec}, {GAMMA}>"
// grid = "cdiv(rows * lanes, block) if lanes else rows"
// block = "block"
// args = ["x", "residual", "gamma", "beta", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: a block a row, or several short rows a block with 8, 16 or 32 threads each (no barrier then). Each
// thread asks for all its 16-byte vectors before it uses the first, so a warp has up to 4 KB in flight, and keeps them
// packed in their own dtype: a 16-bit row of 8192 elements takes 16 registers in 256 threads.
// Statistics: one walk over the registers and one barrier a row (common/statistics.cuh): memory is read once, and a constant row
// gives exactly beta. RMSNorm needs the squares only.
// Numerics: fp32; sums in chains of at most 64 a thread where registers hold the row, then a tree; eps inside the root; one
// rounding at the end.
// Boundaries: the vector form serves rows that begin and end on 16 bytes; the others go element by element, coalesced.
// A row longer than the registers hold (8 vectors a thread) is right too: its rest is read again for each walk, from L1
// or L2 mostly.
// Residual: added in fp32. With the mode round the row is held as the sum that is handed out, so it costs no more registers
// than x; with fp32 a 16-bit row is held unrounded in twice as many, which is what x and residual would take too, but
// without adding and widening them again. The sum is written as soon as it is there. y may be x, and sum may be residual.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: beyond 8192 vectors (65536 elements in 16 bits, 32768 in fp32; half of it with a residual) the rest is read
// more than once. Rows whose pitch is no multiple of 16 bytes move 2 or 4 bytes a load.

#include "common/element.cuh"
#include "common/moments.cuh"
#include "common/reduce.cuh"
#include "common/statistics.cuh"
#include "common/tensor.cuh"
#include "common/weights.cuh"

// A block's, as the header has it.
template <int ADD, int LANES, int VECS>
constexpr int MOST_THREADS = ADD == ADD_NONE && VECS % 2 == 0 && !(VECS == 4 && (LANES == 8 || LANES == 16)) ? 1024 : 512;

template <typename T, typename W, int NORM, int ADD, int LANES, int VECS, int VEC, int GAMMA>
__global__ void __launch_bounds__(MOST_THREADS<ADD, LANES, VECS>, VECS == 8 ? 0 : ADD == ADD_NONE && VECS % 2 == 1 ? 2 : 1)
cta_row(const T* __restrict__ x, const T* __restrict__ residual, const W* __restrict__ gamma, const W* __restrict__ beta,
        T* __restrict__ y, T* __restrict__ sum, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
        int hidden, long long x_stride, long long y_stride, float eps, float offset) {
    constexpr int N = 16 / sizeof(T);
    static_assert(VEC == 1 || VEC == N, "a load takes one element or 16 bytes");
    // element by element, neighbouring lanes take neighbouring elements and a warp's slots cover 32 N elements without a
    // gap, so every address is one base and a constant
    constexpr int STEP = VEC > 1 ? 1 : LANES > 0 ? LANES : 32;
    constexpr bool FORGET = sizeof(T) == 2 && ADD != ADD_FP32 && VECS >= 4;
    using Threads = Group<LANES>;
    // a row is never longer than the registers; nor is it with 5 vectors, but then ptxas spills
    constexpr bool FITS = Threads::IN_WARP || VECS == 3;
    using Loaded = Slot<T, N, STEP>;
    using Values = Slot<Held<T, ADD>, N, STEP>;
    using Params = Slot<W, N, STEP>;

    constexpr bool TENSOR = BY_TENSOR<NORM, Held<T, ADD>>;
    __shared__ float4 scratch[Threads::IN_WARP ? 1 : TENSOR ? 64 : 32];
    const long long row = Threads::row();
    const int pitch = Threads::size() * N;  // elements from one slot of a thread to its next
    const int lane = Threads::lane();
    const int begin = lane / STEP * STEP * N + lane % STEP;
    // threads past the last row stay for the shuffles and hold nothing
    const int left = (row < rows ? hidden : 0) - begin;
    const long long from = row * x_stride + begin;
    if (FITS && hidden > VECS * pitch) __trap();  // a fault, rather than a row cut short

    const auto load = [&](const T* first, int p) {
        Loaded slot;
        slot.load(first + p * pitch, left - p * pitch);
        return slot;
    };
    const auto hand_out = [&](const Values& slot, int p) {
        if constexpr (ADD != ADD_NONE) as<T>(slot).store(sum + row * y_stride + begin + p * pitch, left - p * pitch);
    };
    Values held[VECS];
    const T* const first = kept_in_l2(x + from);
    if constexpr (ADD == ADD_NONE) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) held[p] = load(first, p);
    } else {
        const T* const first_other = kept_in_l2(residual + from);
        Loaded own[VECS], other[VECS];
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            own[p] = load(first, p);
            other[p] = load(first_other, p);
        }
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            held[p] = added<ADD>(own[p], other[p]);
            hand_out(held[p], p);
        }
    }

    const auto held_at = [&](int p) {
        if constexpr (ADD == ADD_NONE) return load(x + from, p);
        else return added<ADD>(load(x + from, p), load(residual + from, p));
    };

    // calls visit(slot, p) for every slot of this thread: those in registers, then those read again from memory
    const auto each_slot = [&](auto visit) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if constexpr (FORGET) held[p].forget();
            visit(held[p], p);
        }
        if constexpr (!FITS) {
#pragma unroll 1
            for (int p = VECS; p * pitch < left; ++p) {
                visit(held_at(p), p);
            }
        }
    };
    const auto each = [&](auto visit) {
        each_slot([&](const Values& slot, int p) {
            float values[N];
            slot.unpack(values);
            visit(values, [&](int j) { return Values::inside(j, left - p * pitch); });
        });
    };
    const auto count = [&] {
        int found = 0;
#pragma unroll 1
        for (int p = 0; p * pitch < left; ++p) found += Values::count(left - p * pitch);
        return found;
    };
    // Gamma (absent: 1) and beta (absent: 0) of two slots by turns. AHEAD: those of a slot are asked for before the one before it is
    // written, the first ones before the warps meet; else where they are wanted, which takes fewer registers. Where it was timed
    // faster: with gamma alone it was not.
    constexpr bool AHEAD = NORM == LAYERNORM && VEC > 1 && (VECS == 3 || VECS == 4) && (LANES == 0 || LANES == 32) && ARCH == 900;
    Params gammas[2], betas[2];
    const auto fetch = [&](Params& params, const W* source, float absent, int p) {
        if constexpr (AHEAD) {
            params.load_parameter(source + begin + p * pitch, source == nullptr ? 0 : left - p * pitch, absent);
        } else {
            if (source == nullptr) params.fill(absent);
            else params.load(source + begin + p * pitch, left - p * pitch);
        }
    };
    const auto ask = [&](int p) {
        if constexpr (TAKES_GAMMA<NORM>) fetch(gammas[p % 2], gamma, 1.0f, p);
        if constexpr (NORM == LAYERNORM) fetch(betas[p % 2], beta, 0.0f, p);
    };
    if constexpr (AHEAD) ask(0);
    const Team<LANES> team{scratch};
    const Moments moments = [&] {
        if constexpr (TENSOR) {
            TensorSums<T, VECS >= 3 ? 1 : 2> sums;
#pragma unroll
            for (int p = 0; p < VECS; ++p) sums.add(held[p].quad());
            if constexpr (!FITS) {
#pragma unroll 1
                for (int p = VECS; p * pitch < hidden; ++p) {
                    TensorSums<T, 1> more;
                    more.add(held_at(p).quad());
                    sums.add(more);
                }
            }
            return by_tensor<NORM>(team, post_sums<NORM>(team, sums), hidden, eps, [&] {
                return statistics<NORM>(team.next(), each, count, held[0].first(), hidden, eps);
            });
        } else {
            return statistics<NORM>(team, each, count, held[0].first(), hidden, eps);
        }
    }();
    if (lane == 0 && row < rows) moments.save(mean, rstd, row);

    const Weights<T, W, GAMMA> weights{gamma, beta, offset};
    T* const to = y + row * y_stride + begin;  // not before, or 8 vectors spill

    const auto write = [&](auto normalise) {
        each_slot([&](const Values& slot, int p) {
            if constexpr (!AHEAD) ask(p);
            float values[N], scale[N], shift[N];
            slot.unpack(values);
            if constexpr (TAKES_GAMMA<NORM>) gammas[p % 2].unpack(scale);
            if constexpr (NORM == LAYERNORM) betas[p % 2].unpack(shift);
            if constexpr (AHEAD) ask(p + 1);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = normalise(values[j]);
            weights.template apply<NORM>(values, scale, shift);
            if (p >= VECS) hand_out(slot, p);  // only now: a sum in place of the residual ends what it was made of
            Loaded result;
            result.pack(values);
            result.store(to + p * pitch, left - p * pitch);
        });
    };
    // the tensor cores' sums leave no pivot to subtract; the same bits, by one instruction an element less
    if (TENSOR && NORM == LAYERNORM && VECS == 8 && moments.pivot == 0.0f) {
        write([&](float value) { return fmaf(value, moments.rstd, moments.shift); });
    } else {
        write([&](float value) { return moments.template applied<NORM>(value); });
    }
}
