// The same function without PTX: one exchange of the warp's words, then sums in fp32.
#pragma once

#include "common/element.cuh"

constexpr bool TENSOR_CORES = true;

template <typename T>
void add_products(float (&sums)[4], unsigned low, unsigned high) {
    const auto& found = host::exchange_all(static_cast<std::uint64_t>(high) << 32 | low);
    const auto group = [&](unsigned index, float (&values)[16]) {
        for (unsigned k = 0; k < 4; ++k) {
            const std::uint64_t words = found[4 * index + k];
            Element<T>::unpack(static_cast<unsigned>(words), values + 4 * k);
            Element<T>::unpack(static_cast<unsigned>(words >> 32), values + 4 * k + 2);
        }
    };
    float own[16], other[16];
    group(host::lane() / 4, own);
    for (unsigned k = 0; k < 2; ++k) {
        group(host::lane() % 4 * 2 + k, other);
        for (unsigned i = 0; i < 16; ++i) {
            sums[k] += own[i] * other[i];
            sums[2 + k] += other[i];
        }
    }
}
