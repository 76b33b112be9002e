"""What ``doctor`` looks at: each probe is a function of the host that yields lines.

A line is ``fail`` when it keeps this host from building a report, ``warn`` when it only costs something.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normbench import imports, nvml, nvrtc, sources, tools
from normbench.config import root
from normbench.formats import quantity
from normbench.host import FIRST_DRIVER, Host, Line, State, first_line

GIB = 2**30
TRIAL = "#include <cuda_fp16.h>\ntemplate <typename T> __global__ void trial(T* y) { *y = T(1.0f); }\n"
# what only a study on a GPU needs; a report from the archive is built without
MEASURING = frozenset({"torch", "triton", "cuda-core", "cuda-python", "nvidia-ml-py", "numpy"})


def python(host: Host) -> Iterator[Line]:
    yield Line("Python", "ok", f"{platform.python_version()}, {len(os.sched_getaffinity(0))} cores")


def packages(host: Host) -> Iterator[Line]:
    """Every dependency of pyproject.toml against what is installed."""
    from packaging.requirements import Requirement

    install = f"pip install -e '.[{host.extra}]'"
    for requirement in map(Requirement, _dependencies()):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        absent: State = host.grave if requirement.name in MEASURING else "fail"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Line(requirement.name, absent, "not installed", install)
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield Line(requirement.name, "ok", version)
        else:
            yield Line(requirement.name, "warn", f"{version}, wanted {requirement.specifier}", install)


def _dependencies() -> list[str]:
    path = root() / "pyproject.toml"
    if path.is_file():
        dependencies: list[str] = tomllib.loads(path.read_text())["project"]["dependencies"]
        return dependencies
    return [text for text in importlib.metadata.requires("normbench") or [] if "extra ==" not in text]


def compiler(host: Host) -> Iterator[Line]:
    """The runtime compiler, its headers, and whether the driver runs what it makes."""
    try:
        version, archs = _nvrtc()
    except Exception as error:
        yield Line("NVRTC", host.grave, f"not found ({first_line(error)})", f"pip install -e '.[{host.extra}]'")
        yield _suits(host, 13)
        return
    yield Line("NVRTC", "ok", f"{version[0]}.{version[1]}, knows sm_{', '.join(map(str, archs))}")
    yield _trial(host)
    yield _suits(host, version[0])


def _nvrtc() -> tuple[tuple[int, int], list[int]]:
    from cuda.bindings import nvrtc as bindings

    _, major, minor = bindings.nvrtcVersion()
    _, archs = bindings.nvrtcGetSupportedArchs()
    return (major, minor), list(archs)


def _trial(host: Host) -> Line:
    """Compile a kernel that includes a header of the toolkit, for the local architecture or else for sm_90."""
    arch = next((gpu.arch for gpu in host.gpus if gpu.arch), "sm_90")
    with TemporaryDirectory() as folder:
        source = Path(folder, "trial.cu")
        source.write_text(TRIAL)
        try:
            nvrtc.build(source, ["trial<__half>"], int(arch.removeprefix("sm_")))
        except Exception as error:
            return Line(
                "compiling", host.grave, f"for {arch}: {first_line(error)}", f"pip install -e '.[{host.extra}]'"
            )
    return Line("compiling", "ok", f"a trial kernel for {arch}, with the toolkit's headers")


def _suits(host: Host, major: int) -> Line:
    if host.driver is None:
        return Line("driver", "warn", "no NVIDIA driver", "nothing, if this host has no GPU: compiling needs none")
    if host.runs(major):
        return Line("driver", "ok", f"{host.driver} runs what NVRTC {major} makes")
    wanted = FIRST_DRIVER.get(major, FIRST_DRIVER[13])
    found = f"{host.driver} is older than {wanted}, the first that runs what NVRTC {major} makes"
    if host.runs(12):
        todo = "install PyTorch's build for CUDA 12, then pip install -e '.[cu12]' (NVRTC 12); or a newer driver"
    else:
        todo = f"install driver {FIRST_DRIVER[12]} or newer; {FIRST_DRIVER[13]} for NVRTC 13"
    return Line("driver", host.grave, found, todo)


def gpus(host: Host) -> Iterator[Line]:
    """NVML and each GPU: UUID, memory, MIG, who else is on it."""
    for note in host.notes:
        yield Line("NVML", "warn", note)
    if not host.gpus:
        yield Line("GPU", "warn", "none", "nothing: the report is then built from the archive, reports/data")
    for gpu in host.gpus:
        yield _fake(gpu) if gpu.fake is not None else _gpu(gpu)


def _fake(gpu: Any) -> Line:
    return Line(gpu.device, "warn", f"{gpu.name}, faked", "unset NORMBENCH_FAKE_GPU to measure; a fake is for tests")


def _gpu(gpu: Any) -> Line:
    query = nvml.Query(nvml.start())
    unit = query.ask("uuid", "nvmlDeviceGetHandleByUUID", gpu.uuid)
    total = query.ask("memory", "nvmlDeviceGetMemoryInfo", unit, take=lambda info: f"{info.total / 1e9:.0f} GB")
    running = query.ask("processes", "nvmlDeviceGetComputeRunningProcesses", unit) or []
    kind = "a MIG instance, so its peak bandwidth is not known" if gpu.mig else "no MIG"
    found = f"{gpu.name}, {gpu.arch or 'architecture unknown'}, {total or 'memory unknown'}, {kind}, {gpu.uuid}"
    if not running:
        return Line(gpu.device, "ok", found)
    pids = ", ".join(str(process.pid) for process in running)
    todo = "measure when it is free: a shared GPU gives the verdict shared_gpu"
    return Line(gpu.device, "warn", f"{found}; used by process {pids}", todo)


def inspectors(host: Host) -> Iterator[Line]:
    """What the targets sanitize, profile and audit run; nothing else wants it, and nothing here without a GPU."""
    if not host.gpus:
        return
    for name, target in (("compute-sanitizer", "sanitize"), ("ncu", "profile")):
        try:
            path = tools.find(name)
            yield Line(name, "ok", f"{tools.version(path) or 'of unknown version'}, {path}")
        except tools.ToolMissing as missing:
            yield Line(name, "warn", str(missing), f"nothing, unless you want the target {target}")
    version = sources.version("cuda-bench")
    if version:
        yield Line("NVBench", "ok", f"cuda-bench {version}")
    else:
        yield Line(
            "NVBench", "warn", "cuda-bench is not installed", "for all of the target audit: pip install -e '.[audit]'"
        )


def browser(host: Host) -> Iterator[Line]:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        yield Line("Chromium", "warn", "none", "optional: install chromium; without it the browser tests are skipped")
    else:
        yield Line("Chromium", "ok", path)


def disk(host: Host) -> Iterator[Line]:
    """Room for results/, and leave to write there."""
    here = root()
    free = shutil.disk_usage(here).free
    state: State = "ok" if free > 2 * GIB else "warn" if free > GIB // 4 else "fail"
    yield Line(
        "disk", state, f"{free / 1e9:.1f} GB free", "" if state == "ok" else "make room: compilers cache here too"
    )
    if not os.access(here, os.W_OK):
        yield Line("checkout", "fail", f"{here} is not writable", "copy the checkout to a folder of your own")


def archive(host: Host) -> Iterator[Line]:
    """A report needs a GPU or an archived run."""
    runs = sorted((root() / "reports" / "data").glob("*/*/machine.json"))
    devices = {path.parent.parent.name for path in runs}
    if runs:
        held = f"{quantity(len(runs), 'run')} of {quantity(len(devices), 'device')}"
        yield Line("archive", "ok", f"{held} in reports/data")
    elif host.gpus:
        yield Line("archive", "warn", "no run in reports/data", "the report then shows this host alone")
    else:
        yield Line(
            "archive", "fail", "no GPU here and no run in reports/data", "copy a published run into reports/data"
        )


PROBES: tuple[Callable[[Host], Iterator[Line]], ...] = (
    python,
    packages,
    gpus,
    compiler,
    imports.torch,
    imports.triton,
    imports.baselines,
    inspectors,
    browser,
    disk,
    archive,
)
