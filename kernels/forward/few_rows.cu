// /// kernel
// summary = "Few rows: everything asked for at once, gamma and beta before the launch before has ended; a block or a cluster a row."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "aligned >= 16",
//     "w_bytes == x_bytes",
//     "arch >= 90 or (spread == 0 and pdl == 0)",
//     "(spread == 0) == (cluster == 1)",
//     "spread == 0 or (vecs == 1 and block in (128, 256))",
//     # overlapping launches of a thousand blocks each gain nothing
//     "pdl == 0 or regime == 'latency'",
//     # the registers must hold the row; not twice as many of them as it needs
//     "vecs * cluster * block >= hidden * x_bytes // 16",
//     "vecs * cluster * block < hidden * x_bytes // 8 or (vecs == 1 and block == 64)",
// ]
// skip = [
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; cta_row takes others"},
//     {when = "aligned < 16 or hidden * x_bytes % 16", reason = "takes rows that begin and end on 16 bytes; span_row and cta_row take others"},
//     {when = "hidden * x_bytes > 65536", reason = "a block's registers hold no longer rows; cluster_row takes them"},
//     {when = "rows > 1024", reason = "made for few rows; cta_row takes many"},
// ]
//
// [axes]
// block = "study"
// spread = [0, 1]        # a row over the blocks of a cluster
// cluster = [1, 2, 4, 8] # blocks a row
// vecs = [1, 2, 4]       # 16-byte vectors of the row in a thread's registers
// pdl = [0, 1]           # launches may begin before the one before them has ended
//
// [[launches]]
// name = "few_rows<{T}, {W}, {NORM}, {ADD}, {spread}, {vecs}, {GAMMA}>"
// grid = "cluster * rows"
// block = "block"
// cluster = "cluster * spread"
// smem = "4112 * spread"
// pdl = "pdl"
// args = ["x", "residual", "gamma", "beta", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: where few rows are to be normalised, time is latency: of the launch, of one trip to L2, of the sums. So nothing
// waits that need not. Each thread asks for its share of gamma and beta, then of x, before it uses any; the row is held in
// registers; one meeting of the warps. With `spread` a cluster of blocks shares the row, for when one multiprocessor takes long
// to ask for all of it; its barrier and messages cost more than they save on short rows.
// Overlap (`pdl`, sm_90): a launch begins while the one before still runs, and fetches gamma and beta, which nobody writes; it
// waits for the end of the one before it reads x or writes anything. What that hides is the launch itself, so a figure of
// latency with `pdl` is of one launch in a chain whose members all do so, not of one alone, and it may lie below that of an empty
// kernel launched the plain way. In a model it needs a neighbour that lets its successor begin early.
// Statistics: as all of ours (common/statistics.cuh).
// Numerics: fp32; sums in chains of at most 32 a thread, then a tree; eps inside the root; one rounding at the end, with the cast
// order llama also one before gamma.
// Boundaries: rows that begin and end on 16 bytes, any row stride that keeps them there. Gamma and beta must not be written by
// the launch before.
// Residual: as cta_row. Saved tensors: mean and rstd in fp32 where their pointers are given. y may be x, and sum may be residual.
// Known limits: up to 1024 rows, of 64 KB at most. With `pdl` a chain holds the registers of several launches at once.

#include "common/cluster.cuh"
#include "common/dependent_ptx.cuh"
#include "common/statistics.cuh"
#include "common/weights.cuh"

// The threads of a row: a block, or those of a cluster.
template <int SPREAD>
struct Sharing {
    using Threads = Team<0>;
    float4 scratch[32];

    __device__ __forceinline__ void open(Cluster::Mail*) const {}
    __device__ __forceinline__ Threads all(Cluster::Mail*) { return Threads{scratch}; }
    __device__ __forceinline__ void close() const {}
    static __device__ __forceinline__ int size(const Threads&) { return static_cast<int>(blockDim.x); }
};
