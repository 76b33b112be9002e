"""Profiling without a GPU: what the CSV says, which point is taken, widths in machine code, and who gets which row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from normbench import contenders, kernelfile, profile, profiler, profiling, sass, tools
from normbench.points import Point
from normbench.supervise import worker_environment
from tools_fixture import install, output

ROOT = Path(__file__).resolve().parents[1]
KERNELS = {kernel.stem: kernel for kernel in kernelfile.find(ROOT / "kernels")}
POINT = Point("layernorm", "bf16", 32768, 4096)
FAKE = {"NORMBENCH_FAKE_GPU": str(ROOT / "tests" / "fake_gpu.json")}


def test_what_ncu_printed_becomes_the_columns() -> None:
    report = profiler.parse(output("ncu.csv"))

    assert report.error is None
    found = profiler.columns(report.kernels)
    assert found["kernels"] == 1
    assert found["profiled_us"] == pytest.approx(134.56)
    assert found["dram_read_bytes"] == 268_501_760
    assert found["dram_write_bytes"] == 268_410_880
    assert found["l2_hit_rate"] == pytest.approx(0.3625)
    assert found["achieved_occupancy"] == pytest.approx(0.885)
    assert found["load_sectors"] == pytest.approx(16.0)
    assert found["store_sectors"] == pytest.approx(16.0)
    assert found["registers"] == 40
    assert found["stall"] == "long_scoreboard"
    # of 45 cycles between two instructions of a warp
    assert found["stall_share"] == pytest.approx(0.75)


def test_figures_of_several_kernels_are_sums_and_shares_by_time() -> None:
    first = {profiler.TIME: 10.0, profiler.READ: 100.0, profiler.L2_HITS: 0.0, profiler.REGISTERS: 32.0}
    second = {profiler.TIME: 30.0, profiler.READ: 50.0, profiler.L2_HITS: 40.0, profiler.REGISTERS: 64.0}

    found = profiler.columns([first, second])

    assert (found["kernels"], found["profiled_us"], found["dram_read_bytes"]) == (2, 40.0, 150.0)
    assert found["l2_hit_rate"] == pytest.approx(0.3)
    assert found["registers"] == 64


def test_a_figure_that_was_not_collected_is_null() -> None:
    found = profiler.columns([{profiler.TIME: 10.0}])

    known = ("kernels", "profiled_us")
    assert {name for name, value in found.items() if value is not None} == set(known)


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("byte", 1.0), ("Mbyte", 1e6), ("ns", 1e-3), ("nsecond", 1e-3), ("us", 1.0), ("msecond", 1e3), ("%", 1.0)],
)
def test_units_are_brought_to_bytes_and_microseconds(unit: str, factor: float) -> None:
    assert profiler.scale(unit) == factor


def test_who_may_not_read_the_counters_is_told_what_to_do() -> None:
    row = profile.judge(tools.Ran(0, "", ""), profiler.parse(output("ncu_denied.csv")))

    assert row["status"] == "skipped"
    assert "ERR_NVGPUCTRPERM" in row["reason"]
    assert "administrator" in row["reason"]


@pytest.mark.parametrize(
    ("code", "log", "status"),
    [
        (1, "", "launch_error"),
        (None, "", "timeout"),
        (1, "==ERROR== Failed to initialize the profiler: X\n", "skipped"),
    ],
)
def test_a_launch_nobody_saw_is_no_profile(code: int | None, log: str, status: str) -> None:
    row = profile.judge(tools.Ran(code, "", "RuntimeError: no"), profiler.parse(log))

    assert row["status"] == status
    assert row["reason"]


def test_the_point_is_the_one_asked_for_or_the_nearest_of_the_study() -> None:
    kernel = KERNELS["cta_row"]
    points = [Point("layernorm", dtype, 64, hidden) for dtype in ("fp32", "bf16") for hidden in (256, 5000, 65536)]
    points += [Point("rmsnorm", "bf16", 64, 4096), Point("layernorm", "bf16", 1, 4096, "latency")]

    assert profile.representative(points, kernel, "bf16", 4096) == Point("layernorm", "bf16", 64, 5000)
    assert profile.representative(points[:3], kernel, "bf16", 300) == Point("layernorm", "fp32", 64, 256)
    assert profile.representative([], kernel, "bf16", 4096) is None


def test_widths_are_counted_by_instruction() -> None:
    text = """
        /*0100*/  LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0110*/  LDG.E.128.CONSTANT R8, desc[UR4][R2.64+0x10] ;
        /*0120*/  LDG.E.U16 R12, desc[UR4][R2.64] ;
        /*0130*/  LDG.E R12, desc[UR4][R2.64] ;
        /*0140*/  LDGSTS.E.BYPASS.128 [R3], desc[UR4][R2.64] ;
        /*0150*/  UBLKCP.S.G [UR4], [UR8], UR6 ;
        /*0160*/  UBLKCP.G.S [UR4], [UR8], UR6 ;
        /*0170*/  STG.E.EF.64 desc[UR4][R2.64], R8 ;
        /*0180*/  STS.128 [R3], R4 ;  LDS R3, [R4] ;
    """

    assert sass.count(text) == ("16 B x 3, 4 B x 1, 2 B x 1, bulk x 1", "8 B x 1, bulk x 1")
    assert sass.count("EXIT ;") == (None, None)


@pytest.mark.skipif(not tools.present("nvdisasm"), reason="needs nvdisasm: pip install nvidia-cuda-nvdisasm")
def test_a_cuda_kernel_is_profiled_with_its_own_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, ncu="ncu.csv")
    kernel = KERNELS["cta_row"]
    variant = kernel.variants([128, 256], kernelfile.launch_names(POINT, 90, 132, 16))[0]

    row = profile.profile(kernel, POINT, variant, (90, 132), worker_environment({}) | FAKE)

    assert row["status"] == "ok"
    assert row["version"] == "2025.3.1.0"
    assert row["loads"].startswith("16 B x ")
    assert row["stores"].startswith("16 B x ")


def test_a_triton_kernel_is_profiled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, ncu="ncu.csv")

    row = profile.profile(KERNELS["triton_row"], POINT, {"num_warps": 4}, (90, 132), worker_environment({}) | FAKE)

    assert row["status"] == "ok"
    assert row["loads"] is None


def test_without_the_tool_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_NCU", "no-such-program")

    row = profile.profile(KERNELS["triton_row"], POINT, {"num_warps": 4}, (90, 132), {})

    assert row == {"status": "skipped", "reason": "NORMBENCH_NCU names no-such-program, which is no program"}


def test_clocks_are_left_alone_and_caches_as_they_are() -> None:
    words = profiler.command(Path("ncu"), Path("log"), ["program"])

    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--cache-control") + 1] == "none"
    assert words[-1] == "program"
    assert {profiler.READ, profiler.WRITTEN} <= set(words[words.index("--metrics") + 1].split(","))


@pytest.mark.parametrize("stem", sorted(stem for stem, kernel in KERNELS.items() if kernel.lang == "triton"))
def test_a_triton_kernel_is_launched_with_all_that_it_asks_for(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once more than bound, for its cubin: with working memory, too."""
    from cuda.bindings import driver

    kernel = KERNELS[stem]
    point = Point(kernel.ops[0], kernel.dtypes[0], 4, 128, "l2")
    gpu: Any = SimpleNamespace(
        torch=torch, device=torch.device("cpu"), arch=90, sm_count=132, l2_bytes=1, synchronize=lambda: None
    )
    contender = contenders.TritonKernel(kernel)
    given: list[Any] = []

    def launch(t: Any, **axes: int) -> Any:
        given.append(t)
        return SimpleNamespace(asm={"cubin": b"code"})

    contender.module = SimpleNamespace(launch=launch)  # type: ignore[assignment]
    monkeypatch.setattr(profiling, "CudaGpu", lambda: gpu)
    monkeypatch.setattr(profiling, "load", lambda *_: contender)
    monkeypatch.setattr(driver, "cuProfilerStart", lambda: None)
    monkeypatch.setattr(driver, "cuProfilerStop", lambda: None)
    variant = dict.fromkeys(kernel.axes, 1)

    cubin = tmp_path / "cubin"
    profiling.launch({"point": point.identity(), "variant": variant, "spec": "", "build": None, "cubin": str(cubin)})

    assert cubin.read_bytes() == b"code"
    assert len(given) == 4
    assert all(t.sm_count == 132 and vars(t.scratch).keys() == kernel.scratch.keys() for t in given)
