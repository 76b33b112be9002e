// A few neighbouring elements that move together: 2, 4, 8 or 16 bytes, whatever their type.
#pragma once

#include "common/element.cuh"

template <int BYTES>
struct Bits;
template <>
struct Bits<2> {
    using Type = unsigned short;
};
template <>
struct Bits<4> {
    using Type = unsigned;
};
template <>
struct Bits<8> {
    using Type = uint2;
};
template <>
struct Bits<16> {
    using Type = uint4;
};

// N elements of type T at an address that is a multiple of their bytes.
template <typename T, int N>
struct Pack {
    static constexpr int COUNT = N;
    static constexpr int BYTES = N * static_cast<int>(sizeof(T));
    using Word = typename Bits<BYTES>::Type;

    Word word;

    // Nobody here reads them again.
    static __device__ __forceinline__ Pack once(const T* from) {
        if constexpr (BYTES == 16) return {load_once(reinterpret_cast<const uint4*>(from))};
        else return {*reinterpret_cast<const Word*>(from)};
    }

    static __device__ __forceinline__ Pack of(const T* from) { return {*reinterpret_cast<const Word*>(from)}; }

    static __device__ __forceinline__ Pack filled(float value) {
        float values[N];
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] = value;
        return packed(values);
    }

    __device__ __forceinline__ void to(T* place) const {
        if constexpr (BYTES == 16) ::store(reinterpret_cast<uint4*>(place), word);
        else *reinterpret_cast<Word*>(place) = word;
    }

    __device__ __forceinline__ void unpack(float (&values)[N]) const {
        if constexpr (BYTES == 2) {
            values[0] = Element<T>::widen(*reinterpret_cast<const T*>(&word));
        } else {
            const unsigned* const words = reinterpret_cast<const unsigned*>(&word);
#pragma unroll
            for (int k = 0; k < BYTES / 4; ++k) Element<T>::unpack(words[k], values + k * Element<T>::PER);
        }
    }

    static __device__ __forceinline__ Pack packed(const float (&values)[N]) {
        Pack made;
        if constexpr (BYTES == 2) {
            const T value = Element<T>::narrow(values[0]);
            made.word = *reinterpret_cast<const Word*>(&value);
        } else {
            unsigned* const words = reinterpret_cast<unsigned*>(&made.word);
#pragma unroll
            for (int k = 0; k < BYTES / 4; ++k) words[k] = Element<T>::pack(values + k * Element<T>::PER);
        }
        return made;
    }
};
