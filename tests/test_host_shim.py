"""What the host shim itself must not get wrong."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from normbench import kernelfile, nvrtc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from host_shim import build as shim  # noqa: E402 - the folder is no package of the project

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FORGETFUL = """// /// kernel
// summary = "Its first block asks for a copy and ends; its second one waits for copies, of which it has none."
// ops = ["layernorm"]
// dtypes = ["fp32"]
// [[launches]]
// name = "forgetful<{T}>"
// grid = "rows"
// block = 32
// smem = "512"
// args = ["x", "y"]
// ///
#include "common/async_ptx.cuh"
#include "common/memory.cuh"

template <typename T>
__global__ void forgetful(const T* __restrict__ x, T* __restrict__ y) {
    uint4* const place = launch_memory() + threadIdx.x;
    if (blockIdx.x == 0) {
        copy_async<16>(place, x + threadIdx.x * 4);
        copy_commit();
    } else {
        copy_wait<0>();
        y[threadIdx.x] = reinterpret_cast<const float*>(place)[0];
    }
}
"""


def test_a_copy_that_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "kernels" / "forward" / "forgetful.cu"
    path.parent.mkdir(parents=True)
    path.write_text(FORGETFUL)
    headers = [str(folder) for folder in nvrtc.include_paths(nvrtc.version()[0])]
    library = shim.build(kernelfile.load(path), ["forgetful<float>"], headers, tmp_path)
    x, y = torch.ones(128), torch.zeros(32)
    shape = shim.Shape(2, 32, 512, 1, ())

    shim.launch(library, 0, shape, {"x": x, "y": y}, rows=2, hidden=64, x_stride=64, y_stride=64, eps=1e-5)

    assert y.isnan().all(), "its own memory is as poisoned as every block's"
