// Statistics of rows that many blocks share: what a thread finds of thousands of elements, and how parts become one.
//
// A thread takes a few elements at a time: about the first of them it adds up d and d^2 (common/statistics.cuh says why
// that is safe for 64 elements at most), and merges that with what it has by weight (Chan, Golub and LeVeque 1983), so that no
// sum of squares is ever about anything but the mean of its own elements. The mean itself is kept as a pivot and a sum of
// differences from it: at an offset of 1000 one float is too few.
#pragma once

#include "common/moments.cuh"
#include "common/pack.cuh"
#include "common/reduce.cuh"

template <int NORM>
struct Running {
    float count = 0.0f;
    float pivot = 0.0f;
    float sum = 0.0f;  // of x - pivot
    float m2 = 0.0f;   // about the mean of its elements; RMSNorm: the sum of squares

    // More vectors: of MANY those that are there, which come first.
    template <typename Values, int MANY>
    __device__ __forceinline__ void take(const Values (&vectors)[MANY], int there) {
        if (there >= MANY) add(vectors, [](int) { return true; }, MANY);
        else if (there > 0) add(vectors, [there](int k) { return k < there; }, there);
    }

    // m elements with sum s and squares q of their differences from `first`, which is one of them.
    __device__ __forceinline__ void join(float m, float first, float s, float q) {
        if (count == 0.0f) pivot = first;
        const float moved = fmaf(m, first - pivot, s);
        const float apart = __fdividef(moved, m) - (count > 0.0f ? __fdividef(sum, count) : 0.0f);
        const float weight = __fdividef(count * m, count + m);
        m2 += fmaf(apart * apart, weight, fmaf(-s, __fdividef(s, m), q));
        sum += moved;
        count += m;
    }

    // The same as sums about another pivot.
    __device__ __forceinline__ Part about(float to) const {
        const float off = (count > 0.0f ? __fdividef(sum, count) : 0.0f) + (pivot - to);
        return {count, to, count * off, fmaf(count * off, off, m2)};
    }

    // What the lanes of a warp have, in all of them.
    __device__ __forceinline__ Part of_warp() const {
        if constexpr (NORM == RMSNORM) {
            float squares[1] = {m2};
            Group<32>::sum(squares);
            return {0.0f, 0.0f, 0.0f, squares[0]};
        } else {
            float whole[2] = {fmaf(count, pivot, sum), count};
            Group<32>::sum(whole);
            const Part part = about(whole[1] > 0.0f ? __fdividef(whole[0], whole[1]) : 0.0f);
            float sums[2] = {part.sum, part.squares};
            Group<32>::sum(sums);
            return {whole[1], part.pivot, sums[0], sums[1]};
        }
    }

private:
    // Absent vectors count as copies of the first element, whose difference from it is 0.
    template <typename Values, int MANY, typename Present>
    __device__ __forceinline__ void add(const Values (&vectors)[MANY], const Present& present, int there) {
        float first[Values::COUNT], squares = 0.0f, s = 0.0f, q = 0.0f;
        vectors[0].unpack(first);
#pragma unroll
        for (int k = 0; k < MANY; ++k) {
            float values[Values::COUNT];
            vectors[k].unpack(values);
#pragma unroll
            for (int j = 0; j < Values::COUNT; ++j) {
                if constexpr (NORM == RMSNORM) {
                    const float value = present(k) ? values[j] : 0.0f;
                    squares = fmaf(value, value, squares);
                } else {
                    const float d = present(k) ? values[j] - first[0] : 0.0f;
                    s += d;
                    q = fmaf(d, d, q);
                }
            }
        }
        if constexpr (NORM == RMSNORM) m2 += squares;
        else join(static_cast<float>(there * Values::COUNT), first[0], s, q);
    }
};

__device__ __forceinline__ float4 word_of(const Part& part) {
    return make_float4(part.count, part.pivot, part.sum, part.squares);
}

__device__ __forceinline__ Part part_of(const float4& word) { return {word.x, word.y, word.z, word.w}; }

// The parts of all lanes of a warp as one, in all of them. walk(each): hands this lane's parts to each(part), in one order
// whenever it is called, and the second time to one that changes them.
template <int NORM, typename Walk>
__device__ __forceinline__ Part merged_by(const Walk& walk) {
    float whole[2] = {0.0f, 0.0f}, sums[2] = {0.0f, 0.0f};
    float pivot = 0.0f;
    if constexpr (NORM == LAYERNORM) {
        walk([&](const Part& part) {
            whole[0] = fmaf(part.count, part.pivot, whole[0]);
            whole[1] += part.count;
        });
        Group<32>::sum(whole);
        pivot = whole[1] > 0.0f ? __fdividef(whole[0], whole[1]) : 0.0f;
    }
    walk([&](auto&& part) {
        if constexpr (NORM == LAYERNORM) part.move(pivot);
        sums[0] += part.sum;
        sums[1] += part.squares;
    });
    Group<32>::sum(sums);
    return {whole[1], pivot, sums[0], sums[1]};
}

// Many parts as one, in all lanes of a warp, in an order that their number alone decides. each(i): the i-th; it is asked for
// twice where there are more than 32.
template <int NORM, typename Each>
__device__ __forceinline__ Part merged(const Each& each, int many) {
    return merged_by<NORM>([&](const auto& with) {
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < many; i += 32) with(part_of(each(i)));
    });
}

// The same of MANY parts of every lane, where absent ones have a count and sums of 0.
template <int NORM, int MANY>
__device__ __forceinline__ Part merged(Part (&parts)[MANY]) {
    return merged_by<NORM>([&](const auto& with) {
#pragma unroll
        for (int k = 0; k < MANY; ++k) with(parts[k]);
    });
}

// A block's parts as one, in all lanes of its first warp. scratch: 32 vectors of shared memory that nobody else uses.
template <int NORM>
__device__ __forceinline__ Part of_block(const Part& warp, float4* scratch) {
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = word_of(warp);
    __syncthreads();
    if (threadIdx.x >= 32) return warp;
    return merged<NORM>([&](int i) { return scratch[i]; }, static_cast<int>(blockDim.x) / 32);
}

template <int NORM>
__device__ __forceinline__ Moments moments_of(const Part& part, int hidden, float eps) {
    const float inverse = 1.0f / static_cast<float>(hidden);
    return NORM == LAYERNORM ? Moments::centred(part.pivot, part.sum, part.squares, inverse, eps)
                             : Moments::uncentred(part.squares, inverse, eps);
}

// N neighbouring elements of gamma or beta in 16-byte vectors, or one by one where N is 1; absent ones have one value.
template <int N, typename W>
__device__ __forceinline__ void parameters(const W* from, int column, float absent, float (&values)[N]) {
    constexpr int STEP = N == 1 ? 1 : 16 / static_cast<int>(sizeof(W)) < N ? 16 / static_cast<int>(sizeof(W)) : N;
#pragma unroll
    for (int k = 0; k < N; k += STEP) {
        float some[STEP];
        if (from != nullptr) {
            Pack<W, STEP>::of(from + column + k).unpack(some);
        } else {
#pragma unroll
            for (int j = 0; j < STEP; ++j) some[j] = absent;
        }
#pragma unroll
        for (int j = 0; j < STEP; ++j) values[k + j] = some[j];
    }
}
