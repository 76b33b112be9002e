// Sums over rows on their way to dgamma and dbeta: what a block found of its rows is a slice of `partial`, and a second kernel
// adds up the slices in their order. `partial` holds all slices of dgamma's sums, then all of dbeta's, `columns_pitch` apart.
#pragma once

#include "common/dependent_ptx.cuh"
#include "common/gradient.cuh"

__device__ __forceinline__ long long columns_pitch(int hidden) { return (hidden + 3) / 4 * 4; }

// The places of one slice. offset is null where nobody wants the sums of dy.
struct Slice {
    float* scale;
    float* offset;

    static __device__ __forceinline__ Slice of(float* partial, int slice, int slices, int hidden, bool offset) {
        float* const scale = partial + slice * columns_pitch(hidden);
        return {scale, offset ? scale + slices * columns_pitch(hidden) : nullptr};
    }

    // By `threads` threads, of which this is one.
    __device__ __forceinline__ void clear(int hidden, int lane, int threads) const {
#pragma unroll 1
        for (int i = lane; i < hidden; i += threads) {
            scale[i] = 0.0f;
            if (offset != nullptr) offset[i] = 0.0f;
        }
    }
};

// Rows by where they begin: N kinds, of which kind k has the rows k, k + N, ... In the order of their kinds they are counted.
template <int N>
struct Kinds {
    long long rows;

    // The rows of all kinds before one.
    __device__ __forceinline__ long long start(int kind) const {
        const long long more = rows % N;
        return kind * (rows / N) + (kind < more ? kind : more);
    }

    // The kind of the row before one, 0 where there is none.
    __device__ __forceinline__ int before(long long row) const {
        int kind = 0;
#pragma unroll 1
        while (kind + 1 < N && start(kind + 1) < row) ++kind;
        return kind;
    }
};

// Writes what one thread has, which no other thread of the row has too.
template <int NORM, int VECS, bool ODD, bool BULK, typename T, typename W, typename Meeting>
__device__ __forceinline__ void hand_in(const Walk<NORM, VECS, ODD, BULK, T, W, Meeting>& walk, const Slice& slice) {
    constexpr int N = Span<T>::N;
    const auto vector = [](float* to, const float(&values)[N]) {
        if constexpr (ODD) {
#pragma unroll
            for (int j = 0; j < N; ++j) to[j] = values[j];
        } else {
            Slot<float, N, 1> slot;
            slot.pack(values);
            slot.store(to, 1);
        }
    };
#pragma unroll
    for (int p = 0; p < VECS; ++p) {
        if (!walk.holds(p)) continue;
        vector(slice.scale + walk.column(p), walk.sums.scale[p]);
        if (NORM == LAYERNORM && slice.offset != nullptr) vector(slice.offset + walk.column(p), walk.sums.offset[p]);
    }
    if (ODD && walk.span.edge >= 0) {
        slice.scale[walk.span.edge] = walk.sums.end_scale;
        if (NORM == LAYERNORM && slice.offset != nullptr) slice.offset[walk.span.edge] = walk.sums.end_offset;
    }
}

// The same where LANES threads of a warp have a row, and so several groups of a block the same columns: the groups' sums are
// added in their order. memory: N floats a thread, which nobody else uses any more.
template <int LANES, int NORM, int VECS, bool ODD, bool BULK, typename T, typename W, typename Meeting>
__device__ __forceinline__ void hand_in_together(const Walk<NORM, VECS, ODD, BULK, T, W, Meeting>& walk, const Slice& slice,
                                                 float* memory) {
    constexpr int N = Span<T>::N;
    const int hidden = walk.work.hidden;
    // COUNT values a lane; where(i): the column of value i % COUNT of lane i / COUNT, or -1
    const auto add_up = [&](const auto& values, auto where, float* to) {
        constexpr int COUNT = static_cast<int>(sizeof(values) / sizeof(float));
        __syncthreads();
#pragma unroll
        for (int j = 0; j < COUNT; ++j) memory[static_cast<int>(threadIdx.x) * COUNT + j] = values[j];
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < LANES * COUNT; i += blockDim.x) {
            float total = 0.0f;
#pragma unroll 1
            for (int group = 0; group < static_cast<int>(blockDim.x) / LANES; ++group) {
                total += memory[group * LANES * COUNT + i];
            }
            const int column = where(i);
            if (column >= 0) to[column] = total;
        }
    };
    const int end = walk.span.head + walk.span.body * N;
#pragma unroll
    for (int p = 0; p < VECS; ++p) {
        const auto where = [&](int i) {
            const int column = walk.span.head + p * LANES * N + i;
            return column < end ? column : -1;
        };
        add_up(walk.sums.scale[p], where, slice.scale);
        if (NORM == LAYERNORM && slice.offset != nullptr) add_up(walk.sums.offset[p], where, slice.offset);
    }
    if constexpr (ODD) {
        const auto where = [&](int) { return walk.span.edge; };  // value i is lane i's, and the first warp's lanes ask
        const float scale[1] = {walk.sums.end_scale}, offset[1] = {walk.sums.end_offset};
        add_up(scale, where, slice.scale);
        if (NORM == LAYERNORM && slice.offset != nullptr) add_up(offset, where, slice.offset);
    }
}

// Rows whose tensors lie differently, or whose norm has more column sums than usual: element by element, read again for each
// walk, the sums kept in the slice itself. Right, and slow.
template <int NORM, typename T, typename W, typename Meeting>
__device__ __forceinline__ void plain_rows(const Backward<T, W>& work, Meeting& meeting, const Slice& slice, long long first,
                                           long long step) {
    const int lane = meeting.lane(), threads = meeting.size();
    slice.clear(work.hidden, lane, threads);
#pragma unroll 1
    for (long long row = first; row < work.rows; row += step) {
        const T* const x = work.x + row * work.x_stride;
        const T* const dy = work.dy + row * work.x_stride;
        Moments moments;
        if (work.rstd != nullptr) {
            moments = work.template saved<NORM>(row);
        } else {
            const auto each = [&](auto visit) {
#pragma unroll 1
                for (int i = lane; i < work.hidden; i += threads) {
                    const float value[1] = {Element<T>::widen(x[i])};
                    visit(value, [](int) { return true; });
                }
            };
            const auto count = [&] { return lane < work.hidden ? (work.hidden - lane + threads - 1) / threads : 0; };
            const float pivot = lane < work.hidden ? Element<T>::widen(x[lane]) : 0.0f;
            moments = statistics<NORM>(meeting.team(), each, count, pivot, work.hidden, work.eps);
        }
        const auto xhat = [&](int i) { return moments.normalise(Element<T>::widen(x[i])); };
        const auto g = [&](int i) { return Element<T>::widen(dy[i]) * or_one(work.gamma, i); };
        float2 found = make_float2(0.0f, 0.0f);
#pragma unroll 1
        for (int i = lane; i < work.hidden; i += threads) {
            found.x += g(i);
            found.y = fmaf(g(i), xhat(i), found.y);
        }
        meeting.template hand_out<true>(found);
        const float2 total = meeting.template handed_out<true>();
        const float share = moments.rstd / static_cast<float>(work.hidden);
        const float level = NORM == LAYERNORM ? total.x * share : 0.0f, slope = total.y * share;
#pragma unroll 1
        for (int i = lane; i < work.hidden; i += threads) {
            float value = fmaf(g(i), moments.rstd, fmaf(-xhat(i), slope, -level));
            if (work.residual != nullptr) value += Element<T>::widen(work.residual[row * work.x_stride + i]);
            slice.scale[i] = fmaf(Element<T>::widen(dy[i]), xhat(i), slice.scale[i]);
            if (slice.offset != nullptr) slice.offset[i] += Element<T>::widen(dy[i]);
            work.dx[row * work.y_stride + i] = Element<T>::narrow(value);
        }
    }
}

// The second kernel. A block takes 32 columns of dgamma or of dbeta: lane j the j-th of them, warp w every so many slices. Two
// blocks for every 32 columns. count: the number of slices. It may begin before the first kernel has ended.
template <typename W>
__global__ void __launch_bounds__(1024)
column_sums(const float* partial, const int* count, W* __restrict__ dgamma, W* __restrict__ dbeta,
            int hidden) {
    constexpr int BATCH = 16;
    __shared__ float part[32][32];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int warps = blockDim.x / 32;
    const int column = static_cast<int>(blockIdx.x / 2) * 32 + lane;
    const bool second = blockIdx.x % 2;
    W* const to = second ? dbeta : dgamma;
    await_previous();  // also where nobody wants the sums: whoever waits for this launch waits for the one before
    if (to == nullptr) return;

    const int slices = *count;
    const long long pitch = columns_pitch(hidden);
    const float* const from = partial + (second ? slices * pitch : 0) + column;
    float sum = 0.0f;
    if (column < hidden) {
        for (int first = warp; first < slices; first += BATCH * warps) {
            float values[BATCH];  // all on their way before the first one is used
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                const int slice = first + k * warps;
                values[k] = slice < slices ? from[slice * pitch] : 0.0f;
            }
#pragma unroll
            for (int k = 0; k < BATCH; ++k) sum += values[k];
        }
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= hidden) return;
    for (int other = 1; other < warps; ++other) sum += part[other][lane];
    to[column] = Element<W>::narrow(sum);
}
