"""The scale-only norms without a GPU: CUDA sources as C++ on the host, Triton in its interpreter, against float64.

tests/host_shim says what this can find and what it cannot.
"""

from __future__ import annotations

import ctypes
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

from normbench import adversary, check, contenders, kernelfile, nvrtc, ops
from normbench.inputs import Case, every, normal
from normbench.points import Point
from normbench.tensors import Tensors

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from host_shim import build as shim  # noqa: E402 - the folder is no package of the project
from planted_fixture import planted  # noqa: E402

SCALES = [name for name, op in ops.OPS.items() if op.scale]
OWN = ("channel_tile", "short_row")  # made for these norms: every template on every input
TRITON = ("triton_tile", "triton_row")
SHARED = ("naive", "cta_row", "span_row", "cluster_row")
BLOCKS = [64, 96, 128, 256, 512]
ELEMENTS = 30_000  # of a case, at most: fibers are slow

AXES = ("block", "lanes", "vecs", "vec", "rows_each", "cluster", "odd")

pytestmark = pytest.mark.slow
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@dataclass(frozen=True)
class Job:
    """One variant on the tensors of one input."""

    case: Case
    tensors: Tensors
    names: dict[str, Any]

    def __str__(self) -> str:
        point = self.case.point
        axes = {name: value for name, value in self.names.items() if name in AXES}
        return f"{point.op} {point.dtype} {point.shape} {self.case.name} {axes}"


def inputs_of(kernel: kernelfile.Kernel, op: str, dtype: str, draw: random.Random) -> list[Case]:
    """The inputs of ``verify`` that are small; where norms with parameters have tried the file already a dozen of them,
    and rows that take more than one block."""
    small = [case for case in every(op, dtype) if 0 < case.point.rows * case.point.hidden < ELEMENTS and not case.large]
    if kernel.stem in OWN:
        return small
    rows = [case for case in small if ops.layout(case.point) == "rows"]
    long = [Case(f"row_{hidden}", Point(op, dtype, 2, hidden), normal(1.0)) for hidden in (5003, 20011)]
    if kernel.lang == "triton":
        return small if "channels" in kernel.layouts else rows
    return draw.sample(rows, 12) + (long if kernel.stem == "cluster_row" else [])


def jobs_of(kernel: kernelfile.Kernel) -> list[Job]:
    """Each input with a variant of every template that suits it, or of one where the file is shared; drawn the same way
    every time."""
    import torch

    cpu: Any = SimpleNamespace(torch=torch, device=torch.device("cpu"))
    draw = random.Random(kernel.stem)
    found = []
    for op in (op for op in kernel.ops if op in SCALES):
        for dtype in kernel.dtypes:
            for case in inputs_of(kernel, op, dtype, draw):
                tensors = adversary.place(case, cpu)
                names = kernelfile.launch_names(case.point, 90, 132, tensors.alignment())
                variants = [] if kernel.refusal(names) else kernel.variants(BLOCKS, names)
                draw.shuffle(variants)
                templates = {symbol(kernel, names | variant): variant for variant in variants}
                chosen = list(templates.values())[: None if kernel.stem in OWN else 1]
                found += [Job(case, tensors, names | variant) for variant in chosen]
    return found


def symbol(kernel: kernelfile.Kernel, names: dict[str, Any]) -> str:
    return " ".join(launch.symbol(names) for launch in kernel.wanted(names))


def built(kernel: kernelfile.Kernel, jobs: list[Job], folder: Path) -> tuple[ctypes.CDLL, list[str]]:
    symbols = shim.symbols_of(kernel, [job.names for job in jobs])
    headers = [str(path) for path in nvrtc.include_paths(nvrtc.version()[0])]
    return shim.build(kernel, symbols, headers, folder), symbols


def problem(job: Job, kernel: kernelfile.Kernel, library: ctypes.CDLL, symbols: list[str]) -> str | None:
    """What is wrong after a launch, or None."""
    tensors, point = job.tensors, job.case.point
    tensors.poison()
    before = tensors.fingerprint()
    scalars = {"rows": point.rows, "hidden": point.hidden, "inner": ops.inner(point), "eps": point.semantics.eps}
    scalars |= {"x_stride": point.row_stride, "y_stride": point.hidden}
    pointers = {name: tensors.get(name) for name in shim.POINTERS}
    try:
        shim.launch_all(library, symbols, kernel, job.names, pointers, **scalars)
    except RuntimeError as error:
        return str(error)
    return judged(tensors, before)


def judged(tensors: Tensors, before: int) -> str | None:
    """What is wrong with the outputs, or None. before: the fingerprint of the inputs."""
    verdict = check.check(check.expect(tensors.point, tensors.inputs), tensors.outputs())
    if verdict.status not in ("ok", "out_of_range"):
        return f"{verdict.status}: {verdict.reason}"
    if not all(item.guards_intact() for item in tensors.guarded.values()):
        return "wrote outside its output"
    return None if tensors.fingerprint() == before else "wrote to its inputs"


def problems(kernel: kernelfile.Kernel, jobs: list[Job], folder: Path) -> list[str]:
    library, symbols = built(kernel, jobs, folder)
    found = ((job, problem(job, kernel, library, symbols)) for job in jobs)
    return [f"{job}: {wrong}" for job, wrong in found if wrong]


@needs_compiler
@pytest.mark.parametrize("stem", [*OWN, *SHARED])
def test_every_small_input_is_answered(stem: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / f"{stem}.cu")
    jobs = jobs_of(kernel)
    assert len(jobs) > 10
    assert stem in SHARED or {kernel.launches[0].symbol(job.names) for job in jobs} == {
        launch.symbol(names)
        for names in kernel.compilations(BLOCKS, 90)
        for launch in kernel.launches
        if names["op"] in SCALES
    }, "an input is missing that wants this variant"
    assert problems(kernel, jobs, tmp_path) == []


PLANTED = [
    # in which file of which kernel, the text, what takes its place, and what that is
    ("channel_tile", "forward/channel_tile.cu", "    __syncthreads();\n", "", "no barrier between the groups"),
    ("channel_tile", "forward/channel_tile.cu", "image * (hidden - 1) * inner", "0", "one image taken for all"),
    (
        "channel_tile",
        "forward/channel_tile.cu",
        "< hidden) write(",
        "< hidden - 1) write(",
        "the last channel not written",
    ),
    (
        "channel_tile",
        "forward/channel_tile.cu",
        "for (int at = lane;",
        "for (int at = lane + lanes;",
        "a group left out",
    ),
    ("channel_tile", "forward/channel_tile.cu", "        add(pixels);\n", "", "channels past the registers left out"),
    ("short_row", "forward/short_row.cu", "if (row >= rows) break;", "if (row > rows) break;", "a row past the last"),
    (
        "short_row",
        "forward/short_row.cu",
        "sums[r], value); });\n        Near::sum(sums);\n",
        "sums[r], value); });\n",
        "a thread's own sum for the row's",
    ),
    ("short_row", "forward/short_row.cu", "side_by_side * EACH", "side_by_side", "blocks that overlap"),
    ("short_row", "common/scale.cuh", "sum + fabsf(value)", "sum + value", "signs that cancel"),
    ("short_row", "common/scale.cuh", "return rsqrtf(sum);", "return rsqrtf(sum * inverse);", "mean in place of sum"),
]


@needs_compiler
@pytest.mark.parametrize(
    ("stem", "file", "right", "wrong", "what"), PLANTED, ids=[f"{one[0]}: {one[-1]}" for one in PLANTED]
)
def test_a_planted_fault_is_seen(stem: str, file: str, right: str, wrong: str, what: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(planted(tmp_path, file, right, wrong) / "forward" / f"{stem}.cu")
    op = "l2norm" if "mean" in what else "l1norm"
    chosen = [job for job in jobs_of(kernel) if job.case.point.op == op and job.case.point.dtype == "fp32"]
    assert problems(kernel, chosen, tmp_path), what


# Triton, whose interpreter is chosen when it is first imported, so in a process of its own


def main() -> None:
    """In the interpreter's process: print what is wrong, as JSON."""
    wrong = []
    for stem in TRITON:
        kernel = kernelfile.load(ROOT / "kernels" / "triton" / f"{stem}.py")
        module = contenders.load_module(kernel.path)
        for job in interpreted(kernel):
            job.tensors.poison()
            before = job.tensors.fingerprint()
            module.launch(contenders.namespace(job.tensors), **{name: job.names[name] for name in kernel.axes})
            if text := judged(job.tensors, before):
                wrong.append(f"{stem} {job}: {text}")
    print(json.dumps(wrong))


def interpreted(kernel: kernelfile.Kernel) -> list[Job]:
    """Some of few programs, for the interpreter is slow by the program; it also makes zeros of bf16's denormals."""
    jobs = [job for job in jobs_of(kernel) if job.case.point.rows <= 300 and job.case.name != "denormals"]
    return random.Random(kernel.stem).sample(jobs, min(80, len(jobs)))


def test_triton_agrees_with_float64() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


if __name__ == "__main__":
    main()
