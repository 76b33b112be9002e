// Elements and slots: how values of fp32, fp16 and bf16 are read, held and written.
//
// Arithmetic is fp32 everywhere; a 16-bit value is widened when it is used and an output is rounded once, to nearest even.
// A slot is what one thread holds of a row: N elements packed in their own dtype, so a 16-bit row costs half the registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/memory.cuh"

// The value of template flag NORM.
constexpr int LAYERNORM = 0;
constexpr int RMSNORM = 1;
constexpr int L1NORM = 2;  // x / mean |x|
constexpr int L2NORM = 3;  // x / sqrt(sum x^2)

// Whether a norm may have gamma; LayerNorm alone has beta too.
template <int NORM>
constexpr bool TAKES_GAMMA = NORM == LAYERNORM || NORM == RMSNORM;

// The value of template flag ADD: no residual; the sum normalised as formed in fp32; or as rounded to the type of x.
constexpr int ADD_NONE = 0;
constexpr int ADD_FP32 = 1;
constexpr int ADD_ROUND = 2;

// The bits of template flag GAMMA, 0 where gamma multiplies the normalised value in fp32: it multiplies that value as
// rounded to the type of x; a number is added to gamma first, in fp32.
constexpr int GAMMA_LLAMA = 1;
constexpr int GAMMA_OFFSET = 2;

template <typename E>
struct Element;

// PER: elements a 32-bit word. BRAIN: bf16. unpack, pack: between a word and PER floats.
template <>
struct Element<float> {
    static constexpr int PER = 1;
    static __device__ __forceinline__ float widen(float value) { return value; }
    static __device__ __forceinline__ float narrow(float value) { return value; }
    static __device__ __forceinline__ void unpack(unsigned word, float* values) { values[0] = __uint_as_float(word); }
    static __device__ __forceinline__ unsigned pack(const float* values) { return __float_as_uint(values[0]); }
};

template <>
struct Element<__half> {
    static constexpr int PER = 2;
    static constexpr bool BRAIN = false;
    static __device__ __forceinline__ float widen(__half value) { return __half2float(value); }
    static __device__ __forceinline__ __half narrow(float value) { return __float2half_rn(value); }
    static __device__ __forceinline__ void unpack(unsigned word, float* values) {
        const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word));
        values[0] = both.x;
        values[1] = both.y;
    }
    static __device__ __forceinline__ unsigned pack(const float* values) {
        const __half2 both = __floats2half2_rn(values[0], values[1]);
        return *reinterpret_cast<const unsigned*>(&both);
    }
};

template <>
struct Element<__nv_bfloat16> {
    static constexpr int PER = 2;
    static constexpr bool BRAIN = true;
    static __device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
    static __device__ __forceinline__ __nv_bfloat16 narrow(float value) { return __float2bfloat16_rn(value); }
    static __device__ __forceinline__ void unpack(unsigned word, float* values) {
        // a bf16 is the upper half of the fp32 of the same value: one shift or mask, no conversion instruction
        values[0] = __uint_as_float(word << 16);
        values[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ __forceinline__ unsigned pack(const float* values) {
        const __nv_bfloat162 both = __floats2bfloat162_rn(values[0], values[1]);
        return *reinterpret_cast<const unsigned*>(&both);
    }
};

// N elements of type E held by one thread, STEP apart. `mine` points at the first one; `left` counts the elements of the
// row from there on (not positive: none). With STEP 1 they are moved 16 bytes at a time: they must be aligned so, and the
// row must end on a slot, so that a slot lies wholly inside or outside. Otherwise they are moved one by one.
template <typename E, int N, int STEP>
struct Slot {
    static constexpr bool WIDE = STEP == 1;
    static constexpr int PER = Element<E>::PER;
    static constexpr int WORDS = N / PER;
    static constexpr int QUADS = WORDS / 4;
    static_assert(WORDS * PER == N && (!WIDE || QUADS * 4 == WORDS), "a slot is a whole number of 16-byte vectors");

    unsigned word[WORDS];

    static __device__ __forceinline__ bool inside(int j, int left) { return (WIDE ? 0 : j * STEP) < left; }

    __device__ __forceinline__ void fill(float value) {
        float values[N];
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = value;
        pack(values);
    }

    // How many of the elements are in the row.
    static __device__ __forceinline__ int count(int left) {
        if constexpr (WIDE) {
            return left > 0 ? N : 0;
        } else {
            const int most = (left + STEP - 1) / STEP;
            return most < 0 ? 0 : most < N ? most : N;
        }
    }

    // Elements outside the row read as zero. ONCE: nobody here reads them again, so they need not pass through L1.
    template <bool ONCE = false>
    __device__ __forceinline__ void load(const E* mine, int left) {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) word[k] = 0u;
        if constexpr (WIDE) {
            if (inside(0, left)) {
#pragma unroll
                for (int k = 0; k < QUADS; ++k) {
                    const uint4* const from = reinterpret_cast<const uint4*>(mine) + k;
                    set(ONCE ? load_once(from) : *from, k);
                }
            }
        } else {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if (inside(j, left)) word[j / PER] |= bits(mine[j * STEP]) << (16 * (j % PER));
            }
        }
    }

    // The same of a parameter, which may be absent: `held` is then not positive, and each element is `absent`. Nothing but the loads
    // depends on that, so that they need not wait for each other.
    __device__ __forceinline__ void load_parameter(const E* mine, int held, float absent) {
        static_assert(WIDE, "whole vectors");
        fill(absent);
        if (inside(0, held)) {
#pragma unroll
            for (int k = 0; k < QUADS; ++k) set(reinterpret_cast<const uint4*>(mine)[k], k);
        }
    }

    // The q-th 16-byte vector of the words.
    __device__ __forceinline__ void set(uint4 quad, int q = 0) {
        word[4 * q] = quad.x;
        word[4 * q + 1] = quad.y;
        word[4 * q + 2] = quad.z;
        word[4 * q + 3] = quad.w;
    }

    __device__ __forceinline__ uint4 quad(int q = 0) const {
        return make_uint4(word[4 * q], word[4 * q + 1], word[4 * q + 2], word[4 * q + 3]);
    }

    __device__ __forceinline__ void store(E* mine, int left) const {
        if constexpr (WIDE) {
            if (inside(0, left)) {
#pragma unroll
                for (int k = 0; k < QUADS; ++k) ::store(reinterpret_cast<uint4*>(mine) + k, quad(k));
            }
        } else {
            float values[N];
            unpack(values);  // exact, and narrowing the value again gives the same bits
#pragma unroll
            for (int j = 0; j < N; ++j) {
                if (inside(j, left)) mine[j * STEP] = Element<E>::narrow(values[j]);
            }
        }
    }

    __device__ __forceinline__ float first() const {
        float values[PER];
        Element<E>::unpack(word[0], values);
        return values[0];
    }

    __device__ __forceinline__ void unpack(float (&values)[N]) const {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) Element<E>::unpack(word[k], values + k * PER);
    }

    // Makes the compiler forget what it derived from the words. Without it the widened values of one pass stay alive for
    // the next (64 registers for 8 bf16 vectors, and spills), though widening again costs one instruction an element.
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) asm volatile("" : "+r"(word[k]));
    }

    __device__ __forceinline__ void pack(const float (&values)[N]) {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) word[k] = Element<E>::pack(values + k * PER);
    }

private:
    static __device__ __forceinline__ unsigned bits(const E& value) {
        if constexpr (PER == 1) {
            return *reinterpret_cast<const unsigned*>(&value);
        } else {
            return *reinterpret_cast<const unsigned short*>(&value);
        }
    }
};

// How a row is held: in its own type, or, where an unrounded sum is to be normalised, in fp32.
template <typename T, int ADD>
struct HeldAs {
    using Type = T;
};

template <typename T>
struct HeldAs<T, ADD_FP32> {
    using Type = float;
};

template <typename T, int ADD>
using Held = typename HeldAs<T, ADD>::Type;

// A slot of x and the same of the residual, added in fp32.
template <int ADD, typename T, int N, int STEP>
__device__ __forceinline__ Slot<Held<T, ADD>, N, STEP> added(const Slot<T, N, STEP>& x, const Slot<T, N, STEP>& residual) {
    float values[N], others[N];
    x.unpack(values);
    residual.unpack(others);
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] += others[j];
    Slot<Held<T, ADD>, N, STEP> sum;
    sum.pack(values);
    return sum;
}

// A slot in another type: rounded once, or exact.
template <typename To, typename From, int N, int STEP>
__device__ __forceinline__ Slot<To, N, STEP> as(const Slot<From, N, STEP>& slot) {
    float values[N];
    slot.unpack(values);
    Slot<To, N, STEP> other;
    other.pack(values);
    return other;
}
