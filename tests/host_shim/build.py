"""Builds a CUDA kernel file as a host library and launches variants of it on torch CPU tensors."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench import kernelfile
from normbench.tensors import guarded

HERE = Path(__file__).parent
POINTERS = kernelfile.TENSORS
_SIGNATURE = ", ".join(f"void* {name}" for name in POINTERS)
_SIGNATURE += (
    ", void* const* scratch, long long rows, int hidden, int inner, long long x_stride, long long y_stride, float eps"
    ", float offset, int sm_count"
)


def build(kernel: kernelfile.Kernel, symbols: Iterable[str], includes: Iterable[str], folder: Path) -> ctypes.CDLL:
    """Compile the kernel file with g++, one entry for each name expression.

    Raises:
        RuntimeError: g++ found an error; its text is the message.
    """
    source, library = folder / f"{kernel.stem}.cpp", folder / f"{kernel.stem}.so"
    source.write_text(_source(kernel, list(symbols)))
    flags = ["-std=c++17", "-O1", "-g", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC", "-shared", "-w"]
    paths = [f"-I{HERE}", f"-I{kernel.path.resolve().parent.parent}", *(f"-isystem{path}" for path in includes)]
    done = subprocess.run(["g++", *flags, *paths, str(source), "-o", str(library)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return ctypes.CDLL(str(library))


def _source(kernel: kernelfile.Kernel, symbols: list[str]) -> str:
    named = {axis: f"axes[{index}]" for index, axis in enumerate(kernel.axes)}
    named |= {name: f"scratch[{index}]" for index, name in enumerate(kernel.scratch)}
    cases = "\n".join(
        _case(index, symbol, [named.get(argument, argument) for argument in _launch_of(kernel, symbol).args])
        for index, symbol in enumerate(symbols)
    )
    return f"""#include "cuda_on_host.hpp"
#include "{kernel.path.resolve()}"
template <typename... P, typename... A>
void call(void (*kernel)(P...), A... arguments) {{ kernel((P)arguments...); }}
extern "C" void hold(char* place, const char* values, unsigned long long bytes) {{
    host::in_hand.push_back({{place, std::vector<char>(values, values + (values ? bytes : 0)), {{}}, bytes}});
}}
extern "C" const char* run(int which, unsigned grid, unsigned block, unsigned memory, unsigned cluster,
    unsigned together, const int* axes, {_SIGNATURE}) {{
    static std::string error;
    struct Release {{ ~Release() {{ host::in_hand.clear(); }} }} release;
    try {{
        host::launch({{grid, block, memory, cluster, together}}, [&] {{
            switch (which) {{
{cases}
            }}
        }});
    }} catch (const std::exception& problem) {{
        error = problem.what();
        return error.c_str();
    }}
    return nullptr;
}}
"""


def _launch_of(kernel: kernelfile.Kernel, symbol: str) -> kernelfile.Launch:
    """The launch that a name expression is of: the launches of a file are of different templates."""
    template = symbol.partition("<")[0]
    return next(launch for launch in kernel.launches if launch.name.partition("<")[0] == template)


def _case(index: int, symbol: str, arguments: Iterable[str]) -> str:
    return f"            case {index}: call({symbol}, {', '.join(arguments)}); break;"


@dataclass(frozen=True)
class Shape:
    """Of a launch: blocks, threads a block, bytes of shared memory that it asks for, blocks a cluster, axes.

    axes: their values in the order of the header, for kernels that take them as arguments.
    together: blocks that run side by side, where they are more than a cluster.
    """

    grid: int
    block: int
    smem: int
    cluster: int
    axes: tuple[int, ...]
    together: int = 0


def launch(
    library: ctypes.CDLL,
    which: int,
    shape: Shape,
    tensors: Mapping[str, Any],
    scratch: Sequence[Any] = (),
    late: Sequence[Any] = (),
    kept: Sequence[Any] = (),
    **scalars: Any,
) -> None:
    """Run one variant. scratch: working memory, in the order of the header.

    late, kept: contiguous tensors that the launch before writes, or reads, as it ends; until the kernel waits for
    that, the late ones hold NaN and the kept ones must stay as they are.

    Raises:
        RuntimeError: a deadlock, a trap or a misuse of a warp intrinsic.
    """
    for tensor in late:
        _hold(library, tensor, tensor.data_ptr())
    for tensor in kept:
        _hold(library, tensor, None)
    run = library.run
    run.restype = ctypes.c_char_p
    given = [tensors.get(name) for name in POINTERS]
    pointers = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in given]
    error = run(
        which,
        *map(ctypes.c_uint, (shape.grid, shape.block, shape.smem, shape.cluster, shape.together or shape.cluster)),
        (ctypes.c_int * len(shape.axes))(*shape.axes),
        *pointers,
        (ctypes.c_void_p * len(scratch))(*(memory.data_ptr() for memory in scratch)),
        ctypes.c_longlong(scalars["rows"]),
        ctypes.c_int(scalars["hidden"]),
        ctypes.c_int(scalars.get("inner", 1)),
        ctypes.c_longlong(scalars["x_stride"]),
        ctypes.c_longlong(scalars["y_stride"]),
        ctypes.c_float(scalars["eps"]),
        ctypes.c_float(scalars.get("offset", 0.0)),
        ctypes.c_int(scalars.get("sm_count", 0)),
    )
    if error is not None:
        raise RuntimeError(error.decode())


def memory_of(kernel: kernelfile.Kernel, names: Mapping[str, Any]) -> list[Any]:
    """Working memory between guards, in the order of the header: of NaN, or zero where the kernel asks for it."""
    import torch

    found = []
    for name, size in kernel.scratch.items():
        one = guarded((int(kernelfile.evaluate(size, names)) // 4,), torch.float32, torch.device("cpu"))
        one.poison()
        if name in kernel.zeroed:
            one.view.zero_()
        found.append(one)
    return found


def launch_all(
    library: ctypes.CDLL,
    symbols: Sequence[str],
    kernel: kernelfile.Kernel,
    names: Mapping[str, Any],
    tensors: Mapping[str, Any],
    late: Sequence[Any] = (),
    kept: Sequence[Any] = (),
    memory: Sequence[Any] | None = None,
    **scalars: Any,
) -> None:
    """Every launch of the variant in ``names``.

    memory: as ``memory_of`` made it, for launches that find what others left.
    Of launches that may begin before the one before them has ended, the first one finds ``late`` and ``kept`` in that
    one's hand, as ``launch`` says, and later ones the working memory and ``kept``.

    Raises:
        RuntimeError: as ``launch``, or something was written beside the working memory.
    """
    memory = memory_of(kernel, names) if memory is None else memory
    scratch = [one.view for one in memory]
    for index, step in enumerate(kernel.wanted(names)):
        early = bool(kernelfile.evaluate(step.pdl, names))
        texts = (step.grid[0], step.block[0], step.smem, step.cluster)
        grid, block, smem, cluster = (int(kernelfile.evaluate(text, names)) for text in texts)
        if "blocks_per_sm" in step.grid[0]:  # where blocks stay for several rows any grid is right
            grid = min(grid, 3 * max(cluster, 1))
        shape = Shape(grid, block, smem, max(cluster, 1), tuple(names[axis] for axis in kernel.axes))
        held = {"late": scratch if index else late, "kept": kept} if early else {}
        launch(library, symbols.index(step.symbol(names)), shape, tensors, scratch, **held, **scalars)
    if not all(one.guards_intact() for one in memory):
        raise RuntimeError("writes beside its working memory")


def symbols_of(kernel: kernelfile.Kernel, variants: Iterable[Mapping[str, Any]]) -> list[str]:
    """The name expressions that the launches of some variants, with their work, are of."""
    return sorted({step.symbol(names) for names in variants for step in kernel.wanted(names)})


def _hold(library: ctypes.CDLL, tensor: Any, values: int | None) -> None:
    """Take a tensor in hand; its values are copied."""
    library.hold.restype = None
    size = tensor.numel() * tensor.element_size()
    library.hold(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(values), ctypes.c_ulonglong(size))
