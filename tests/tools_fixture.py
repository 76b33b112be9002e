"""Stand-ins for compute-sanitizer and ncu: each runs its program, then says what a file of tool_output/ says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OUTPUT = Path(__file__).parent / "tool_output"
VERSIONS = {
    "compute-sanitizer": "NVIDIA (R) Compute Sanitizer\nVersion 2025.3.1",
    "ncu": "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)",
}


def output(name: str) -> str:
    return (OUTPUT / name).read_text()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **said: str) -> None:
    """Make the tools of ``said`` known to this process and those it starts; each says the file named, or its name with
    the check's: ``compute_sanitizer="clean"`` says clean.log. An empty name plants findings of each check's own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in said.items():
        tool = name.replace("_", "-")
        path = folder / tool
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "{tool}" "{file}" "$@"\n')
        path.chmod(0o755)
        monkeypatch.setenv(f"NORMBENCH_{name.upper()}", str(path))


def main(tool: str, said: str, arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(VERSIONS[tool])
        return 0
    start = arguments.index(sys.executable)
    options, program = arguments[:start], arguments[start:]
    ran = subprocess.run(program, check=False)
    check = options[options.index("--tool") + 1] if "--tool" in options else ""
    clean = "clean_race.log" if check == "racecheck" else "clean.log"
    file = {"clean": clean, "": f"{check}.log"}.get(said, said)
    Path(options[options.index("--log-file") + 1]).write_text(output(file))
    return ran.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
