"""Sanitizing without a GPU: what the logs say, what is launched, and who gets which row."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from normbench import kernelfile, oddities, ops, sanitize, sanitizer, sanitizing, tools
from normbench.contenders import Ours
from normbench.points import Point, Semantics
from normbench.sanitizing import Shape
from normbench.supervise import worker_environment
from tools_fixture import install, output

ROOT = Path(__file__).resolve().parents[1]
KERNELS = kernelfile.find(ROOT / "kernels")
BLOCKS = [64, 128, 256, 512, 1024]


@pytest.mark.parametrize(
    ("check", "errors", "words"),
    [
        ("memcheck", 2, "Invalid __global__ write of size 4 bytes at void planted"),
        ("racecheck", 1, "Error: Race reported between Write access"),
        ("initcheck", 1, "Uninitialized __global__ memory read of size 4 bytes"),
        ("synccheck", 16, "Barrier error detected. Divergent thread(s) in warp."),
    ],
)
def test_a_finding_is_counted_and_told(check: str, errors: int, words: str) -> None:
    report = sanitizer.parse(output(f"{check}.log"))

    assert report.errors == errors
    assert report.finding is not None
    assert report.finding.startswith(words)
    assert "planted.cu:" in report.finding
    assert "Host Frame" not in report.finding
    assert report.refusal is None


def test_a_race_names_both_sides() -> None:
    assert "and Read access at" in str(sanitizer.parse(output("racecheck.log")).finding)


@pytest.mark.parametrize("name", ["clean.log", "clean_race.log"])
def test_a_clean_log_has_no_finding(name: str) -> None:
    assert sanitizer.parse(output(name)) == sanitizer.Report(0, None)


def test_a_tool_that_does_not_work_here_is_no_clean_bill() -> None:
    report = sanitizer.parse(output("refused.log"))

    assert report.errors is None
    assert report.finding is None
    assert sanitize.judge(tools.Ran(1, "", ""), report, False)["status"] == "skipped"


@pytest.mark.parametrize(
    ("log", "code", "whole", "status"),
    [
        ("clean.log", 0, True, "ok"),
        ("clean.log", 0, False, "launch_error"),  # some launch never came to its end
        ("clean.log", 1, True, "launch_error"),
        ("memcheck.log", 1, False, "findings"),
        ("memcheck.log", None, False, "findings"),
        ("clean.log", None, False, "timeout"),
    ],
)
def test_only_a_whole_run_without_errors_is_clean(log: str, code: int | None, whole: bool, status: str) -> None:
    row = sanitize.judge(tools.Ran(code, "", "Traceback\nRuntimeError: no"), sanitizer.parse(output(log)), whole)

    assert row["status"] == status
    assert (row["reason"] is None) == (status == "ok")


def test_a_tool_in_trouble_is_not_believed() -> None:
    log = output("clean.log").replace(
        "ERROR SUMMARY", "Internal Sanitizer Error: out of memory\n========= ERROR SUMMARY"
    )

    row = sanitize.judge(tools.Ran(0, "", ""), sanitizer.parse(log), True)

    assert row["status"] == "launch_error"
    assert "Internal Sanitizer Error" in row["reason"]


def test_an_empty_log_is_not_clean() -> None:
    assert sanitize.judge(tools.Ran(0, "", ""), sanitizer.parse(""), True)["status"] == "launch_error"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.stem)
def test_every_value_of_every_axis_is_launched_for_every_op_and_dtype(kernel: kernelfile.Kernel) -> None:
    launches = oddities.launches(kernel, BLOCKS, 90, 132)

    assert {(one.odd.point.op, one.odd.point.dtype) for one in launches} == {
        (op, dtype) for op in kernel.ops for dtype in kernel.dtypes
    }
    for op in kernel.ops:
        for dtype in kernel.dtypes:
            mine = [one for one in launches if (one.odd.point.op, one.odd.point.dtype) == (op, dtype)]
            possible = {
                item
                for odd in (one.odd for one in mine)
                for variant in kernel.variants(BLOCKS, kernelfile.launch_names(odd.point, 90, 132, odd.aligned))
                for item in variant.items()
            }
            assert {item for one in mine for item in one.variant.items()} == possible
    assert len(launches) < 520


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.stem)
def test_no_value_that_is_compiled_is_never_launched(kernel: kernelfile.Kernel) -> None:
    """A shape is missing where a value of an axis suits none of them."""
    launched = {item for one in oddities.launches(kernel, BLOCKS, 90, 132) for item in one.variant.items()}

    assert launched == {item for names in kernel.compilations(BLOCKS, 90) for item in names["variant"].items()}


def test_the_shapes_are_odd() -> None:
    found = list(oddities.odds("layernorm", "bf16"))

    assert {1, 33, 129, 1023, 1025, 2049} <= {odd.point.hidden for odd in found}
    assert {odd.point.rows for odd in found} == {3, 4, 5, 6, 7}
    assert {name for odd in found for name in odd.shift} == {"x", "y", "gamma", "beta"}
    assert any(odd.point.row_stride > odd.point.hidden for odd in found)
    assert any(odd.point.param_dtype != odd.point.dtype for odd in found)
    absent = {(ops.has_gamma(odd.point), ops.has_beta(odd.point)) for odd in found}
    assert absent == {(True, True), (False, False), (True, False), (False, True)}


def on_cpu(wanted: Shape, values: Any) -> torch.Tensor:
    """What the program under the tool makes on a GPU, on this host, its base at a multiple of 256 bytes."""
    dtype = ops.torch_dtype(wanted.dtype)
    spare = torch.empty(wanted.elements + 256, dtype=dtype)
    off = -spare.data_ptr() % 256 // spare.element_size()
    view = spare.as_strided((wanted.rows, wanted.columns), (wanted.pitch, 1), off + wanted.shift)
    if values is not None:
        view.copy_(torch.from_numpy(values).to(dtype))
    return view if wanted.rows > 1 else view[0]


@pytest.mark.parametrize("op", sorted(ops.OPS))
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_alignment_that_chose_a_variant_is_that_of_its_tensors(op: str, dtype: str) -> None:
    for odd in oddities.odds(op, dtype):
        tensors = sanitizing.place(odd.point, odd.shift, on_cpu, 0)

        assert tensors.alignment() == odd.aligned, odd
        assert {name for name, tensor in tensors.inputs.items() if tensor is not None} == set(ops.inputs(odd.point))
        assert tensors.guarded.keys() == set(ops.outputs(odd.point))


def test_an_allocation_ends_with_its_last_element() -> None:
    point = Point("layernorm", "bf16", 5, 1023, semantics=Semantics(row_stride=1027))

    assert sanitizing.shape("x", point, {"x": 1}).elements == 1 + 4 * 1027 + 1023
    assert sanitizing.shape("y", point, {}).elements == 5 * 1023
    assert sanitizing.shape("gamma", point, {}).elements == 1023
    assert sanitizing.shape("rstd", point, {}).elements == 5


def test_values_are_encoded_as_the_kernel_reads_them() -> None:
    values = numpy.array([1.0, -2.5, 0.0], numpy.float32)

    assert sanitizing.encoded(values, "fp32") is values
    assert sanitizing.encoded(values, "fp16").tolist() == [0x3C00, 0xC100, 0]
    assert sanitizing.encoded(values, "bf16").tolist() == [0x3F80, 0xC020, 0]


def test_only_the_rows_of_an_input_are_written_and_nothing_of_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read beside them was written by nobody, which initcheck reports."""
    from cuda.bindings import driver

    done: list[tuple[str, int, int]] = []
    fine = driver.CUresult.CUDA_SUCCESS

    def note(name: str, start: int, size: int) -> tuple[Any, ...]:
        done.append((name, int(start), size))
        return (fine,)

    monkeypatch.setattr(driver, "cuMemAlloc", lambda size: (*note("alloc", 0, size), 4096))
    monkeypatch.setattr(driver, "cuMemcpyHtoD", lambda start, host, size: note("copy", start, size))
    monkeypatch.setattr(driver, "cuMemFree", lambda start: note("free", start, 0))
    values = numpy.ones((3, 10), numpy.float32)

    x = sanitizing.Block(Shape(3, 10, 16, "bf16", 1), values)
    y = sanitizing.Block(Shape(3, 10, 10, "bf16", 0))
    x.free()

    assert done == [
        ("alloc", 0, 2 * (1 + 2 * 16 + 10)),
        *(("copy", 4096 + 2 + row * 32, 20) for row in range(3)),
        ("alloc", 0, 2 * 30),
        ("free", 4096, 0),
    ]
    assert (x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0)) == (4098, 16, 4096, 10)


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in KERNELS if kernel.scratch and kernel.lang == "cuda"], ids=lambda kernel: kernel.stem
)
def test_working_memory_is_written_where_a_kernel_counts_on_zeros(
    kernel: kernelfile.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda import core
    from cuda.bindings import driver

    fine = driver.CUresult.CUDA_SUCCESS
    sizes: list[int] = []
    written: list[int] = []
    properties = SimpleNamespace(max_shared_memory_per_block_optin=0)
    device = SimpleNamespace(set_current=lambda: None, create_stream=lambda: None, properties=properties)
    monkeypatch.setattr(core, "Device", lambda _: device)

    def note(sizes: list[int], size: int, *answer: int) -> tuple[Any, ...]:
        sizes.append(size)
        return (fine, *answer)

    monkeypatch.setattr(driver, "cuMemAlloc", lambda size: note(sizes, size, 4096))
    monkeypatch.setattr(driver, "cuMemcpyHtoD", lambda start, host, size: note(written, size))
    bench: Any = sanitizing.CudaBench({"arch": 90, "sm_count": 132})
    launch = oddities.launches(kernel, BLOCKS, 90, 132)[0]
    names = kernelfile.launch_names(launch.odd.point, 90, 132, launch.odd.aligned) | launch.variant
    names |= {"blocks_per_sm": 1, "clusters": 1}

    found = Ours(kernel)._scratch(names, bench)

    assert found.keys() == kernel.scratch.keys()
    asked = {name: int(kernelfile.evaluate(size, names)) for name, size in kernel.scratch.items()}
    assert all(0 <= size - want < 4 for size, want in zip(sizes, asked.values(), strict=True))
    assert written == [asked[name] for name in kernel.zeroed]


def test_a_failed_driver_call_is_not_passed_over() -> None:
    from cuda.bindings import driver

    assert sanitizing.checked((driver.CUresult.CUDA_SUCCESS, 7)) == 7
    with pytest.raises(RuntimeError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        sanitizing.checked((driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,))


def subject(stem: str, **environment: str) -> sanitize.Subject:
    kernel = next(kernel for kernel in KERNELS if kernel.stem == stem)
    fake = {"NORMBENCH_FAKE_GPU": str(ROOT / "tests" / "fake_gpu.json")}
    return sanitize.Subject(kernel, 90, 132, [128], worker_environment({}) | fake | environment)


def test_without_the_tool_every_check_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_COMPUTE_SANITIZER", "no-such-program")

    rows = sanitize.sanitize(subject("naive"))

    assert [row["tool"] for row in rows] == list(sanitizer.CHECKS)
    assert {row["status"] for row in rows} == {"skipped"}
    assert "no-such-program, which is no program" in rows[0]["reason"]


@pytest.mark.parametrize("stem", ["naive", "triton_row"])
def test_a_kernel_is_run_under_every_check(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, compute_sanitizer="clean")

    rows = sanitize.sanitize(subject(stem))

    assert [row["tool"] for row in rows] == list(sanitizer.CHECKS)
    assert {(row["status"], row["version"]) for row in rows} == {("ok", "2025.3.1")}
    assert all(row["launched"] == row["planned"] > 30 for row in rows)


def test_findings_of_every_check_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, compute_sanitizer="")

    rows = sanitize.sanitize(subject("naive"))

    assert [row["errors"] for row in rows] == [2, 1, 1, 16]
    assert {row["status"] for row in rows} == {"findings"}
    assert all(row["reason"] == row["finding"] for row in rows)


def test_a_kernel_that_does_not_compile_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, compute_sanitizer="clean")
    path = tmp_path / "forward" / "broken.cu"
    path.parent.mkdir()
    text = (ROOT / "kernels" / "forward" / "naive.cu").read_text()
    path.write_text(text.replace("__global__", "__glibal__", 1).replace('"common/', f'"{ROOT}/kernels/common/'))
    made = sanitize.Subject(kernelfile.load(path), 90, 132, [128], {})

    rows = sanitize.sanitize(made)

    assert {row["status"] for row in rows} == {"compile_error"}


def test_only_what_is_launched_is_compiled(tmp_path: Path) -> None:
    made = subject("naive")
    launches = oddities.launches(made.kernel, [128], 90, 132)[:1]

    build = json.loads(Path(str(sanitize._build(made, launches, tmp_path))).read_text())

    assert len(build["lowered"]) == 1
    assert (tmp_path / "naive.cubin").read_bytes().count(b".debug_line") > 0


def test_a_tool_is_found_by_its_variable_then_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("named", "on_path"):
        (tmp_path / place).mkdir()
        program = tmp_path / place / "ncu"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "on_path"))
    assert tools.find("ncu") == tmp_path / "on_path" / "ncu"

    monkeypatch.setenv("NORMBENCH_NCU", str(tmp_path / "named" / "ncu"))
    assert tools.find("ncu") == tmp_path / "named" / "ncu"


def test_a_program_that_hangs_is_ended_with_its_children() -> None:
    ran = tools.run(["sh", "-c", "echo begun; sleep 600 & sleep 600"], {"PATH": "/usr/bin:/bin"}, 0.5)

    assert ran.code is None
    assert ran.out == "begun\n"


def test_a_program_that_is_none_says_so() -> None:
    with pytest.raises(tools.ToolMissing, match="cannot be started"):
        tools.run([__file__], {}, 5)


def test_the_program_needs_neither_torch_nor_a_table_for_a_cuda_kernel() -> None:
    """Importing torch takes longer than every launch."""
    text = "import sys, normbench.sanitizing; raise SystemExit('torch' in sys.modules or 'triton' in sys.modules)"

    assert tools.run([sys.executable, "-c", text], worker_environment({}), 60).code == 0
