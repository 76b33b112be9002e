// /// kernel
// summary = "Norms over the channels of images: a tile of pixels in a block's registers, all channels of it at once."
// ops = ["rmsnorm_channels", "l1norm", "l2norm"]
// dtypes = ["fp32", "fp16", "bf16"]
// layouts = ["channels"]
// where = [
//     # which variants exist
//     "vec == 1 or vec == 16 // x_bytes",
//     "block % lanes == 0",
//     "block <= (512 if vecs == 8 and vec > 1 else 1024)",
//     "vec > 1 or lanes >= 32",
//     # 16-byte vectors where the pixels of a channel have them, single elements for the others
//     "(vec > 1) == (aligned >= 16)",
//     # the registers must hold the tile, unless they are as many as there are; not twice as many as it needs
//     "vecs * (block // lanes) >= hidden or (vecs == 8 and lanes == (8 if vec > 1 else 32) and block >= 512 and hidden > (512 if vec > 1 else 256))",
//     "vecs * (block // lanes) < 2 * hidden or (vecs == 4 and block == 64)",
// ]
// skip = [{when = "rows > 8589934592", reason = "a grid holds at most 2147483647 tiles, of 4 pixels at least"}]
//
// [axes]
// block = "study"
// lanes = [8, 16, 32, 64]  # threads along the pixels
// vecs = [4, 8]            # channels a thread
// vec = [1, 4, 8]          # pixels a load
//
// [[launches]]
// name = "channel_tile<{T}, {NORM}, {vecs}, {vec}>"
// grid = "cdiv(rows, lanes * vec)"
// block = "block"
// smem = "4 * block * vec"
// args = ["x", "y", "lanes", "rows", "hidden", "inner", "eps"]
// ///
// Decomposition: the rows lie side by side, an image's pixels apart from channel to channel, so a warp takes neighbouring
// pixels of one channel, 16 bytes a thread, and the groups of a block take the channels in turn. A thread has all its loads
// in flight before it uses the first, and keeps them packed in their own type until the pixels' numbers are known: one
// read, one write. A block takes one tile and ends. Pixels are counted through all images, so that a small image wastes no
// threads.
// Statistics: sums of |x| or x^2 for each pixel; each thread over its channels, then all groups' parts through shared
// memory, with one barrier, in the same order in every thread.
// Numerics: fp32; chains of at most 8, then one of at most 128 groups; eps inside the root; l1norm and l2norm have none, so
// a pixel of zeros is NaN, as in torch; one rounding at the end.
// Boundaries: any number of channels, pixels and images, any base. Where a channel's pixels do not begin and end on 16 bytes
// they go one by one, coalesced. More channels than the registers hold are read again from L2 mostly.
// Saved tensors: none. y may be x.
// Known limits: more than 512 channels, 256 where pixels go one by one, are read twice in part.

#include "common/element.cuh"
#include "common/memory.cuh"
#include "common/scale.cuh"

// VEC neighbouring pixels of one channel, packed.
template <typename T, int VEC>
struct Pixels {
    Slot<T, VEC, 1> slot;

    template <bool ONCE>
    __device__ __forceinline__ void load(const T* from, bool inside) {
        slot.template load<ONCE>(from, inside ? 1 : 0);
    }
    __device__ __forceinline__ void unpack(float (&values)[VEC]) const { slot.unpack(values); }
    __device__ __forceinline__ void forget() { slot.forget(); }
    __device__ __forceinline__ void store(T* to, const float (&values)[VEC]) {
        slot.pack(values);
        slot.store(to, 1);
    }
};

template <typename T>
struct Pixels<T, 1> {
    T value;

    template <bool ONCE>
    __device__ __forceinline__ void load(const T* from, bool inside) {
        value = inside ? *from : Element<T>::narrow(0.0f);
    }
    __device__ __forceinline__ void unpack(float (&values)[1]) const { values[0] = Element<T>::widen(value); }
    __device__ __forceinline__ void forget() {}
    __device__ __forceinline__ void store(T* to, const float (&values)[1]) { *to = Element<T>::narrow(values[0]); }
};

// How VEC floats go through shared memory: four at a time, or one.
template <int VEC>
struct Quads {
    using Type = float4;
    static constexpr int COUNT = VEC / 4;
    static __device__ __forceinline__ float4 take(const float* values, int q) {
        return make_float4(values[4 * q], values[4 * q + 1], values[4 * q + 2], values[4 * q + 3]);
    }
    static __device__ __forceinline__ void add(float* values, int q, float4 more) {
        values[4 * q] += more.x;
        values[4 * q + 1] += more.y;
        values[4 * q + 2] += more.z;
        values[4 * q + 3] += more.w;
    }
};

template <>
struct Quads<1> {
    using Type = float;
    static constexpr int COUNT = 1;
    static __device__ __forceinline__ float take(const float* values, int) { return values[0]; }
    static __device__ __forceinline__ void add(float* values, int, float more) { values[0] += more; }
};

template <typename T, int NORM, int VECS, int VEC>
__global__ void __launch_bounds__(VECS == 8 && VEC > 1 ? 512 : 1024, 1)
channel_tile(const T* __restrict__ x, T* __restrict__ y, int lanes, long long rows, int hidden, int inner, float eps) {
    const int lane = static_cast<unsigned>(threadIdx.x) % static_cast<unsigned>(lanes);
    const int group = static_cast<unsigned>(threadIdx.x) / static_cast<unsigned>(lanes);
    const int groups = static_cast<unsigned>(blockDim.x) / static_cast<unsigned>(lanes);
    const long long pixel = (static_cast<long long>(blockIdx.x) * lanes + lane) * VEC;
    const bool inside = pixel < rows;  // a vector lies in one image, whose pixels are a multiple of it
    const long long image = static_cast<unsigned long long>(pixel) / static_cast<unsigned>(inner);
    const long long first = image * (hidden - 1) * inner + pixel + static_cast<long long>(group) * inner;
    const long long step = static_cast<long long>(groups) * inner;  // from a channel of this thread to its next

    Pixels<T, VEC> held[VECS];
    const T* from = x + first;
#pragma unroll
    for (int k = 0; k < VECS; ++k, from += step) held[k].template load<true>(from, inside && group + k * groups < hidden);

    float sum[VEC];
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum[j] = 0.0f;
    const auto add = [&](const Pixels<T, VEC>& pixels) {
        float values[VEC];
        pixels.unpack(values);
#pragma unroll
        for (int j = 0; j < VEC; ++j) sum[j] = Scale<NORM>::add(sum[j], values[j]);
    };
    // a channel that is not there is 0 and adds nothing
#pragma unroll
    for (int k = 0; k < VECS; ++k) add(held[k]);
#pragma unroll 1
    for (int c = group + VECS * groups; inside && c < hidden; c += groups, from += step) {
        Pixels<T, VEC> pixels;
        pixels.template load<false>(from, true);
        add(pixels);
    }

    // of every group, of every pixel of the tile; the threads of a group side by side, vector for vector
    using Words = typename Quads<VEC>::Type;
    Words* const parts = reinterpret_cast<Words*>(launch_memory());
    const int place = threadIdx.x, threads = blockDim.x;
#pragma unroll
    for (int q = 0; q < Quads<VEC>::COUNT; ++q) parts[q * threads + place] = Quads<VEC>::take(sum, q);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum[j] = 0.0f;
#pragma unroll 1
    for (int at = lane; at < threads; at += lanes) {
#pragma unroll
        for (int q = 0; q < Quads<VEC>::COUNT; ++q) Quads<VEC>::add(sum, q, parts[q * threads + at]);
    }
    const float inverse = 1.0f / static_cast<float>(hidden);
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum[j] = Scale<NORM>::of(sum[j], inverse, eps);

    const auto write = [&](Pixels<T, VEC>& pixels, T* to) {
        float values[VEC];
        pixels.unpack(values);
#pragma unroll
        for (int j = 0; j < VEC; ++j) values[j] *= sum[j];
        pixels.store(to, values);
    };
    long long at = first;
#pragma unroll
    for (int k = 0; k < VECS; ++k, at += step) {
        held[k].forget();
        // where the compiler sees through the place, it derives that of each word from the channel before and stores words
        // of 4 bytes; and remembers all places from the loads, two registers a channel
        asm volatile("" : "+l"(at));
        if (inside && group + k * groups < hidden) write(held[k], y + at);
    }
#pragma unroll 1
    for (int c = group + VECS * groups; inside && c < hidden; c += groups, at += step) {
        Pixels<T, VEC> pixels;
        pixels.template load<false>(x + at, true);
        write(pixels, y + at);
    }
}
