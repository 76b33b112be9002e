"""What all tests share: the checkout, a subprocess that finds the package, and skips that say why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "workflow" / "lib"
# what the extra `test-cluster` brings; it slows every start of Snakemake, so it is better kept in an environment apart
PLUGINS = (
    "snakemake_executor_plugin_slurm",
    "snakemake_executor_plugin_cluster_generic",
    "snakemake_executor_plugin_kubernetes",
    "snakemake_storage_plugin_fs",
    "snakemake_storage_plugin_s3",
    "moto",
)

# the tests of a checkout test that checkout, installed or not, in this process and in those it starts
sys.path.insert(0, str(LIBRARY))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(LIBRARY), os.environ.get("PYTHONPATH"))))


@cache
def gpu_missing() -> str | None:
    """Why tests marked ``gpu`` cannot run here, or None."""
    from normbench import device

    if os.environ.get(device.FAKE):
        return f"{device.FAKE} is set: no real GPU is looked at"
    found = device.discover(os.environ.get(device.VISIBLE))
    return None if found.gpus else " ".join(["no CUDA GPU here", *found.notes])


@cache
def browser_missing() -> str | None:
    """Why tests marked ``browser`` cannot run here, or None."""
    return None if shutil.which("chromium") or shutil.which("google-chrome") else "no Chromium on the PATH"


@cache
def plugins_missing() -> str | None:
    """Why tests marked ``plugins`` cannot run here, or None."""
    absent = [name for name in PLUGINS if find_spec(name) is None]
    return f"no {absent[0]} here; it is in the extra `test-cluster`" if absent else None


@cache
def slurm_missing() -> str | None:
    """Why tests marked ``slurm`` cannot run here, or None."""
    import slurm_fixture

    return plugins_missing() or slurm_fixture.missing()


MISSING = {
    "gpu": gpu_missing,
    "browser": browser_missing,
    "plugins": plugins_missing,
    "slurm": slurm_missing,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require", action="append", default=[], choices=MISSING, help="fail where tests with that mark would skip"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for mark in config.getoption("--require"):
        if reason := MISSING[mark]():
            raise pytest.UsageError(f"--require {mark}: {reason}")
    for item in items:
        for mark, missing in MISSING.items():
            if item.get_closest_marker(mark) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def restored_environment() -> Iterator[None]:
    """What the code under test puts into this process's environment (CUDA_VISIBLE_DEVICES) ends with the test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def repository() -> Path:
    """The checkout under test."""
    return ROOT


@pytest.fixture
def normbench() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``normbench("sweep", "--out", path)`` runs a verb in a process of its own and returns it when it has ended."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "normbench", *map(str, arguments)]
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return subprocess.run(command, capture_output=True, text=True, env=inherited | environment, check=False)

    return run
