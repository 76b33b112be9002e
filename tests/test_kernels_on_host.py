"""The CUDA kernels' sources compiled as C++ and run on the CPU, against float64; never a GPU pass.

tests/host_shim says what this can find (indices, masks, missing barriers, writes outside) and what it cannot.
"""

from __future__ import annotations

import ctypes
import random
import shutil
import sys
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench import adversary, check, kernelfile, nvrtc, ops
from normbench import inputs as cases
from normbench.points import Point, Semantics
from normbench.tensors import make_sets

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import mutants_fixture as mutants  # noqa: E402
from host_shim import build as shim  # noqa: E402 - the folder is no package of the project
from planted_fixture import planted  # noqa: E402

BLOCKS = [64, 96, 128, 256, 512, 1024]
GUARD = 64
SHAPES: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    # rows, hidden, elements between rows, semantics
    (3, 1, 0, {}),
    (1, 2, 0, {}),
    (3, 31, 0, {}),
    (3, 33, 1, {"stats": True}),
    (5, 64, 0, {}),
    (3, 100, 4, {}),
    (9, 256, 0, {"stats": True}),
    (3, 1000, 24, {"gamma": False}),
    (2, 1023, 0, {}),
    (3, 1024, 0, {"beta": False}),
    (2, 2048, 0, {}),
    (2, 2049, 0, {"beta": False, "gamma": False, "stats": True}),
    (1, 4096, 0, {}),
    (1, 8200, 8, {}),
    (1, 40003, 0, {}),  # more than the registers hold
    (1, 70016, 0, {"stats": True}),
    (3, 20000, 0, {"stats": True}),
    # more rows than a small grid has blocks, so that blocks which stay meet rows that begin elsewhere
    (19, 1023, 0, {}),
    (11, 2049, 2, {"stats": True}),
    (10, 5003, 0, {}),
    (7, 768, 0, {"beta": False}),
    (67, 64, 8, {"gamma": False, "stats": True}),
    (35, 128, 0, {"beta": False}),
)
# elements that x, y, gamma, residual and sum begin off their alignment
BASES = (
    (0, 0, 0, 0, 0),
    (1, 1, 0, 1, 1),
    (3, 3, 2, 3, 3),
    (3, 0, 5, 3, 3),
    (0, 2, 1, 0, 0),
    (0, 0, 0, 1, 0),
    (2, 2, 0, 2, 5),
)
STEMS = ("naive", "welford", "cta_row", "span_row", "cluster_row", "few_rows", "ring_row", "short_row")
# of ring_row, which takes no others; clusters take rows of these that are not theirs from the beginning
LONG_SHAPES: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (1, 16384, 0, {}),
    (13, 16384, 8, {"stats": True}),
    (7, 16400, 0, {"beta": False}),
    (29, 16387, 0, {"stats": True}),
    (17, 17001, 3, {}),
    (5, 24576, 0, {"gamma": False, "stats": True}),
    (6, 28001, 0, {"gamma": False}),
)
KINDS = ("normal", "offset", "constant", "large")
MORE_KINDS = ("mixed", "huge")  # for some of the jobs besides
# cast order and offset of gamma, and shapes that take every way of a kernel to gamma
PLAIN = (("torch", 0.0),)
GAMMAS = (("llama", 0.0), ("torch", 1.0), ("llama", 1.0))
GAMMA_SHAPES: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (3, 33, 1, {"stats": True}),
    (5, 64, 0, {}),
    (3, 512, 8, {}),
    (3, 1000, 24, {"gamma": False}),
    (2, 1023, 0, {}),
    (3, 1024, 0, {"beta": False}),
    (2, 2049, 0, {}),
    (7, 64, 8, {"beta": False}),
    (9, 128, 0, {}),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@dataclass(frozen=True)
class Job:
    """One variant at one point, with one kind of input.

    shifts: elements by which x, y, gamma, residual and sum are misaligned. in_place: y is x, the sum is the residual.
    Where the first launch may begin before the one before it has ended (axis pdl), that one writes x and residual as it
    ends; where a later one may, it is the working memory that the launch before writes.
    """

    point: Point
    kind: str
    shifts: tuple[int, ...]
    in_place: bool
    names: dict[str, Any]
    variant: dict[str, int]

    def __str__(self) -> str:
        point = self.point
        place = " in place" if self.in_place else ""
        what = f"{point.op} {point.dtype} {point.shape} {point.semantics} {self.kind}{place}"
        return f"{what} {self.shifts} {self.variant}"


def jobs_of(kernel: kernelfile.Kernel, shapes: Any = None, gammas: Any = PLAIN) -> list[Job]:
    """Every shape in every type, with up to three variants each, drawn the same way every time.

    The scale-only norms are tried by test_scale_on_host.py.
    """
    draw = random.Random(kernel.stem)
    shapes = LONG_SHAPES if kernel.stem == "ring_row" else shapes or SHAPES
    bases = BASES[:1] if "aligned >= 16" in kernel.where else BASES
    found = []
    for op in (op for op in kernel.ops if not ops.OPS[op].scale):
        for dtype in kernel.dtypes:
            for param in dict.fromkeys((None, "fp32" if dtype != "fp32" else None)):
                turns = cycle(one for one in gammas if ops.OPS[op].casts or one[0] == "torch")
                for rows, hidden, gap, changes in shapes:
                    for _ in range(3 if hidden < 4096 else 1):
                        mode = draw.choice([None, "round"]) if ops.OPS[op].adds else None
                        stride = hidden + gap if gap else None
                        cast, offset = next(turns)
                        semantics = Semantics(
                            param_dtype=param, row_stride=stride, residual=mode, cast=cast, offset=offset, **changes
                        )
                        regime = "latency" if "pdl" in kernel.axes else "stream"
                        point = Point(op, dtype, rows, hidden, regime, semantics)
                        shifts = draw.choice(bases)
                        names = kernelfile.launch_names(point, 90, 132, alignment(point, shifts)) | {
                            "blocks_per_sm": 1,
                            "clusters": 2,
                        }
                        variants = [] if kernel.refusal(names) else kernel.variants(BLOCKS, names)
                        if variants:  # of the large ones only what no small one can do: fibers are slow
                            variant = draw.choice([v for v in variants if threads(v) <= 1024] or variants)
                            in_place = gap == 0 and draw.random() < 0.25 and not variant.get("pdl")
                            found.append(Job(point, draw.choice(KINDS), shifts, in_place, names | variant, variant))
    more = random.Random(kernel.stem)
    return found + [replace(job, kind=more.choice(MORE_KINDS)) for job in found if more.random() < 0.2]


def threads(variant: dict[str, int]) -> int:
    """Threads that run side by side."""
    return variant["block"] * variant.get("cluster", 1)


def alignment(point: Point, shifts: tuple[int, ...]) -> int:
    value = kernelfile.pitch_alignment(point)
    for shift in shifts:
        value |= shift * point.element_bytes
    return value & -value


def inputs(job: Job) -> Any:
    import torch

    shape = (job.point.rows, job.point.hidden)
    if job.kind == "mixed":  # rows that share a warp and want different ways to their statistics
        return torch.randn(shape) + torch.arange(job.point.rows)[:, None] % 3 * 1000.0
    if job.kind == "huge" and "layernorm" in job.point.op and job.point.dtype != "fp16" and job.point.hidden <= 2048:
        return torch.randn(shape) * 2e17 + 2e19  # the squares are beyond fp32
    if job.kind == "constant":
        return torch.full(shape, 33333.3 if job.point.dtype == "fp32" else 1234.0)
    offset = {"normal": 0.0, "huge": 0.0, "offset": 1000.0, "large": 1e6 if job.point.dtype != "fp16" else 0.0}[
        job.kind
    ]
    most = 5e3 if job.point.dtype == "fp16" else 1e4  # that a sum of two stays in range
    return torch.randn(shape) * (most if job.kind == "large" else 1) + offset


def run(job: Job, kernel: kernelfile.Kernel, library: ctypes.CDLL, symbols: list[str]) -> str | None:
    """What is wrong with the outputs of one job, or None."""
    import torch

    point, semantics = job.point, job.point.semantics
    torch.manual_seed(point.hidden)
    dtype, param = ops.torch_dtype(point.dtype), ops.torch_dtype(point.param_dtype)
    stride = point.row_stride
    large = ops.large_tensors(point)
    pitches = {name: stride if name in ("x", "residual") else point.hidden for name in large}  # outputs as in a study
    buffers = {name: torch.full((point.rows * stride + 2 * GUARD,), torch.nan, dtype=dtype) for name in large}
    shifts = dict(zip(("x", "y", "gamma", "residual", "sum"), job.shifts, strict=True))
    if job.in_place:
        for name, taken in (("y", "x"), ("sum", "residual")):
            if name in large:
                buffers[name], shifts[name] = buffers[taken], shifts[taken]
    views = {
        name: buffers[name].as_strided((point.rows, point.hidden), (pitches[name], 1), GUARD + shifts[name])
        for name in large
    }
    for name in ("x", "residual"):
        if name in large:
            views[name].copy_(inputs(job))
    y = views["y"]
    gamma = torch.randn(point.hidden + GUARD).to(param)[shifts["gamma"] :][: point.hidden]
    tensors = {
        **{name: views[name].clone() for name in ("x", "residual") if name in large},
        "gamma": gamma if ops.has_gamma(point) else None,
        "beta": torch.randn(point.hidden).to(param) if ops.has_beta(point) else None,
    }
    exact = ops.reference(point, tensors)
    saved = {
        name: torch.full((point.rows,), torch.nan) if ops.saves_stats(point) and name in exact else None
        for name in ("mean", "rstd")
    }
    scalars = {"rows": point.rows, "hidden": point.hidden, "eps": semantics.eps, "offset": semantics.offset}
    scalars |= {"x_stride": pitches["x"], "y_stride": pitches["y"]}
    try:
        late = [buffers[name] for name in ("x", "residual") if name in large]
        kept = [buffers[name] for name in ("y", "sum") if name in large]
        given = {**tensors, **saved, **views}
        memory = shim.memory_of(kernel, job.names)
        if kernel.zeroed and not job.in_place:  # what a launch leaves there is what the next one finds
            shim.launch_all(library, symbols, kernel, job.names, given, late, kept, memory, **scalars)
            for name in ("y", "sum"):
                if name in large:
                    views[name].fill_(torch.nan)
        shim.launch_all(library, symbols, kernel, job.names, given, late, kept, memory, **scalars)
    except RuntimeError as error:
        return str(error)
    used = (y.double() - exact["y"]).abs() / ops.tolerance(point, tensors, exact)
    if not bool((used <= 1).all()):
        return f"uses {float(used.max()):.3g} of the tolerance"
    if "sum" in views and not torch.equal(views["sum"], check.rounded_sum(tensors["x"], tensors["residual"])):
        return "hands out a wrong sum"
    for name in large:
        outside = buffers[name].clone()
        outside.as_strided(y.shape, views[name].stride(), views[name].storage_offset()).fill_(torch.nan)
        if not bool(outside.isnan().all()):
            return f"writes outside the rows of {name}"
    entering = exact.get("sum", tensors["x"]).double()
    size, lost = float(entering.abs().max()), 2.0**-24 if "sum" in exact else 0.0  # what a sum in fp32 rounds away
    for name, tensor in saved.items():
        loose = 1e-2 if job.kind == "constant" else 1e-5 + lost * size * float(exact["rstd"].max())
        absolute = 1e-6 * size if name == "mean" else 0.0
        if tensor is not None and not torch.allclose(tensor.double(), exact[name], rtol=loose, atol=absolute):
            return f"saves a wrong {name}"
    return None


def problems(kernel: kernelfile.Kernel, jobs: list[Job], folder: Path) -> list[str]:
    symbols = shim.symbols_of(kernel, [job.names for job in jobs])
    headers = [str(path) for path in nvrtc.include_paths(nvrtc.version()[0])]
    library = shim.build(kernel, symbols, headers, folder)
    found = ((job, run(job, kernel, library, symbols)) for job in jobs)
    return [f"{job}: {problem}" for job, problem in found if problem]


@pytest.mark.parametrize("stem", STEMS)
def test_odd_shapes_of_every_type_agree_with_float64(stem: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / f"{stem}.cu")
    assert problems(kernel, jobs_of(kernel), tmp_path) == []


def test_variants_that_a_row_fills_agree_with_float64(tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / "cta_row.cu")
    jobs = []
    for op, dtype in (("layernorm", "bf16"), ("rmsnorm", "fp32"), ("add_layernorm", "fp16")):
        for hidden in (256, 512, 5120, 12288):
            point = Point(op, dtype, 3, hidden, semantics=Semantics(stats=True))
            names = kernelfile.launch_names(point, 90, 132, 16)
            for variant in kernel.variants([128, 256, 512], names):
                if variant["vecs"] in (3, 5) or (variant["lanes"] in (8, 16) and variant["vecs"] == 4):
                    jobs.append(Job(point, "offset", (0, 0, 0, 0, 0), False, names | variant, variant))
    assert {(job.variant["lanes"], job.variant["vecs"]) for job in jobs} == {(0, 3), (0, 5), (8, 4), (16, 4)}
    assert problems(kernel, jobs, tmp_path) == []


def odd_rmsnorm(job: Job) -> bool:
    return job.point.op == "rmsnorm" and job.point.hidden % 8 > 0


@pytest.mark.parametrize("stem", STEMS)
def test_both_cast_orders_and_an_offset_of_gamma_agree_with_float64(stem: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "forward" / f"{stem}.cu")
    jobs = jobs_of(kernel, GAMMA_SHAPES, GAMMAS)
    # one of a kind: each variant more is a second of g++
    kinds = {(job.point.op, job.point.dtype, job.names["GAMMA"], odd_rmsnorm(job)): job for job in jobs}
    assert {(op, 2) for op in kernel.ops if not ops.OPS[op].scale} <= {(op, gamma) for op, _, gamma, _ in kinds}
    for dtype in set(kernel.dtypes) - {"fp32"}:
        assert {1, 2, 3} <= {gamma for op, of, gamma, _ in kinds if (op, of) == ("rmsnorm", dtype)}
    assert problems(kernel, list(kinds.values()), tmp_path) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("(GAMMA & GAMMA_LLAMA) != 0", "false"), ("gamma + offset : gamma", "gamma : gamma")],
    ids=["one rounding too few", "no offset"],
)
def test_a_fault_in_the_way_to_gamma_is_seen(right: str, wrong: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(planted(tmp_path, "common/weights.cuh", right, wrong) / "forward" / "cta_row.cu")
    jobs = jobs_of(kernel, GAMMA_SHAPES, GAMMAS)[::2]
    assert problems(kernel, [job for job in jobs if job.point.op == "rmsnorm" and job.point.dtype == "bf16"], tmp_path)


ELEMENTS = 150_000  # of a case, at most: fibers are slow


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stem", ["cta_row", "span_row", "cluster_row", "few_rows"])
def test_every_adversarial_input_is_answered(stem: str, dtype: str, tmp_path: Path) -> None:
    """The inputs of ``verify`` for the norm that can cancel, each with one variant, judged as there."""
    import torch

    kernel = kernelfile.load(ROOT / "kernels" / "forward" / f"{stem}.cu")
    if dtype not in kernel.dtypes:
        pytest.skip(f"{stem} does not serve {dtype}")
    draw = random.Random(stem)
    cpu: Any = SimpleNamespace(torch=torch, device=torch.device("cpu"))
    chosen = []
    for case in cases.every("layernorm", dtype):
        if case.large or not 0 < case.point.rows * case.point.hidden < ELEMENTS:
            continue
        tensors = adversary.place(case, cpu)
        names = kernelfile.launch_names(case.point, 90, 132, tensors.alignment())
        variants = [] if kernel.refusal(names) else kernel.variants(BLOCKS, names)
        if variants:
            chosen.append((case, tensors, names | draw.choice(variants)))
    assert len(chosen) > (20 if stem == "span_row" else 30)  # which leaves aligned rows to cta_row
    symbols = shim.symbols_of(kernel, [names for _, _, names in chosen])
    headers = [str(path) for path in nvrtc.include_paths(nvrtc.version()[0])]
    library = shim.build(kernel, symbols, headers, tmp_path)
    wrong = []
    for case, tensors, names in chosen:
        point = case.point
        scalars = {"rows": point.rows, "hidden": point.hidden, "eps": point.semantics.eps}
        scalars |= {"x_stride": point.row_stride, "y_stride": point.hidden}
        pointers = {name: tensors.get(name) for name in shim.POINTERS}
        shim.launch_all(library, symbols, kernel, names, pointers, **scalars)
        verdict = check.check(check.expect(point, tensors.inputs), tensors.outputs())
        if verdict.status not in ("ok", "out_of_range"):
            wrong.append(f"{case.name}: {verdict.reason} {names}")
    assert wrong == []


PLANTED = [
    # in which file of which kernel, the text, what takes its place, and what that is
    ("naive", "common/reduce.cuh", "            __syncthreads();\n", "", "no barrier between the warps"),
    ("naive", "common/moments.cuh", "fmaf(-drift, drift, squares * inverse)", "squares * inverse", "drift kept"),
    (
        "cta_row",
        "common/reduce.cuh",
        "        __syncthreads();\n        return",
        "        return",
        "no wait for the parts",
    ),
    ("cta_row", "common/moments.cuh", "rsqrtf(positive + eps)", "rsqrtf(positive) + eps", "eps outside the root"),
    ("cta_row", "common/statistics.cuh", "inside(j) ? first : 0.0f", "first", "padding counted in the variance"),
    ("cta_row", "common/statistics.cuh", "            part.move(pivot);\n", "", "parts about different means added up"),
    ("cta_row", "common/statistics.cuh", "static_cast<float>(count())", "1.0f", "parts weigh the same"),
    (
        "cta_row",
        "forward/cta_row.cu",
        "        if constexpr (!FITS) {\n#pragma unroll 1\n            for (int p = VECS; p * pitch < left",
        "        if (false) {\n            for (int p = VECS; p * pitch < left",
        "columns past the registers cut",
    ),
    ("short_row", "forward/short_row.cu", "const float d = value - sums[r];", "const float d = value;", "no pivot"),
    ("short_row", "forward/short_row.cu", "gamma != nullptr, 1.0f", "gamma != nullptr, 0.0f", "an absent gamma of 0"),
    (
        "short_row",
        "forward/short_row.cu",
        "lane == 0) moments[r]",
        "r == 0) moments[0]",
        "one row's mean saved",
    ),
    ("span_row", "common/piece.cuh", "ODD && span.edge >= 0 ? 1 : 0", "1", "absent ends counted"),
    ("span_row", "common/copies.cuh", "head + vector * N + j", "head + vector * N + j + 1", "copies one element off"),
    ("span_row", "common/copies.cuh", "second ? 0.0f : 1.0f", "0.0f", "absent gamma taken for 0"),
    ("span_row", "common/copies.cuh", "(hidden / N + 31) / 32", "hidden / N / 32", "copies overlap"),
    (
        "span_row",
        "forward/span_row.cu",
        "        if constexpr (!adds) await_copies<NORM>();\n",
        "",
        "the copies not waited for",
    ),
    (
        "span_row",
        "forward/span_row.cu",
        "        await_copies<NORM>();\n        moments = plain",
        "        moments = plain",
        "element by element written before the launch before has ended",
    ),
    ("span_row", "common/piece.cuh", "return differ % 16 == 0", "return true", "y taken to be aligned as x is"),
    ("cluster_row", "common/cluster.cuh", "barrier_wait(&mail->arrived, parity);", "", "no wait for the parts"),
    ("cluster_row", "common/cluster.cuh", "int warp = rank *", "int warp = 0 *", "parts overwrite each other"),
    (
        "cluster_row",
        "forward/cluster_row.cu",
        "        cluster_wait();  // all",
        "        //",
        "sent to a block not started",
    ),
    ("cluster_row", "common/cluster.cuh", "return {mail + 1, rank, blocks}", "return {mail, rank, blocks}", "one mail"),
    (
        "cluster_row",
        "forward/cluster_row.cu",
        "        if constexpr (ODD && !adds) await_copies<NORM>();\n",
        "",
        "the copies not waited for",
    ),
    (
        "ring_row",
        "common/shares.cuh",
        "i <= classes; ++i) counters[i] = 0;",
        "i < 0; ++i) counters[i] = 0;",
        "rows already taken",
    ),
    (
        "ring_row",
        "common/mail.cuh",
        "cluster_blocks() == 1 ? 1 + senders : 1",
        "1",
        "a meeting that does not wait for all of a block",
    ),
    ("ring_row", "common/shares.cuh", "OWN * step + first", "OWN * step + 1 + first", "a row that nobody takes"),
    ("ring_row", "common/shares.cuh", "queue->row[(round - OWN) % PLACES]", "queue->row[0]", "a number of another row"),
    ("few_rows", "forward/few_rows.cu", "    await_previous();\n", "", "the launch before not waited for"),
    (
        "few_rows",
        "forward/few_rows.cu",
        "    await_previous();\n",
        "    if (left > 0) y[to] = T(0);\n    await_previous();\n",
        "written before the launch before has ended",
    ),
    ("few_rows", "forward/few_rows.cu", "if (gamma == nullptr) scale[p]", "if (true) scale[p]", "gamma ignored"),
]


@pytest.mark.parametrize(
    ("stem", "file", "right", "wrong", "what"), PLANTED, ids=[f"{one[0]}: {one[-1]}" for one in PLANTED]
)
def test_a_planted_fault_is_seen(stem: str, file: str, right: str, wrong: str, what: str, tmp_path: Path) -> None:
    kernel = kernelfile.load(planted(tmp_path, file, right, wrong) / "forward" / f"{stem}.cu")
    # where the draw has what the fault is in: clusters of one block, for mail.cuh
    dtype = "fp16" if stem in ("span_row", "cluster_row") or file == "common/mail.cuh" else "fp32"
    chosen = [job for job in jobs_of(kernel) if job.point.op == "layernorm" and job.point.dtype == dtype]
    assert problems(kernel, chosen, tmp_path), what


@pytest.fixture(scope="module")
def mutant_library(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, list[str]]:
    kernel = mutants.mutants()
    symbols = [mutant_symbol(kernel, fault, dtype) for fault in (0, *mutants.FAULTS) for dtype in kernel.dtypes]
    headers = [str(path) for path in nvrtc.include_paths(nvrtc.version()[0])]
    return shim.build(kernel, symbols, headers, tmp_path_factory.mktemp("mutants")), symbols


def mutant_symbol(kernel: kernelfile.Kernel, fault: int, dtype: str) -> str:
    return kernel.launches[0].symbol(kernelfile.compile_names("layernorm", dtype, dtype, 90) | {"fault": fault})


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("fault", [0, *mutants.FAULTS], ids=["right", *mutants.FAULTS.values()])
def test_a_mutant_is_wrong_and_the_kernel_around_it_is_right(
    fault: int, dtype: str, mutant_library: tuple[ctypes.CDLL, list[str]]
) -> None:
    """The sources that test_gpu.py runs on a GPU, judged by the checker of every measurement."""
    import torch

    library, symbols = mutant_library
    point = mutants.point(dtype)
    (tensors,) = make_sets(point, torch.device("cpu"), 1, 1)
    mutants.prepare(tensors.inputs["x"], fault)
    names = {name: tensors.get(name) for name in shim.POINTERS}
    scalars = {"rows": point.rows, "hidden": point.hidden, "x_stride": point.hidden, "y_stride": point.hidden}
    which = symbols.index(mutant_symbol(mutants.mutants(), fault, dtype))
    shape = shim.Shape(point.rows, mutants.BLOCK, 0, 1, (fault,))

    shim.launch(library, which, shape, names, **scalars, eps=point.semantics.eps)

    verdict = check.check(check.expect(point, tensors.inputs), tensors.outputs())
    assert verdict.status in (("ok",) if fault == 0 else ("wrong", "no_work"))
