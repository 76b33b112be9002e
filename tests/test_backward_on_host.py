"""The backward kernels without a GPU: CUDA sources as C++ on the host, Triton in its interpreter, against float64.

tests/host_shim says what this can find and what it cannot. The interpreter is chosen when triton is first imported, so
Triton's kernels run in a process of their own.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench import check, kernelfile, nvrtc, ops
from normbench.points import Point, Semantics
from normbench.tensors import Tensors, guarded, make_inputs, make_outputs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from host_shim import build as shim  # noqa: E402 - the folder is no package of the project
from planted_fixture import planted  # noqa: E402

CUDA = ("naive_bwd", "persistent_bwd", "cluster_bwd", "split_bwd", "atomic_bwd")
TRITON = ("triton_bwd",)
BLOCKS = [32, 96, 128, 256]
LARGER = [384]  # for rows that those do not hold
SM_COUNT = 3  # so that blocks which stay take several rows, and not all the same number of them
SHAPES: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (1, 1, {}),
    (3, 2, {"stats": False}),
    (17, 31, {}),
    (5, 33, {"row_stride": 34, "residual": "fp32"}),
    (70, 64, {}),
    (130, 100, {"stats": False, "row_stride": 104}),
    (9, 256, {"gamma": False}),
    (6, 1000, {"beta": False, "residual": "fp32"}),
    (4, 1023, {"gamma": False, "beta": False}),
    (3, 4099, {"residual": "fp32", "stats": False}),
    (37, 520, {"beta": True}),
    (70, 512, {}),
    (61, 768, {"stats": False}),
    (29, 1024, {"residual": "fp32"}),
    (3, 8200, {"stats": False}),
    (301, 64, {"stats": False}),
    (203, 48, {"residual": "fp32"}),
    (77, 128, {}),
)
KINDS = ("normal", "offset", "constant")
# elements by which tensors are off their alignment; alike, or each in its own way
SHIFTS: tuple[dict[str, int], ...] = (
    {},
    {},
    {},
    {"x": 1, "dy": 1, "dx": 1, "residual": 1},
    {"x": 1, "dgamma": 1},
    {"dy": 3, "dx": 1},
    {"gamma": 1, "dbeta": 1},
)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Job:
    """One variant at one point. shifts: elements by which tensors are off their alignment."""

    point: Point
    kind: str
    shifts: dict[str, int]
    names: dict[str, Any]
    variant: dict[str, int]

    def __str__(self) -> str:
        point = self.point
        return f"{point.op} {point.dtype} {point.shape} {point.semantics} {self.kind} {self.shifts} {self.variant}"


def names_of(point: Point, aligned: int) -> dict[str, Any]:
    """What a launch knows of the point and of a device with few multiprocessors."""
    return kernelfile.launch_names(point, 90, SM_COUNT, aligned) | {"blocks_per_sm": 1, "clusters": 3}


def jobs_of(kernel: kernelfile.Kernel) -> list[Job]:
    """Every shape in every type, with a variant each, drawn the same way every time."""
    draw = random.Random(kernel.stem)
    found = []
    for op in kernel.ops:
        for dtype in kernel.dtypes:
            for param in dict.fromkeys((None, "fp32" if dtype != "fp32" else None)):
                for rows, hidden, changes in SHAPES:
                    point = Point(op, dtype, rows, hidden, semantics=Semantics(param_dtype=param, **changes))
                    shifts = draw.choice(SHIFTS)
                    shifts = {name: off for name, off in shifts.items() if ops.has(point, name)}
                    aligned = 1 if shifts else kernelfile.pitch_alignment(point)
                    names = names_of(point, aligned)
                    if kernel.refusal(names):
                        continue
                    variant = draw.choice(kernel.variants(BLOCKS, names) or kernel.variants(LARGER, names))
                    if variant.get("slices", 0) > 1:  # fewer, since fibers are slow
                        variant = variant | {"slices": 3}
                    # statistics that are made anew are hardest where there is nothing but a mean
                    kind = "constant" if point.semantics.stats is False else draw.choice(("offset", *KINDS))
                    found.append(Job(point, kind, shifts, names | variant, variant))
    return found


def tensors_of(job: Job) -> Tensors:
    """Random inputs of the kind, in guarded buffers off their alignment, and poisoned outputs."""
    import torch

    point, cpu = job.point, torch.device("cpu")
    values = make_inputs(point, cpu, point.hidden)
    x = values["x"]
    assert x is not None
    if job.kind == "offset":
        x += 1000.0
    if job.kind == "constant":
        x.fill_(33333.3 if point.dtype == "fp32" else 1234.0)
    exact = ops.statistics(point, x.double())[1]
    placed: dict[str, torch.Tensor | None] = {"gamma": None, "beta": None}
    for name, value in values.items():
        if value is not None:
            stride = point.row_stride if name in ops.LARGE else None
            placed[name] = guarded(tuple(value.shape), value.dtype, cpu, stride, job.shifts.get(name, 0)).view
            placed[name].copy_(exact.get(name, value))  # type: ignore[union-attr]
    return Tensors(point, placed, make_outputs(point, cpu, job.shifts))


def problem(tensors: Tensors, scratch: list[Any], before: int) -> str | None:
    """What is wrong after a launch, or None."""
    verdict = check.check(check.expect(tensors.point, tensors.inputs), tensors.outputs())
    if not verdict.ok:
        return f"{verdict.status}: {verdict.reason}"
    if not all(item.guards_intact() for item in (*tensors.guarded.values(), *scratch)):
        return "wrote outside its output or its working memory"
    return None if tensors.fingerprint() == before else "wrote to its inputs"


# CUDA


def run_cuda(job: Job, kernel: kernelfile.Kernel, library: ctypes.CDLL, symbols: list[str]) -> str | None:
    """What is wrong with the launches of a job, or None; those of the part "reduction" may only form column sums."""
    import torch

    tensors, scratch = tensors_of(job), shim.memory_of(kernel, job.names)
    point, before = job.point, tensors.fingerprint()
    scalars = {"rows": point.rows, "hidden": point.hidden, "eps": point.semantics.eps}
    scalars |= {"x_stride": point.row_stride, "y_stride": point.hidden}
    names = {name: tensors.get(name) for name in shim.POINTERS}
    dx = None
    for launch in kernel.wanted(job.names):
        if launch.part and dx is None:
            if any(tensor is not None and not tensor.isnan().all() for tensor in column_sums(tensors)):
                return "wrote a column sum before its reduction"
            dx = tensors.outputs()["dx"].clone()
        texts = (launch.grid[0], launch.block[0], launch.smem, launch.cluster)
        grid, block, smem, cluster = (int(kernelfile.evaluate(text, job.names)) for text in texts)
        shape = shim.Shape(grid, block, smem, max(cluster, 1), tuple(job.variant.values()))
        which = symbols.index(launch.symbol(job.names))
        try:
            shim.launch(library, which, shape, names, [memory.view for memory in scratch], **scalars)
        except RuntimeError as error:
            return str(error)
    if dx is not None and not torch.equal(dx, tensors.outputs()["dx"]):
        return "wrote dx in its reduction"
    return problem(tensors, scratch, before)


def column_sums(tensors: Tensors) -> list[Any]:
    return [tensors.get(name) for name in ops.COLUMN_SUMS]


def problems(kernel: kernelfile.Kernel, jobs: list[Job], folder: Path) -> list[str]:
    symbols = sorted({launch.symbol(job.names) for job in jobs for launch in kernel.launches})
    headers = [str(path) for path in nvrtc.include_paths(nvrtc.version()[0])]
    library = shim.build(kernel, symbols, headers, folder)
    found = ((job, run_cuda(job, kernel, library, symbols)) for job in jobs)
    return [f"{job}: {text}" for job, text in found if text]


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_compiler
@pytest.mark.parametrize("stem", CUDA)
def test_odd_shapes_of_every_type_agree_with_float64(stem: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "backward" / f"{stem}.cu")
    jobs = jobs_of(kernel)
    assert {job.variant.get("lanes") for job in jobs} >= set(kernel.axes.get("lanes", ()))
    assert problems(kernel, jobs, tmp_path) == []


def sharing_jobs(kernel: kernelfile.Kernel) -> list[Job]:
    """Rows of which a warp has several, more for some of its threads than for others."""
    shapes: tuple[tuple[int, int, dict[str, Any]], ...] = (
        (1, 64, {}),
        (5, 48, {"stats": False, "residual": "fp32"}),
        (301, 64, {}),
        (203, 128, {"stats": False}),
        (130, 8, {"gamma": False}),
    )
    found = []
    for op, dtype, (rows, hidden, changes) in itertools.product(kernel.ops, kernel.dtypes, shapes):
        point = Point(op, dtype, rows, hidden, semantics=Semantics(**changes))
        names = names_of(point, 16)
        for variant in kernel.variants([128], names):
            if variant["lanes"] in (8, 16) and (variant["depth"], variant["slices"], variant["at_once"]) == (3, 0, 0):
                found.append(Job(point, "normal", {}, names | variant, variant))
    return found


@needs_compiler
def test_rows_that_share_a_warp_agree_with_float64(tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "backward" / "persistent_bwd.cu")
    jobs = sharing_jobs(kernel)
    assert {job.variant["lanes"] for job in jobs} == {8, 16}
    assert problems(kernel, jobs, tmp_path) == []


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (exists) {\n                found = gather", "{\n                found = gather"),
        ("const bool exists = there(true, row);", "const bool exists = left > 1;"),
        ("(work.rows - earliest + step - 1) / step", "(work.rows - earliest) / step"),
    ],
)
def test_a_row_too_many_or_too_few_in_a_warp_is_seen(right: str, wrong: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(planted(tmp_path, "common/gradient.cuh", right, wrong) / "backward" / "persistent_bwd.cu")
    assert problems(kernel, sharing_jobs(kernel), tmp_path)


def bulk_jobs(kernel: kernelfile.Kernel) -> list[Job]:
    """Rows that come by bulk copies: some that all warps have a share of, some that leave warps without."""
    shapes: tuple[tuple[int, int, dict[str, Any]], ...] = (
        (30, 520, {"residual": "fp32"}),
        (17, 1023, {"stats": False}),
        (11, 2049, {}),
        (14, 4096, {"gamma": False}),
        (9, 6152, {}),
    )
    draw = random.Random(kernel.stem)
    found = []
    for op, dtype, (rows, hidden, changes) in itertools.product(kernel.ops, kernel.dtypes, shapes):
        point = Point(op, dtype, rows, hidden, semantics=Semantics(**changes))
        names = names_of(point, kernelfile.pitch_alignment(point))
        variants = kernel.variants([*BLOCKS, *LARGER], names)
        bulk = [one for one in variants if one["bulk"] and one["slices"] == 0 and not one.get("at_once")]
        for variant in draw.sample(bulk, min(4, len(bulk))):
            found.append(Job(point, "normal", {}, names | variant, variant))
    return found


@needs_compiler
@pytest.mark.parametrize("stem", ["persistent_bwd", "cluster_bwd"])
def test_rows_by_bulk_copies_agree_with_float64(stem: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "backward" / f"{stem}.cu")
    jobs = bulk_jobs(kernel)
    assert {job.variant["depth"] for job in jobs} == {3, 4}
    assert {job.point.dtype for job in jobs} == set(kernel.dtypes)
    assert problems(kernel, jobs, tmp_path) == []


@needs_compiler
@pytest.mark.parametrize("stem", ["persistent_bwd", "cluster_bwd"])
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("gradient.cuh", "if (busy) arrivals.wait(stage);", ""),
        ("gradient.cuh", "if constexpr (BULK) __syncwarp();", ""),
        ("arrivals.cuh", "parity ^= 1u << place;", ""),
        ("gradient.cuh", "barrier_expect(barrier, 2 * bytes);", "barrier_expect(barrier, bytes);"),
    ],
    ids=["not waited for", "over a row in use", "a phase that is over", "x alone expected"],
)
def test_a_fault_of_bulk_copies_is_seen(stem: str, file: str, right: str, wrong: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(planted(tmp_path, f"common/{file}", right, wrong) / "backward" / f"{stem}.cu")
    assert problems(kernel, bulk_jobs(kernel), tmp_path)


PLANTED = [
    # of which kernel, in which file, the text, what takes its place, and what that is
    ("naive_bwd", "backward/naive_bwd.cu", "    __syncthreads();\n", "", "no barrier between the warps' sums"),
    (
        "naive_bwd",
        "backward/naive_bwd.cu",
        "row < rows; row += slices",
        "row < rows - 1; row += slices",
        "the last row left out",
    ),
    (
        "naive_bwd",
        "backward/naive_bwd.cu",
        "other = 1; other < warps",
        "other = 1; other < warps - 1",
        "the last warp left out",
    ),
    (
        "naive_bwd",
        "backward/naive_bwd.cu",
        "(gradient(i) - level)",
        "(gradient(i) - 2 * level)",
        "mean subtracted twice",
    ),
    (
        "naive_bwd",
        "backward/naive_bwd.cu",
        "sums[1] = fmaf(g, found",
        "sums[1] = fmaf(1.0f, found",
        "mean of xhat alone",
    ),
    ("naive_bwd", "backward/naive_bwd.cu", "its.x) * its.y", "its.x)", "dgamma of what is not normalised"),
    ("naive_bwd", "backward/naive_bwd.cu", "if (column >= hidden) return;", "", "columns past the end"),
    (
        "naive_bwd",
        "backward/naive_bwd.cu",
        "found.pivot -= found.shift / found.rstd;",
        "",
        "what the rounded mean left",
    ),
    (
        "persistent_bwd",
        "common/gradient.cuh",
        "wait<2>(depth, other);",
        "wait<1>(depth, other);",
        "a row before it has come",
    ),
    (
        "persistent_bwd",
        "common/gradient.cuh",
        "request(left >= depth, row + (depth - 1) * step, stage);\n            stage = other;",
        "request(left >= depth, row + (depth - 1) * step, other);\n            stage = other;",
        "a row over another",
    ),
    ("persistent_bwd", "common/meeting.cuh", "        __syncthreads();\n", "", "no barrier at the meeting"),
    (
        "persistent_bwd",
        "common/meeting.cuh",
        "threadIdx.x] = make_float2(0.0f, 0.0f)",
        "threadIdx.x] = make_float2(0.0f, 1.0f)",
        "sums of warps that are not there",
    ),
    (
        "persistent_bwd",
        "common/meeting.cuh",
        "2 * i < static_cast<int>(blockDim.x / 32)",
        "2 * i < static_cast<int>(blockDim.x / 64)",
        "some warps' sums left out",
    ),
    ("persistent_bwd", "common/reduce.cuh", "upper ? mine.x : mine.y, 16", "mine.x, 16", "one sum in place of two"),
    (
        "persistent_bwd",
        "common/columns.cuh",
        "group < static_cast<int>(blockDim.x) / LANES",
        "group < 3",
        "a warp's sums left out",
    ),
    (
        "cluster_bwd",
        "common/cluster.cuh",
        "mails + turn % 2, rank, blocks, turn / 2 % 2",
        "mails, rank, blocks, turn % 2",
        "one mail for all rows",
    ),
    (
        "cluster_bwd",
        "backward/cluster_bwd.cu",
        "kind + to * N, first",
        "kind + to * N - N, first",
        "a kind's last row left out",
    ),
    ("cluster_bwd", "backward/cluster_bwd.cu", "first + kind);", "first);", "two kinds of rows in one slice"),
    (
        "split_bwd",
        "backward/split_bwd.cu",
        "if (row >= rows) continue;\n                const float4",
        "if (row >= rows - 1) continue;\n                const float4",
        "the last row left out",
    ),
]


@needs_compiler
@pytest.mark.parametrize(
    ("stem", "file", "right", "wrong", "what"), PLANTED, ids=[f"{one[0]}: {one[-1]}" for one in PLANTED]
)
def test_a_planted_fault_is_seen(stem: str, file: str, right: str, wrong: str, what: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(planted(tmp_path, file, right, wrong) / "backward" / f"{stem}.cu")
    of_op = [job for job in jobs_of(kernel) if job.point.op == "layernorm_bwd"]
    # one type is enough, but for blocks whose warps are no power of two
    chosen = [job for job in of_op if job.point.dtype == "fp32" or job.variant.get("block") == 96]
    assert problems(kernel, chosen, tmp_path), what


# Triton


def run_triton(module: Any, kernel: kernelfile.Kernel, job: Job) -> str | None:
    tensors, scratch = tensors_of(job), shim.memory_of(kernel, job.names)
    point, before = job.point, tensors.fingerprint()
    names = {name: tensors.get(name) for name in kernelfile.TENSORS}
    t = SimpleNamespace(
        **names,
        rows=point.rows,
        hidden=point.hidden,
        x_stride=point.row_stride,
        y_stride=point.hidden,
        eps=point.semantics.eps,
        norm=ops.OPS[point.op].norm,
        residual_mode=ops.residual_mode(point),
        sm_count=SM_COUNT,
        reduces=True,
        scratch=SimpleNamespace(**dict(zip(kernel.scratch, (memory.view for memory in scratch), strict=True))),
    )
    if job.point.rows == 1:  # cheap, and as good as any
        t.reduces = False
        module.launch(t, **job.variant)
        if any(tensor is not None and not tensor.isnan().all() for tensor in column_sums(tensors)):
            return "wrote a column sum without being asked to reduce"
        t.reduces = True
    module.launch(t, **job.variant)
    return problem(tensors, scratch, before)


def main() -> None:
    """In the interpreter's process: print what is wrong, as JSON."""
    from normbench.contenders import load_module

    wrong = []
    for stem in TRITON:
        kernel = kernelfile.load(ROOT / "kernels" / "triton" / f"{stem}.py")
        module = load_module(kernel.path)
        for job in jobs_of(kernel):
            text = run_triton(module, kernel, job)
            if text:
                wrong.append([stem, str(job), text])
    print(json.dumps(wrong))


def test_triton_agrees_with_float64() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_triton_refuses_rows_that_no_block_holds() -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "triton" / "triton_bwd.py")

    def names(hidden: int) -> dict[str, Any]:
        return kernelfile.launch_names(Point("rmsnorm_bwd", "bf16", 8, hidden), 90, 132, 2)

    assert "32768" in str(kernel.refusal(names(32769)))
    for hidden in (1, 31, 2048, 2049, 32768):
        assert kernel.refusal(names(hidden)) is None
        assert kernel.variants([256], names(hidden)), hidden


if __name__ == "__main__":
    main()
