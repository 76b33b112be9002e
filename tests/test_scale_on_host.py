"""The scale-only norms without a GPU: CUDA sources as C++ on the host, Triton in its interpreter, against float64.

tests/host_shim says what this can find and what it cannot.
"""

from __future__ import annotations

import ctypes
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench import adversary, check, kernelfile, nvrtc, ops
from normbench.inputs import Case, every, normal
from normbench.points import Point
from normbench.tensors import Tensors

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from host_shim import build as shim  # noqa: E402 - the folder is no package of the project

SCALES = [name for name, op in ops.OPS.items() if op.scale]
OWN = ("channel_tile", "short_row")  # they serve nothing else
SHARED = ("naive", "cta_row", "span_row", "cluster_row")
BLOCKS = [64, 96, 128, 256, 512]
ELEMENTS = 30_000  # of a case, at most: fibers are slow

AXES = ("block", "lanes", "vecs", "vec", "rows_each", "cluster", "odd")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


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
                templates = {kernel.launches[0].symbol(names | variant): variant for variant in variants}
                chosen = list(templates.values())[: None if kernel.stem in OWN else 1]
                found += [Job(case, tensors, names | variant) for variant in chosen]
    return found


def built(kernel: kernelfile.Kernel, jobs: list[Job], folder: Path) -> tuple[ctypes.CDLL, list[str]]:
    symbols = sorted({kernel.launches[0].symbol(job.names) for job in jobs})
    headers = [str(path) for path in nvrtc.include_paths(nvrtc.version()[0])]
    return shim.build(kernel, symbols, headers, folder), symbols


def problem(job: Job, kernel: kernelfile.Kernel, library: ctypes.CDLL, symbols: list[str]) -> str | None:
    """What is wrong after a launch, or None."""
    tensors, point, launch = job.tensors, job.case.point, kernel.launches[0]
    tensors.poison()
    before = tensors.fingerprint()
    texts = (launch.grid[0], launch.block[0], launch.smem, launch.cluster)
    grid, block, smem, cluster = (int(kernelfile.evaluate(text, job.names)) for text in texts)
    shape = shim.Shape(grid, block, smem, max(cluster, 1), tuple(job.names[axis] for axis in kernel.axes))
    scalars = {"rows": point.rows, "hidden": point.hidden, "inner": ops.inner(point), "eps": point.semantics.eps}
    scalars |= {"x_stride": point.row_stride, "y_stride": point.hidden}
    pointers = {name: tensors.get(name) for name in shim.POINTERS}
    try:
        shim.launch(library, symbols.index(launch.symbol(job.names)), shape, pointers, **scalars)
    except RuntimeError as error:
        return str(error)
    verdict = check.check(check.expect(point, tensors.inputs), tensors.outputs())
    if verdict.status not in ("ok", "out_of_range"):
        return f"{verdict.status}: {verdict.reason}"
    if not all(item.guards_intact() for item in tensors.guarded.values()):
        return "wrote outside its output"
    return None if tensors.fingerprint() == before else "wrote to its inputs"


def problems(kernel: kernelfile.Kernel, jobs: list[Job], folder: Path) -> list[str]:
    library, symbols = built(kernel, jobs, folder)
    found = ((job, problem(job, kernel, library, symbols)) for job in jobs)
    return [f"{job}: {wrong}" for job, wrong in found if wrong]


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
