"""The kernels for few and long rows as C++ on the host: torch's order bit for bit, the others against float64.

tests/host_shim says what this can find and what it cannot; whether a GPU's reciprocals and roots are the host's is not
known here.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normbench import check, kernelfile, nvrtc, ops
from normbench.kernelfile import Kernel
from normbench.points import Point, Semantics
from normbench.tensors import Tensors, make_outputs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch_order_fixture as order  # noqa: E402
from host_shim import build as shim  # noqa: E402 - the folder is no package of the project
from planted_fixture import planted  # noqa: E402

AFFINES: tuple[dict[str, bool], ...] = ({}, {"beta": False}, {"gamma": False}, {"gamma": False, "beta": False})
SM_COUNT = 3  # so that a grid which stays takes several rows, and a row several blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@dataclass(frozen=True)
class Job:
    """One variant at one point. kind: of the values of x."""

    point: Point
    kind: str
    names: dict[str, Any]
    variant: dict[str, int]

    def __str__(self) -> str:
        point = self.point
        return f"{point.op} {point.dtype} {point.shape} {point.semantics} {self.kind} {self.variant}"


def kernel_of(stem: str, root: Path = ROOT) -> Kernel:
    return kernelfile.load(root / "kernels" / "wide" / f"{stem}.cu")


def job_of(kernel: Kernel, point: Point, kind: str, draw: random.Random, seen: set[tuple[str, int]]) -> Job | None:
    """A job with a variant drawn from those that show most that is new; None where none serves the point."""
    names = kernelfile.launch_names(point, 90, SM_COUNT, kernelfile.pitch_alignment(point)) | {"blocks_per_sm": 1}
    variants = [] if kernel.refusal(names) else kernel.variants([256], names)
    if not variants:
        return None
    variant = max(draw.sample(variants, len(variants)), key=lambda one: len(one.items() - seen))
    seen.update(variant.items())
    return Job(point, kind, names | variant, variant)


def values(job: Job) -> Any:
    import torch

    shape = (job.point.rows, job.point.hidden)
    if job.kind == "constant":
        return torch.full(shape, 1e4)
    if job.kind == "strange":
        x = torch.randn(shape)
        for row, value in enumerate((float("nan"), float("inf"), float("-inf"))[: job.point.rows]):
            x[row, job.point.hidden // 3] = value
        return x
    return torch.randn(shape) * (1e-3 if job.kind == "tiny" else 1) + (1000.0 if job.kind == "offset" else 0.0)


def tensors_of(job: Job) -> Tensors:
    import torch

    torch.manual_seed(job.point.hidden)
    dtype, param = ops.torch_dtype(job.point.dtype), ops.torch_dtype(job.point.param_dtype)
    params = {"gamma": torch.randn(job.point.hidden), "beta": torch.randn(job.point.hidden)}
    present = {"gamma": ops.has_gamma(job.point), "beta": ops.has_beta(job.point)}
    inputs = {name: value.to(param) if present[name] else None for name, value in params.items()}
    pitch = job.point.row_stride
    x = torch.full((job.point.rows, pitch), torch.nan, dtype=dtype)[:, : job.point.hidden]
    x.copy_(values(job).to(dtype))
    return Tensors(job.point, {"x": x, **inputs}, make_outputs(job.point, torch.device("cpu")))


def build(kernel: Kernel, jobs: list[Job], folder: Path) -> tuple[ctypes.CDLL, list[str]]:
    symbols = sorted({launch.symbol(job.names) for job in jobs for launch in kernel.launched(job.names)})
    headers = [str(path) for path in nvrtc.include_paths(nvrtc.version()[0])]
    return shim.build(kernel, symbols, headers, folder), symbols


def run(kernel: Kernel, built: tuple[ctypes.CDLL, list[str]], job: Job, repeats: int = 1) -> Tensors:
    """The tensors of a job after its launches, each with another x. Blocks that stay run side by side."""
    library, symbols = built
    tensors = tensors_of(job)
    pointers = {name: tensors.get(name) for name in shim.POINTERS}
    memory = shim.memory_of(kernel, job.names)
    scratch = [one.view for one in memory]
    point = job.point
    scalars = {"rows": point.rows, "hidden": point.hidden, "eps": point.semantics.eps}
    scalars |= {"x_stride": point.row_stride, "y_stride": point.hidden, "sm_count": SM_COUNT}
    for again in range(repeats):
        tensors.poison()
        if again:
            tensors.inputs["x"].neg_()  # type: ignore[union-attr]
        for launch in kernel.launched(job.names):
            texts = (launch.grid[0], launch.block[0], launch.smem, launch.cluster)
            grid, block, smem, cluster = (int(kernelfile.evaluate(text, job.names)) for text in texts)
            together = grid if launch.cooperative else 0
            shape = shim.Shape(grid, block, smem, max(cluster, 1), tuple(job.variant.values()), together)
            shim.launch(library, symbols.index(launch.symbol(job.names)), shape, pointers, scratch, **scalars)
    return tensors


def torch_order_jobs(kernel: Kernel, count: int) -> list[Job]:
    """Random shapes, types and affine forms; every distribution that the study compares bits on."""
    draw = random.Random(kernel.stem)
    found: list[Job] = []
    seen: set[tuple[str, int]] = set()
    while len(found) < count:
        many = len(found) < 4  # more rows than a block writes at a time, of the fewest elements that blocks share
        hidden = (
            8192 + 64 * len(found)
            if many
            else 4
            * draw.choice([1, 2, 31, 32, 33, 127, 128, 129, 500, draw.randint(1, 3000), draw.randint(2048, 5200)])
        )
        rows = 9 if many else draw.choice([1, 2, 3] if hidden > 4000 else [1, 3, 7, 70])
        semantics = Semantics(
            stats=True,
            eps=draw.choice([1e-5, 1e-3, 0.0]),
            row_stride=draw.choice([None, hidden + 8]),
            **draw.choice(AFFINES),
        )
        op = draw.choice(["layernorm", "layernorm", "rmsnorm"])
        point = Point(op, draw.choice(kernel.dtypes), rows, hidden, "wide", semantics)
        kind = draw.choice(["normal", "normal", "offset", "constant", "tiny", "strange"])
        job = job_of(kernel, point, kind, draw, seen)
        if job is not None:
            found.append(job)
    job = job_of(kernel, Point("layernorm", "fp32", 1, 160_000, "wide", Semantics()), "normal", draw, seen)
    assert job is not None
    short = {"batch": 256}  # more of them than shared memory holds
    return [*found, replace(job, names=job.names | short, variant=job.variant | short)]


def wrong_bits(job: Job, tensors: Tensors) -> str | None:
    """Which output has other bits than torch's order gives, or None."""
    import torch

    point = job.point
    x, gamma, beta = (tensors.inputs[name] for name in ("x", "gamma", "beta"))
    wide = [None if tensor is None else tensor.float().numpy() for tensor in (x, gamma, beta)]
    y, mean, rstd = order.norm(*wide, point.semantics.eps, point.op == "layernorm")
    right = {"y": torch.from_numpy(y).to(ops.torch_dtype(point.dtype)).float().numpy(), "mean": mean, "rstd": rstd}
    for name, found in tensors.outputs().items():
        if not same(found.float().numpy(), right[name]):
            return name
    return None


def same(left: Any, right: Any) -> bool:
    """Bit for bit, but that the host has many NaNs and a GPU one."""
    left, right = (np.where(np.isnan(array), np.float32(np.nan), array).astype(np.float32) for array in (left, right))
    return bool((left.view(np.int32) == right.view(np.int32)).all())


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kernel, list[Job], tuple[ctypes.CDLL, list[str]]]:
    kernel = kernel_of("wide_torch_order")
    jobs = torch_order_jobs(kernel, 70)
    return kernel, jobs, build(kernel, jobs, tmp_path_factory.mktemp("order"))


def test_an_fma_that_rounds_twice_passes_for_one() -> None:
    """The exact result lies just beside the middle of two float32 values, by less than float64 holds."""
    one, tiny = np.float32(1), np.float32(2.0**-60)
    a, b = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12)  # 1 + 2^-11 + 2^-24: the middle
    assert order.fma(a, b, tiny) == np.nextafter(np.float32(1 + 2.0**-11), np.float32(2))
    assert order.fma(a, b, -tiny) == np.float32(1 + 2.0**-11)
    assert order.fma(-a, b, -tiny) == -order.fma(a, b, tiny)
    assert np.isnan(order.fma(np.float32(np.inf), np.float32(0), one))


def test_torch_order_has_other_bits_than_torchs_order(
    ordered: tuple[Kernel, list[Job], tuple[ctypes.CDLL, list[str]]],
) -> None:
    kernel, jobs, built = ordered
    used = {(name, value) for job in jobs for name, value in job.variant.items()}
    assert used >= {(name, value) for name, axis in kernel.axes.items() for value in axis}, "an axis is not tried"
    wrong = [(str(job), name) for job in jobs if (name := wrong_bits(job, run(kernel, built, job)))]
    assert wrong == []


# the others, against float64


def accurate_jobs(kernel: Kernel, count: int) -> list[Job]:
    """Random shapes, strides, types and affine forms, every axis of the kernel among them."""
    draw = random.Random(kernel.stem)
    seen: set[tuple[str, int]] = set()
    # as many blocks a row, and rows a block, as there may be
    first = [
        Point("layernorm", "fp32", *size, "wide", Semantics(stats=True)) for size in ((9, 40960), (9, 8192), (1, 2**18))
    ]
    found = [job for point in first if (job := job_of(kernel, point, "normal", draw, seen))]
    while len(found) < count:
        large = draw.choice([4096, 8 * draw.randint(512, 9000), 8 * draw.randint(512, 3000), 2**18])
        hidden = draw.choice([1, 3, 64, 1023, 1024, draw.randint(1, 5000), large, large])
        rows = 1 if hidden > 2**17 else draw.choice([1, 2, 3, 9]) if hidden > 4096 else draw.choice([1, 3, 7, 17])
        dtype = draw.choice(kernel.dtypes)
        semantics = Semantics(
            stats=True,
            row_stride=draw.choice([None, hidden + 8, hidden + 1]),
            param_dtype=draw.choice([None, "fp32"]) if dtype != "fp32" else None,
            **draw.choice(AFFINES),
        )
        point = Point(draw.choice(kernel.ops), dtype, rows, hidden, "wide", semantics)
        job = job_of(kernel, point, draw.choice(["normal", "offset", "constant", "tiny", "strange"]), draw, seen)
        if job is not None:
            found.append(job)
    return found


def inaccurate(job: Job, tensors: Tensors) -> str | None:
    """What is wrong with the outputs, or None; in fp32 more is asked of y than the study's tolerance."""
    exact = check.expect(job.point, tensors.inputs)
    verdict = check.check(exact, tensors.outputs())
    if not verdict.ok:
        return f"{verdict.status}: {verdict.reason}"
    if not all(item.guards_intact() for item in tensors.guarded.values()):
        return "wrote outside its output"
    if job.point.dtype == "fp32" and job.kind != "strange":
        found, right = tensors.outputs()["y"].double(), exact.targets["y"].exact
        size = (found - right).abs() - 2 * ops.ulp(right, "fp32") - 1e-6 * max(1.0, float(right.abs().max()) / 8)
        if float(size.max()) > 0:
            return f"{float(size.max()):.3g} beyond two ulp and 1e-6"
    return None


def meeting_job(kernel: Kernel, rows: int, squads: int, **kinds: str) -> Job:
    """As many rows a turn for all blocks. kinds: op and kind, where they are others."""
    hidden = 20_004 if squads > 1 else 40_960
    point = Point(kinds.get("op", "layernorm"), "fp32", rows, hidden, "wide", Semantics(stats=True))
    job = job_of(kernel, point, kinds.get("kind", "normal"), random.Random(0), {("squads", 5 - squads)})
    assert job is not None
    assert job.variant["squads"] == squads
    assert kernelfile.evaluate(kernel.launches[0].grid[0], job.names) == SM_COUNT
    return job


def meeting_jobs(kernel: Kernel) -> list[Job]:
    """Two turns leave words that the first of the next launch could take for its own."""
    return [meeting_job(kernel, *job) for job in ((2, 1), (5, 1), (9, 4), (13, 4))]


@pytest.mark.parametrize(("stem", "count"), [("wide_split", 14), ("wide_onepass", 10)])
def test_wide_rows_of_odd_shapes_are_inaccurate(stem: str, count: int, tmp_path: Path) -> None:
    kernel = kernel_of(stem)
    jobs = accurate_jobs(kernel, count)
    if kernel.zeroed:
        jobs += meeting_jobs(kernel)
        hard = itertools.product((1, 4), (("layernorm", "offset"), ("rmsnorm", "tiny")))
        jobs += [meeting_job(kernel, 14, squads, op=op, kind=kind) for squads, (op, kind) in hard]
    used = {(name, value) for job in jobs for name, value in job.variant.items()}
    assert used >= {(name, value) for name, axis in kernel.axes.items() for value in axis}, "an axis is not tried"
    built = build(kernel, jobs, tmp_path)
    repeats = 2 if kernel.zeroed else 1  # what a launch leaves there is what the next one finds
    wrong = [(str(job), text) for job in jobs if (text := inaccurate(job, run(kernel, built, job, repeats)))]
    assert wrong == []


# of wide_ring: the axes; clusters; rows; hidden; other
RINGS: tuple[tuple[tuple[int, ...], int, int, int, dict[str, Any]], ...] = (
    ((2, 256, 4), 3, 9, 50004, {}),  # one team, of more rows than the ring holds and than have places
    ((2, 256, 3), 4, 13, 20484, {}),  # two teams of two clusters, of more rows than one another
    ((2, 256, 3), 3, 7, 20480, {}),  # three teams of one cluster, of as much as a block holds
    ((2, 256, 4), 3, 1, 16388, {}),  # a row for all
    ((2, 256, 4), 3, 2, 16384, {}),  # two rows, and a cluster left over
    ((2, 256, 4), 2, 18, 20484, {"op": "rmsnorm", "kind": "tiny"}),  # words go where others were in the same launch
    ((2, 512, 4), 2, 6, 40004, {"kind": "offset"}),
    ((8, 512, 3), 1, 5, 65540, {"op": "rmsnorm"}),
    ((8, 256, 4), 2, 9, 81924, {"kind": "tiny", "beta": False}),
    ((8, 256, 4), 2, 5, 143360, {"dtype": "bf16", "kind": "offset"}),  # two teams of a cluster
    ((2, 256, 3), 4, 11, 40968, {"dtype": "bf16"}),
    ((2, 512, 3), 3, 8, 47000, {"dtype": "fp16", "kind": "offset"}),
    ((2, 256, 4), 3, 9, 33000, {"dtype": "fp16", "op": "rmsnorm", "gamma": False}),
    ((2, 256, 3), 2, 6, 20500, {"kind": "constant", "gamma": False, "beta": False}),
    ((2, 256, 4), 3, 9, 40964, {"kind": "strange"}),
)


def ring_job(
    kernel: Kernel, axes: tuple[int, ...], clusters: int, rows: int, hidden: int, other: dict[str, Any]
) -> Job:
    """A variant of wide_ring, on as many clusters. other: op, dtype and kind, gamma and beta where they are absent."""
    other = {"op": "layernorm", "dtype": "fp32", "kind": "normal"} | other
    op, dtype, kind = (other.pop(name) for name in ("op", "dtype", "kind"))
    semantics = Semantics(stats=True, row_stride=hidden + 8, **other)
    point = Point(op, dtype, rows, hidden, "wide", semantics)
    names = kernelfile.launch_names(point, 90, 16, kernelfile.pitch_alignment(point))
    names |= {"blocks_per_sm": 1, "clusters": clusters}
    variant = dict(zip(kernel.axes, axes, strict=True))
    assert kernel.refusal(names) is None
    assert variant in kernel.variants([256], names)
    return Job(point, kind, names | variant, variant)


def test_clusters_that_share_rows_are_inaccurate(tmp_path: Path) -> None:
    kernel = kernel_of("wide_ring")
    jobs = [ring_job(kernel, *ring) for ring in RINGS]
    used = {(name, value) for job in jobs for name, value in job.variant.items()}
    assert used >= {(name, value) for name, axis in kernel.axes.items() for value in axis}, "an axis is not tried"
    built = build(kernel, jobs, tmp_path)
    wrong = [(str(job), text) for job in jobs if (text := inaccurate(job, run(kernel, built, job, 3)))]
    assert wrong == []


TEAM = """// /// kernel
// summary = "Two teams of blocks: each block has one part, of which its number tells all."
// ops = ["layernorm"]
// dtypes = ["fp32"]
// zeroed = ["mail"]
//
// [scratch]
// mail = "4480"
//
// [[launches]]
// name = "two_teams<{T}>"
// grid = "140"
// block = 32
// cooperative = true
// args = ["y", "mail"]
// ///
#include "common/team.cuh"

template <typename T>
__global__ void two_teams(T* y, uint4* mail) {
    const int me = static_cast<int>(blockIdx.x), team = me / 70, rank = me % 70;
    const TeamMail meeting{mail, 140, team * 70, 70, rank};
    Part all{};
    for (unsigned turn = 1; turn < 4; ++turn) {
        meeting.post({1.0f + rank % 3, team * 100.0f + rank, 0.25f * turn, 2.0f}, turn);
        all = meeting.of_team<LAYERNORM, 3>(turn, [](int member) { return 1.0f + member % 3; });
    }
    if (threadIdx.x == 31) y[me] = all.pivot + all.sum / all.count;
    if (threadIdx.x == 0) y[140 + me] = all.squares - all.sum * all.sum / all.count;
}
"""


def test_a_team_of_more_members_than_a_warp_has_lanes_misses_some(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "kernels" / "wide" / "two_teams.cu"
    path.parent.mkdir(parents=True)
    shutil.copytree(ROOT / "kernels" / "common", tmp_path / "kernels" / "common")
    path.write_text(TEAM)
    kernel = kernelfile.load(path)
    library = shim.build(kernel, ["two_teams<float>"], map(str, nvrtc.include_paths(nvrtc.version()[0])), tmp_path)
    y, mail = torch.full((280,), torch.nan), torch.zeros(4480, dtype=torch.uint8)

    shape = shim.Shape(140, 32, 0, 140, ())
    shim.launch(library, 0, shape, {"y": y}, [mail], rows=1, hidden=280, x_stride=280, y_stride=280, eps=0.0)

    rank = np.arange(70.0)
    count = 1.0 + rank % 3
    for team in range(2):
        mean = team * 100.0 + (count * rank).sum() / count.sum() + 70 * 0.75 / count.sum()
        squares = (2.0 - 0.75**2 / count + count * (team * 100.0 + rank + 0.75 / count - mean) ** 2).sum()
        blocks = slice(team * 70, team * 70 + 70)
        np.testing.assert_allclose(y[:140][blocks], np.full(70, mean), rtol=1e-6)
        np.testing.assert_allclose(y[140:][blocks], np.full(70, squares), rtol=1e-5)


PLANTED = [
    # in which file of which kernel, the text, what takes its place, and what that is
    (
        "wide_torch_order",
        "common/torch_order.cuh",
        "merged = merged.with(other);",
        "merged = other.with(merged);",
        "lanes merged the other way round",
    ),
    (
        "wide_torch_order",
        "common/torch_order.cuh",
        "even.with(odd)",
        "odd.with(even)",
        "the last merge the other way round",
    ),
    (
        "wide_torch_order",
        "common/torch_order.cuh",
        "get(from_beta, -0.0f, beta)",
        "get(from_beta, 0.0f, beta)",
        "zeros lose their sign",
    ),
    (
        "wide_torch_order",
        "wide/wide_torch_order.cu",
        "copy_wait(number == 0 ? 0 : 1);",
        "copy_wait(2);",
        "read before it is there",
    ),
    (
        "wide_torch_order",
        "wide/wide_torch_order.cu",
        "request(number + 2);",
        "request(number + 3);",
        "written over before it is read",
    ),
    (
        "wide_onepass",
        "wide/wide_onepass.cu",
        "copy_wait((VECS - (group + 1) * TAKE) / TOGETHER);",
        "",
        "a row taken over before it is there",
    ),
    ("wide_onepass", "wide/wide_onepass.cu", "copy_wait<PACE>();", ";", "statistics of a row that has not arrived"),
    ("wide_onepass", "wide/wide_onepass.cu", "turn = before + 2 + round;", "turn = before;", "every row is one turn"),
    (
        "wide_onepass",
        "wide/wide_onepass.cu",
        "% WARPS != WARPS - 1",
        "% WARPS != 0",
        "posted by the first warp in place of the last",
    ),
    (
        "wide_onepass",
        "wide/wide_onepass.cu",
        "turns[me] = before +",
        "turns[me] = 0 *",
        "every launch begins at turn 0",
    ),
    (
        "wide_onepass",
        "wide/wide_onepass.cu",
        "barrier_of<THREADS>(squad);",
        "",
        "a row written with what normalised the last one",
    ),
    ("wide_onepass", "wide/wide_onepass.cu", "team * size, size, me", "0, size, me", "squads take each other's words"),
    ("wide_onepass", "common/parts.cuh", "part.move(pivot);", "", "words about different means added up"),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "copy_wait(depth - 1 - ahead);",
        "copy_wait(depth - ahead);",
        "gathered before it is there",
    ),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "request(round + depth < rounds, stage);",
        "request(round + depth < rounds, next);",
        "written over before it is written out",
    ),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "barrier_wait(&desk.ready[slot], round / SLOTS % 2);",
        "",
        "a row written with what normalised another",
    ),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "barrier_wait(&desk.arrived[slot], round / SLOTS % 2);",
        "",
        "no wait for the parts",
    ),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "turn = before + 1 + round / SLOTS;",
        "turn = before + 1;",
        "every row is one turn",
    ),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "turns[cluster] = before +",
        "turns[cluster] = 0 *",
        "every launch begins at turn 0",
    ),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "(longest + SLOTS - 1) / SLOTS",
        "longest / SLOTS",
        "the next launch begins at a turn that has been",
    ),
    ("wide_ring", "wide/wide_ring.cu", "words + slot * 2 * clusters", "words", "rows take each other's words"),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "team * size, size, member}",
        "0, size, member}",
        "teams take each other's words",
    ),
    ("wide_ring", "wide/wide_ring.cu", "    cluster_wait();  // all", "    // all", "sent before it has started"),
    (
        "wide_ring",
        "wide/wide_ring.cu",
        "rank * WARPS + thread / 32}",
        "thread / 32}",
        "parts overwrite each other",
    ),
    ("wide_ring", "common/parts.cuh", "part.move(pivot);", "", "parts about different means added up"),
    ("wide_split", "common/parts.cuh", "part.move(pivot);", "", "parts about different means added up"),
]


@pytest.mark.parametrize(
    ("stem", "file", "right", "wrong", "what"), PLANTED, ids=[f"{one[0]}: {one[-1]}" for one in PLANTED]
)
def test_a_planted_fault_is_not_seen(stem: str, file: str, right: str, wrong: str, what: str, tmp_path: Path) -> None:
    planted(tmp_path, file, right, wrong)
    kernel = kernel_of(stem, tmp_path)
    bits = stem == "wide_torch_order"
    if stem == "wide_ring":
        jobs = [ring_job(kernel, *ring) for ring in RINGS[:5]]
    elif kernel.zeroed:
        jobs = meeting_jobs(kernel)
    else:
        drawn = torch_order_jobs(kernel, 60) if bits else accurate_jobs(kernel, 60)
        fitting = (job for job in drawn if (job.point.op, job.point.dtype) == ("layernorm", "fp32"))
        jobs = [job for job in fitting if job.point.rows * job.point.hidden < 100_000][:12] + drawn[-1:]
    built = build(kernel, jobs, tmp_path)

    def seen(job: Job) -> bool:
        try:
            tensors = run(kernel, built, job, 2 if kernel.zeroed else 1)
        except RuntimeError:  # a deadlock
            return True
        return bool(wrong_bits(job, tensors) if bits else inaccurate(job, tensors))

    assert any(seen(job) for job in jobs), what
