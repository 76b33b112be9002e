// /// kernel
// summary = "Two kernels for few rows: sums per part of a row; then dx and the column sums of a slice of the rows."
// ops = ["layernorm_bwd", "rmsnorm_bwd"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     "vec == 1 or vec == 16 // x_bytes",
//     "(vec > 1) == (aligned >= 16 and hidden * x_bytes % 16 == 0)",
//     # a part keeps a block busy; rows alone do so where there are many
//     "parts == 1 or (hidden >= 4096 and rows <= 1024)",
//     "parts > 1 or block * 4 <= hidden or block <= 128",
//     # chains of at most some thousand rows, so that a sum in fp32 stays one
//     "rows <= 1024 if slices == 1 else rows <= 65536 if slices == 32 else True",
// ]
// skip = [{when = "rows > 268435455", reason = "a grid holds at most 2147483647 blocks"}]
//
// [axes]
// block = "study"
// vec = [1, 4, 8]         # elements a load
// parts = [1, 8]          # blocks a row in the first kernel
// slices = [1, 32, 1024]  # of the rows in the second; with one it writes dgamma and dbeta itself
//
// [scratch]
// moments = "rows * 8"
// sums = "rows * parts * 8"
// partial = "slices * cdiv(hidden, 4) * 32"
// count = "16"
//
// [[launches]]
// name = "split_bwd_rows<{T}, {W}, {NORM}, {vec}>"
// grid = "rows * parts"
// block = "block"
// args = ["x", "dy", "gamma", "mean", "rstd", "moments", "sums", "hidden", "parts", "x_stride", "eps"]
//
// [[launches]]
// name = "split_bwd_columns<{T}, {W}, {NORM}, {vec}>"
// grid = "cdiv(hidden, 128 * vec) * slices"
// block = "128"
// args = ["x", "dy", "residual", "gamma", "moments", "sums", "dx", "dgamma", "dbeta", "partial", "count", "rows", "hidden", "parts", "slices", "x_stride", "y_stride"]
//
// [[launches]]
// name = "column_sums<{W}>"
// part = "reduction"
// grid = "2 * cdiv(hidden, 32) if slices > 1 else 0"
// block = "512"
// args = ["partial", "count", "dgamma", "dbeta", "hidden"]
// ///
// Decomposition: (1) a block for a row, or for an eighth of one, leaves the two sums that dx needs. (2) A thread keeps to one
// 16-byte vector of columns and goes down a slice of the rows, four of them on their way at a time: dx, and the column sums in
// registers. With one slice, which is for few rows, these are dgamma and dbeta; with more a third kernel adds up the slices.
// No block waits for another and nothing is kept on chip between the two, so it serves any row length on any part, and one row as
// well as many. x and dy are read twice, the second time from L2 where there are few rows.
// Statistics: those of the forward pass where they are given; else as in common/statistics.cuh, each block for its row.
// Numerics: fp32; xhat from the centred value; one rounding of dx, after a residual gradient was added, and one of each
// column sum.
// Determinism: every sum has one order, which the number of multiprocessors does not enter: the same bits on every GPU.
// Boundaries: any hidden size, alignment and row stride, in single elements where rows do not lie on 16 bytes.
// Known limits: two reads, so that many rows cannot pass three fifths of what one read could reach.

#include "common/columns.cuh"

// VEC elements side by side, one or a whole number of 16-byte vectors.
template <int VEC, typename E>
__device__ __forceinline__ void take(const E* from, float (&values)[VEC]) {
    if constexpr (VEC == 1) {
        values[0] = Element<E>::widen(*from);
    } else {
        Slot<E, VEC, 1> slot;
        slot.load(from, VEC);
        slot.unpack(values);
    }
}

template <int VEC, typename E>
__device__ __forceinline__ void put(E* to, const float (&values)[VEC]) {
    if constexpr (VEC == 1) {
        *to = Element<E>::narrow(values[0]);
    } else {
        Slot<E, VEC, 1> slot;
        slot.pack(values);
        slot.store(to, VEC);
    }
}

template <int VEC, typename W>
__device__ __forceinline__ void take_gamma(const W* gamma, int column, float (&values)[VEC]) {
#pragma unroll
    for (int j = 0; j < VEC; ++j) values[j] = 1.0f;
    if (gamma != nullptr) take(gamma + column, values);
}

template <typename T, typename W, int NORM, int VEC>
__global__ void __launch_bounds__(1024)
split_bwd_rows(const T* __restrict__ x, const T* __restrict__ dy, const W* __restrict__ gamma, const float* __restrict__ mean,
               const float* __restrict__ rstd, float2* __restrict__ moments, float2* __restrict__ sums, int hidden, int parts,
               long long x_stride, float eps) {
    __shared__ float4 scratch[32];
    __shared__ float meeting[2 * 32];
    const long long row = blockIdx.x / parts;
    const int part = static_cast<int>(blockIdx.x % parts);
    const T* const in = x + row * x_stride;
    const T* const upstream = dy + row * x_stride;

    float2 its;  // mean and rstd
    if (rstd != nullptr) {
        its = make_float2(NORM == LAYERNORM ? mean[row] : 0.0f, rstd[row]);
    } else {
        const int lane = threadIdx.x, threads = blockDim.x;
        const auto each = [&](auto visit) {
            for (int i = lane * VEC; i < hidden; i += threads * VEC) {
                float values[VEC];
                take(in + i, values);
                visit(values, [](int) { return true; });
            }
        };
        const auto count = [&] {
            const int vectors = hidden / VEC;
            return lane < vectors ? (vectors - lane + threads - 1) / threads * VEC : 0;
        };
        const float first = lane * VEC < hidden ? Element<T>::widen(in[lane * VEC]) : 0.0f;
        const Moments found = statistics<NORM>(Team<0>{scratch}, each, count, first, hidden, eps);
        its = make_float2(found.pivot - found.shift / found.rstd, found.rstd);
    }
    if (part == 0 && threadIdx.x == 0) moments[row] = its;

    const int share = (hidden / VEC + parts - 1) / parts * VEC;
    const int whole = (part + 1) * share, end = whole < hidden ? whole : hidden;
    float found[2] = {0.0f, 0.0f};  // of g, and of g * xhat
#pragma unroll 4
    for (int i = part * share + static_cast<int>(threadIdx.x) * VEC; i < end; i += static_cast<int>(blockDim.x) * VEC) {
        float xhat[VEC], g[VEC], scale[VEC];
        take(in + i, xhat);
        take(upstream + i, g);
        take_gamma(gamma, i, scale);
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            g[j] *= scale[j];
            found[0] += g[j];
            found[1] = fmaf(g[j], (xhat[j] - its.x) * its.y, found[1]);
        }
    }
    Group<0>::sum(found, meeting);
    if (threadIdx.x == 0) sums[blockIdx.x] = make_float2(found[0], found[1]);
}

template <typename T, typename W, int NORM, int VEC>
__global__ void __launch_bounds__(128)
split_bwd_columns(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ residual,
                  const W* __restrict__ gamma, const float2* __restrict__ moments, const float2* __restrict__ sums,
                  T* __restrict__ dx, W* __restrict__ dgamma, W* __restrict__ dbeta, float* __restrict__ partial,
                  int* __restrict__ count, long long rows, int hidden, int parts, int slices, long long x_stride,
                  long long y_stride) {
    constexpr int CHUNK = 64;  // rows whose numbers are worked out at once
    constexpr int BATCH = 4;   // rows on their way at once
    __shared__ float4 known[CHUNK];  // mean, rstd, level, slope: dx = g * rstd - (level + xhat * slope)
    const int tiles = static_cast<int>(gridDim.x) / slices;
    const int slice = static_cast<int>(blockIdx.x) / tiles;
    const int column = (static_cast<int>(blockIdx.x) % tiles * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * VEC;
    const bool inside = column < hidden;
    float scale[VEC], for_gamma[VEC], for_beta[VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j) for_gamma[j] = for_beta[j] = scale[j] = 0.0f;
    if (inside) take_gamma(gamma, column, scale);

    for (long long first = slice; first < rows; first += static_cast<long long>(CHUNK) * slices) {
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNK; i += blockDim.x) {
            const long long row = first + static_cast<long long>(i) * slices;
            if (row >= rows) break;
            const float2 its = moments[row];
            float2 total = make_float2(0.0f, 0.0f);
            for (int part = 0; part < parts; ++part) {
                total.x += sums[row * parts + part].x;
                total.y += sums[row * parts + part].y;
            }
            const float share = its.y / static_cast<float>(hidden);
            known[i] = make_float4(its.x, its.y, NORM == LAYERNORM ? total.x * share : 0.0f, total.y * share);
        }
        __syncthreads();
        if (!inside) continue;
#pragma unroll 1
        for (int i = 0; i < CHUNK; i += BATCH) {
            float values[BATCH][VEC], given[BATCH][VEC];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                const long long row = first + static_cast<long long>(i + k) * slices;
                if (row >= rows) continue;
                take(x + row * x_stride + column, values[k]);
                take(dy + row * x_stride + column, given[k]);
            }
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                const long long row = first + static_cast<long long>(i + k) * slices;
                if (row >= rows) continue;
                const float4 its = known[i + k];
                float others[VEC];
#pragma unroll
                for (int j = 0; j < VEC; ++j) others[j] = 0.0f;
                if (residual != nullptr) take(residual + row * x_stride + column, others);
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    const float xhat = (values[k][j] - its.x) * its.y;
                    for_gamma[j] = fmaf(given[k][j], xhat, for_gamma[j]);
                    for_beta[j] += given[k][j];
                    values[k][j] = fmaf(given[k][j] * scale[j], its.y, fmaf(-xhat, its.w, -its.z)) + others[j];
                }
                put(dx + row * y_stride + column, values[k]);
            }
            if (first + static_cast<long long>(i + BATCH) * slices >= rows) break;
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *count = slices;
    if (!inside) return;
    if (slices == 1) {
        if (dgamma != nullptr) put(dgamma + column, for_gamma);
        if (dbeta != nullptr) put(dbeta + column, for_beta);
    } else {
        const Slice mine = Slice::of(partial, slice, slices, hidden, true);
        put(mine.scale + column, for_gamma);
        put(mine.offset + column, for_beta);
    }
}
