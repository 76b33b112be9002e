// /// kernel
// summary = "Few rows: gamma and beta asked for before the launch before has ended, everything at once; a block or a cluster a row."
// ops = ["layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm"]
// dtypes = ["fp32", "fp16", "bf16"]
// where = [
//     # which variants exist
//     "aligned >= 16",
//     "w_bytes == x_bytes",
//     "arch >= 90 or (spread == 0 and pdl == 0)",
//     "(spread == 0) == (cluster == 1)",
//     "spread == 0 or (vecs == 1 and block in (128, 256))",
//     "vecs == 1 or block <= 512",
//     # where a launch takes long, hiding how it begins gains nothing
//     "pdl == 0 or regime == 'latency'",
//     # the registers must hold the row; not twice as many of them as it needs
//     "vecs * cluster * block >= hidden * x_bytes // 16",
//     "vecs * cluster * block < hidden * x_bytes // 8 or (vecs == 1 and spread == 0 and block == 64)",
// ]
// skip = [
//     {when = "w_bytes != x_bytes", reason = "takes gamma and beta in the type of x; cta_row takes others"},
//     {when = "aligned < 16 or hidden * x_bytes % 16", reason = "takes rows that begin and end on 16 bytes; span_row and cta_row take others"},
//     {when = "hidden * x_bytes > 32768", reason = "a block's registers hold no longer rows beside gamma and beta; cta_row takes them"},
//     {when = "rows > 1024", reason = "made for few rows; cta_row takes many"},
// ]
//
// [axes]
// block = "study"
// spread = [0, 1]         # a row over the blocks of a cluster
// cluster = [1, 2, 4, 8]  # blocks a row
// vecs = [1, 2, 4]        # 16-byte vectors of the row in a thread's registers
// pdl = [0, 1]            # a launch may begin before the one before it has ended
//
// [[launches]]
// name = "few_rows<{T}, {W}, {NORM}, {ADD}, {spread}, {vecs}, {GAMMA}>"
// grid = "cluster * rows"
// block = "block"
// cluster = "cluster * spread"
// smem = "8224 * spread"
// pdl = "pdl"
// args = ["x", "residual", "gamma", "beta", "y", "sum", "mean", "rstd", "rows", "hidden", "x_stride", "y_stride", "eps", "offset"]
// ///
// Decomposition: for few rows time is latency: of the launch, of a trip to L2, of the sums. So nothing waits that need not.
// Each thread asks for its share of gamma and beta, then of x, before it uses any of them; the row stays in registers; the warps
// meet once. With `spread` a cluster of blocks shares the row, for where one multiprocessor takes long to ask for all of it.
// Overlap (`pdl`, sm_90): a launch begins while the one before it still runs, fetches gamma and beta, which no launch writes,
// and waits for the end of the other before it reads x or writes anything. What that hides is the beginning of a launch. So a
// latency with `pdl` is that of one launch in a chain whose members all let the next one begin early, not that of a launch
// alone, and it may lie below an empty kernel's, launched the plain way. In a model the neighbours must play along.
// Statistics: as all of ours (common/statistics.cuh; in 16 bits common/tensor.cuh).
// Numerics: fp32; sums in chains of at most 32 a thread, then a tree; eps inside the root; one rounding at the end, with the
// cast order llama also one before gamma.
// Boundaries: rows that begin and end on 16 bytes. The launch before must not write gamma or beta.
// Residual: as cta_row. Saved tensors: mean and rstd in fp32 where their pointers are given. y may be x, and sum may be residual.
// Known limits: at most 1024 rows, of 32 KB each. With `pdl` blocks of the next launches wait on the multiprocessors.

#include "common/cluster.cuh"
#include "common/dependent_ptx.cuh"
#include "common/statistics.cuh"
#include "common/tensor.cuh"
#include "common/weights.cuh"

template <typename T, typename W, int NORM, int ADD, int SPREAD, int VECS, int GAMMA>
__global__ void __launch_bounds__(VECS == 1 ? 1024 : 512, 1)
few_rows(const T* x, const T* residual, const W* __restrict__ gamma, const W* __restrict__ beta, T* y, T* sum, float* mean,
         float* rstd, long long rows, int hidden, long long x_stride, long long y_stride, float eps, float offset) {
    constexpr int N = 16 / sizeof(T);
    using Params = Slot<W, N, 1>;
    using Values = Slot<Held<T, ADD>, N, 1>;
    static_assert(sizeof(Cluster::Mail) == 4112, "the header asks for it");
    constexpr bool TENSOR = NORM == LAYERNORM && BY_TENSOR<NORM, Held<T, ADD>>;  // RMSNorm was slower so
    __shared__ float4 scratch[SPREAD ? 1 : TENSOR ? 64 : 32];

    let_next_begin();
    const auto team = [&] {
        if constexpr (SPREAD) {
            Cluster::Mail* const mail = reinterpret_cast<Cluster::Mail*>(launch_memory());
            if (threadIdx.x == 0) {
                mail[0].prepare();
                if constexpr (TENSOR) mail[1].prepare();
            }
            __syncwarp();
            cluster_arrive();
            return Cluster::here(mail);
        } else {
            return Team<0>{scratch};
        }
    }();
    int threads = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x);
    long long row = blockIdx.x;
    if constexpr (SPREAD) {
        threads = team.size();
        lane = team.lane();
        row = team.row();
    }
    if (hidden > VECS * threads * N) __trap();  // a fault, rather than a row cut short
    const int begin = lane * N, pitch = threads * N;
    const int left = hidden - begin;
    const long long from = row * x_stride + begin, to = row * y_stride + begin;

    Params scale[VECS], shift[VECS];
#pragma unroll
    for (int p = 0; p < VECS; ++p) {
        if (gamma == nullptr) scale[p].fill(1.0f);
        else scale[p].load(gamma + begin + p * pitch, left - p * pitch);
        if (NORM != LAYERNORM || beta == nullptr) shift[p].fill(0.0f);
        else shift[p].load(beta + begin + p * pitch, left - p * pitch);
    }
    await_previous();

    Values held[VECS];
    if constexpr (ADD == ADD_NONE) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) held[p].load(x + from + p * pitch, left - p * pitch);
    } else {
        Slot<T, N, 1> own[VECS], other[VECS];
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            own[p].load(x + from + p * pitch, left - p * pitch);
            other[p].load(residual + from + p * pitch, left - p * pitch);
        }
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            held[p] = added<ADD>(own[p], other[p]);
            as<T>(held[p]).store(sum + to + p * pitch, left - p * pitch);
        }
    }
    if constexpr (SPREAD) cluster_wait();  // all blocks can be sent to

    const auto each = [&](auto visit) {
#pragma unroll
        for (int p = 0; p < VECS; ++p) {
            float values[N];
            held[p].unpack(values);
            visit(values, [&](int) { return p * pitch < left; });
        }
    };
    const auto count = [&] {
        int found = 0;
#pragma unroll
        for (int p = 0; p < VECS; ++p) found += p * pitch < left ? N : 0;
        return found;
    };
    const Moments moments = [&] {
        if constexpr (TENSOR) {
            TensorSums<T, 2> sums;
#pragma unroll
            for (int p = 0; p < VECS; ++p) sums.add(held[p].quad());
            return by_tensor<NORM>(team, post_sums<NORM>(team, sums), hidden, eps, [&] {
                return statistics<NORM>(team.next(), each, count, held[0].first(), hidden, eps);
            });
        } else {
            return statistics<NORM>(team, each, count, held[0].first(), hidden, eps);
        }
    }();

    const Weights<T, W, GAMMA> weights{gamma, beta, offset};
#pragma unroll
    for (int p = 0; p < VECS; ++p) {
        float values[N], factors[N], shifts[N];
        held[p].unpack(values);
        scale[p].unpack(factors);
        shift[p].unpack(shifts);
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = moments.template applied<NORM>(values[j]);
        weights.template apply<NORM>(values, factors, shifts);
        Slot<T, N, 1> result;
        result.pack(values);
        result.store(y + to + p * pitch, left - p * pitch);
    }
    if (lane == 0) moments.save(mean, rstd, row);
}
