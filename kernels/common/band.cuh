// How the kernels that read wide rows a second time and write them share them out: a tile of columns for a band of rows, for
// all of which gamma and beta are read once.
#pragma once

#include "common/pack.cuh"

// A block's share. N: elements a thread; ROWS: at most, of the band. TILES: which blocks stand side by side, those of one
// band (0: flat) or those of the same columns (1: interleaved), whose gamma and beta then come from L2. MOST: rows requested
// together.
template <typename T, int N, int TILES, int ROWS, int MOST = 4>
struct Band {
    static constexpr int AHEAD = ROWS < MOST ? ROWS : MOST;  // rows that are requested together
    using Values = Pack<T, N>;

    long long top;  // the first row
    int count;      // of rows
    int tile;
    int column;     // this thread's first, or 0 where it has none
    bool inside;
    Values ahead[AHEAD];

    __device__ __forceinline__ Band(long long rows, int hidden) {
        const int width = static_cast<int>(blockDim.x) * N;
        const int columns = (hidden + width - 1) / width;
        const long long bands = (rows + ROWS - 1) / ROWS;
        top = (TILES ? blockIdx.x % bands : blockIdx.x / columns) * ROWS;
        count = rows - top < ROWS ? static_cast<int>(rows - top) : ROWS;
        // the columns that the statistics read last come first: some of them are still in L2
        tile = columns - 1 - static_cast<int>(TILES ? blockIdx.x / bands : blockIdx.x % columns);
        column = tile * width + static_cast<int>(threadIdx.x) * N;
        inside = column < hidden;
        if (!inside) column = 0;
    }

    // AHEAD rows from `row` of the band on.
    __device__ __forceinline__ void request(const T* x, long long x_stride, int row = 0) {
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            if (row + k < count) ahead[k] = Values::once(x + (top + row + k) * x_stride + column);
        }
    }

    // Writes what each(values, row of the band) makes of the values; the first rows have been requested.
    template <typename Each>
    __device__ __forceinline__ void write(const T* x, long long x_stride, T* y, long long y_stride, const Each& each) {
        if (!inside) return;
#pragma unroll 1
        for (int row = 0; row < count; row += AHEAD) {
            if (row > 0) request(x, x_stride, row);
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                if (row + k < count) {
                    float values[N];
                    ahead[k].unpack(values);
                    each(values, row + k);
                    Values::packed(values).to(y + (top + row + k) * y_stride + column);
                }
            }
        }
    }
};
