"""The program ``sanitize`` runs under compute-sanitizer: every launch of a task, once, on buffers of exactly its size.

CUDA kernels run without torch: importing it takes longer than all launches, its cache gives tensors more memory than
they asked for, and its own kernels would be checked too. What is written here is written by copies from the host, so
that a read of anything else is a read of memory nobody wrote: gaps between rows, places before a shifted base.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

from normbench import ops
from normbench.contenders import Contender, CudaKernel, load
from normbench.gpu import fake_file
from normbench.points import ELEMENT_BYTES, Point
from normbench.tensors import Guarded, Tensors
from normbench.worker import die_with_parent

Values = numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """A tensor to make: ``rows`` rows of ``columns`` elements, ``pitch`` apart, ``shift`` elements off alignment."""

    rows: int
    columns: int
    pitch: int
    dtype: str
    shift: int

    @property
    def elements(self) -> int:
        """From the start of the allocation to the last element, and not one more."""
        return self.shift + (self.rows - 1) * self.pitch + self.columns


def shape(name: str, point: Point, shift: dict[str, int]) -> Shape:
    (*rows, columns), dtype = ops.extent(point, name)
    strided = name in ops.LARGE and name in ops.OPS[point.op].inputs and ops.layout(point) == "rows"
    return Shape(math.prod(rows), columns, point.row_stride if strided else columns, dtype, shift.get(name, 0))


Make = Callable[[Shape, Values | None], Any]


def place(point: Point, shift: dict[str, int], make: Make, seed: int) -> Tensors:
    """Inputs with random values and outputs that nobody has written."""
    random = numpy.random.default_rng(seed)
    inputs: dict[str, Any] = {"gamma": None, "beta": None}
    for name in ops.inputs(point):
        wanted = shape(name, point, shift)
        inputs[name] = make(wanted, random.standard_normal((wanted.rows, wanted.columns), numpy.float32))
    outputs = {name: make(shape(name, point, shift), None) for name in ops.outputs(point)}
    return Tensors(point, inputs, {name: Guarded(view, view) for name, view in outputs.items()})


class Block:
    """Driver memory of exactly the size asked for, with as much of a tensor's interface as a launch needs."""

    def __init__(self, wanted: Shape, values: Values | None = None) -> None:
        from cuda.bindings import driver

        self.shape, self._driver = wanted, driver
        size = ELEMENT_BYTES[wanted.dtype]
        self.base = int(checked(driver.cuMemAlloc(max(1, wanted.elements * size))))
        if values is not None:
            bits = numpy.ascontiguousarray(encoded(values, wanted.dtype))
            for row in range(wanted.rows):
                start = self.data_ptr() + row * wanted.pitch * size
                checked(driver.cuMemcpyHtoD(start, bits[row].ctypes.data, wanted.columns * size))

    def data_ptr(self) -> int:
        return self.base + self.shape.shift * ELEMENT_BYTES[self.shape.dtype]

    def dim(self) -> int:
        return 2 if self.shape.rows > 1 else 1

    def numel(self) -> int:
        return self.shape.rows * self.shape.columns

    def stride(self, axis: int) -> int:
        return self.shape.pitch

    def element_size(self) -> int:
        return ELEMENT_BYTES[self.shape.dtype]

    def free(self) -> None:
        checked(self._driver.cuMemFree(self.base))


def encoded(values: Values, dtype: str) -> Values:
    """fp32 numbers in the bits of ``dtype``; bf16 by truncation, which is near enough for what is never compared."""
    if dtype == "fp32":
        return values
    if dtype == "fp16":
        return values.astype(numpy.float16).view(numpy.uint16)
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)


def checked(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call.

    Raises:
        RuntimeError: it failed.
    """
    error, *values = answer
    if int(error):
        raise RuntimeError(f"the driver answered {error.name}")
    return values[0] if values else None


class CudaBench:
    """Launches CUDA kernels on driver memory alone; stands in for the GPU that ``CudaKernel.bind`` wants."""

    fake = False

    def __init__(self, task: dict[str, Any]) -> None:
        from cuda.core import Device

        self.arch, self.sm_count = task["arch"], task["sm_count"]
        self.made: list[Block] = []
        self.torch = SimpleNamespace(empty=self._scratch, zeros=self._zeros, uint8=None)
        self.device = Device(0)
        self.device.set_current()
        self.smem_optin_bytes = self.device.properties.max_shared_memory_per_block_optin
        self.stream = self.device.create_stream()

    def make(self, wanted: Shape, values: Values | None) -> Block:
        self.made.append(Block(wanted, values))
        return self.made[-1]

    def _scratch(self, size: int, dtype: Any = None, device: Any = None) -> Block:
        """Working memory of a launch, in bytes: as nobody has written it."""
        words = -(-size // 4)
        return self.make(Shape(1, words, words, "fp32", 0), None)

    def _zeros(self, size: int, dtype: Any = None, device: Any = None) -> Block:
        """The same of zeros, for a kernel that counts on them."""
        words = -(-size // 4)
        return self.make(Shape(1, words, words, "fp32", 0), numpy.zeros((1, words), numpy.float32))

    def launch(self, kernel: Contender, tensors: Tensors, variant: dict[str, int]) -> None:
        from cuda.core import launch

        bound: Any = kernel.bind(tensors, variant, self)  # type: ignore[arg-type] # all of a GPU that binding asks for
        self.device.sync()  # a copy from pageable memory may still be on its way, and not on our stream
        for config, handle, arguments in bound.steps:
            launch(self.stream, config, handle, *arguments)
        self.stream.sync()
        while self.made:
            self.made.pop().free()


class TritonBench:
    """Launches Triton kernels, which want torch, on torch's tensors without torch's cache."""

    def __init__(self) -> None:
        from normbench.gpu import CudaGpu

        self.gpu = CudaGpu()

    def make(self, wanted: Shape, values: Values | None) -> Any:
        torch = self.gpu.torch
        dtype = ops.torch_dtype(wanted.dtype)
        flat = torch.empty(wanted.elements, dtype=dtype, device=self.gpu.device)
        sizes, strides = ((wanted.rows, wanted.columns), (wanted.pitch, 1))
        view = flat.as_strided(sizes, strides, wanted.shift)
        if values is not None:
            for row, numbers in zip(view, torch.from_numpy(values).to(dtype), strict=True):
                row.copy_(numbers)
        return view if wanted.rows > 1 else view[0]

    def launch(self, kernel: Contender, tensors: Tensors, variant: dict[str, int]) -> None:
        kernel.bind(tensors, variant, self.gpu)()
        self.gpu.synchronize()


def main() -> int:
    """Run the task in the file named on the command line; one line in its ``done`` file for each launch that ended."""
    die_with_parent()
    task = json.loads(Path(sys.argv[1]).read_text())
    kernel = load(task["spec"], task["build"])
    bench: Any = None
    if fake_file() is None:
        bench = CudaBench(task) if isinstance(kernel, CudaKernel) else TritonBench()
    with Path(task["done"]).open("w", buffering=1) as done:
        for number, entry in enumerate(task["launches"]):
            point = Point.from_identity(entry["point"])
            if bench is not None:
                tensors = place(point, entry["shift"], bench.make, number)
                bench.launch(kernel, tensors, entry["variant"])
            done.write(f"{number}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
