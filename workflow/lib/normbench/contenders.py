"""Whoever can do the work of a point: our CUDA and Triton kernels, the baselines, and callables from outside.

A contender says what it refuses, which variants it has, and binds itself to tensors; a bound contender is a function
that enqueues one launch on torch's current stream and returns its outputs by name. Where its last part only forms
dgamma and dbeta, ``rest`` is the same work without that part.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

from normbench import kernelfile, ops, schema
from normbench.check import yardstick
from normbench.gpu import REDUCTION_SHARE, FakeGpu, Gpu, Launch
from normbench.kernelfile import Kernel, Variant
from normbench.points import Point, canonical_json, short_hash
from normbench.sources import constant, regimes, version
from normbench.tensors import Tensors

PORTABLE_CLUSTER = 8  # blocks, on every architecture that has clusters
STATIC = ("registers", "spill_bytes", "smem_bytes", "blocks_per_sm")


class Unsupported(Exception):
    """The contender refuses this work; the text is the row's reason, its status is skipped."""


class Contender(Protocol):
    """What measuring code needs of a contender. ``sha`` changes when its numbers may."""

    stem: str
    lang: str
    sha: str
    copies: bool  # copies x to y: the yardstick, not a norm
    jit: str  # "hidden" or "rows" for a baseline that compiles each at its first call; else ""
    regimes: tuple[str, ...]  # of a study, that it is measured in
    compiler: str | None  # and its version, where we know what compiled it

    def refusal(self, point: Point, gpu: Gpu) -> str | None: ...

    def variants(self, point: Point, gpu: Gpu, blocks: list[int]) -> list[Variant]: ...

    def bind(self, tensors: Tensors, variant: Variant, gpu: Gpu) -> Launch: ...

    def static(self, point: Point, variant: Variant) -> dict[str, int]: ...


def namespace(tensors: Tensors) -> SimpleNamespace:
    """What a Triton ``launch`` and a baseline's ``prepare`` are given."""
    point = tensors.point
    return SimpleNamespace(
        **{name: tensors.get(name) for name in kernelfile.TENSORS},
        point=point,
        op=point.op,
        norm=ops.OPS[point.op].norm,
        residual_mode=ops.residual_mode(point),
        cast=ops.cast_order(point),
        offset=point.semantics.offset,
        rows=point.rows,
        hidden=point.hidden,
        inner=ops.inner(point),
        eps=point.semantics.eps,
        x_stride=point.row_stride,
        y_stride=pitch(tensors),
    )


def pitch(tensors: Tensors) -> int:
    """Elements between the rows of the output that is as large as x."""
    main = tensors.get(ops.OPS[tensors.point.op].main)
    return main.stride(0) if main is not None else tensors.point.hidden


def empty(tensors: Tensors) -> Launch:
    """The work on no rows: nothing to launch, and sums of nothing are zero."""
    outputs = tensors.outputs()

    def run() -> dict[str, Any]:
        for name, tensor in outputs.items():
            if name in ops.COLUMN_SUMS:
                tensor.zero_()
        return outputs

    return run


def rest(launch: Launch) -> Launch | None:
    """A bound launch on the same memory without what only forms dgamma and dbeta; None where it has no such part."""
    found: Launch | None = getattr(launch, "rest", None)
    return found


class Ours:
    """What the CUDA and the Triton contenders share."""

    copies = False
    jit = ""  # Triton kernels compile for each variant, but in their own way and fast

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.stem, self.lang, self.sha = kernel.stem, kernel.lang, kernel.sha
        self.regimes = kernel.regimes
        self.compiler: str | None = None

    def refusal(self, point: Point, gpu: Gpu) -> str | None:
        return self.kernel.refusal(self._names(point, gpu, kernelfile.pitch_alignment(point)))

    def variants(self, point: Point, gpu: Gpu, blocks: list[int]) -> list[Variant]:
        return self.kernel.variants(blocks, self._names(point, gpu, kernelfile.pitch_alignment(point)))

    def variants_for(self, tensors: Tensors, gpu: Gpu, blocks: list[int]) -> list[Variant]:
        """Variants for tensors whose bases may be misaligned."""
        return self.kernel.variants(blocks, self._names(tensors.point, gpu, tensors.alignment()))

    def _faked(self, tensors: Tensors, variant: Variant, gpu: FakeGpu) -> FakeLaunch:
        names = self._names(tensors.point, gpu, tensors.alignment()) | variant
        parted = bool(tensors.point.rows) and self.kernel.reduces(names)
        return FakeLaunch(self.stem, variant, tensors, gpu, parted=parted)

    def _scratch(self, names: dict[str, Any], gpu: Gpu) -> dict[str, Any]:
        """Working memory of one bound launch, by name, as nobody has written it unless the header wants zeros."""
        found = {}
        for name, size in self.kernel.scratch.items():
            make = gpu.torch.zeros if name in self.kernel.zeroed else gpu.torch.empty
            found[name] = make(int(kernelfile.evaluate(size, names)), dtype=gpu.torch.uint8, device=gpu.device)
        return found

    @staticmethod
    def _names(point: Point, gpu: Gpu, aligned: int) -> dict[str, Any]:
        return kernelfile.launch_names(point, gpu.arch, gpu.sm_count, aligned)


class CudaKernel(Ours):
    """A .cu file compiled to ``build`` (.json beside .cubin and .parquet)."""

    def __init__(self, kernel: Kernel, build: Path) -> None:
        super().__init__(kernel)
        self.build = json.loads(build.read_text())
        self.compiler = self.build.get("compiler")
        self.binary = build.with_suffix(".cubin").read_bytes()
        self.table = build.with_suffix(".parquet")
        self.sha = short_hash(kernel.sha + short_hash(self.binary, 32), 32)
        self._handles: dict[str, Any] = {}
        self._smem_bytes: dict[str, int] = {}

    def refusal(self, point: Point, gpu: Gpu) -> str | None:
        error = self.build.get("error")
        if error and not gpu.fake:
            raise CompileError(error)
        return super().refusal(point, gpu)

    @cached_property
    def _module(self) -> Any:
        return load_binary(self.binary, self.build["format"], self.build["lowered"])

    def _handle(self, symbol: str, smem_bytes: int, cluster: int) -> Any:
        """A kernel of the module, allowed what this launch asks for and what earlier ones of it asked for."""
        if symbol not in self.build["lowered"]:
            raise Unsupported(f"{symbol} is not compiled: its axes are outside the sweep")
        if symbol not in self._handles:
            self._handles[symbol] = self._module.get_kernel(symbol)
        handle = self._handles[symbol]
        # with a kernel's own static memory even less than 48 KB may be too much without the opt-in
        if smem_bytes > self._smem_bytes.get(symbol, 0):
            allow_smem(handle, smem_bytes)
            self._smem_bytes[symbol] = smem_bytes
        if cluster > PORTABLE_CLUSTER:
            allow_large_clusters(handle)
        return handle

    def bind(self, tensors: Tensors, variant: Variant, gpu: Gpu) -> Launch:
        if isinstance(gpu, FakeGpu):
            return self._faked(tensors, variant, gpu)
        if not tensors.point.rows:
            return empty(tensors)
        names = self._names(tensors.point, gpu, tensors.alignment()) | variant
        names |= self._resident(tensors.point, variant, names, gpu)
        scratch = self._scratch(names, gpu)
        launches = self.kernel.wanted(names)
        steps = [self._step(launch, names, tensors, scratch, gpu) for launch in launches]
        reducing = sum(launch.part == kernelfile.REDUCTION for launch in launches)
        return CudaLaunch(steps, tensors.outputs(), scratch, reducing)

    def _resident(self, point: Point, variant: Variant, names: dict[str, Any], gpu: Any) -> dict[str, int]:
        """``blocks_per_sm`` and ``clusters`` of the variant's first launch, as many as are resident at once.

        Clusters are the driver's to count: they lie within groups of multiprocessors, which hold no whole number of
        them, so that an H200 with 132 runs 30 clusters of 4 and 15 of 8. A block without a cluster counts as one.
        """
        first, *_ = self.kernel.launched(variant)
        blocks = self._costs(point, variant, [first]).get("blocks_per_sm", 1)  # not known of code the driver compiles
        names = names | {"blocks_per_sm": blocks}
        block, smem, cluster = (
            int(kernelfile.evaluate(text, names)) for text in (first.block[0], first.smem, first.cluster)
        )
        if not cluster or not self.kernel.asks("clusters"):
            return {"blocks_per_sm": blocks, "clusters": gpu.sm_count * blocks}
        handle = self._handle(first.symbol(names), smem, cluster)
        found = resident_clusters(handle, block, smem, cluster)
        if not found:
            raise Unsupported(f"no cluster of {cluster} blocks with {smem} bytes of shared memory each fits the device")
        return {"blocks_per_sm": blocks, "clusters": found}

    def _step(
        self, launch: kernelfile.Launch, names: dict[str, Any], tensors: Tensors, scratch: dict[str, Any], gpu: Any
    ) -> tuple[Any, Any, list[Any]]:
        from cuda.core import LaunchConfig

        smem, cluster = (int(kernelfile.evaluate(text, names)) for text in (launch.smem, launch.cluster))
        if smem > gpu.smem_optin_bytes:
            raise Unsupported(f"needs {smem} bytes of shared memory a block, the device offers {gpu.smem_optin_bytes}")
        grid = tuple(int(kernelfile.evaluate(text, names)) for text in launch.grid)
        block = tuple(int(kernelfile.evaluate(text, names)) for text in launch.block)
        if cluster:
            grid = (grid[0] // cluster, *grid[1:])
        config = LaunchConfig(
            grid=grid,
            block=block,
            cluster=cluster or None,
            shmem_size=smem,
            is_cooperative=launch.cooperative,
            programmatic_stream_serialization=bool(kernelfile.evaluate(launch.pdl, names)),
        )
        arguments = [_argument(name, names, tensors, scratch) for name in launch.args]
        return config, self._handle(launch.symbol(names), smem, cluster), arguments

    @cached_property
    def _resources(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for row in schema.read(self.table, schema.RESOURCES).iter_rows(named=True):
            best = found.setdefault(f"{row['op']} {row['variant']} {row['symbol']}", {})
            _worst(best, row)
        return found

    def static(self, point: Point, variant: Variant) -> dict[str, int]:
        return self._costs(point, variant, self.kernel.launched(variant))

    def _costs(self, point: Point, variant: Variant, launches: Iterable[kernelfile.Launch]) -> dict[str, int]:
        names = kernelfile.launch_names(point, 0, 0, 16) | variant
        found: dict[str, int] = {}
        for launch in launches:
            key = f"{point.op} {canonical_json(variant)} {launch.symbol(names)}"
            _worst(found, self._resources.get(key, {}))
        return found


def _worst(found: dict[str, int], other: Mapping[str, Any]) -> None:
    """Take over what ``other`` needs more of; of resident blocks, what it has fewer of."""
    for name in STATIC:
        if other.get(name) is not None:
            worse = min if name == "blocks_per_sm" else max
            found[name] = worse(found.get(name, other[name]), other[name])


def load_binary(binary: bytes, format: str, lowered: dict[str, str]) -> Any:
    """A compiled program in the current context; its kernels answer to their name expressions."""
    from cuda.core import Device, ObjectCode

    Device(0).set_current()
    load = ObjectCode.from_ptx if format == "ptx" else ObjectCode.from_cubin
    # cuda.core 1.2 hands the mapped name to the driver as it is, which takes bytes
    return load(binary, symbol_mapping={name: symbol.encode() for name, symbol in lowered.items()})


class CompileError(Exception):
    """The kernel did not compile; the text is the first useful line of the log."""


@dataclass
class CudaLaunch:
    """The launches of one bound CUDA kernel, of which the last ``reducing`` only form dgamma and dbeta; keeps scratch
    memory alive."""

    steps: list[tuple[Any, Any, list[Any]]]
    outputs: dict[str, Any]
    scratch: dict[str, Any]
    reducing: int = 0

    @property
    def rest(self) -> CudaLaunch | None:
        return replace(self, steps=self.steps[: -self.reducing], reducing=0) if self.reducing else None

    def __call__(self) -> dict[str, Any]:
        import torch
        from cuda.core import Stream, launch

        stream = Stream.from_handle(torch.cuda.current_stream().cuda_stream)
        for config, handle, arguments in self.steps:
            launch(stream, config, handle, *arguments)
        return self.outputs


def _argument(name: str, names: dict[str, Any], tensors: Tensors, scratch: dict[str, Any]) -> Any:
    import numpy

    point = tensors.point
    if name in scratch:
        return int(scratch[name].data_ptr())
    if name in ("hidden", "inner", "sm_count"):
        return numpy.int32(names[name])
    if name in ("rows", "x_stride", "y_stride"):
        return numpy.int64({"rows": point.rows, "x_stride": point.row_stride, "y_stride": pitch(tensors)}[name])
    if name in ("eps", "offset"):
        return numpy.float32(getattr(point.semantics, name))
    if name in names:
        return numpy.int32(names[name])
    tensor = tensors.get(name)
    return int(tensor.data_ptr()) if tensor is not None else 0


def resident_clusters(handle: Any, block: int, smem_bytes: int, cluster: int) -> int:
    """How many clusters of a kernel the current device runs at once, whatever else it could run."""
    from cuda.core import Device, LaunchConfig

    config = LaunchConfig(grid=1, block=block, cluster=cluster, shmem_size=smem_bytes)
    return int(handle.occupancy.max_active_clusters(config, stream=Device(0).default_stream))


def allow_smem(handle: Any, smem_bytes: int) -> None:
    """More than 48 KB of shared memory a block needs the opt-in."""
    said = f"{smem_bytes} bytes of shared memory a block"
    _allow(handle, "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", smem_bytes, said)


def allow_large_clusters(handle: Any) -> None:
    """More than eight blocks a cluster need the opt-in: not every device of an architecture has room for them."""
    said = f"clusters of more than {PORTABLE_CLUSTER} blocks"
    _allow(handle, "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, said)


def _allow(handle: Any, attribute: str, value: int, said: str) -> None:
    from cuda.bindings import driver

    kernel = driver.CUkernel(int(handle.handle))
    wanted = getattr(driver.CUfunction_attribute, attribute)
    (error,) = driver.cuKernelSetAttribute(wanted, value, kernel, driver.CUdevice(0))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise Unsupported(f"the driver refuses {said} ({error.name})")


class TritonKernel(Ours):
    """A Triton file: ``launch(t, **axes)`` enqueues one launch and returns the compiled kernel.

    One that asks ``t.reduces`` leaves out, where it is False, what only forms dgamma and dbeta.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.compiler = f"Triton {version('triton')}"
        self._static: dict[str, dict[str, int]] = {}

    @cached_property
    def module(self) -> ModuleType:
        return load_module(self.kernel.path)

    def given(self, tensors: Tensors, variant: Variant, gpu: Gpu) -> SimpleNamespace:
        """What ``launch`` is given: the names of ``namespace``, ``sm_count``, ``reduces`` and working memory of its
        own."""
        names = self._names(tensors.point, gpu, tensors.alignment()) | variant
        t = namespace(tensors)
        t.sm_count, t.reduces = gpu.sm_count, True
        t.scratch = SimpleNamespace(**self._scratch(names, gpu))
        return t

    def bind(self, tensors: Tensors, variant: Variant, gpu: Gpu) -> Launch:
        if isinstance(gpu, FakeGpu):
            return self._faked(tensors, variant, gpu)
        if not tensors.point.rows:
            return empty(tensors)
        return TritonLaunch(self, self.given(tensors, variant, gpu), variant, tensors.outputs())

    def launch(self, t: SimpleNamespace, variant: Variant) -> None:
        """Enqueue one launch over ``t``; what was compiled for it is known from then on."""
        compiled = self.module.launch(t, **variant)
        key = self._key(t.point, variant)
        if key not in self._static:
            self._static[key] = _triton_resources(compiled)

    @staticmethod
    def _key(point: Point, variant: Variant) -> str:
        return f"{point.op} {point.dtype} {point.hidden} {canonical_json(variant)}"

    def static(self, point: Point, variant: Variant) -> dict[str, int]:
        return self._static.get(self._key(point, variant), {})


@dataclass
class TritonLaunch:
    """One bound Triton kernel; ``given`` keeps its scratch memory alive."""

    contender: TritonKernel
    given: SimpleNamespace
    variant: Variant
    outputs: dict[str, Any]

    def __call__(self) -> dict[str, Any]:
        self.contender.launch(self.given, self.variant)
        return self.outputs

    @property
    def rest(self) -> TritonLaunch | None:
        if not (self.contender.kernel.parted and self.given.reduces):
            return None
        return replace(self, given=SimpleNamespace(**vars(self.given) | {"reduces": False}))


def _triton_resources(compiled: Any) -> dict[str, int]:
    """Registers, spills and shared memory as Triton read them when it loaded the kernel."""
    found: dict[str, int] = {}
    for name, attribute in (("registers", "n_regs"), ("spill_bytes", "n_spills")):
        value = getattr(compiled, attribute, None)
        if isinstance(value, int):
            found[name] = value
    shared = getattr(getattr(compiled, "metadata", None), "shared", None)
    if isinstance(shared, int):
        found["smem_bytes"] = shared
    return found


class External:
    """A baseline file (kernels/baselines/<stem>.py) or ``module:function`` from outside: ``prepare(t) -> launch``.

    A baseline that has gradients too has a ``prepare_backward(t)``, one that has the scale-only norms a
    ``prepare_scale(t)``; the function from outside is given every op.
    A baseline module names ``LANG`` (torch or library), ``DISTRIBUTION`` (for the version) and raises
    Unsupported, or ImportError where its package is absent. ``CHECK = "copy"`` marks the device copy, which is no norm;
    ``JIT`` is "hidden" or "rows" where each hidden size or number of rows is compiled at its first call. ``REGIMES``
    names the regimes of a study that it is raced in, with blanks between them, where they are not the usual ones;
    ``GAMMA`` what it can do with gamma beside multiplying the fp32 value by it: "llama", "offset" or both.
    """

    copies = False
    jit = ""
    regimes: tuple[str, ...] = schema.USUAL_REGIMES
    compiler: str | None = None

    def __init__(self, stem: str, lang: str, sha: str, load: Callable[[str], Any]) -> None:
        """``load``: the name an op has for it (``Op.prepared_by``), to the function that prepares its launches."""
        self.stem, self.lang, self.sha = stem, lang, sha
        self._load = cache(load)
        self.gammas = {"llama", "offset"}

    def refusal(self, point: Point, gpu: Gpu) -> str | None:
        if ops.cast_order(point) == "llama" and "llama" not in self.gammas:
            return f"{self.stem} is not raced with the cast order llama"
        if point.semantics.offset and "offset" not in self.gammas:
            return f"{self.stem} is not raced with an offset of gamma"
        return None

    def variants(self, point: Point, gpu: Gpu, blocks: list[int]) -> list[Variant]:
        return [{}]

    def bind(self, tensors: Tensors, variant: Variant, gpu: Gpu) -> Launch:
        if isinstance(gpu, FakeGpu):
            return FakeLaunch(self.stem, variant, tensors, gpu, self.copies)
        try:
            prepare = self._load(ops.OPS[tensors.point.op].prepared_by)
        except ImportError as error:
            raise Unsupported(f"not installed ({str(error).splitlines()[0]})") from error
        launch: Launch = prepare(namespace(tensors))
        return launch

    def static(self, point: Point, variant: Variant) -> dict[str, int]:
        return {}


def baseline(path: Path | str) -> External:
    path = Path(path)
    text = path.read_text()
    found = External(path.stem, constant(text, "LANG", "library"), short_hash(text, 32), partial(_prepare_of, path))
    found.copies = constant(text, "CHECK", "norm") == "copy"
    found.jit = constant(text, "JIT", "")
    found.regimes = regimes(text)
    found.gammas = found.gammas if found.copies else set(constant(text, "GAMMA", "").split())
    return found


RACED = {
    "prepare": "on scale-only norms only",
    "prepare_backward": "forward only",
    "prepare_scale": "on norms with parameters only",
}


def _prepare_of(path: Path, name: str) -> Any:
    module = load_module(path)
    if not hasattr(module, name):
        raise Unsupported(f"{path.stem} is raced {RACED[name]}")
    return getattr(module, name)


def external(spec: str) -> External:
    """``module:function``; the function is a baseline's ``prepare``."""
    module, _, function = spec.partition(":")

    def load(name: str) -> Any:
        return getattr(importlib.import_module(module), function)

    return External(function, "torch", short_hash(f"{spec}\n{_source(module)}", 32), load)


def _source(module: str) -> str:
    """Text of a Python module that is not imported yet; nothing where there is none to read."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a parent package is absent
        return ""
    return Path(found.origin).read_text() if found and found.origin and found.origin.endswith(".py") else ""


def load(spec: str, build: Path | str | None = None) -> Contender:
    """A contender from ``path.cu`` (with its build), a Triton ``path.py``, a baseline file or ``module:function``."""
    if ":" in spec and not Path(spec).exists():
        return external(spec)
    if Path(spec).parent.name == "baselines":
        return baseline(spec)
    kernel = kernelfile.load(spec)
    if kernel.lang == "triton":
        return TritonKernel(kernel)
    if build is None:
        raise ValueError(f"{spec}: a CUDA kernel needs its build")
    return CudaKernel(kernel, Path(build))


def load_module(path: Path) -> ModuleType:
    """Import a file by path under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"normbench_contender_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class FakeLaunch:
    """What every contender becomes on the faked GPU: the reference, written where the contender would write.

    parted: whether it has a part that only forms dgamma and dbeta; whole: whether that part is done.
    """

    stem: str
    variant: Variant
    tensors: Tensors
    gpu: FakeGpu
    copies: bool = False
    parted: bool = False
    whole: bool = True
    label: str = field(init=False)
    floor_us: float = field(init=False)

    def __post_init__(self) -> None:
        point = self.tensors.point
        self.label = f"{self.stem} {canonical_json(self.variant)} {point.op} {point.dtype} {point.hidden}"
        self.floor_us = ops.moved_bytes(point, self.copies) / 3e3 + 1.0
        if not self.whole:
            self.floor_us *= 1 - self.gpu.facts.get("reduction", {}).get(self.stem, REDUCTION_SHARE)
        if self.gpu.faults.get(self.stem) == "absent":
            raise Unsupported("not installed (planted)")

    @property
    def rest(self) -> FakeLaunch | None:
        return replace(self, parted=False, whole=False) if self.parted else None

    def __call__(self) -> dict[str, Any]:
        fault = self.gpu.faults.get(self.stem)
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "hang":
            time.sleep(3600)
        if fault == "raise":
            raise RuntimeError("planted failure")
        if fault == "memory":
            raise self.gpu.torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB (planted)")
        outputs = self.tensors.outputs()
        if fault == "no_work":
            return outputs
        point, inputs = self.tensors.point, self.tensors.inputs
        if self.copies and (copied := yardstick(inputs)) is not None:
            main = ops.OPS[point.op].main
            residual = inputs["residual"] if ops.OPS[point.op].adds else None
            added = {} if residual is None else {"sum": outputs["sum"].copy_(residual)}
            return {main: outputs[main].copy_(copied)} | added
        exact = ops.reference(point, inputs)
        for name, tensor in outputs.items():
            if name in ops.COLUMN_SUMS and not self.whole:
                continue
            right = ops.laid_out(point, exact[name]) if name in ops.LARGE else exact[name]
            tensor.copy_(right * (1.5 if fault == "wrong" else 1.0))
        return outputs
