"""Probes of ``doctor`` that import a package: torch, Triton, the baselines.

Each import runs in a process of its own: one that loads a broken library, hangs or dies is a line like any other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from normbench import sources
from normbench.host import Host, Line

TIMEOUT_S = 120
BUNDLED = frozenset({"liger", "quack", "flashinfer", "cudnn"})  # by the extra `baselines` of pyproject.toml
ELSEWHERE = {
    "apex": "build NVIDIA's Apex from its source repository",
    "transformer_engine": "pip install --no-build-isolation 'transformer-engine[pytorch]'",
}


TORCH = """
import json, torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "sees": torch.cuda.is_available(),
                  "names": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]}))
"""


def torch(host: Host) -> Iterator[Line]:
    """Whether torch is a CUDA build and reaches the GPU, asked in a process of its own."""
    code, text = _python(TORCH)
    if code:
        yield Line("torch and CUDA", host.grave, _last_line(text), "mend or reinstall torch")
        return
    facts = json.loads(text.splitlines()[-1])
    build = f"built for CUDA {facts['cuda']}" if facts["cuda"] else "a CPU build"
    if facts["sees"]:
        yield Line("torch and CUDA", "ok", f"{build}, sees {', '.join(facts['names'])}")
    elif host.real:
        todo = "install the PyTorch build for the driver's CUDA version, or update the driver"
        yield Line("torch and CUDA", "fail", f"{build}, sees no GPU", todo)
    else:
        yield Line("torch and CUDA", "ok", f"{build}; there is no GPU to see")


def triton(host: Host) -> Iterator[Line]:
    """Triton imports, and finds the C compiler and the Python headers that it builds its launchers with."""
    code, text = _python("import triton; print(triton.__version__)")
    if code:
        yield Line(
            "Triton", host.grave, _last_line(text), "Triton contenders and torch.compile will be rows with a reason"
        )
        return
    yield Line("Triton", "ok", _last_line(text))
    path = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if path is None:
        yield Line(
            "C compiler", "warn", "none", "install gcc, or set CC: Triton and torch.compile build launchers with it"
        )
    elif not Path(sysconfig.get_path("include"), "Python.h").is_file():
        yield Line("C compiler", "warn", f"{path}, but no Python.h", "install Python's headers (Debian: python3-dev)")
    else:
        yield Line("C compiler", "ok", f"{path}, with Python.h")


def baselines(host: Host) -> Iterator[Line]:
    """The public libraries to race against; an absent one is a row with its reason, never an error."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = sources.distributions()
        yield from pool.map(_baseline, found, found.values())


def _baseline(name: str, distribution: str) -> Line:
    """Whether kernels/baselines/<name>.py, which imports what it races, can be loaded."""
    what = f"baseline {name}"
    install = "pip install -e '.[baselines]'" if name in BUNDLED else ELSEWHERE.get(name, f"pip install {distribution}")
    version = sources.version(distribution)
    if version is None:
        return Line(what, "warn", "not installed", f"optional: {install}")
    path = sources.BASELINES / f"{name}.py"
    code, text = _python(f"import runpy; runpy.run_path({str(path)!r})")
    if not code:
        return Line(what, "ok", version)
    reason = _last_line(text)
    if name == "apex" and "No module named 'apex.normalization'" in reason:
        reason = "not NVIDIA's Apex but another project of that name: it has no apex.normalization"
    return Line(what, "warn", f"{version}: {reason}", f"optional: {install}")


def _python(code: str) -> tuple[int, str]:
    """Exit code and output of a Python process; 124 when it hangs."""
    command = [sys.executable, "-c", code]
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {TIMEOUT_S} s"
    if done.returncode < 0:
        return done.returncode, f"{done.stderr}\nthe process died of signal {-done.returncode}"
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
