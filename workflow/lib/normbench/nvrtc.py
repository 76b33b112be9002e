"""CUDA source to cubin with NVRTC, through cuda.core; needs neither GPU nor driver."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HEADER = "cuda_fp16.h"
_IMPORTING = threading.Lock()  # cuda.core chooses its backend while it is imported; two threads at once see half of it
# below site-packages/nvidia, by the compiler's major version; 12 spreads its headers over several wheels
WHEELS: dict[int, tuple[str, ...]] = {
    12: ("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"),
    13: ("cu13/include", "cu13/include/cccl"),
}


class ToolchainError(ValueError):
    """NVRTC or its headers are missing, or too new for the architecture; the message says what to do."""


class CompileError(ValueError):
    """The source does not compile; the message is the first useful line of the log, ``log`` is all of it."""

    def __init__(self, log: str) -> None:
        super().__init__(first_error(log))
        self.log = log


@dataclass(frozen=True)
class Built:
    """A compiled program.

    format: ``cubin``, or ``ptx`` where this NVRTC does not know the architecture yet and the driver must finish
    (``jit``). arch: what it was compiled for. lowered: mangled names by name expression. log: the compiler's, with what
    ``ptxas -v`` says.
    """

    binary: bytes
    format: str
    arch: str
    lowered: dict[str, str]
    log: str
    compiler: str

    @property
    def jit(self) -> bool:
        return self.format == "ptx"


def build(source: Path, expressions: Sequence[str], arch: int, lineinfo: bool = False) -> Built:
    """Compile one file with all its instantiations in one program: 60 of them take 1.8 s, in 60 programs 4.4 s.

    The same source gives the same bytes in every process; only the file's name enters them, never its folder.
    lineinfo: with the source lines of the instructions, for tools; the instructions are the same.

    Raises:
        ToolchainError: no NVRTC, no headers, or an architecture that this NVRTC no longer knows.
        CompileError: the source has an error.
    """
    (major, minor), supported = _compiler()
    target, final = _target(arch, supported, (major, minor))
    log = io.StringIO()
    with _IMPORTING:
        from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=source.name,
        arch=f"sm_{target}" if final else f"compute_{target}",
        std="c++17",
        include_path=[str(path) for path in (source.parent.parent, source.parent, *include_paths(major))],
        device_as_default_execution_space=True,  # lambdas are device code
        ptxas_options=["-v"] if final else None,
        lineinfo=lineinfo or None,
    )
    program = Program(source.read_text(), "c++", options)
    try:
        code: Any = program.compile("cubin", name_expressions=tuple(expressions), logs=log)
        binary = bytes(code.code) if final else _ptx(program.handle)
    except Exception as error:  # cuda.core names its exception types in private modules only
        if "NVRTC_ERROR_COMPILATION" not in str(error):
            raise
        raise CompileError(str(error).partition("compilation log:")[2] or str(error)) from error
    finally:
        program.close()
    lowered = {name: _decode(code.symbol_mapping[name]) for name in sorted(set(expressions))}
    return Built(
        binary=binary,
        format="cubin" if final else "ptx",
        arch=f"{'sm' if final else 'compute'}_{target}",
        lowered=lowered,
        log=log.getvalue(),
        compiler=f"NVRTC {major}.{minor}",
    )


def _ptx(handle: Any) -> bytes:
    """PTX of a compiled program; asked of NVRTC itself, since cuda.core wants a driver for that target."""
    from cuda.bindings import nvrtc

    _, size = nvrtc.nvrtcGetPTXSize(handle)
    text = b" " * size
    nvrtc.nvrtcGetPTX(handle, text)
    return bytes(text.rstrip(b"\0"))


def _decode(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def version() -> tuple[int, int]:
    """Major and minor version of the NVRTC in use.

    Raises:
        ToolchainError: there is none.
    """
    return _compiler()[0]


@cache
def _compiler() -> tuple[tuple[int, int], tuple[int, ...]]:
    """Version and supported architectures of the NVRTC that cuda.core will use."""
    try:
        from cuda.bindings import nvrtc

        asked, major, minor = nvrtc.nvrtcVersion()
        listed, archs = nvrtc.nvrtcGetSupportedArchs()
    except Exception as error:
        raise ToolchainError(
            f"NVRTC was not found ({str(error).splitlines()[0]}); "
            "pip install -e '.[cu13]', or '.[cu12]' for a driver before 580"
        ) from error
    if int(asked) or int(listed):
        raise ToolchainError("NVRTC does not say which architectures it knows; reinstall cuda-toolkit[nvrtc]")
    return (int(major), int(minor)), tuple(sorted(map(int, archs)))


def _target(arch: int, supported: Sequence[int], compiler: tuple[int, int]) -> tuple[int, bool]:
    """The architecture to compile for, and whether that gives the final code (else PTX, which the driver finishes)."""
    if arch in supported:
        return arch, True
    older = [known for known in supported if known < arch]
    if not older:
        raise ToolchainError(
            f"NVRTC {compiler[0]}.{compiler[1]} compiles for sm_{supported[0]} and newer, not for sm_{arch}; "
            "an older NVRTC does: pip install -e '.[cu12]'"
        )
    return older[-1], False


@cache
def include_paths(major: int) -> tuple[Path, ...]:
    """Folders of the CUDA headers that suit NVRTC ``major``: from its wheels, else from a toolkit.

    Raises:
        ToolchainError: there are none.
    """
    for folders in _header_folders(major):
        present = tuple(folder for folder in folders if folder.is_dir())
        if any((folder / HEADER).is_file() for folder in present):
            return present
    raise ToolchainError(
        f"the CUDA {major} headers ({HEADER}) were not found; pip install -e '.[cu{major}]', or set CUDA_HOME"
    )


def _header_folders(major: int) -> Iterator[list[Path]]:
    spec = find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        yield [Path(root) / folder for folder in WHEELS.get(major, (f"cu{major}/include", f"cu{major}/include/cccl"))]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), sys.prefix, "/usr/local/cuda"]
    for home in filter(None, homes):
        for include in (Path(home) / "include", Path(home) / "targets" / "x86_64-linux" / "include"):
            yield [include, include / "cccl"]


_ERROR = re.compile(r"^(?P<file>[^\s(]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$")


def first_error(log: str) -> str:
    """The first useful line of a compiler's log, as "file, line 12: what"; headers without their folder."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if match := _ERROR.match(line):
            return f"{Path(match['file']).name}, line {match['line']}: {match['text']}"
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message from NVRTC")
