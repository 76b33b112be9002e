"""NVIDIA's command-line tools: where they are, what version they have, and running another program under one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from normbench.formats import last_line
from normbench.supervise import end_group

# what brings each; its own environment variable comes first, then the PATH, then a toolkit
PACKAGES = {
    "ncu": "Nsight Compute",
    "compute-sanitizer": "the CUDA toolkit",
    "nvdisasm": "the CUDA toolkit, or pip install nvidia-cuda-nvdisasm",
}
VERSION = re.compile(r"\b[Vv]ersion (\d[\w.]*)")


class ToolMissing(Exception):
    """There is no such tool here; the text is the reason of a skipped row."""


@dataclass(frozen=True)
class Ran:
    """A program that has ended. code: None where it was ended for taking too long. out, err: all it printed."""

    code: int | None
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it said last, or how it ended."""
        return last_line(self.err) or last_line(self.out) or f"it ended with code {self.code}"


def variable(name: str) -> str:
    """The environment variable that names a tool's file: ``NORMBENCH_NCU``."""
    return f"NORMBENCH_{name.upper().replace('-', '_')}"


def find(name: str) -> Path:
    """The tool's executable.

    Raises:
        ToolMissing: it is nowhere, or its environment variable names something else.
    """
    given = os.environ.get(variable(name))
    for path in [given] if given else _places(name):
        found = shutil.which(path)
        if found:
            return Path(found)
    if given:
        raise ToolMissing(f"{variable(name)} names {given}, which is no program")
    raise ToolMissing(
        f"{name} is not installed ({PACKAGES[name]} brings it); put it on the PATH, or its path into {variable(name)}"
    )


def _places(name: str) -> Iterator[str]:
    yield name
    for home in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")):
        yield str(Path(home, "bin", name))
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        yield from map(str, sorted(Path(root).glob(f"*/bin/{name}")))


def present(name: str) -> bool:
    with contextlib.suppress(ToolMissing):
        return find(name).is_file()
    return False


def version(path: Path) -> str | None:
    """What ``--version`` says; None where it says nothing of the kind."""
    ran = run([str(path), "--version"], os.environ, 60.0)
    found = VERSION.search(ran.out)
    return found[1] if found else None


def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Ran:
    """Run to the end, or to the end of its time; then whatever it started is ended with it.

    Raises:
        ToolMissing: it cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolMissing(f"{command[0]} cannot be started: {error.strerror}") from error
    code: int | None
    try:
        out, err = process.communicate(timeout=timeout_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        end_group(process)
        out, err = process.communicate()
        code = None
    except BaseException:
        end_group(process)
        raise
    return Ran(code, out, err)
