// One thread's share of a row that may begin and end anywhere, and what the kernels that keep a row on chip do with it.
#pragma once

#include "common/copies.cuh"
#include "common/element.cuh"
#include "common/memory.cuh"
#include "common/moments.cuh"
#include "common/row.cuh"
#include "common/span.cuh"
#include "common/statistics.cuh"
#include "common/tensor.cuh"
#include "common/weights.cuh"

__device__ __forceinline__ unsigned long long place(const void* first) { return reinterpret_cast<unsigned long long>(first); }

// The first elements of a row in each tensor; residual and sum are null where nothing is added. y may be x, and sum may be
// residual: every element is read before it is written, by one thread.
template <typename T>
struct Line {
    const T* x;
    const T* residual;
    T* y;
    T* sum;

    // That of a row; this is the first one's.
    template <int ADD>
    __device__ __forceinline__ Line at(long long row, long long x_stride, long long y_stride) const {
        const bool adds = ADD != ADD_NONE;
        return {x + row * x_stride, adds ? residual + row * x_stride : nullptr, y + row * y_stride,
                adds ? sum + row * y_stride : nullptr};
    }

    // Whether all of them lie alike to the 16-byte boundaries.
    template <int ADD>
    __device__ __forceinline__ bool alike() const {
        unsigned long long differ = place(x) ^ place(y);
        if constexpr (ADD != ADD_NONE) differ |= (place(x) ^ place(residual)) | (place(x) ^ place(sum));
        return differ % 16 == 0;
    }
};

// Gamma and beta for the vectors of a row's body, seen by one thread.
// COPIED: from copies that lie as the row does, none of them absent. Otherwise they are read where they are, from 16-byte
// boundaries, and absent ones are 1 and 0. NORM: LayerNorm alone has beta.
template <typename T, typename W, int NORM, int GAMMA, bool COPIED>
struct Affine {
    static constexpr int N = 16 / sizeof(W);
    using Values = Slot<W, N, 1>;

    const Weights<T, W, GAMMA>& weights;
    const W* gamma;  // of the thread's first vector
    const W* beta;

    // copies: with COPIED, at the copy for the row's head.
    __device__ __forceinline__ Affine(const Weights<T, W, GAMMA>& weights, const uint4* copies, int lane) : weights(weights) {
        if constexpr (COPIED) {
            gamma = kept(reinterpret_cast<const W*>(copies + Copies<W>::place(lane)));
            beta = gamma + Copies<W>::BETA;
        } else {
            gamma = weights.gamma == nullptr ? nullptr : weights.gamma + lane * N;
            beta = weights.beta == nullptr ? nullptr : weights.beta + lane * N;
        }
    }

    // What a vector takes of them, on its way.
    struct Asked {
        Values scale, shift;
    };

    // For the vector that lies `vectors`, a multiple of 32, after the first, if it is in the row.
    __device__ __forceinline__ void ask(Asked& asked, int vectors, bool inside) const {
        const auto load = [&](Values& to, const W* from, float absent) {
            if constexpr (!COPIED) to.load_parameter(from + vectors * N, inside && from != nullptr ? N : 0, absent);
            else if (inside) to.load(from + 2 * vectors * N, N);
        };
        if constexpr (TAKES_GAMMA<NORM>) load(asked.scale, gamma, 1.0f);
        if constexpr (NORM == LAYERNORM) load(asked.shift, beta, 0.0f);
    }

    // values[j] = values[j] * gamma + beta for the elements of the vector that was asked for.
    __device__ __forceinline__ void apply(const Asked& asked, float (&values)[N]) const {
        if constexpr (!TAKES_GAMMA<NORM>) return;
        float scale[N], shift[N];
        asked.scale.unpack(scale);
        if constexpr (NORM == LAYERNORM) asked.shift.unpack(shift);
        weights.template apply<NORM>(values, scale, shift);
    }
};

// Up to VECS vectors of a row's body, `threads` apart, and at most one element of its ends; places outside the row hold 0.
template <typename T, int ADD, int VECS, bool ODD>
struct Piece {
    static constexpr int N = Span<T>::N;
    static constexpr bool FORGET = sizeof(T) == 2 && ADD != ADD_FP32;
    using Values = Slot<T, N, 1>;
    using Kept = Held<T, ADD>;

    Slot<Kept, N, 1> slot[VECS];
    T edge, edge_residual;  // as they came: to widen them here would be to wait for them

    // Requests the row, and where a residual is added writes the sum. lane: of `threads` that share the row.
    __device__ __forceinline__ void load(const Line<T>& line, const Span<T>& span, int lane, int threads) {
        const int first = span.head + lane * N;
        const auto whole = [&](Values& to, const T* from, int p) {
            to.template load<true>(from + p * threads * N, span.left - p * threads);
        };
        edge = edge_residual = Element<T>::narrow(0.0f);
        if constexpr (ADD == ADD_NONE) {
            const T* const x = ODD ? kept(line.x + first) : line.x + first;
#pragma unroll
            for (int p = 0; p < VECS; ++p) whole(slot[p], x, p);
            if (ODD && span.edge >= 0) edge = line.x[span.edge];
        } else {
            Values x[VECS], residual[VECS];
#pragma unroll
            for (int p = 0; p < VECS; ++p) {
                whole(x[p], line.x + first, p);
                whole(residual[p], line.residual + first, p);
            }
            if (ODD && span.edge >= 0) {
                edge = line.x[span.edge];
                edge_residual = line.residual[span.edge];
                line.sum[span.edge] = Element<T>::narrow(Element<T>::widen(edge) + Element<T>::widen(edge_residual));
            }
#pragma unroll
            for (int p = 0; p < VECS; ++p) {
                slot[p] = added<ADD>(x[p], residual[p]);
                as<T>(slot[p]).store(line.sum + first + p * threads * N, span.left - p * threads);
            }
        }
    }

    __device__ __forceinline__ float end() const {
        float value = Element<T>::widen(edge);
        if constexpr (ADD != ADD_NONE) value += Element<T>::widen(edge_residual);
        return ADD == ADD_ROUND ? Element<T>::widen(Element<T>::narrow(value)) : value;
    }

    // What the thread's warp finds of its elements.
    template <int NORM, typename Team>
    __device__ __forceinline__ Part part(const Span<T>& span, int threads, int hidden) {
        const auto each = [&](auto visit) {
#pragma unroll
            for (int p = 0; p < VECS; ++p) {
                const bool held = p * threads < span.left;
                float values[N];
                slot[p].unpack(values);
                visit(values, [&](int) { return held; });
            }
            if constexpr (ODD) {
                const float value[1] = {end()};
                visit(value, [&](int) { return span.edge >= 0; });
            }
        };
        const auto count = [&] {
            int found = ODD && span.edge >= 0 ? 1 : 0;
#pragma unroll
            for (int p = 0; p < VECS; ++p) found += p * threads < span.left ? N : 0;
            return found;
        };
        return part_of<NORM, Team>(each, count, !ODD || span.left > 0 ? slot[0].first() : end(), hidden);
    }

    // The same as the tensor cores find it.
    __device__ __forceinline__ TensorSums<T, 2> sums() const {
        TensorSums<T, 2> sums;
#pragma unroll
        for (int p = 0; p < VECS; ++p) sums.add(slot[p].quad());
        if constexpr (ODD) sums.add(Element<T>::narrow(end()));
        return sums;
    }

    __device__ __forceinline__ void forget() {
        if constexpr (FORGET) {
#pragma unroll
            for (int p = 0; p < VECS; ++p) slot[p].forget();
        }
    }
};

// How many meetings the threads of a row may have: a second one where the tensor cores' sums do not tell. Without a mean they are no
// faster here: what they save of instructions, they take in waiting for each other.
template <int NORM, typename T, int ADD>
constexpr int MEETINGS = NORM == LAYERNORM && BY_TENSOR<NORM, Held<T, ADD>> ? 2 : 1;

// The numbers of a row, of the threads of a team.
template <int NORM, typename T, int ADD, int VECS, bool ODD, typename Team>
__device__ __forceinline__ Moments take(Piece<T, ADD, VECS, ODD>& piece, const Team& team, const Span<T>& span, int threads,
                                        int hidden, float eps) {
    const auto exact = [&](const Team& team) {
        return met<NORM>(team, piece.template part<NORM, Team>(span, threads, hidden), hidden, eps);
    };
    const Moments moments = [&] {
        if constexpr (MEETINGS<NORM, T, ADD> == 1) return exact(team);
        else return by_tensor<NORM>(team, post_sums<NORM>(team, piece.sums()), hidden, eps, [&] { return exact(team.next()); });
    }();
    piece.forget();
    return moments;
}

// Writes a row. copies: of gamma and beta, with ODD; whoever calls has waited for them.
template <int NORM, typename T, int ADD, int VECS, bool ODD, typename W, int GAMMA>
__device__ __forceinline__ void store(const Piece<T, ADD, VECS, ODD>& piece, const Moments& moments, T* row, const Span<T>& span,
                                      int hidden, int lane, int threads, const Weights<T, W, GAMMA>& weights,
                                      const uint4* copies) {
    constexpr int N = Span<T>::N;
    using Parameters = Affine<T, W, NORM, GAMMA, ODD>;
    static_assert(Parameters::N == N, "gamma and beta are in the type of x");
    const Parameters affine(weights, ODD ? copies + span.head * Copies<W>::pitch(hidden) : nullptr, lane);
    T* const first = kept(row + span.head + lane * N);
    // by turns, those of a vector are asked for before the one before it is written; not where the row takes the registers for it
    constexpr int AHEAD = VECS > 5 && (ODD || (NORM == LAYERNORM && sizeof(T) == 4)) ? 0 : 1;
    typename Parameters::Asked asked[1 + AHEAD];
    const auto ask = [&](int p) { affine.ask(asked[p % (1 + AHEAD)], p * threads, p < VECS && p * threads < span.left); };
    if constexpr (AHEAD > 0) ask(0);
#pragma unroll
    for (int p = 0; p < VECS; ++p) {
        ask(p + AHEAD);
        if (p * threads >= span.left) continue;
        float values[N];
        piece.slot[p].unpack(values);
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = moments.template applied<NORM>(values[j]);
        affine.apply(asked[p % (1 + AHEAD)], values);
        Slot<T, N, 1> result;
        result.pack(values);
        result.store(first + p * threads * N, 1);
    }
    if (ODD && span.edge >= 0) {
        const float value = moments.template applied<NORM>(piece.end());
        row[span.edge] = Element<T>::narrow(weights.applied(value, span.edge));
    }
}

// A row whose tensors lie differently: element by element, and read again for each walk. Right, and slow.
template <int NORM, int ADD, typename T, typename W, int GAMMA, typename Team>
__device__ __forceinline__ Moments plain_row(const Line<T>& line, const Weights<T, W, GAMMA>& weights, int hidden, int lane,
                                             int threads, float eps, const Team& team) {
    const Row<T, ADD> in{line.x, line.residual};
    const auto each = [&](auto visit) {
#pragma unroll 1
        for (int i = lane; i < hidden; i += threads) {
            const float value[1] = {in[i]};
            visit(value, [](int) { return true; });
        }
    };
    const auto count = [&] { return lane < hidden ? (hidden - lane + threads - 1) / threads : 0; };
    const float first = lane < hidden ? in[lane] : 0.0f;
    const Moments moments = statistics<NORM>(team, each, count, first, hidden, eps);
#pragma unroll 1
    for (int i = lane; i < hidden; i += threads) {
        const float value = in[i];
        if constexpr (ADD != ADD_NONE) line.sum[i] = Element<T>::narrow(value);
        line.y[i] = Element<T>::narrow(weights.applied(moments.normalise(value), i));
    }
    return moments;
}
