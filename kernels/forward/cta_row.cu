// /// kernel
// summary = "16-byte loads, the row in registers, exact two-pass statistics: one read, one write."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "vec == 1 or vec == 16 // x_bytes",
//     "vec > 1 or (lanes in (0, 32) and vecs <= x_bytes)",
//     "lanes != 8 or vecs in (1, 2, 4)",
//     "lanes != 16 or vecs in (2, 4)",
//     "vecs != 3 or (vec > 1 and lanes in (0, 32))",
//     "lanes != 32 or vecs < 8 or block <= 512",
//     "early == 0 or (x_bytes == 4 and vec > 1 and lanes == 32 and vecs in (2, 4) and block <= 512 and w_bytes == x_bytes)",
//     "w_bytes == x_bytes or (lanes == 0 and vecs == 2)",
//     # 16-byte vectors for rows that have them, single elements for the others
//     "(vec > 1) == (aligned >= 16 and hidden * x_bytes % 16 == 0)",
//     # the registers of part of a warp must hold the row; those of a block should, unless they are as many as there are
//     "lanes == 0 or vecs * lanes * 16 >= hidden * x_bytes",
//     "vecs == (2 if w_bytes != x_bytes else 8 if vec > 1 else x_bytes) or vecs * (lanes or block) * 16 >= hidden * x_bytes",
//     # not twice as many as the row needs, nor threads without work where fewer would do
//     "vecs == 1 or w_bytes != x_bytes or (vecs // 2 if vecs == 8 or (vecs == 4 and (vec == 1 or lanes in (8, 16))) else vecs - 1) * (lanes or block) * 16 < hidden * x_bytes",
//     "lanes != 32 or vec == 1 or hidden * x_bytes > 256",
//     "lanes > 0 or w_bytes != x_bytes or block * 4 < hidden * x_bytes or hidden * x_bytes > 512 * (x_bytes if vec == 1 else 4)",
// ]
// skip = [{when = "rows > 2147483647", reason = "a grid holds at most 2147483647 rows"}]
//
// [axes]
// block = "study"
// lanes = [0, 8, 16, 32]  # threads a row; 0: the whole block
// vecs = [1, 2, 3, 4, 8]  # 16-byte vectors of the row in a thread's registers
// vec = [1, 4, 8]         # elements a load
// early = [0, 1]          # gamma and beta requested before the statistics
//
// [[launches]]
// name = "cta_row<{T}, {W}, {NORM}, {lanes}, {vecs}, {vec}, {early}>"
// grid = "cdiv(rows * lanes, block) if lanes else rows"
// block = "block"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Decomposition: a block a row, or several short rows a block with 8, 16 or 32 threads each (no barrier then). Each
// thread asks for all its 16-byte vectors before it uses the first, so a warp has up to 4 KB in flight, and keeps them
// packed in their own dtype: a 16-bit row of 8192 elements takes 16 registers in 256 threads.
// Statistics: exact two-pass from registers, so memory is read once. The second pass also adds up what the rounding of
// the mean left, and the formula takes it away, so a constant row gives exactly beta. RMSNorm needs the squares only.
// Numerics: fp32; sums in chains of at most 64 a thread where registers hold the row, then a tree; eps inside the root; one rounding at the end.
// Boundaries: the vector form serves rows that begin and end on 16 bytes; the others go element by element, coalesced.
// A row longer than the registers hold (8 vectors a thread) is right too: its rest is read again for each pass, from L1
// or L2 mostly.
// Saved tensors: mean and rstd in fp32 where their pointers are given.
// Known limits: beyond 8192 vectors (65536 elements in 16 bits, 32768 in fp32) the rest is read more than once. Rows
// whose pitch is no multiple of 16 bytes move 2 or 4 bytes a load.

#include "common/element.cuh"
#include "common/moments.cuh"
#include "common/reduce.cuh"

// Where registers are scarce, ptxas (NVRTC 13.0, sm_90) spills a few bytes of LayerNorm without a least number of resident
// blocks in the bounds, and of RMSNorm with one.
template <typename T, typename W, int NORM, int LANES, int VECS, int VEC, int EARLY>
__global__ void __launch_bounds__(EARLY || (LANES > 0 && VECS == 8) ? 512 : 1024, NORM == RMSNORM && VECS == 8 ? 0 : 1)
cta_row(const T* __restrict__ x, const W* __restrict__ gamma, const W* __restrict__ beta, T* __restrict__ y,
        float* __restrict__ mean, float* __restrict__ rstd, long long rows, int hidden, long long x_stride,
        long long y_stride, float eps) {
    constexpr int N = 16 / sizeof(T);
    static_assert(VEC == 1 || VEC == N, "a load takes one element or 16 bytes");
    // element by element, neighbouring lanes take neighbouring elements and a warp's slots cover 32 N elements without a
    // gap, so every address is one base and a constant
    constexpr int STEP = VEC > 1 ? 1 : LANES > 0 ? LANES : 32;
    using Threads = Group<LANES>;
    using Values = Slot<T, N, STEP>;
    using Params = Slot<W, N, STEP>;

    __shared__ float scratch[Threads::IN_WARP ? 1 : 3 * 32];
    const long long row = Threads::row();
    const int pitch = Threads::size() * N;  // elements from one slot of a thread to its next
    const int lane = Threads::lane();
    const int begin = lane / STEP * STEP * N + lane % STEP;
    // threads past the last row stay for the shuffles and hold nothing
    const int left = (row < rows ? hidden : 0) - begin;
    const T* const in = x + row * x_stride + begin;
    T* const out = y + row * y_stride + begin;
    const float inverse = 1.0f / static_cast<float>(hidden);
    if (Threads::IN_WARP && hidden > VECS * pitch) __trap();  // a fault, rather than a row cut short

    Values held[VECS];
#pragma unroll
    for (int p = 0; p < VECS; ++p) held[p].load(in + p * pitch, left - p * pitch);

    // slot p of gamma (absent: 1) or beta (absent: 0)
    const auto fetch = [&](const W* source, float absent, int p) {
        Params params;
        if (source == nullptr) params.fill(absent);
        else params.load(source + begin + p * pitch, left - p * pitch);
        return params;
    };
    Params scales[EARLY ? VECS : 1], offsets[EARLY ? VECS : 1];
    if constexpr (EARLY) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            scales[p] = fetch(gamma, 1.0f, p);
            offsets[p] = fetch(beta, 0.0f, p);
        }
    }

    const auto parameters = [&](const Params* early, const W* source, float absent, int p) {
        if constexpr (EARLY) {
            if (p < VECS) return early[p];
        }
        return fetch(source, absent, p);
    };

    // calls visit(slot, p) for every slot of this thread: those in registers, then those read again from memory
    const auto each = [&](auto visit) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if constexpr (VECS == 8 || (VECS == 4 && sizeof(T) == 2)) held[p].forget();
            visit(held[p], p);
        }
        if constexpr (!Threads::IN_WARP) {
#pragma unroll 1
            for (int p = VECS; p * pitch < left; ++p) {
                Values slot;
                slot.load(in + p * pitch, left - p * pitch);
                visit(slot, p);
            }
        }
    };

    float pivot = 0.0f;
    if constexpr (NORM == LAYERNORM) {
        float total[1] = {0.0f};
        each([&](const Values& slot, int) {
            float values[N];
            slot.unpack(values);
#pragma unroll
            for (int stride = N / 2; stride > 0; stride /= 2) {
#pragma unroll
                for (int j = 0; j < stride; ++j) values[j] += values[j + stride];
            }
            total[0] += values[0];
        });
        Threads::sum(total, scratch);
        pivot = total[0] * inverse;
    }

    // what is subtracted from element j of slot p: a place past the end of the row holds 0, and adds nothing this way
    const auto origin = [&](int p, int j) { return Values::inside(j, left - p * pitch) ? pivot : 0.0f; };

    float sums[2] = {0.0f, 0.0f};
    each([&](const Values& slot, int p) {
        float values[N];
        slot.unpack(values);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float centred = values[j] - origin(p, j);
            if constexpr (NORM == LAYERNORM) sums[0] += centred;
            sums[1] = fmaf(centred, centred, sums[1]);
        }
    });
    if constexpr (NORM == LAYERNORM) {
        Threads::sum(sums, scratch + (Threads::IN_WARP ? 0 : 32));
    } else {
        float squares[1] = {sums[1]};
        Threads::sum(squares, scratch);
        sums[1] = squares[0];
    }
    const Moments moments = NORM == LAYERNORM ? Moments::centred(pivot, sums[0], sums[1], inverse, eps)
                                              : Moments::uncentred(sums[1], inverse, eps);

    each([&](const Values& slot, int p) {
        float values[N];
        slot.unpack(values);
        float scale[N], offset[N];
        parameters(scales, gamma, 1.0f, p).unpack(scale);
        parameters(offsets, beta, 0.0f, p).unpack(offset);
#pragma unroll
        for (int j = 0; j < N; ++j) {
            values[j] = fmaf(fmaf(values[j] - origin(p, j), moments.rstd, moments.shift), scale[j], offset[j]);
        }
        Values result;
        result.pack(values);
        result.store(out + p * pitch, left - p * pitch);
    });
    if (lane == 0 && row < rows) moments.save(mean, rstd, row);
}
