// Launches that begin before the one before them has ended: the instructions (programmatic dependent launch). On parts older than
// sm_90, and where the launch did not ask for it, they do nothing.
#pragma once

// The next launch may begin once every block of this one has said so, or has ended.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the launch before has ended and what it wrote is there. Before it, nothing that a launch may write is read and
// nothing is written. All threads call it. The compiler keeps loads behind it unless it may take what they read for constant:
// so no __restrict__ on what the launch before writes.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
