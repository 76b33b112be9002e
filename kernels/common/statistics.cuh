// The numbers that normalise a row, in one walk over what its threads hold of it and one meeting of its warps.
//
// LayerNorm adds up d = x - pivot and d^2 (shifted data; Chan, Golub and LeVeque 1983), where each thread's pivot is the first
// element that it holds. The parts (count, pivot, sum d, sum d^2) are then moved to the mean of their warp by exact algebra, and
// those of the warps to the mean of the row. Why that is enough for any row:
//  * a row of one value gives d = 0, so exactly beta; at an offset of 1e6 the differences are exact (Sterbenz);
//  * moving a part of m elements from pivot p to the mean mu cancels what is of size m (p - mu)^2. As p is itself an element,
//    the row's own sum of squares Q holds (p - mu)^2, and over all threads these add up to no more than Q. So whatever
//    outliers the pivots are, the relative error of Q stays below a small multiple of m u, with m at most 64 elements a
//    thread (u = 2^-24), and for pivots like the other elements it is that of a two-pass.
// A mean rounded to fp32 is no mean at an offset of 33333; what its rounding leaves is a sum too, and is taken away at the end.
#pragma once

#include "common/moments.cuh"
#include "common/reduce.cuh"

// What a warp (Team::WHOLE: the lanes of a row) finds of its elements; without a mean one sum only, in the place of squares.
// first: an element that the thread holds; anything finite where it holds none.
// each(visit): calls visit(values, inside) for every piece that the thread holds: an array of floats, and whether element j of
// it is in the row (one that is not is 0, and is subtracted 0, so that it adds nothing). count(): how many are.
template <int NORM, typename Team, typename Each, typename Count>
__device__ __forceinline__ Part part_of(const Each& each, const Count& count, float first, int hidden) {
    using Near = typename Team::Near;
    Part part{0.0f, first, 0.0f, 0.0f};
    each([&](const auto& values, auto inside) {
#pragma unroll
        for (int j = 0; j < static_cast<int>(sizeof(values) / sizeof(float)); ++j) {
            if constexpr (NORM == LAYERNORM) {
                const float d = values[j] - (inside(j) ? first : 0.0f);
                part.sum += d;
                part.squares = fmaf(d, d, part.squares);
            } else {
                part.squares = Scale<NORM>::add(part.squares, values[j]);
            }
        }
    });
    if constexpr (NORM == LAYERNORM) {
        part.count = static_cast<float>(count());
        float whole[2] = {fmaf(part.count, part.pivot, part.sum), part.count};
        if constexpr (Team::WHOLE) {
            float total[1] = {whole[0]};
            Near::sum(total);
            whole[0] = total[0];
            whole[1] = static_cast<float>(hidden);
        } else {
            Near::sum(whole);
        }
        part.move(whole[1] > 0.0f ? __fdividef(whole[0], whole[1]) : 0.0f);
        float sums[2] = {part.sum, part.squares};
        Near::sum(sums);
        return {whole[1], part.pivot, sums[0], sums[1]};
    } else {
        float squares[1] = {part.squares};
        Near::sum(squares);
        return {0.0f, 0.0f, 0.0f, squares[0]};
    }
}

template <int NORM, typename Team>
__device__ __forceinline__ void post(const Team& team, const Part& part) {
    if constexpr (Team::WHOLE) return;
    else if constexpr (NORM == LAYERNORM) team.post(make_float4(part.count, part.pivot, part.sum, part.squares));
    else team.post(part.squares);
}

// The row's numbers, in every thread, added up in the same order everywhere. mine: what was posted.
template <int NORM, typename Team>
__device__ __forceinline__ Moments posted(const Team& team, Part mine, int hidden, float eps) {
    const float inverse = 1.0f / static_cast<float>(hidden);
    if constexpr (NORM == LAYERNORM) {
        if constexpr (!Team::WHOLE) {
            const float4* const all = team.template posted<float4>();
            float mean[1] = {0.0f};
#pragma unroll 1
            for (int i = threadIdx.x % 32; i < team.warps(); i += 32) mean[0] = fmaf(all[i].x, all[i].y, mean[0]);
            Group<32>::sum(mean);
            const float pivot = mean[0] * inverse;
            float sums[2] = {0.0f, 0.0f};
#pragma unroll 1
            for (int i = threadIdx.x % 32; i < team.warps(); i += 32) {
                Part part{all[i].x, all[i].y, all[i].z, all[i].w};
                part.move(pivot);
                sums[0] += part.sum;
                sums[1] += part.squares;
            }
            Group<32>::sum(sums);
            mine = {0.0f, pivot, sums[0], sums[1]};
        }
        return Moments::centred(mine.pivot, mine.sum, mine.squares, inverse, eps);
    } else {
        float squares[1] = {mine.squares};
        if constexpr (!Team::WHOLE) {
            const float* const all = team.template posted<float>();
            squares[0] = 0.0f;
#pragma unroll 1
            for (int i = threadIdx.x % 32; i < team.warps(); i += 32) squares[0] += all[i];
            Group<32>::sum(squares);
        }
        return Moments::without_mean<NORM>(squares[0], inverse, eps);
    }
}

// The row's numbers by a meeting of those who have a part of it.
template <int NORM, typename Team>
__device__ __forceinline__ Moments met(const Team& team, const Part& mine, int hidden, float eps) {
    post<NORM>(team, mine);
    return posted<NORM>(team, mine, hidden, eps);
}

template <int NORM, typename Team, typename Each, typename Count>
__device__ __forceinline__ Moments statistics(const Team& team, const Each& each, const Count& count, float first, int hidden,
                                              float eps) {
    return met<NORM>(team, part_of<NORM, Team>(each, count, first, hidden), hidden, eps);
}
