"""What decides a number besides the study itself: our own measuring sources, and the versions of everything below."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from normbench import schema
from normbench.points import canonical_json, short_hash

# files of this package that define what a number means; editing one re-measures, so they hold nothing else
MEASURING = (
    "ops.py",
    "gradients.py",
    "points.py",
    "kernelfile.py",
    "tensors.py",
    "check.py",
    "gpu.py",
    "contenders.py",
    "observe.py",
    "timing.py",
    "streams.cu",
    "streams.py",
    "overlap.py",
    "roofs.py",
    "ceilings.py",
    "trial.py",
    "tuning.py",
    "racing.py",
    "worker.py",
    "harness.py",
    "measure.py",
    "showdown.py",
)
# what decides a check of ``verify`` besides
VERIFYING = ("adversary.py", "eager.py", "inputs.py", "verify.py", "wide.py")
# what decides a row of ``audit``, ``sanitize`` and ``profile`` besides
AUDITING = ("audit.py", "auditing.py")
SANITIZING = ("sanitize.py", "sanitizer.py", "sanitizing.py", "oddities.py", "tools.py")
PROFILING = ("profile.py", "profiler.py", "profiling.py", "sass.py", "tools.py")
PACKAGE = Path(__file__).parent
BASELINES = PACKAGE.parents[2] / "kernels" / "baselines"


def measuring_modules() -> list[Path]:
    """The files of MEASURING that exist, in its order."""
    paths = (PACKAGE / name for name in MEASURING)
    return [path for path in paths if path.is_file()]


def kernel_sources(kernels: Path | str) -> list[Path]:
    """Every source below kernels/, baselines and headers included, sorted."""
    return sorted(path for path in Path(kernels).rglob("*") if path.suffix in (".cu", ".cuh", ".py"))


def sources(kernels: Path | str = "kernels") -> str:
    """Seven hex digits that change when a measuring module or a kernel source does: the column ``sources``."""
    return _hash([*measuring_modules(), *kernel_sources(kernels)])[:7]


def measuring() -> str:
    """Hash of the measuring modules alone, for journals that know their kernel's own hash."""
    return _hash(measuring_modules())[:16]


def verifying() -> str:
    """Hash of the modules that ``verify`` has besides, its inputs among them."""
    return _hash(PACKAGE / name for name in VERIFYING)[:16]


def auditing() -> str:
    """Hash of the modules that ``audit`` has besides."""
    return _hash(PACKAGE / name for name in AUDITING)[:16]


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def version(distribution: str) -> str | None:
    """Version of an installed distribution, read from its metadata without importing it; None where it is absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def nvrtc_version() -> str | None:
    """Version of the NVRTC wheel, whose name changed with CUDA 13."""
    return version("nvidia-cuda-nvrtc") or version("nvidia-cuda-nvrtc-cu12")


def distributions() -> dict[str, str]:
    """What each baseline of the checkout races, by baseline: the DISTRIBUTION of its file, torch's own left out."""
    texts = {path.stem: path.read_text() for path in sorted(BASELINES.glob("*.py"))}
    found = {name: constant(text, "DISTRIBUTION", "torch") for name, text in texts.items()}
    return {name: distribution for name, distribution in found.items() if distribution != "torch"}


def constant(text: str, name: str, default: str) -> str:
    """A string constant of a module, read without importing it."""
    found = re.search(rf'^{name} = "([^"]+)"$', text, re.MULTILINE)
    return found[1] if found else default


def regimes(text: str) -> tuple[str, ...]:
    """The regimes of a study that a baseline is raced in: the REGIMES of its module."""
    return tuple(constant(text, "REGIMES", " ".join(schema.USUAL_REGIMES)).split())


def baseline_versions() -> dict[str, str]:
    """Versions of the baseline libraries that are installed, by baseline."""
    found = {name: version(distribution) for name, distribution in distributions().items()}
    if found.get("apex") and not _is_nvidia_apex():
        del found["apex"]
    return {name: text for name, text in sorted(found.items()) if text}


def _is_nvidia_apex() -> bool:
    """Whether ``apex`` is NVIDIA's: the package index has another project of that name."""
    spec = find_spec("apex")
    return any((Path(folder) / "normalization").is_dir() for folder in (spec and spec.submodule_search_locations) or ())


def versions(driver: str | None) -> str:
    """A short hash of the driver's, torch's, Triton's and the baselines' versions, for a rule parameter."""
    return short_hash(canonical_json([driver, version("torch"), version("triton"), baseline_versions()]))
