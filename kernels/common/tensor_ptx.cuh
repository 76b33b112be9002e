// Sums and sums of squares of 16-bit elements by the tensor cores: the instruction (sm_80 on).
#pragma once

#include "common/element.cuh"

// Whether this architecture multiplies matrices of both 16-bit types into fp32.
#if __CUDA_ARCH__ >= 800
constexpr bool TENSOR_CORES = true;
#else
constexpr bool TENSOR_CORES = false;
#endif

// All lanes of a warp call it together, each with four elements in two words. The words of lanes 4 g to 4 g + 3, its group g, are
// row g of a matrix with 16 columns, ones are its other eight rows, and it is multiplied by the transpose of its first
// eight. Added to sums, for the lane t of group g: [0], [1] element (g, 2 t) and (g, 2 t + 1) of the products of groups, whose
// diagonal holds the sums of squares of each group; [2], [3] the sums of groups 2 t and 2 t + 1.
// Products are exact, sums in fp32, cut off and not rounded.
template <typename T>
__device__ __forceinline__ void add_products(float (&sums)[4], unsigned low, unsigned high) {
#if __CUDA_ARCH__ >= 800
    if constexpr (Element<T>::BRAIN) {
        const unsigned ones = 0x3f803f80u;
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %6, %5, %6}, {%4, %5}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(low), "r"(high), "r"(ones));
    } else {
        const unsigned ones = 0x3c003c00u;
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %6, %5, %6}, {%4, %5}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(low), "r"(high), "r"(ones));
    }
#endif
}
