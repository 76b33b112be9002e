"""What only a GPU can show; the whole file takes under two minutes on an H200."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from normbench import adversary, check, compile, inputs, kernelfile
from normbench.contenders import Contender, CudaKernel, TritonKernel, baseline
from normbench.gpu import CudaGpu, buffer_sets, launches_a_sample
from normbench.observe import Observer
from normbench.points import Point
from normbench.streams import SmClock, Streams, expression, variants
from normbench.tensors import make_sets, set_bytes
from normbench.trial import attempt

pytestmark = pytest.mark.gpu

KERNELS = kernelfile.find(Path(__file__).parents[1] / "kernels")
BLOCKS = [64, 256, 1024]
CASES = ("K1.1", "K1.offset_1e4", "K2.1234.5", "K5.17", "K12.x", "K13", "K15.mixed", "K17.1e-12", "K23.last")
CASES += ("hidden_1", "hidden_33", "hidden_1024", "hidden_50257", "rows_65537", "stride_odd", "no_affine", "stats")


@pytest.fixture(scope="module")
def gpu() -> CudaGpu:
    return CudaGpu()


@pytest.fixture(scope="module")
def contenders(gpu: CudaGpu, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Contender]:
    """Every kernel of the repository, compiled for this GPU."""
    folder = tmp_path_factory.mktemp("build")
    made: dict[str, Contender] = {}
    for kernel in KERNELS:
        if kernel.lang == "cuda":
            assert compile.compile_kernel(kernel, gpu.arch, BLOCKS, folder / kernel.stem) is None
            made[kernel.stem] = CudaKernel(kernel, folder / f"{kernel.stem}.json")
        else:
            made[kernel.stem] = TritonKernel(kernel)
    return made


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("stem", [kernel.stem for kernel in KERNELS])
def test_a_kernel_that_is_wrong_on_a_hard_input(
    gpu: CudaGpu, contenders: dict[str, Contender], stem: str, op: str, dtype: str
) -> None:
    contender: Any = contenders[stem]
    for case in inputs.every(op, dtype):
        if case.name not in CASES or contender.refusal(case.point, gpu):
            continue
        tensors = adversary.place(case, gpu)
        expected = check.expect(case.point, tensors.inputs)
        usable = contender.variants_for(tensors, gpu, BLOCKS)
        assert usable, case.name
        for variant in (usable[0], usable[-1]):
            tensors.poison()
            outputs = contender.bind(tensors, variant, gpu)()
            gpu.synchronize()
            verdict = check.check(expected, outputs)
            assert verdict.ok, f"{case.name} {variant}: {verdict.reason}"
            assert all(item.guards_intact() for item in tensors.guarded.values()), f"{case.name} {variant}"


def test_a_graph_whose_workspace_is_freed_while_it_is_still_replayed(gpu: CudaGpu) -> None:
    torch = gpu.torch
    source = torch.ones(1 << 20, device=gpu.device)

    def bound() -> Any:
        workspace = torch.zeros(1 << 20, device=gpu.device)

        def launch() -> dict[str, Any]:
            workspace.copy_(source)
            return {}

        return launch

    replay = gpu.capture([bound()], 1)
    gc.collect()
    others = [torch.zeros(1 << 20, device=gpu.device) for _ in range(8)]
    replay.replay()
    gpu.synchronize()
    assert not any(bool(other.any()) for other in others)


def test_a_check_that_lets_torch_fail_where_it_is_right(gpu: CudaGpu) -> None:
    eager = baseline(Path(__file__).parents[1] / "kernels" / "baselines" / "torch_eager.py")
    point = Point("layernorm", "bf16", 4096, 4096)
    sets = make_sets(point, gpu.device, 2, 1)
    expected = [check.expect(point, tensors.inputs, with_torch=True) for tensors in sets]
    trial = attempt(eager, {}, sets, expected, gpu)
    for index in (0, 1):
        verdict = trial.verify(index)
        assert verdict.ok
        assert verdict.bitwise_torch


def test_a_roof_below_the_library_copy(gpu: CudaGpu) -> None:
    """Our best stream is at least as fast as torch's copy of the same gigabyte, timed the same way."""
    torch = gpu.torch
    size = 1 << 29
    candidates = [v for v in variants("copy", gpu) if v["kind"] == "stream" and v["grid"] == 0 and v["block"] == 256]
    streams = Streams(gpu, [expression("copy", variant) for variant in candidates])
    sets = [[torch.ones(size // 4, device=gpu.device) for _ in range(2)] for _ in range(2)]

    def copy(pair: list[Any]) -> Any:
        return lambda: {"y": pair[1].copy_(pair[0])}

    launches = [[streams.bind("copy", v, (a, a, c, c), size) for a, c in sets] for v in candidates]
    launches.append([copy(pair) for pair in sets])
    replays = [gpu.capture(bound, 2) for bound in launches]
    observer = Observer(None, SmClock(streams))
    medians = [sorted(found)[5] for found in gpu.time_rounds(replays, [range(len(replays))] * 11, observer)]
    assert min(medians[:-1]) <= 1.01 * medians[-1]
    clock = observer.summary()["sm_clock_gpu_mhz"]
    assert clock is not None
    assert 200 < clock < 5000


def test_a_rotation_that_stays_inside_l2(gpu: CudaGpu) -> None:
    """The sets of a small stream point are together at least four times as large as L2, and a graph visits them all."""
    point = Point("rmsnorm", "bf16", 1024, 4096)
    sets = buffer_sets(set_bytes(point), gpu.l2_bytes, "stream")
    assert sets * set_bytes(point) >= 4 * gpu.l2_bytes
    assert launches_a_sample(5.0, sets, "stream") % sets == 0
