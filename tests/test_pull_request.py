"""The recipe for a self-hosted GPU runner: its own steps, run as the runner would, on a faked GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from normbench import archive
from workflow_fixture import ROOT, TARGET, TINY, Checkout

WORKFLOWS = ROOT / ".github" / "workflows"
GH = """\
#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *--body-file*) cp comment.md "$CALLS.body" ;; esac
"""


def steps() -> dict[str, dict[str, Any]]:
    """Steps of the job that run commands, by name, or by the command where there is none."""
    job = yaml.safe_load((WORKFLOWS / "gpu.yml").read_text())["jobs"]["compare"]
    return {step.get("name", step["run"]): step for step in job["steps"] if "run" in step}


@dataclass(frozen=True)
class Runner:
    """A folder with two checkouts and a `gh` that only notes what it is asked to do."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, slow: dict[str, float]) -> Runner:
        for side in ("base", "change"):
            checkout = Checkout.make(folder / side)
            # as small as it gets; the real one takes a minute and a half on an H200
            checkout.path("config", "quick.yaml").write_text(TINY.replace("layernorm, ", ""))
            facts = json.loads(checkout.path("fake_a.json").read_text())
            checkout.path("gpu.json").write_text(json.dumps(facts | ({"slow": slow} if side == "change" else {})))
        programs = folder / "bin"
        programs.mkdir()
        (programs / "gh").write_text(GH)
        (programs / "gh").chmod(0o755)
        return cls(folder)

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run a step's own commands as the runner does, with the environment of the job and of the step."""
        step = steps()[name]
        # a faked GPU cannot be published by accident
        script = step["run"].replace("publish --archive", "publish --allow-fake --archive")
        path = os.pathsep.join((str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
        hidden = ("PYTHONPATH", "CUDA_VISIBLE_DEVICES")
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        variables |= {"PATH": path, "PULL": "https://github.com/o/r/pull/1", "CALLS": str(self.folder / "calls")}
        variables |= {"NORMBENCH_FAKE_GPU": "gpu.json", "TMPDIR": str(self.folder / "base" / "tmp")}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=variables | step.get("env", {}),
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Base and change measured by the recipe; the change's naive kernel is 20 % slower."""
    runner = Runner.make(tmp_path_factory.mktemp("runner"), slow={"naive": 1.2})
    done = runner.step("Measure base and change")
    assert done.returncode == 0, done.stdout + done.stderr
    return runner


@pytest.mark.slow
def test_both_sides_are_measured_with_the_quick_study_and_published_apart(measured: Runner) -> None:
    script = steps()["Measure base and change"]["run"]

    assert script.count("--configfile config/quick.yaml") == 2
    for side in ("base", "change"):
        (folder,) = archive.folders(measured.folder / "runs" / side)
        assert folder.parent.name == TARGET


@pytest.mark.slow
def test_a_slower_kernel_fails_the_check_and_is_told_with_its_interval(measured: Runner) -> None:
    compared = measured.step("Compare")
    commented = measured.step("Comment")

    assert compared.returncode == 1, compared.stdout + compared.stderr
    assert commented.returncode == 0
    calls = (measured.folder / "calls").read_text().splitlines()
    assert calls[-1] == "pr comment https://github.com/o/r/pull/1 --body-file comment.md"
    body = (measured.folder / "calls.body").read_text()
    assert "a regression" in body
    assert body.count("| ▼ SLOWER | naive |") == 2
    assert " to +" in body, "the interval is the evidence"
    assert "Against the archive" not in body, "nothing of this card is published"


@pytest.mark.slow
def test_an_archived_run_of_the_same_card_is_compared_for_information(measured: Runner) -> None:
    """The archived run is the change itself, so it adds a section without a difference and no other exit code."""
    (folder,) = archive.folders(measured.folder / "runs" / "change")
    published = measured.folder / "base" / "reports" / "data" / folder.parent.name
    published.mkdir(parents=True)
    (published / folder.name).symlink_to(folder, target_is_directory=True)
    try:
        compared = measured.step("Compare")
    finally:
        (published / folder.name).unlink()
        published.rmdir()

    assert compared.returncode == 1
    _, _, section = (measured.folder / "comment.md").read_text().partition("## Against the archive")
    assert "no confirmed regression" in section


def test_the_label_is_taken_off_before_anything_else_runs() -> None:
    first, *_ = steps().values()

    assert first["run"] == 'gh pr edit "$PULL" --remove-label gpu'


def test_code_of_the_pull_request_never_sees_the_token() -> None:
    job = yaml.safe_load((WORKFLOWS / "gpu.yml").read_text())["jobs"]["compare"]

    assert [step["with"].get("persist-credentials") for step in job["steps"] if "uses" in step] == [False, False]
    for step in steps().values():
        if "gh " not in step["run"]:
            assert step["env"]["GH_TOKEN"] == ""
        else:
            assert "change" not in step["run"]


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_is_what_github_understands(path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_quick_points_are_points_of_the_default_study() -> None:
    """Else nothing of a pull request could be compared with the archive."""
    from normbench import config, sweep

    default = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    quick = default | yaml.safe_load((ROOT / "config" / "quick.yaml").read_text())
    points = [{point.key for point in sweep.points(config.load(values, ROOT))} for values in (default, quick)]

    assert points[1]
    assert points[1] <= points[0]
