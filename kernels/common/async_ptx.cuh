// Copies from global to shared memory that a thread starts now and waits for later: the instructions (sm_80 on). Before,
// they are plain copies. A thread sees its own copies once it has waited; others after a barrier besides.
#pragma once

#include "common/pack.cuh"

// BYTES: 4, 8 or 16, of which both addresses are a multiple. Of 16 bytes nothing passes through L1.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const auto origin = __cvta_generic_to_global(from);
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(origin) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(place), "l"(origin), "n"(BYTES) : "memory");
    }
#else
    using Word = typename Bits<BYTES>::Type;
    *static_cast<Word*>(to) = *static_cast<const Word*>(from);
#endif
}

// 16 bytes of shared memory as an address: what is added to it is a part of the instruction, and nothing of it is derived again.
struct Place {
    unsigned address;

    __device__ __forceinline__ explicit Place(const void* place)
        : address(static_cast<unsigned>(__cvta_generic_to_shared(place))) {}

    // vectors: of 16 bytes
    __device__ __forceinline__ Place operator+(int vectors) const {
        Place other = *this;
        other.address += static_cast<unsigned>(vectors) * 16;
        return other;
    }

    __device__ __forceinline__ uint4 load() const {
        uint4 quad;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(quad.x), "=r"(quad.y), "=r"(quad.z), "=r"(quad.w)
                     : "r"(address));
        return quad;
    }

    __device__ __forceinline__ void clear() const {
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
    }
};

// As those in memory.cuh.
__device__ __forceinline__ Place kept(Place place) {
    asm volatile("" : "+r"(place.address));
    return place;
}

// 16 bytes, as copy_async.
__device__ __forceinline__ void copy_async(Place to, const void* from) {
    const auto origin = __cvta_generic_to_global(from);
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to.address), "l"(origin) : "memory");
#else
    const uint4 quad = *static_cast<const uint4*>(from);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to.address), "r"(quad.x), "r"(quad.y), "r"(quad.z), "r"(quad.w)
                 : "memory");
#endif
}

// 16 bytes to global memory where `wanted`; no branch, into which the compiler would move the work on what is stored.
__device__ __forceinline__ void store_where(bool wanted, void* to, uint4 quad) {
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %0, 0; @wanted st.global.v4.u32 [%1], {%2, %3, %4, %5};}" ::"r"(
                     static_cast<unsigned>(wanted)),
                 "l"(__cvta_generic_to_global(to)), "r"(quad.x), "r"(quad.y), "r"(quad.z), "r"(quad.w)
                 : "memory");
}

// What stands before it is not mixed with what stands behind it, where that would take too many registers.
__device__ __forceinline__ void in_turn() { asm volatile("" ::: "memory"); }

// Ends a group of copies, which may be empty.
__device__ __forceinline__ void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all groups of this thread but the latest LEFT.
template <int LEFT>
__device__ __forceinline__ void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// The same for a number that is known later; for more than 6, the latest 6.
__device__ __forceinline__ void copy_wait(int left) {
    switch (left) {
        case 0: copy_wait<0>(); break;
        case 1: copy_wait<1>(); break;
        case 2: copy_wait<2>(); break;
        case 3: copy_wait<3>(); break;
        case 4: copy_wait<4>(); break;
        case 5: copy_wait<5>(); break;
        default: copy_wait<6>(); break;
    }
}

// Brings a line to L2, for whoever loads from it later.
__device__ __forceinline__ void bring_to_l2(const void* place) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(place)));
}
