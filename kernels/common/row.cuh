// A row as the kernels that read it again see it: what enters the norm, element by element.
#pragma once

#include "common/element.cuh"

template <typename T, int ADD>
struct Row {
    const T* x;
    const T* residual;  // not read where nothing is added

    __device__ __forceinline__ float operator[](int i) const {
        float value = Element<T>::widen(x[i]);
        if constexpr (ADD != ADD_NONE) value += Element<T>::widen(residual[i]);
        return ADD == ADD_ROUND ? Element<T>::widen(Element<T>::narrow(value)) : value;
    }
};
