// The backward pass of threads that stay: they keep to their columns, go over rows, and have a sum for every column of theirs.
//
// x and dy of the rows to come are on their way to a ring in shared memory, each thread's own vectors in its own places, so that
// nobody waits for anybody to use them; or, by bulk copies, each warp's in the same places. A row is walked over twice: once for
// the two sums over the row that dx needs, and for the column sums; and once, when the threads have met, for dx. Where they are of
// several warps, the first walk over the next row lies between the two, so that a meeting takes nobody's time: what is waited for
// was handed out a whole row before.
#pragma once

#include "common/arrivals.cuh"
#include "common/hints_ptx.cuh"
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
// BULK: rows come by bulk copies, one of x and one of dy a warp, for whole warps that have a row or a part of one.
// Every thread of a warp that has anything of a row works on VECS vectors: in those outside the row dy is 0, so that they add
// nothing, and no branch keeps the compiler from mixing the work on one with that on the next.
template <int NORM, int VECS, bool ODD, bool BULK, typename T, typename W, typename Meeting>
struct Walk {
    static constexpr int N = Span<T>::N;
    static constexpr int STRIDE = Meeting::STRIDE;
    // Where nobody need be met outside the warp and the registers are there, what the first walk made is kept for the second.
    static constexpr bool KEEP = Meeting::ALONE && !ODD && VECS * N <= 24;
    static_assert(!BULK || !(Meeting::SHARED || KEEP), "what is kept may still be on its way to registers");
    // Where they are scarce, gamma is widened for each walk and not kept so.
    static constexpr bool NARROW = sizeof(W) == 2 && VECS * N >= (ODD || Meeting::TIGHT ? 32 : 40);
    // Where they are scarcest, a branch a vector does keep the work on one from that on the next.
    static constexpr bool APART =
        NARROW && (NORM == LAYERNORM || ODD) && (Meeting::TIGHT || VECS * N >= (NORM == LAYERNORM ? 32 : 40));
    using Values = Slot<T, N, 1>;

    const Backward<T, W>& work;
    Meeting& meeting;
    Arrivals<BULK>& arrivals;
    Span<T> span;
    int at;            // this thread's first element
    bool busy;         // whether its warp has anything of the rows
    Place mine;        // its places in the ring
    int pitch;         // from one row's places to the next row's; in a register of its own, or ptxas errs (kernels/README.md)
    float inverse;     // 1 / hidden
    Slot<W, N, 1> gamma[VECS];
    float end_gamma;
    Sums<VECS, N> sums;

    __device__ __forceinline__ Walk(const Backward<T, W>& work, Meeting& meeting, Arrivals<BULK>& arrivals, uint4* memory,
                                    long long first)
        : work(work), meeting(meeting), arrivals(arrivals), mine(memory + threadIdx.x / 32 * (2 * VECS * 32) + threadIdx.x % 32) {
        const int lane = meeting.vector(VECS);
        span = Span<T>::template of<ODD>(work.x + first * work.x_stride, work.hidden, lane);
        at = span.head + lane * N;
        if constexpr (ODD) {
            at = kept(at);
            span.edge = kept(span.edge);
            mine = kept(mine);
        }
        busy = static_cast<int>(threadIdx.x) % 32 + span.left > 0 || (ODD && lane < 32);
        pitch = static_cast<int>(blockDim.x) * 2 * VECS;
        inverse = 1.0f / static_cast<float>(work.hidden);
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

    // Its places of a row in the ring.
    __device__ __forceinline__ Place places(int stage) const { return mine + stage * pitch; }
    __device__ __forceinline__ bool holds(int p) const { return p * STRIDE < span.left; }
    __device__ __forceinline__ int column(int p) const { return at + p * STRIDE * N; }

    // Rows that begin anywhere gain nothing by what L2 is told, and with five vectors a thread they spill.
    static __device__ __forceinline__ void bring(Place to, const T* from) {
        if constexpr (ODD) copy_async(to, from);
        else copy_async_by(to, from, policy_keep());
    }

    // Asks for a row. What is not in it stays as it is. BULK: every lane has used what it read in the row's places.
    __device__ __forceinline__ void request(bool exists, long long row, int stage) {
        if constexpr (BULK) __syncwarp();
        if (exists) {
            const Place to = places(stage);
            const long long ahead = row * work.x_stride;
            const T* const x = work.x + ahead + at;
            const T* const dy = work.dy + ahead + at;
            // a thread holds its vectors from the first one on: all of them as a rule, and then without questions
            if constexpr (BULK) {
                if (busy && threadIdx.x % 32 == 0) {
                    const int vectors = span.left < VECS * 32 ? span.left : VECS * 32;
                    const unsigned bytes = vectors > 0 ? static_cast<unsigned>(vectors) * 16 : 0;
                    unsigned long long* const barrier = arrivals.barriers + stage;
                    barrier_expect(barrier, 2 * bytes);
                    if (bytes > 0) {
                        copy_bulk<!ODD>(to, x, bytes, barrier);
                        copy_bulk<!ODD>(to + VECS * 32, dy, bytes, barrier);
                    }
                }
            } else if (holds(VECS - 1)) {
#pragma unroll
                for (int p = 0; p < VECS; ++p) {
                    bring(to + p * 32, x + p * STRIDE * N);
                    bring(to + (VECS + p) * 32, dy + p * STRIDE * N);
                }
            } else {
#pragma unroll
                for (int p = 0; p < VECS - 1; ++p) {
                    if (!holds(p)) continue;
                    bring(to + p * 32, x + p * STRIDE * N);
                    bring(to + (VECS + p) * 32, dy + p * STRIDE * N);
                }
            }
            if (work.residual != nullptr) {
#pragma unroll
                for (int p = 0; p < VECS; ++p) {
                    if (holds(p)) bring_to_l2(work.residual + ahead + column(p));
                }
            }
        }
        if constexpr (!BULK) copy_commit();
    }

    // A row's statistics where they were saved, and this thread's element of its ends.
    __device__ __forceinline__ Coming<T> look(bool exists, long long row) const {
        Coming<T> coming{{0.0f, 0.0f, 0.0f, 0.0f}, Element<T>::narrow(0.0f), Element<T>::narrow(0.0f)};
        if (!exists) return coming;
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
        const Place from = places(stage);
        Values slot;
        const auto each = [&](auto visit) {
#pragma unroll 1
            for (int p = 0; p < VECS; ++p) {
                if (!holds(p)) continue;
                float values[N];
                slot.set((from + p * 32).load());
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
            slot.set(from.load());
            pivot = slot.first();
        }
        return statistics<NORM>(meeting.team(), each, count, pivot, work.hidden, work.eps);
    }

    // xhat = centred * rstd + shift; norms without a mean have nothing to subtract or to add.
    static __device__ __forceinline__ float centred(const Moments& moments, float value) {
        return NORM == LAYERNORM ? value - moments.pivot : value;
    }

    static __device__ __forceinline__ float normalised(const Moments& moments, float centred) {
        return NORM == LAYERNORM ? fmaf(centred, moments.rstd, moments.shift) : centred * moments.rstd;
    }

    // Calls visit(p, centred, g, dy) for the vectors of a row that has come, with N values each.
    template <typename Visit>
    __device__ __forceinline__ void each(int stage, const Moments& moments, Visit visit) {
        const Place from = places(stage);
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if (APART && !holds(p)) continue;
            Values slot;
            float values[N], dy[N], g[N];
            slot.set((from + p * 32).load());
            slot.unpack(values);
            slot.set((from + (VECS + p) * 32).load());
            slot.unpack(dy);
            if constexpr (NARROW) gamma[p].forget();
            gamma[p].unpack(g);
            // of a place outside the row 0 is subtracted: its xhat may be no infinity, which times 0 would be NaN
            const float pivot = APART || holds(p) ? moments.pivot : 0.0f;
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if constexpr (NORM == LAYERNORM) values[j] -= pivot;
                g[j] *= dy[j];
            }
            visit(p, values, g, dy);
            if constexpr (NARROW) in_turn();
        }
    }

    // The first walk: this thread's part of the sums of g and of g * xhat over the row. keep(p, centred, g) is called for each
    // vector.
    template <typename Keep>
    __device__ __forceinline__ float2 gather(int stage, const Moments& moments, const Coming<T>& coming, Keep keep) {
        float2 found = make_float2(0.0f, 0.0f);
        if (!busy) return found;
        const auto add = [&](float centred, float g, float dy, float& scale, float& offset) {
            const float xhat = normalised(moments, centred);
            found.y = fmaf(g, xhat, found.y);
            scale = fmaf(dy, xhat, scale);
            if constexpr (NORM == LAYERNORM) {
                found.x += g;
                offset += dy;
            }
        };
        each(stage, moments, [&](int p, const float(&values)[N], const float(&g)[N], const float(&dy)[N]) {
#pragma unroll
            for (int j = 0; j < N; ++j) add(values[j], g[j], dy[j], sums.scale[p][j], sums.offset[p][j]);
            keep(p, values, g);
        });
        if (ODD && span.edge >= 0) {
            const float dy = Element<T>::widen(coming.dy);
            add(centred(moments, Element<T>::widen(coming.x)), dy * end_gamma, dy, sums.end_scale, sums.end_offset);
        }
        return found;
    }

    // The second: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), of which the means are those of the whole row.
    // vectors(visit): calls visit(p, centred, g) for each vector.
    template <typename Vectors>
    __device__ __forceinline__ void write(long long row, const Moments& moments, const Coming<T>& coming, float2 total,
                                          Vectors vectors) const {
        if (!busy) return;
        // as a line over what is centred: one fma an element, and one for g. rstd enters squared, so below 1e19
        const float share = moments.rstd * inverse;
        const float slope = -total.y * share * moments.rstd;
        const float level = NORM == LAYERNORM ? -fmaf(total.y * share, moments.shift, total.x * share) : 0.0f;
        const auto gradient = [&](float centred, float g) {
            return fmaf(g, moments.rstd, NORM == LAYERNORM ? fmaf(centred, slope, level) : centred * slope);
        };
        T* const to = kept(work.dx + row * work.y_stride + at);
        const T* const residual = work.residual != nullptr ? work.residual + row * work.x_stride + at : nullptr;
        const auto put = [&](int p, const float(&values)[N]) {
            Values slot;
            slot.pack(values);
            if constexpr (!ODD && VECS * N <= 16) store_where(holds(p), to + p * STRIDE * N, slot.quad());
            else if (holds(p)) slot.store(to + p * STRIDE * N, 1);
        };
        if (residual == nullptr) {
            vectors([&](int p, const float(&centred)[N], const float(&g)[N]) {
                float values[N];
#pragma unroll
                for (int j = 0; j < N; ++j) values[j] = gradient(centred[j], g[j]);
                put(p, values);
            });
        } else {
            vectors([&](int p, const float(&centred)[N], const float(&g)[N]) {
                Values slot;
                float values[N];
                slot.template load<!ODD>(residual + p * STRIDE * N, holds(p) ? 1 : 0);
                slot.unpack(values);
#pragma unroll
                for (int j = 0; j < N; ++j) values[j] += gradient(centred[j], g[j]);
                put(p, values);
                in_turn();
            });
        }
        if (ODD && span.edge >= 0) {
            const float g = Element<T>::widen(coming.dy) * end_gamma;
            float value = gradient(centred(moments, Element<T>::widen(coming.x)), g);
            if (residual != nullptr) value += Element<T>::widen(residual[span.edge - at]);
            to[span.edge - at] = Element<T>::narrow(value);
        }
    }

    // Waits for the row at `stage`, which all but the latest `depth - USED` are.
    template <int USED>
    __device__ __forceinline__ void wait(int depth, int stage) {
        if constexpr (BULK) {
            if (busy) arrivals.wait(stage);
        } else if (depth == 3) copy_wait<3 - USED>();
        else copy_wait<4 - USED>();
    }

    // The rows first, first + step, ... depth: rows that the ring holds, 3 or 4.
    __device__ __forceinline__ void rows(long long first, long long step, int depth) { rows(first, first, step, depth); }

    // earliest: the first row of the warp, where it has several (SHARED).
    __device__ __forceinline__ void rows(long long first, long long earliest, long long step, int depth) {
        if (earliest >= work.rows) return;
        const int count = static_cast<int>((work.rows - earliest + step - 1) / step);
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            if (holds(p)) continue;
#pragma unroll 1
            for (int stage = 0; stage < depth; ++stage) {
                (places(stage) + p * 32).clear();
                (places(stage) + (VECS + p) * 32).clear();
            }
        }
        if constexpr (BULK) before_copies();  // rows that begin elsewhere may have more vectors, where there are zeros now
        if constexpr (KEEP) one_by_one(first, step, count, depth);
        else overlapped(first, step, count, depth);
        if constexpr (!BULK) copy_wait<0>();
    }

    // A row's places are free as soon as its values are in registers: depth - 1 rows are on their way.
    __device__ __forceinline__ void one_by_one(long long first, long long step, int count, int depth) {
        // whether there is such a row, for these threads and not only for others of their warp
        const auto there = [&](bool for_warp, long long row) { return Meeting::SHARED ? row < work.rows : for_warp; };
        for (int stage = 0; stage < depth; ++stage) {
            const long long row = first + stage * step;
            request(there(stage < count, row), row, stage);
        }
        Coming<T> now = look(there(true, first), first);
        int stage = 0;
        long long row = first;
#pragma unroll 1
        for (int left = count; left > 0; --left) {
            const bool exists = there(true, row);
            const Coming<T> coming = look(there(left > 1, row + step), row + step);
            wait<1>(depth, stage);
            const Moments here = moments(now, stage);
            float kept_values[VECS][N], kept_g[VECS][N];
            float2 found = make_float2(0.0f, 0.0f);
            if (exists) {
                found = gather(stage, here, now, [&](int p, const float(&values)[N], const float(&g)[N]) {
#pragma unroll
                    for (int j = 0; j < N; ++j) {
                        kept_values[p][j] = values[j];
                        kept_g[p][j] = g[j];
                    }
                });
            }
            request(there(left > depth, row + depth * step), row + depth * step, stage);
            meeting.template hand_out<NORM == LAYERNORM>(found);
            if (exists) {
                write(row, here, now, meeting.template handed_out<NORM == LAYERNORM>(), [&](auto visit) {
#pragma unroll
                    for (int p = 0; p < VECS; ++p) visit(p, kept_values[p], kept_g[p]);
                });
            }
            stage = stage + 1 < depth ? stage + 1 : 0;
            now = coming;
            row += step;
        }
    }

    // The first walk over the next row lies before the second over this one: depth - 2 rows are on their way.
    __device__ __forceinline__ void overlapped(long long first, long long step, int count, int depth) {
        for (int stage = 0; stage < depth - 1; ++stage) request(stage < count, first + stage * step, stage);
        Coming<T> now{}, next = look(true, first);
        Moments here{};
        int stage = depth - 1;
        long long row = first;  // the one that is gathered; the one before it is written
        // one turn more than rows: in the first one the first row is only gathered, in the last one the last is only written
#pragma unroll 1
        for (int left = count; left >= 0; --left) {
            const int other = stage + 1 < depth ? stage + 1 : 0;
            const bool more = left > 0, begun = row != first;
            if (!BULK || more) wait<2>(depth, other);
            Moments there = here;
            float2 found = make_float2(0.0f, 0.0f), total = found;
            if (more) {
                there = moments(next, other);
                found = gather(other, there, next, [](int, const float(&)[N], const float(&)[N]) {});
            }
            const Coming<T> coming = look(left > 1, row + step);
            if (begun) total = meeting.template handed_out<NORM == LAYERNORM>();
            if (more) meeting.template hand_out<NORM == LAYERNORM>(found);
            if (begun) {
                write(row - step, here, now, total, [&](auto visit) {
                    each(stage, here, [&](int p, const float(&values)[N], const float(&g)[N], const float(&)[N]) {
                        visit(p, values, g);
                    });
                });
            }
            request(left >= depth, row + (depth - 1) * step, stage);
            stage = other;
            here = there;
            now = next;
            next = coming;
            row += step;
        }
    }
};
