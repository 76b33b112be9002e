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
//     "stages < 32 or arch != 75",
//     # a block a row pays where rows are many or short; it has nothing to choose
//     "not fused or (stages, tiles, rows_each, each, block) == (16, 0, 1, 4, 256)",
//     "not fused or rows >= 64 or hidden <= 32768",
//     "fused or hidden >= 8192",
// ]
// skip = [
//     {when = "w_bytes != x_bytes", reason = "torch takes gamma and beta of the input's type, and so do its bits"},
//     {when = "hidden % 4", reason = "torch's vector path takes rows of a multiple of 4 elements; its order elsewhere is another"},
//     {when = "aligned < 4 * x_bytes", reason = "torch's vector path takes bases and rows aligned to 4 elements; its order elsewhere is another"},
//     {when = "rows > 536870911", reason = "a grid holds at most 536870911 rows of four warps"},
// ]
//
// [axes]
// block = [256, 512]     # threads a block that writes
// fused = [0, 1]         # a block a row, as torch has it, in place of chains spread over blocks
// stages = [16, 32]      # chunks of 16 elements a chain that are on their way to shared memory at a time
// tiles = [0, 1]         # blocks write a row after the other (0), or the same columns of all rows (1)
// rows_each = [1, 16]    # rows for which a block that writes reads gamma and beta once
// each = [4, 8]          # elements a thread writes at a time
//
// [scratch]
// merged = "rows * 64"
//
// [[launches]]
// when = "not fused"
// name = "wide_chains<{T}, {NORM}, {stages}>"
// grid = "rows * 4"
// block = 32
// smem = "stages * 512 * x_bytes + 256"
// args = ["x", "merged", "hidden", "x_stride"]
//
// [[launches]]
// when = "not fused"
// name = "wide_apply<{T}, {NORM}, {each}, {tiles}, {rows_each}>"
// grid = "cdiv(hidden, block * each) * cdiv(rows, rows_each)"
// block = "block"
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
// still be in L2, and `rows_each` rows of one tile, for which gamma and beta stay in registers. Where rows are many or short
// one kernel with torch's own geometry does both (`fused`).
// Statistics: bit for bit torch's (common/torch_order.cuh): running mean and squares, less accurate than pairwise sums. The
// exact reciprocals of the counts, which torch divides for, stand beside the chains' path: a warp's lanes make one each for
// the elements to come. x is copied to shared memory several kilobytes ahead, by each lane for itself, so nobody waits for
// anybody; the values of the next chunk are read from there while this one's are added.
// Numerics: fp32 accumulation, eps inside the root (0 is allowed), one rounding of 16-bit outputs. The claim is made for a
// version of torch on which `verify` has compared the bits, and for no other.
// Boundaries: rows of a multiple of 4 elements, aligned to four of them; all other work is refused, since torch's order is
// another there. Any number of rows; gamma, beta, both or neither, which torch rounds differently.
// Saved tensors: mean and rstd, with torch's bits.
// Known limits: a chain is two dependent operations an element, 8 cycles, whatever the memory does: 0.132 ms for 32768
// elements at 1980 MHz. RMSNorm has torch's bits where torch launches ATen's kernel for it.

#include "common/async_ptx.cuh"
#include "common/band.cuh"
#include "common/torch_order.cuh"

// One warp of a row's chains. STAGES: chunks that are on their way to shared memory, or there.
template <typename T, int NORM, int STAGES>
struct Warp {
    static constexpr int GROUPS = 4;              // of a lane, in a chunk
    static constexpr int CHUNK = GROUPS * GROUP;  // elements of a chain
    static_assert(2 * CHUNK == 32, "each lane makes one reciprocal for two chunks");
    using Four = Pack<T, GROUP>;

    struct Held {
        Four group[GROUPS];
        float4 reciprocal[GROUPS];
    };

    float4* reciprocals;  // [2][2 * GROUPS], the same for all lanes, and then the ring, [STAGES][GROUPS][32]
    const T* x;           // this lane's first group
    int lane;
    int chunks;

    __device__ __forceinline__ Four* slot(int chunk) const {
        return reinterpret_cast<Four*>(reciprocals + 4 * GROUPS) + chunk % STAGES * (GROUPS * 32) + lane;
    }

    // Past the end the last chunk is asked for again, into a place that nobody reads: cheaper than a branch each time.
    __device__ __forceinline__ void request(int chunk) const {
        Four* const to = slot(chunk);
        const T* const from = x + static_cast<long long>(chunk < chunks ? chunk : chunks - 1) * (GROUPS * CHAINS * GROUP);
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) copy_async<Four::BYTES>(to + g * 32, from + g * (CHAINS * GROUP));
        copy_commit();
    }

    // One lane, one reciprocal, of this chunk's and the next one's counts. All lanes call it, and then see those of all.
    __device__ __forceinline__ void count(int chunk) const {
        if constexpr (NORM == LAYERNORM) {
            float* const both = reinterpret_cast<float*>(reciprocals + chunk / 2 % 2 * (2 * GROUPS));
            both[lane] = reciprocal_of(static_cast<float>(chunk * CHUNK + lane + 1));
            __syncwarp();
        }
    }

    __device__ __forceinline__ void read(int chunk, Held& held) const {
        copy_wait<STAGES - 2>();
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            held.group[g] = slot(chunk)[g * 32];
            if constexpr (NORM == LAYERNORM) held.reciprocal[g] = reciprocals[chunk % 4 * GROUPS + g];
        }
    }

    static __device__ __forceinline__ void add(Chain<NORM>& chain, const Held& held) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            float values[GROUP];
            held.group[g].unpack(values);
            const float4 r = held.reciprocal[g];
            const float by[GROUP] = {r.x, r.y, r.z, r.w};
#pragma unroll
            for (int j = 0; j < GROUP; ++j) chain.add(values[j], by[j]);
        }
    }

    // The elements of all chunks, whose number is even. While one is added the next is read from shared memory, and one more
    // is requested into the place of the one before.
    __device__ __forceinline__ void walk(Chain<NORM>& chain) const {
        if (chunks == 0) return;
#pragma unroll 1
        for (int s = 0; s < STAGES - 1; ++s) request(s);
        Held even, odd;
        count(0);
        read(0, even);
        // by turns, so that no register is moved; at the loop's end alone the reads wait for nobody's sums to hide behind
#pragma unroll 2
        for (int chunk = 0; chunk < chunks; chunk += 2) {
            request(chunk + STAGES - 1);
            read(chunk + 1, odd);
            add(chain, even);
            request(chunk + STAGES);
            count(chunk + 2);
            read(chunk + 2, even);
            add(chain, odd);
        }
        copy_wait<0>();
    }
};

template <typename T, int NORM, int STAGES>
__global__ void __launch_bounds__(32)
wide_chains(const T* __restrict__ x, float4* __restrict__ merged, int hidden, long long x_stride) {
    using Chains = Warp<T, NORM, STAGES>;
    using Four = typename Chains::Four;
    constexpr int GROUPS = Chains::GROUPS;
    const long long row = blockIdx.x / 4;
    const int lane = threadIdx.x, first = static_cast<int>(blockIdx.x) % 4 * 32;
    const T* const from = x + row * x_stride + (first + lane) * GROUP;

    // pairs of chunks that every lane of this warp has, and groups of this lane
    const int all = hidden / GROUP;
    const auto groups = [&](int chain) { return chain < all ? (all - chain + CHAINS - 1) / CHAINS : 0; };
    const int chunks = groups(first + 31) / (2 * GROUPS) * 2, mine = groups(first + lane);

    Chain<NORM> chain{0.0f, 0.0f, static_cast<float>(mine * GROUP)};
    Chains{reinterpret_cast<float4*>(launch_memory()), from, lane, chunks}.walk(chain);
#pragma unroll 1
    for (int start = chunks * GROUPS; start < mine; start += GROUPS) {
        Four left[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            if (start + g < mine) left[g] = Four::of(from + static_cast<long long>(start + g) * (CHAINS * GROUP));
        }
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
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
           float* __restrict__ mean, float* __restrict__ rstd, const float4* __restrict__ merged, long long rows, int hidden,
           long long x_stride, long long y_stride, float eps) {
    __shared__ TorchMoments moments[ROWS];
    Band<T, N, TILES, ROWS> band(rows, hidden);
    band.request(x, x_stride);
    if (static_cast<int>(threadIdx.x) < band.count) {
        const long long row = band.top + threadIdx.x;
        moments[threadIdx.x] = TorchMoments::of<NORM>(merged + row * 4, hidden, eps);
        if (band.tile == 0) moments[threadIdx.x].save(mean, rstd, row);
    }
    const TorchAffine<T, N> affine(gamma, beta, band.column);
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
