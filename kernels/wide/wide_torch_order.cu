// /// kernel
// summary = "Torch's bits, on the whole chip: the 128 chains of a row spread over blocks, merged in torch's order."
// ops = ["layernorm", "rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// regimes = ["wide"]
// profiled = ["tiles"]
// where = [
//     "w_bytes == x_bytes",
//     "aligned >= 4 * x_bytes",
//     # 16 bytes a thread where they are, else four elements
//     "each == 4 or x_bytes == 2",
//     "each == (8 if x_bytes == 2 and hidden % 8 == 0 and aligned >= 16 else 4) or fused",
//     "tiles or rows_each == 1",
//     "rows_each == 1 or rows_each < 2 * rows",
//     # what a block may have of shared memory; the smallest is for parts that hold no more
//     "3 * batch * (32 * x_bytes + 4) <= (232448 if arch in (90, 100, 103, 110) else 166912 if arch in (80, 87) else 65536 if arch == 75 else 101376)",
//     "batch > 128 or fused or arch == 75",
//     "batch < 512 or arch == 90",  # timed on no other
//     # a block a row pays where rows are many or short; it has nothing to choose
//     "not fused or (batch, tiles, rows_each, each, block) == (128, 0, 1, 4, 256)",
//     "not fused or rows >= 64 or hidden <= 32768",
//     "fused or hidden >= 8192",
// ]
// skip = [
//     {when = "w_bytes != x_bytes", reason = "torch takes gamma and beta of the input's type, and so do its bits"},
//     {when = "hidden % 4", reason = "torch's vector path takes rows of a multiple of 4 elements; its order elsewhere is another"},
//     {when = "aligned < 4 * x_bytes", reason = "torch's vector path takes bases and rows aligned to 4 elements; its order elsewhere is another"},
//     {when = "hidden > 16777216", reason = "torch's vector path takes rows of at most 16777216 elements; its order elsewhere is another"},
//     {when = "rows > 536870911", reason = "a grid holds at most 536870911 rows of four warps"},
// ]
//
// [axes]
// block = [256, 512]     # threads a block that writes
// fused = [0, 1]         # a block a row, as torch has it, in place of chains spread over blocks
// batch = [128, 256, 512]  # elements a chain that come to shared memory together
// tiles = [0, 1]         # blocks write a row after the other (0), or the same columns of all rows (1)
// rows_each = [1, 16]    # rows for which a block that writes reads gamma and beta once
// each = [4, 8]          # elements a thread writes at a time
//
// [scratch]
// merged = "rows * 64"
//
// [[launches]]
// when = "not fused"
// name = "wide_chains<{T}, {NORM}, {batch}>"
// grid = "rows * 4"
// block = 64
// smem = "3 * batch * (32 * x_bytes + 4)"
// args = ["x", "merged", "hidden", "x_stride"]
//
// [[launches]]
// when = "not fused"
// name = "wide_apply<{T}, {NORM}, {each}, {tiles}, {rows_each}>"
// grid = "cdiv(hidden, block * each) * cdiv(rows, rows_each)"
// block = "block"
// pdl = "arch >= 90"
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "merged", "rows", "hidden", "x_stride", "y_stride", "eps"]
//
// [[launches]]
// when = "fused"
// name = "wide_row<{T}, {NORM}>"
// grid = "rows"
// block = 128
// args = ["x", "gamma", "beta", "y", "mean", "rstd", "hidden", "x_stride", "y_stride", "eps"]
// ///
// Decomposition: torch's kernel has one block a row, so 16 rows of 4 million elements use 16 of 132 multiprocessors. But its
// 128 chains a row meet only at the end: here every warp of chains is a block of its own, four a row. A second kernel merges
// the four in torch's order and writes; its blocks take columns from the last to the first, since those were read last and may
// still be in L2, and `rows_each` rows of one tile, for which gamma and beta stay in registers. On sm_90 they come when
// all chains have their last batch behind them, with the first of x, gamma and beta in hand. Where rows are many or short one kernel
// with torch's own geometry does both (`fused`).
// Statistics: bit for bit torch's (common/torch_order.cuh): running mean and squares, less accurate than pairwise sums. A warp
// of chains does nothing but its chains: a second one, which has an issue slot of its own, copies x to shared memory two
// batches ahead and puts beside it the exact reciprocals of the counts, which torch divides for. They meet once a batch. The
// values of a chunk are read while those of the one before are added.
// Numerics: fp32 accumulation, eps inside the root (0 is allowed), one rounding of 16-bit outputs. The claim is made for a
// version of torch on which `verify` has compared the bits, and for no other.
// Boundaries: rows of a multiple of 4 elements, aligned to four of them; all other work is refused, since torch's order is
// another there. Any number of rows; gamma, beta, both or neither, which torch rounds differently.
// Saved tensors: mean and rstd, with torch's bits.
// Known limits: a chain is two dependent operations an element, 8 cycles, whatever the memory does: 0.132 ms for 32768
// elements at 1980 MHz. RMSNorm has torch's bits where torch launches ATen's kernel for it.

#include "common/async_ptx.cuh"
#include "common/band.cuh"
#include "common/dependent_ptx.cuh"
#include "common/torch_order.cuh"

// A batch in shared memory: the next elements of 32 chains, and the reciprocals of the counts with them.
template <typename T, int NORM, int BATCH>
struct Batch {
    static constexpr int GROUPS = BATCH / GROUP;  // of a chain
    using Four = Pack<T, GROUP>;

    Four group[GROUPS][32];
    float reciprocal[BATCH];

    // Asks for batch number `number`. x: this lane's first group of it.
    __device__ __forceinline__ void request(const T* x, int number) {
        const int lane = threadIdx.x % 32;
        // without a word to L2: see kernels/README.md, what ptxas 13.0 makes of one here
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) copy_async<Four::BYTES>(&group[g][lane], x + g * (CHAINS * GROUP));
        if constexpr (NORM == LAYERNORM) {
#pragma unroll
            for (int k = 0; k < BATCH; k += 32) {
                reciprocal[k + lane] = reciprocal_of(static_cast<float>(number * BATCH + k + lane + 1));
            }
        }
    }
};

// Four groups of a chain and what their elements are divided by.
template <typename T, int NORM, int BATCH>
struct Chunk {
    static constexpr int GROUPS = 4;
    Pack<T, GROUP> group[GROUPS];
    float4 reciprocal[GROUPS];

    __device__ __forceinline__ void read(const Batch<T, NORM, BATCH>& batch, int own, int chunk) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            group[g] = batch.group[chunk * GROUPS + g][own];
            if constexpr (NORM == LAYERNORM) {
                reciprocal[g] = reinterpret_cast<const float4*>(batch.reciprocal)[chunk * GROUPS + g];
            }
        }
    }

    __device__ __forceinline__ void add_to(Chain<NORM>& chain) const {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            float values[GROUP];
            group[g].unpack(values);
            const float4 r = reciprocal[g];
            const float by[GROUP] = {r.x, r.y, r.z, r.w};
#pragma unroll
            for (int j = 0; j < GROUP; ++j) chain.add(values[j], by[j]);
        }
    }
};

// The elements of a batch. While one chunk is added the next is read, by turns, so that no register is moved.
template <typename T, int NORM, int BATCH>
__device__ __forceinline__ void add_all(const Batch<T, NORM, BATCH>& batch, int own, Chain<NORM>& chain) {
    constexpr int CHUNKS = Batch<T, NORM, BATCH>::GROUPS / Chunk<T, NORM, BATCH>::GROUPS;
    Chunk<T, NORM, BATCH> even, odd;
    even.read(batch, own, 0);
#pragma unroll CHUNKS / 4
    for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
        odd.read(batch, own, chunk + 1);
        even.add_to(chain);
        even.read(batch, own, chunk + 2 < CHUNKS ? chunk + 2 : 0);  // past the last one something, which nobody adds
        odd.add_to(chain);
    }
}

template <typename T, int NORM, int BATCH>
__global__ void __launch_bounds__(64)
wide_chains(const T* __restrict__ x, float4* __restrict__ merged, int hidden, long long x_stride) {
    using Table = Batch<T, NORM, BATCH>;
    using Four = typename Table::Four;
    constexpr int AHEAD = 3;  // batches in shared memory: one that is added, two on their way
    constexpr int SOME = 16;  // groups that are read together after the last batch
    Table* const ring = reinterpret_cast<Table*>(launch_memory());
    const long long row = blockIdx.x / 4;
    const int lane = threadIdx.x % 32, first = static_cast<int>(blockIdx.x) % 4 * 32;
    const T* const from = x + row * x_stride + (first + lane) * GROUP;

    // batches that every lane of this warp has, and groups of this lane
    const int all = hidden / GROUP;
    const auto groups = [&](int chain) { return chain < all ? (all - chain + CHAINS - 1) / CHAINS : 0; };
    const int batches = groups(first + 31) / Table::GROUPS, mine = groups(first + lane);
    const bool feeds = threadIdx.x >= 32;  // the chains, of which the other warp has one a lane
    const auto request = [&](int number) {
        if (number < batches) {
            ring[number % AHEAD].request(from + static_cast<long long>(number) * (Table::GROUPS * CHAINS * GROUP), number);
        }
        copy_commit();
    };
    Chain<NORM> chain{0.0f, 0.0f, static_cast<float>(mine * GROUP)};
    if (feeds) request(0);
#pragma unroll 1
    for (int number = 0; number < batches; ++number) {
        if (feeds) copy_wait(number == 0 ? 0 : 1);
        __syncthreads();  // this batch is there, and the one before it has been added
        if (feeds) {
            if (number == 0) request(1);
            request(number + 2);
        } else {
            add_all(ring[number % AHEAD], lane, chain);
        }
    }
    if (feeds) return;
    let_next_begin();  // whoever comes earlier takes room and memory from chains
#pragma unroll 1
    for (int start = batches * Table::GROUPS; start < mine; start += SOME) {
        Four left[SOME];
#pragma unroll
        for (int g = 0; g < SOME; ++g) {
            if (start + g < mine) left[g] = Four::of(from + static_cast<long long>(start + g) * (CHAINS * GROUP));
        }
#pragma unroll
        for (int g = 0; g < SOME; ++g) {
            if (start + g >= mine) break;
            float values[GROUP];
            left[g].unpack(values);
#pragma unroll
            for (int j = 0; j < GROUP; ++j) {
                chain.add(values[j], reciprocal_of(static_cast<float>((start + g) * GROUP + j + 1)));
            }
        }
    }
    __syncwarp();
    chain = chain.of_warp();
    if (lane == 0) merged[blockIdx.x] = chain.word();
}

// Writes, with what the four warps of a row found.
template <typename T, int NORM, int N, int TILES, int ROWS>
__global__ void __launch_bounds__(512)
wide_apply(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta, T* __restrict__ y,
           float* __restrict__ mean, float* __restrict__ rstd, const float4* merged, long long rows, int hidden,
           long long x_stride, long long y_stride, float eps) {
    __shared__ TorchMoments moments[ROWS];
    Band<T, N, TILES, ROWS, 8> band(rows, hidden);
    band.request(x, x_stride);
    const TorchAffine<T, N> affine(gamma, beta, band.column);
    await_previous();
    if (static_cast<int>(threadIdx.x) < band.count) {
        const long long row = band.top + threadIdx.x;
        moments[threadIdx.x] = TorchMoments::of<NORM>(merged + row * 4, hidden, eps);
        if (band.tile == 0) moments[threadIdx.x].save(mean, rstd, row);
    }
    __syncthreads();
    band.write(x, x_stride, y, y_stride, [&](float(&values)[N], int row) {
        moments[row].template apply<NORM>(values, affine.scaled, affine.gamma, affine.beta);
    });
}

// A row a block, as torch has it: for rows that are many, or short. What a thread holds last it does not read again.
template <typename T, int NORM>
__global__ void __launch_bounds__(CHAINS)
wide_row(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta, T* __restrict__ y,
         float* __restrict__ mean, float* __restrict__ rstd, int hidden, long long x_stride, long long y_stride, float eps) {
    constexpr int GROUPS = 4;
    static_assert(GROUPS * GROUP <= 32, "a lane makes one reciprocal");
    using Four = Pack<T, GROUP>;
    __shared__ float4 warps[4];
    const long long row = blockIdx.x;
    const int lane = threadIdx.x % 32, all = hidden / GROUP;
    const int first = static_cast<int>(threadIdx.x) / 32 * 32;
    const T* const from = x + row * x_stride;
    const int most = first < all ? (all - first + CHAINS - 1) / CHAINS : 0;  // groups of any lane of this warp

    Four held[GROUPS];
    const auto place = [&](int group) { return threadIdx.x + group * CHAINS; };
    const auto read = [&](int start) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            if (place(start + g) < all) held[g] = Four::of(from + static_cast<long long>(place(start + g)) * GROUP);
        }
    };
    Chain<NORM> chain{0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int start = 0; start < most; start += GROUPS) {
        read(start);
        const float reciprocal = reciprocal_of(static_cast<float>(start * GROUP + lane + 1));
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            float values[GROUP];
            held[g].unpack(values);
#pragma unroll
            for (int j = 0; j < GROUP; ++j) {
                const float by = NORM == LAYERNORM ? __shfl_sync(0xffffffffu, reciprocal, g * GROUP + j) : 0.0f;
                if (place(start + g) < all) chain.add(values[j], by);
            }
        }
    }
    const int mine = static_cast<int>(threadIdx.x) < all ? (all - static_cast<int>(threadIdx.x) + CHAINS - 1) / CHAINS : 0;
    chain.count = static_cast<float>(mine * GROUP);
    chain = chain.of_warp();
    if (lane == 0) warps[threadIdx.x / 32] = chain.word();
    __syncthreads();
    const TorchMoments moments = TorchMoments::of<NORM>(warps, hidden, eps);
    if (threadIdx.x == 0) moments.save(mean, rstd, row);
#pragma unroll 1
    for (int start = (most - 1) / GROUPS * GROUPS; start >= 0 && most > 0; start -= GROUPS) {
        if (start + GROUPS < most) read(start);  // the last ones are held
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int at = place(start + g);
            if (at >= all) break;
            float values[GROUP];
            held[g].unpack(values);
            const TorchAffine<T, GROUP> affine(gamma, beta, at * GROUP);
            moments.template apply<NORM>(values, affine.scaled, affine.gamma, affine.beta);
            Four::packed(values).to(y + row * y_stride + static_cast<long long>(at) * GROUP);
        }
    }
}
