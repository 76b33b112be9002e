"""The mutants in CUDA form: what each gets wrong, the input on which that shows, and mutants of a launch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from normbench import kernelfile
from normbench.points import Point

FOLDER = Path(__file__).parent / "mutants" / "forward"
# in the order of the file's enumeration; 0 is right
FAULTS = {
    1: "padding in the variance",
    2: "mean subtracted twice",
    3: "eps outside the root",
    4: "gamma indexed by row",
    5: "gamma ignored",
    6: "unweighted Welford merge",
    7: "missing barrier",
    8: "last columns skipped",
}
EPS_OUTSIDE = 3
BLOCK = 256  # more threads than columns: some have nothing, and the row is no multiple of anything
WIDTH = 101
QUIET = 1e-3  # of the input's own size: there eps is as large as the variance


def mutants() -> kernelfile.Kernel:
    return kernelfile.load(FOLDER / "mutants.cu")


def planted() -> kernelfile.Kernel:
    return kernelfile.load(FOLDER / "planted.cu")


def point(dtype: str, rows: int = 16) -> Point:
    return Point("layernorm", dtype, rows, WIDTH)


def prepare(x: Any, fault: int) -> None:
    """Make a random ``x`` one on which the fault shows."""
    x += 0.5
    if fault == EPS_OUTSIDE:
        x *= QUIET


class Wrapped:
    """A right contender whose launches are tampered with; ``bind`` is given the right launch and its tensors."""

    copies = False

    def __init__(self, contender: Any, tamper: Any) -> None:
        self.contender, self.tamper = contender, tamper
        self.memory = SimpleNamespace(calls=0, outputs=None)

    def bind(self, tensors: Any, variant: dict[str, int], gpu: Any) -> Any:
        right = self.contender.bind(tensors, variant, gpu)
        return lambda: self.tamper(self.memory, right, tensors, gpu)


def cached(memory: Any, right: Any, tensors: Any, gpu: Any) -> Any:
    """The first answer, handed out again whatever is asked."""
    if memory.outputs is None:
        memory.outputs = {name: tensor.clone() for name, tensor in right().items()}
    outputs = tensors.outputs()
    for name, tensor in outputs.items():
        tensor.copy_(memory.outputs[name])
    return outputs


def every_second(memory: Any, right: Any, tensors: Any, gpu: Any) -> Any:
    """Every second call does nothing."""
    memory.calls += 1
    return right() if memory.calls % 2 else tensors.outputs()


def elsewhere(memory: Any, right: Any, tensors: Any, gpu: Any) -> Any:
    """Launched on a stream that nobody times or waits for."""
    if memory.outputs is None:
        memory.outputs = gpu.torch.cuda.Stream()
    with gpu.torch.cuda.stream(memory.outputs):
        return right()


LAUNCH_FAULTS = (cached, every_second, elsewhere)
