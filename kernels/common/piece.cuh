// One thread's share of a row, and what the kernels that keep a row on chip do with it.
#pragma once

#include "common/element.cuh"
#include "common/memory.cuh"
#include "common/moments.cuh"
#include "common/span.cuh"

// Up to VECS vectors of a row's body, `threads` apart, and at most one element of its ends. Places outside the row hold 0
// and are subtracted 0, so that they add nothing to a variance.
template <typename T, int VECS>
struct Piece {
    static constexpr int N = Span<T>::N;
    using Values = Slot<T, N, 1>;

    Values slot[VECS];
    T edge;  // as it came: to widen it here would be to wait for it

    // row: its first element. lane: of `threads` that share the row.
    __device__ __forceinline__ void load(const T* row, const Span<T>& span, int lane, int threads) {
        const uint4* from = reinterpret_cast<const uint4*>(row + span.head) + lane;
#pragma unroll
        for (int p = 0; p < VECS; ++p, from += threads) {
            slot[p].set(p * threads < span.left ? load_once(from) : make_uint4(0u, 0u, 0u, 0u));
        }
        edge = span.edge >= 0 ? row[span.edge] : Element<T>::narrow(0.0f);
    }

    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int p = 0; p < VECS; ++p) slot[p].forget();
    }

    __device__ __forceinline__ float total() const {
        float sum = Element<T>::widen(edge);
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            float values[N];
            slot[p].unpack(values);
#pragma unroll
            for (int stride = N / 2; stride > 0; stride /= 2) {
#pragma unroll
                for (int j = 0; j < stride; ++j) values[j] += values[j + stride];
            }
            sum += values[0];
        }
        return sum;
    }

    // Sums of d and d^2 over the elements held, where d = x - pivot. RMSNorm: pivot is 0 and sums[0] is not wanted.
    template <int NORM>
    __device__ __forceinline__ void deviations(float pivot, const Span<T>& span, int threads, float (&sums)[2]) const {
        const float last = Element<T>::widen(edge) - (span.edge >= 0 ? pivot : 0.0f);
        sums[0] = last;
        sums[1] = last * last;
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            const float origin = p * threads < span.left ? pivot : 0.0f;
            float values[N];
            slot[p].unpack(values);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float d = NORM == LAYERNORM ? values[j] - origin : values[j];
                if constexpr (NORM == LAYERNORM) sums[0] += d;
                sums[1] = fmaf(d, d, sums[1]);
            }
        }
    }

    // The numbers that normalise this row. sum(values, k) replaces each of an array of floats by its sum over the threads
    // of the row; k counts the calls a row.
    template <int NORM, bool FORGET, typename Sum>
    __device__ __forceinline__ Moments moments(const Span<T>& span, int threads, float inverse, float eps, Sum sum) {
        float sums[2];
        if constexpr (NORM == LAYERNORM) {
            float whole[1] = {total()};
            sum(whole, 0);
            const float pivot = whole[0] * inverse;
            if constexpr (FORGET) forget();
            deviations<NORM>(pivot, span, threads, sums);
            sum(sums, 1);
            if constexpr (FORGET) forget();
            return Moments::centred(pivot, sums[0], sums[1], inverse, eps);
        } else {
            deviations<NORM>(0.0f, span, threads, sums);
            float squares[1] = {sums[1]};
            sum(squares, 0);
            if constexpr (FORGET) forget();
            return Moments::uncentred(squares[0], inverse, eps);
        }
    }

    // Writes the row. source: where the row came from. Vectors are stored whole where y lies to the 16-byte boundaries as x
    // does; else the row is read again and written element by element, which is right and slow.
    template <int NORM, typename Affine>
    __device__ __forceinline__ void store(T* row, const T* source, const Span<T>& span, int hidden, int lane, int threads,
                                          const Moments& moments, const Affine& affine) const {
        const auto normalise = [&](float value) {
            return NORM == LAYERNORM ? moments.normalise(value) : value * moments.rstd;
        };
        if ((reinterpret_cast<unsigned long long>(row) ^ reinterpret_cast<unsigned long long>(source)) % 16) {
#pragma unroll 1
            for (int i = lane; i < hidden; i += threads) {
                row[i] = Element<T>::narrow(affine.single(i, normalise(Element<T>::widen(source[i]))));
            }
            return;
        }
        uint4* to = reinterpret_cast<uint4*>(row + span.head) + lane;
#pragma unroll
        for (int p = 0; p < VECS; ++p, to += threads) {
            if (p * threads < span.left) {
                float values[N];
                slot[p].unpack(values);
#pragma unroll
                for (int j = 0; j < N; ++j) values[j] = normalise(values[j]);
                affine.apply(p, values);
                Values result;
                result.pack(values);
                ::store(to, result.quad());
            }
        }
        if (span.edge >= 0) {
            row[span.edge] = Element<T>::narrow(affine.single(span.edge, normalise(Element<T>::widen(edge))));
        }
    }
};

// Gamma and beta at the elements of a Piece. Each thread keeps its own in shared memory, laid out as its vectors of x are,
// for as long as rows begin at the same offset; no other thread reads them, so no barrier is needed. Absent ones are not
// kept. BYTES: shared memory a thread.
template <typename W, int N, int VECS>
struct Affine {
    using Params = Slot<W, N, 1>;
    static constexpr int QUADS = N * sizeof(W) / 16;

    const W* gamma;
    const W* beta;
    uint4* held;  // this thread's first vector; blockDim.x apart
    int held_head;

    __device__ __forceinline__ Affine(const W* gamma, const W* beta, uint4* shared)
        : gamma(gamma), beta(beta), held(shared + threadIdx.x), held_head(-1) {}

    // To be called before each row. All threads of a row come with the same head.
    __device__ __forceinline__ void seek(int head, int body, int lane, int threads) {
        if (head == held_head) return;
        held_head = head;
        if (gamma != nullptr) keep(gamma + head, 0, body, lane, threads);
        if (beta != nullptr) keep(beta + head, VECS * QUADS, body, lane, threads);
    }

    __device__ __forceinline__ void apply(int p, float (&values)[N]) const {
        if (gamma != nullptr) {
            float scale[N];
            get(p * QUADS, scale);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] *= scale[j];
        }
        if (beta != nullptr) {
            float offset[N];
            get((VECS + p) * QUADS, offset);
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] += offset[j];
        }
    }

    __device__ __forceinline__ float single(int index, float value) const {
        if (gamma != nullptr) value *= Element<W>::widen(gamma[index]);
        if (beta != nullptr) value += Element<W>::widen(beta[index]);
        return value;
    }

private:
    __device__ __forceinline__ void keep(const W* first, int place, int body, int lane, int threads) {
#pragma unroll 1
        for (int p = lane; p < body; p += threads, place += QUADS) {
            Params params;
            load_shifted(params, first + p * N);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) held[(place + q) * blockDim.x] = params.quad(q);
        }
    }

    __device__ __forceinline__ void get(int place, float (&values)[N]) const {
        Params params;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) params.set(held[(place + q) * blockDim.x], q);
        params.unpack(values);
    }
};
