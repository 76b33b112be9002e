"""The Triton kernels on CPU tensors, in Triton's interpreter, against float64.

The interpreter is chosen when triton is first imported, so everything runs in one process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from normbench import kernelfile, ops
from normbench.points import Point, Semantics

ROOT = Path(__file__).resolve().parents[1]
STEMS = ("triton_loop", "triton_row", "triton_rows", "triton_split")
HIDDEN = (1, 2, 3, 31, 33, 64, 100, 1023, 2049)
SEMANTICS = (
    Semantics(),
    Semantics(stats=True),
    Semantics(gamma=False, beta=False),
    Semantics(beta=False, param_dtype="fp32", stats=True),
    Semantics(row_stride=2100, stats=True),
)
GAMMAS = (("llama", 0.0), ("torch", 1.0), ("llama", 1.0))  # cast order and offset of gamma
GUARD = 64
RANDOM = ("random", "in place")


def interpretable(stem: str) -> bool:
    """Triton before 3.7 turns loop bounds into integers in a way that NumPy 2.4 no longer allows."""
    triton, numpy = (tuple(map(int, metadata.version(name).split(".")[:2])) for name in ("triton", "numpy"))
    return stem == "triton_row" or triton >= (3, 7) or numpy < (2, 4)


def cases() -> list[tuple[Point, str]]:
    """Points and kinds of input: random ones of every shape, and those of K1, K2 and K5."""
    found = [
        (Point(op, dtype, rows, hidden, semantics=semantics), "random")
        for op in ops.OPS
        if not ops.OPS[op].backward and not ops.OPS[op].scale
        for dtype in ("fp32", "fp16", "bf16")
        for hidden in HIDDEN
        for rows, semantics in zip((1, 3, 3, 1, 3), SEMANTICS, strict=True)
    ]
    found += [
        (Point(op, dtype, 3, 100, semantics=Semantics(residual="round")), "random")
        for op in ("add_layernorm", "add_rmsnorm")
        for dtype in ("fp32", "fp16")
    ]
    found += [
        (Point(op, dtype, 2, 33, semantics=Semantics(cast=cast, offset=offset)), "random")
        for op in ("layernorm", "rmsnorm", "add_rmsnorm")
        for dtype in ("fp32", "fp16")
        for cast, offset in GAMMAS
        if cast == "torch" or ops.OPS[op].casts
    ]
    found += [
        (Point(op, dtype, 2, 2049, semantics=Semantics(residual=mode if op.startswith("add") else None)), "in place")
        for op in ("layernorm", "add_layernorm", "add_rmsnorm")
        for dtype in ("fp32", "fp16")
        for mode in ("fp32", "round")
        if op.startswith("add") or mode == "fp32"
    ]
    for kind in ("offset 1e2", "offset 1e4", "offset 1e6"):
        found.append((Point("layernorm", "fp32", 3, 1023), kind))
    found += [(Point("layernorm", "fp32", 1, hidden), "constant") for hidden in (256, 1023, 4096)]
    found += [(Point("layernorm", "fp32", 1, hidden), "count up") for hidden in (3, 17)]
    found.append((Point("layernorm", "fp32", 1, 1536), "three plus minus one"))
    found.append((Point("layernorm", "fp32", 1, 65536), "far start"))
    found += [(Point("layernorm", "fp32", 1, 1024), "two halves"), (Point("layernorm", "fp32", 1, 4096), "large start")]
    return found


def values(point: Point, kind: str) -> Any:
    import torch

    shape = (point.rows, point.hidden)
    if kind == "constant":
        return torch.full(shape, {256: 1234.0, 1023: 1234.5, 4096: 33333.3}[point.hidden])
    if kind == "count up":
        return torch.arange(1.0, point.hidden + 1).expand(shape) + (9 if point.hidden == 3 else 0)
    if kind == "three plus minus one":
        return 3 + torch.tensor([1.0, -1.0]).repeat(point.hidden // 2).expand(shape)
    # squares that fit about the mean, and not about the first 16
    if kind == "two halves":
        return 5.5e17 * torch.tensor([-1.0, 1.0]).repeat_interleave(point.hidden // 2).expand(shape)
    if kind == "large start":
        return 2.6e17 * torch.where(torch.arange(point.hidden) < 16, -1.0, 1.0).expand(shape)
    if kind == "far start":  # the mean is 64 standard deviations from that of the first 16
        return torch.randn(shape, dtype=torch.float64) + 1e3 * (torch.arange(point.hidden) < 16)
    offset = float(kind.split()[1]) if kind.startswith("offset") else 0.0
    return torch.randn(shape, dtype=torch.float64) + offset


def run_case(kernel: kernelfile.Kernel, module: Any, point: Point, kind: str, names: dict[str, Any]) -> str | None:
    """Run one variant on one point; what is wrong with its output, or None. names: of the launch, with its axes."""
    import torch

    torch.manual_seed(point.hidden)
    dtype, param = ops.torch_dtype(point.dtype), ops.torch_dtype(point.param_dtype)
    stride = point.row_stride
    buffers = [torch.full((point.rows * stride + 2 * GUARD,), torch.nan, dtype=dtype) for _ in "xryt"]
    x, residual, y, total = (
        b[GUARD : GUARD + point.rows * stride].view(point.rows, stride)[:, : point.hidden] for b in buffers
    )
    adds = ops.OPS[point.op].adds
    x.copy_(values(point, kind))
    residual.copy_(torch.randn(x.shape))
    tensors = {
        "x": x.clone(),
        "residual": residual.clone() if adds else None,
        "gamma": torch.randn(point.hidden).to(param) if ops.has_gamma(point) and kind in RANDOM else None,
        "beta": torch.randn(point.hidden).to(param) if ops.has_beta(point) and kind in RANDOM else None,
    }
    exact = ops.reference(point, tensors)
    stats = {name: torch.full((point.rows,), torch.nan) for name in ("mean", "rstd") if name in exact}
    saved = {name: stats.get(name) if ops.saves_stats(point) else None for name in ("mean", "rstd")}
    semantics = point.semantics
    scratch = {
        name: torch.full((int(kernelfile.evaluate(size, names)),), 0xED, dtype=torch.uint8)
        for name, size in kernel.scratch.items()
    }
    if kind == "in place":
        y, total, buffers[2:] = x, residual, buffers[:2]
    module.launch(
        SimpleNamespace(
            **tensors | {"x": x, "residual": residual if adds else None},
            **saved,
            y=y,
            sum=total if adds else None,
            rows=point.rows,
            hidden=point.hidden,
            x_stride=stride,
            y_stride=stride,
            eps=semantics.eps,
            norm=ops.OPS[point.op].norm,
            residual_mode=ops.residual_mode(point),
            scratch=SimpleNamespace(**scratch),
            cast=semantics.cast,
            offset=semantics.offset,
        ),
        **{axis: names[axis] for axis in kernel.axes},
    )
    if adds:
        right = (tensors["x"] + tensors["residual"]).double()
        # the interpreter cuts fp32 off to bf16 where hardware rounds
        allowed = ops.ulp(right.abs(), "bf16") if point.dtype == "bf16" else torch.zeros_like(right)
        if not bool(((total.double() - right).abs() <= allowed).all()):
            return "hands out a wrong sum"
    used = (y.double() - exact["y"]).abs() / ops.tolerance(point, tensors, exact)
    if not bool((used <= 1).all()):
        return f"uses {float(used.max()):.3g} of the tolerance"
    for buffer in buffers[2:]:
        outside = buffer.clone()
        outside[GUARD : GUARD + point.rows * stride].view(point.rows, stride)[:, : point.hidden] = torch.nan
        if not bool(outside.isnan().all()):
            return "writes outside its rows"
    for name, tensor in saved.items():
        if tensor is not None and not torch.allclose(tensor.double(), exact[name], rtol=1e-5, atol=1e-6):
            return f"saves a wrong {name}"
    return None


def tree(reduction: Any, values: tuple[Any, ...]) -> list[Any]:
    """A reduction in halves, as on hardware. The interpreter takes one value after the other: slow, and rounds more."""
    assert reduction.axis is not None
    assert not reduction.keep_dims
    dtypes = [value.dtype for value in values]
    parts = [value.handle.data for value in values]
    while parts[0].shape[reduction.axis] > 1:
        halves = [numpy.split(part, 2, reduction.axis) for part in parts]
        sides = [
            reduction.to_tensor(half[side], kind) for side in (0, 1) for half, kind in zip(halves, dtypes, strict=True)
        ]
        parts = [found.handle.data for found in reduction.combine_fn.fn(*sides)]
    flat = [part.squeeze(reduction.axis) for part in parts]
    return [
        reduction.to_tensor(part if part.shape else part.item(), kind) for part, kind in zip(flat, dtypes, strict=True)
    ]


def main() -> None:
    """In the interpreter's process: print what is wrong, by kernel, point and variant, as JSON."""
    from triton.runtime import interpreter

    from normbench.contenders import load_module

    interpreter.ReduceOps.generic_reduce = tree

    wrong = []
    for stem in filter(interpretable, STEMS):
        kernel = kernelfile.load(ROOT / "kernels" / "triton" / f"{stem}.py")
        module = load_module(kernel.path)
        # many programs share a row: a quarter of the cases is as much work
        for point, kind in cases()[:: 4 if kernel.scratch else 1]:
            if point.op not in kernel.ops:
                continue
            names = kernelfile.launch_names(point, 90, 132, kernelfile.pitch_alignment(point))
            if kernel.refusal(names):
                continue
            variants = kernel.variants([256], names)
            where = [stem, point.op, point.dtype, point.hidden, kind, str(point.semantics)]
            # the interpreter has no warps: variants that differ in them are one
            for variant in {v.get("chunk"): v for v in variants[:4]}.values():
                problem = run_case(kernel, module, point, kind, names | variant)
                if problem:
                    wrong.append([*where, variant, problem])
            if not variants:
                wrong.append([*where, {}, "no variant serves it"])
    print(json.dumps(wrong))


@pytest.fixture(scope="module")
def wrong() -> list[list[Any]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("stem", STEMS)
def test_odd_sizes_padding_offsets_and_strides_agree_with_float64(stem: str, wrong: list[list[Any]]) -> None:
    if not interpretable(stem):
        pytest.skip("the interpreter of Triton before 3.7 cannot loop under NumPy 2.4")
    assert [entry for entry in wrong if entry[0] == stem] == []


def test_triton_row_refuses_rows_that_no_block_holds() -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "triton" / "triton_row.py")
    point = Point("rmsnorm", "bf16", 8, 65537)
    reason = kernel.refusal(kernelfile.launch_names(point, 90, 132, 2))
    assert reason is not None
    assert "65536" in reason


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("hidden", [1, 31, 2048, 2049, 65536])
def test_every_served_row_has_a_variant(stem: str, hidden: int) -> None:
    kernel = kernelfile.load(ROOT / "kernels" / "triton" / f"{stem}.py")
    names = kernelfile.launch_names(Point("layernorm", "bf16", 8, hidden), 90, 132, 2)
    assert kernel.refusal(names) or kernel.variants([256], names)


@pytest.mark.parametrize("hidden", [1, 7, 8, 64, 100, 256, 768, 1023, 1024])
def test_short_rows_have_few_variants_each(hidden: int) -> None:
    """Each is compiled for every op and type, most of a second each."""
    kernel = kernelfile.load(ROOT / "kernels" / "triton" / "triton_rows.py")
    found = kernel.variants([256], kernelfile.launch_names(Point("rmsnorm", "bf16", 8, hidden), 90, 132, 2))
    assert 1 <= len(found) <= 4


if __name__ == "__main__":
    main()
