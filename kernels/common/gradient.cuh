// The backward pass of threads that stay: they keep to their columns, go over rows, and have a sum for every column of theirs.
//
// x and dy of the rows to come are on their way to a ring in shared memory, each thread's own vectors in its own places, so that
// nobody waits for anybody to use them. A row is walked over twice: once for the two sums over the row that dx needs, and for the
// column sums; and once, when the threads have met, for dx. Where they are of several warps, the first walk over the next row
// lies between the two, so that a meeting takes nobody's time: what is waited for was handed out a whole row before.
#pragma once

#include "common/async_ptx.cuh"
#include "common/meeting.cuh"
#include "common/moments.cuh"
#include "common/span.cuh"
#include "common/statistics.cuh"

// The tensors of the op; residual, gamma, and the two statistics may be null.
template <typename T, typename W>
struct Backward {
    const T* x;
    const T* dy;
    const T* residual;
    const W* gamma;
    const float* mean;
    const float* rstd;
    T* dx;
    long long rows;
    int hidden;
    long long x_stride, y_stride;
    float eps;

    // Of a row: as the forward pass saved them. RMSNorm has no mean.
    template <int NORM>
    __device__ __forceinline__ Moments saved(long long row) const {
        return {NORM == LAYERNORM ? mean[row] : 0.0f, 0.0f, rstd[row], 0.0f};
    }

    // Whether rows that are `step` apart, of all tensors, lie alike to the 16-byte boundaries.
    __device__ __forceinline__ bool alike(long long step) const {
        constexpr int N = 16 / sizeof(T);
        unsigned long long differ = reinterpret_cast<unsigned long long>(x) ^ reinterpret_cast<unsigned long long>(dy);
        differ |= reinterpret_cast<unsigned long long>(x) ^ reinterpret_cast<unsigned long long>(dx);
        if (residual != nullptr) {
            differ |= reinterpret_cast<unsigned long long>(x) ^ reinterpret_cast<unsigned long long>(residual);
        }
        return differ % 16 == 0 && (x_stride - y_stride) % N == 0 && step * x_stride % N == 0;
    }
};

// The sums of one thread's columns: of up to VECS vectors, and of at most one element of the ends of its rows.
template <int VECS, int N>
struct Sums {
    float scale[VECS][N];  // of dy * xhat
    float offset[VECS][N];  // of dy
    float end_scale, end_offset;
};

// What a thread asks for one row before it is used, since it comes to registers.
template <typename T>
struct Coming {
    Moments moments;  // where they were saved
    T x, dy;          // the element of the ends
};

template <typename W>
__device__ __forceinline__ float or_one(const W* gamma, int index) {
    return gamma != nullptr ? Element<W>::widen(gamma[index]) : 1.0f;
}

// The rows first, first + step, ...: dx of this thread's columns, and their sums added to what is in `sums`.
// All of these rows lie alike, and without ODD they begin and end on boundaries. memory: depth * 2 * VECS vectors a thread.
template <int NORM, int VECS, bool ODD, typename T, typename W, typename Meeting>
struct Walk {
    static constexpr int N = Span<T>::N;
    static constexpr int STRIDE = Meeting::STRIDE;
    // Where nobody need be met outside the warp and the registers are there, what the first walk made is kept for the second.
    static constexpr bool KEEP = Meeting::ALONE && !ODD && VECS * N <= 16;
    using Values = Slot<T, N, 1>;

    const Backward<T, W>& work;
    Meeting& meeting;
    Span<T> span;
    int at;        // this thread's first element
    uint4* mine;   // its places in the ring
    int pitch;     // from one row's places to the next row's
    Slot<W, N, 1> gamma[VECS];
    float end_gamma;
    Sums<VECS, N> sums;

    __device__ __forceinline__ Walk(const Backward<T, W>& work, Meeting& meeting, uint4* memory, long long first)
        : work(work), meeting(meeting) {
        const int lane = meeting.vector(VECS);
        span = Span<T>::template of<ODD>(work.x + first * work.x_stride, work.hidden, lane);
        at = span.head + lane * N;
        mine = memory + threadIdx.x / 32 * (2 * VECS * 32) + threadIdx.x % 32;
        pitch = static_cast<int>(blockDim.x) * 2 * VECS;
        end_gamma = ODD && span.edge >= 0 ? or_one(work.gamma, span.edge) : 0.0f;
        sums.end_scale = sums.end_offset = 0.0f;
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            float values[N];
#pragma unroll
            for (int j = 0; j < N; ++j) {
                values[j] = holds(p) ? or_one(work.gamma, column(p) + j) : 0.0f;
                sums.scale[p][j] = sums.offset[p][j] = 0.0f;
            }
            gamma[p].pack(values);
        }
    }

    __device__ __forceinline__ bool holds(int p) const { return p * STRIDE < span.left; }
    __device__ __forceinline__ int column(int p) const { return at + p * STRIDE * N; }
    __device__ __forceinline__ bool exists(long long row) const { return row < work.rows; }

    __device__ __forceinline__ void request(long long row, int stage) {
        if (exists(row)) {
            const long long from = row * work.x_stride + at;
            uint4* const to = mine + stage * pitch;
#pragma unroll
            for (int p = 0; p < VECS; ++p) {
                if (!holds(p)) continue;
                copy_async<16>(to + p * 32, work.x + from + p * STRIDE * N);
                copy_async<16>(to + (VECS + p) * 32, work.dy + from + p * STRIDE * N);
                if (work.residual != nullptr) bring_to_l2(work.residual + from + p * STRIDE * N);
            }
        }
        copy_commit();
    }

    __device__ __forceinline__ Coming<T> look(long long row) const {
        Coming<T> coming{{0.0f, 0.0f, 0.0f, 0.0f}, Element<T>::narrow(0.0f), Element<T>::narrow(0.0f)};
        if (!exists(row)) return coming;
        if (work.rstd != nullptr) coming.moments = work.template saved<NORM>(row);
        if (ODD && span.edge >= 0) {
            coming.x = work.x[row * work.x_stride + span.edge];
            coming.dy = work.dy[row * work.x_stride + span.edge];
        }
        return coming;
    }

    // The statistics of a row whose x has come: those that were saved, or made anew, for which the threads meet once more.
    __device__ __forceinline__ Moments moments(const Coming<T>& coming, int stage) {
        if (work.rstd != nullptr) return coming.moments;
        Values slot;
        const auto each = [&](auto visit) {
#pragma unroll 1
            for (int p = 0; p < VECS; ++p) {
                if (!holds(p)) continue;
                float values[N];
                slot.set(mine[stage * pitch + p * 32]);
                slot.unpack(values);
                visit(values, [](int) { return true; });
            }
            if (ODD && span.edge >= 0) {
                const float end[1] = {Element<T>::widen(coming.x)};
                visit(end, [](int) { return true; });
            }
        };
        const auto count = [&] {
            int found = ODD && span.edge >= 0 ? 1 : 0;
#pragma unroll
            for (int p = 0; p < VECS; ++p) found += holds(p) ? N : 0;
            return found;
        };
        float pivot = ODD && span.edge >= 0 ? Element<T>::widen(coming.x) : 0.0f;
        if (holds(0)) {
            slot.set(mine[stage * pitch]);
            pivot = slot.first();
        }
        return statistics<NORM>(meeting.team(), each, count, pivot, work.hidden, work.eps);
    }

    static __device__ __forceinline__ float normalise(const Moments& moments, float value) {
        return NORM == LAYERNORM ? moments.normalise(value) : value * moments.rstd;
    }

    // Calls visit(p, xhat, g, dy) for the vectors of a row that has come, with N values each.
    template <typename Visit>
    __device__ __forceinline__ void each(int stage, const Moments& moments, Visit visit) const {
        const uint4* const from = mine + stage * pitch;
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if (!holds(p)) continue;
            Values slot;
            float xhat[N], dy[N], g[N];
            slot.set(from[p * 32]);
            slot.unpack(xhat);
            slot.set(from[(VECS + p) * 32]);
            slot.unpack(dy);
            gamma[p].unpack(g);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                xhat[j] = normalise(moments, xhat[j]);
                g[j] *= dy[j];
            }
            visit(p, xhat, g, dy);
        }
    }

    // The first walk: this thread's part of the sums of g and of g * xhat over the row. keep(p, xhat, g) is called for each vector.
    template <typename Keep>
    __device__ __forceinline__ float2 gather(int stage, const Moments& moments, const Coming<T>& coming, Keep keep) {
        float2 found = make_float2(0.0f, 0.0f);
        const auto add = [&](float xhat, float g, float dy, float& scale, float& offset) {
            found.y = fmaf(g, xhat, found.y);
            scale = fmaf(dy, xhat, scale);
            if constexpr (NORM == LAYERNORM) {
                found.x += g;
                offset += dy;
            }
        };
        each(stage, moments, [&](int p, const float(&xhat)[N], const float(&g)[N], const float(&dy)[N]) {
#pragma unroll
            for (int j = 0; j < N; ++j) add(xhat[j], g[j], dy[j], sums.scale[p][j], sums.offset[p][j]);
            keep(p, xhat, g);
        });
        if (ODD && span.edge >= 0) {
            const float dy = Element<T>::widen(coming.dy);
            const float xhat = normalise(moments, Element<T>::widen(coming.x));
            add(xhat, dy * end_gamma, dy, sums.end_scale, sums.end_offset);
        }
        return found;
    }

    // The second: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), of which the means are those of the whole row.
    // vectors(visit): calls visit(p, xhat, g) for each vector.
    template <typename Vectors>
    __device__ __forceinline__ void write(long long row, const Moments& moments, const Coming<T>& coming, float2 total,
                                          Vectors vectors) const {
        const float share = moments.rstd / static_cast<float>(work.hidden);
        const float level = total.x * share, slope = total.y * share;
        const auto gradient = [&](float xhat, float g) {
            return fmaf(g, moments.rstd, NORM == LAYERNORM ? fmaf(-xhat, slope, -level) : -xhat * slope);
        };
        const T* const residual = work.residual != nullptr ? work.residual + row * work.x_stride : nullptr;
        T* const to = work.dx + row * work.y_stride;
        vectors([&](int p, const float(&xhat)[N], const float(&g)[N]) {
            float values[N];
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = gradient(xhat[j], g[j]);
            Values slot;
            if (residual != nullptr) {
                float others[N];
                slot.template load<true>(residual + column(p), 1);
                slot.unpack(others);
#pragma unroll
                for (int j = 0; j < N; ++j) values[j] += others[j];
            }
            slot.pack(values);
            slot.store(to + column(p), 1);
        });
        if (ODD && span.edge >= 0) {
            const float xhat = normalise(moments, Element<T>::widen(coming.x));
            float value = gradient(xhat, Element<T>::widen(coming.dy) * end_gamma);
            if (residual != nullptr) value += Element<T>::widen(residual[span.edge]);
            to[span.edge] = Element<T>::narrow(value);
        }
    }

    // The rows first, first + step, ... depth: rows that the ring holds, 3 to 8.
    __device__ __forceinline__ void rows(long long first, long long step, int depth) {
        if (!exists(first)) return;
        if constexpr (KEEP) one_by_one(first, step, depth);
        else overlapped(first, step, depth);
        copy_wait(0);
    }

    // A row's places are free as soon as its values are in registers: depth - 1 rows are on their way.
    __device__ __forceinline__ void one_by_one(long long first, long long step, int depth) {
        for (int stage = 0; stage < depth; ++stage) request(first + stage * step, stage);
        Coming<T> now = look(first);
        int stage = 0;
#pragma unroll 1
        for (long long row = first; exists(row); row += step) {
            const Coming<T> coming = look(row + step);
            copy_wait(depth - 1);
            const Moments here = moments(now, stage);
            float kept_xhat[VECS][N], kept_g[VECS][N];
            const float2 found = gather(stage, here, now, [&](int p, const float(&xhat)[N], const float(&g)[N]) {
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    kept_xhat[p][j] = xhat[j];
                    kept_g[p][j] = g[j];
                }
            });
            request(row + depth * step, stage);
            meeting.hand_out(found);
            write(row, here, now, meeting.handed_out(), [&](auto visit) {
#pragma unroll
                for (int p = 0; p < VECS; ++p) {
                    if (holds(p)) visit(p, kept_xhat[p], kept_g[p]);
                }
            });
            stage = stage + 1 < depth ? stage + 1 : 0;
            now = coming;
        }
    }

    // The first walk over the next row lies before the second over this one: depth - 2 rows are on their way.
    __device__ __forceinline__ void overlapped(long long first, long long step, int depth) {
        for (int stage = 0; stage < depth - 1; ++stage) request(first + stage * step, stage);
        Coming<T> now{}, next = look(first);
        Moments here{};
        int stage = depth - 1;
        // one turn before the first row, in which the first one is only gathered
#pragma unroll 1
        for (long long row = first - step; exists(row); row += step) {
            const int other = stage + 1 < depth ? stage + 1 : 0;
            const bool more = exists(row + step), begun = row >= 0;
            const Coming<T> coming = look(row + 2 * step);
            copy_wait(depth - 2);
            Moments there = here;
            float2 found = make_float2(0.0f, 0.0f), total = found;
            if (more) {
                there = moments(next, other);
                found = gather(other, there, next, [](int, const float(&)[N], const float(&)[N]) {});
            }
            if (begun) total = meeting.handed_out();
            if (more) meeting.hand_out(found);
            if (begun) {
                write(row, here, now, total, [&](auto visit) {
                    each(stage, here, [&](int p, const float(&xhat)[N], const float(&g)[N], const float(&)[N]) {
                        visit(p, xhat, g);
                    });
                });
            }
            request(row + depth * step, stage);
            stage = other;
            here = there;
            now = next;
            next = coming;
        }
    }
};
