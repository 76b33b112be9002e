"""A process of ``warm`` may take long as a whole; only one that falls silent is ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from normbench import warm
from normbench.points import Point

SLOW = """
import sys, time
sys.stdin.read()
for name in "abcd":
    time.sleep(0.6)
    print(f"{name}\\t", flush=True)
time.sleep(3600 if {hangs} else 0)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a process to which ``normbench.warming`` is another program."""
    (tmp_path / "normbench").mkdir()
    (tmp_path / "normbench" / "__init__.py").write_text("")
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def warmed(environment: dict[str, str], hangs: bool, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    program = SLOW.replace("{hangs}", str(hangs))
    Path(environment["PYTHONPATH"], "normbench", "warming.py").write_text(program)
    monkeypatch.setattr(warm, "JOB_S", 1.5)
    return list(warm._process({"jobs": []}, environment))


@pytest.mark.parametrize("hangs", [False, True])
def test_jobs_that_keep_coming_are_waited_for(
    environment: dict[str, str], hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four jobs of 0.6 s, with 1.5 s for each, whether the process ends of itself or must be ended."""
    assert warmed(environment, hangs, monkeypatch) == [(name, "") for name in "abcd"]


EAGER = """
import json, sys, time
print("version\t2.11.0", flush=True)
first, second, third = json.loads(sys.stdin.read())["points"]
print(first["point"] + "\tone_kernel", flush=True)
print(second["point"] + "\t", flush=True)
time.sleep(3600)
"""


def test_what_torch_launched_before_its_process_hung_is_kept(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(environment["PYTHONPATH"], "normbench", "eager.py").write_text(EAGER)
    monkeypatch.setattr(warm, "JOB_S", 1.5)
    monkeypatch.setattr(warm, "worker_environment", lambda _: environment)
    points = [Point("layernorm", "fp32", rows, 64) for rows in (1, 2, 3)]

    assert warm._eager({}, points) == {
        "version": "2.11.0",
        "kernels": {points[0].key: "one_kernel", points[1].key: None},
    }
