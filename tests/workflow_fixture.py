"""A checkout of its own for each workflow test, and Snakemake run in it on a GPU that does not exist."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("Snakefile", "workflow", "kernels", "config", "envs", "pyproject.toml")
TARGET = "faked-gpu-a-8842ec"
OTHER = "faked-gpu-b-73c36e"
REAL = "real"
TWIN = "faked-gpu-a-0a375d"  # another chip of TARGET's model
# two points an op, one kernel of each language, two baselines: everything there is, as small as it gets
TINY = """\
ops: [layernorm, rmsnorm]
dtypes: [fp32]
regimes: [stream]
elements: 4096
hidden: [32, 64]
block: [64, 128]
kernels: [naive, triton_row]
baselines: [copy, torch_eager]
race_ms: 5.0
"""


class Checkout:
    """One folder with everything of the project but its archive and its results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path) -> Checkout:
        folder.mkdir(parents=True)
        ignore = shutil.ignore_patterns("__pycache__", ".*_cache")
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=ignore)
            elif source.exists():
                shutil.copy2(source, folder / part)
        (folder / "tiny.yaml").write_text(TINY)
        (folder / "tmp").mkdir()
        (folder / "fake_a.json").write_text((ROOT / "tests" / "fake_gpu.json").read_text())
        other = json.loads((folder / "fake_a.json").read_text())
        other |= {"uuid": "GPU-00000000-0000-4000-8000-00000000000b", "gpu_name": "Faked GPU B", "driver": "fake-2"}
        (folder / "fake_b.json").write_text(json.dumps(other))
        first = json.loads((folder / "fake_a.json").read_text())
        twins = [first, first | {"uuid": "GPU-00000000-0000-4000-8000-0000000000a2"}]
        (folder / "fake_twins.json").write_text(json.dumps(twins))
        return cls(folder)

    def copy(self, folder: Path) -> Checkout:
        """The same with every time stamp and Snakemake's own records."""
        shutil.copytree(self.folder, folder)
        return Checkout(folder)

    def path(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--show-failed-logs", *arguments]

    def environment(self, gpu: str | None) -> dict[str, str]:
        """``gpu``: ``a`` or ``b``, a file of several, REAL for what this process sees, or None for none. Locks of cores
        and GPUs lie in the temporary folder; one of its own keeps a checkout from waiting for those that other tests
        measure in."""
        library = os.pathsep.join((str(self.path("workflow", "lib")), os.environ["PYTHONPATH"]))
        if gpu == REAL:
            return os.environ | {"PYTHONPATH": library}
        hidden = ("NORMBENCH_FAKE_GPU", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
        clean = {name: value for name, value in os.environ.items() if name not in hidden}
        clean |= {"TMPDIR": str(self.path("tmp"))}
        if gpu is None:
            return clean | {"CUDA_VISIBLE_DEVICES": ""}
        return clean | {"NORMBENCH_FAKE_GPU": f"fake_{gpu}.json"}

    def snakemake(
        self, *arguments: str, gpu: str | None = None, cores: int = 2, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end with the tiny study; ``arguments`` as on the command line."""
        command = self.command("--cores", str(cores), *arguments, "--configfile", "tiny.yaml")
        variables = self.environment(gpu) | environment
        return subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False)

    def with_plugins(self, *arguments: str, gpu: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run Snakemake with ``arguments`` and nothing else, with what this process can import, such as plugins."""
        environment = self.environment(gpu) | {"PYTHONPATH": os.environ["PYTHONPATH"]}
        return subprocess.run(
            self.command(*arguments), cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def run(self, *arguments: str, gpu: str | None = None, cores: int = 2, **environment: str) -> str:
        """The same, expected to succeed; what it printed."""
        done = self.snakemake(*arguments, gpu=gpu, cores=cores, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def verb(self, *arguments: str, gpu: str | None = None) -> str:
        """Run a verb of this checkout's own package; what it printed."""
        library = os.pathsep.join((str(self.path("workflow", "lib")), os.environ["PYTHONPATH"]))
        environment = self.environment(gpu) | {"PYTHONPATH": library}
        command = [sys.executable, "-m", "normbench", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def planned(self, *arguments: str, gpu: str | None = None) -> dict[str, int]:
        """Rules a dry run would run, with the number of their jobs."""
        return jobs(self.run("--dry-run", *arguments, gpu=gpu))


def jobs(output: str) -> dict[str, int]:
    """Snakemake's table of jobs, without its total; empty when there is nothing to do."""
    _, _, table = output.partition("Job stats:")
    rows = re.findall(r"^(\w+) +(\d+)$", table.partition("total")[0], re.MULTILINE)
    return {rule: int(count) for rule, count in rows}


def entries(journal: Path) -> list[tuple[str, str]]:
    """(unit, stage) of a journal's every whole line; the last one before a kill may be cut short."""
    found = []
    for line in journal.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found += [(unit, stage) for unit, stage, _ in json.loads(line)["units"]]
    return found


def wait_for_lines(path: Path, count: int, running: subprocess.Popen[bytes]) -> None:
    for _ in range(6000):
        if path.exists() and len(path.read_text().splitlines()) >= count:
            return
        assert running.poll() is None, "ended before it could be killed"
        time.sleep(0.01)
    raise AssertionError("nothing was measured within a minute")


def measuring(parent: int) -> Iterator[int]:
    """Process ids of the measuring verb and its workers below ``parent``."""
    for process in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            if {"normbench", "normbench.worker"} & set(process.cmdline()):
                yield process.pid
