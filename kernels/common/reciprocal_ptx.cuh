// Reciprocals of counts, rounded to nearest, without a branch: the instruction.
#pragma once

// 1 / count for a whole number from 1 to 2^24. One Newton step on the hardware's approximation, as __frcp_rn takes it for
// numbers that are neither huge nor denormal; its test for those is a branch, which would cut the caller's schedule in two.
__device__ __forceinline__ float reciprocal_of(float count) {
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(count));
    return __fmaf_rn(near, __fmaf_rn(-count, near, 1.0f), near);
}
