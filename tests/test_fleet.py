"""What would measure a fleet's target on the wrong chip, or need a GPU where there is none."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import jsonschema
import pytest
import yaml
from filelock import Timeout

from normbench import configfiles, device, fleet, harness, supervise
from normbench.cli import UserError
from normbench.config import ConfigError
from workflow_fixture import OTHER, ROOT, TARGET, TWIN, Checkout

A = {"arch": 90, "gpu": "Faked GPU A", "gpu_model": "faked_a", "cpus": 4, "mem_mb": 1500, "runtime": 10}
B = {"arch": 80, "slurm_partition": "gpu", "constraint": "sxm&big"}
B |= {"machine_type": "a2-highgpu-1g", "gpu_manufacturer": "nvidia"}
PROFILES = ("cluster-generic", "kubernetes", "slurm")
WRONG = [
    ({}, "not a mapping of target names"),
    ({"H200": A}, "'H200' cannot name a target"),
    ({"build": A}, "'build' cannot name a target"),
    ({"../x": A}, "cannot name a target"),
    ({"a": []}, "a: not a mapping of keys"),
    ({"a": {"gpu": "H200"}}, "a.arch: is missing"),
    ({"a": A | {"partition": "gpu"}}, "a.partition: unknown key; nearest valid key: slurm_partition"),
    ({"a": A | {"arch": "sm_91"}}, "a.arch: '91' is not one of 75"),
    ({"a": A | {"runtime": 0}}, "a.runtime: 0 is not a whole number from 1 on"),
    ({"a": A | {"mem_mb": "64 GB"}}, "a.mem_mb: '64 GB' is not a whole number"),
    ({"a": A | {"gpu_model": "h200; rm -rf ~"}}, "a.gpu_model: 'h200; rm -rf ~' is not one word"),
]


def write(path: Path, values: object) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A fresh checkout with a fleet of two targets; not to be changed."""
    made = Checkout.make(tmp_path_factory.mktemp("fleet") / "study")
    write(made.path("fleet.yaml"), {"a": A, "b": B})
    return made


@pytest.mark.parametrize(("values", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_wrong_fleet_stops_in_one_sentence(tmp_path: Path, values: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fleet.load(write(tmp_path / "fleet.yaml", values))

    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "sentence"), [(None, "No such file"), ("a: [", "not YAML")])
def test_an_unreadable_fleet_file_is_named(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "fleet.yaml"
    if text:
        path.write_text(text)

    with pytest.raises(ConfigError, match=sentence) as caught:
        fleet.load(path)

    assert str(path) in str(caught.value)


def test_the_example_is_valid_and_so_says_the_schema() -> None:
    path = ROOT / "config" / "fleet.yaml"

    assert fleet.load(path)
    jsonschema.validate(yaml.safe_load(path.read_text()), configfiles.fleet_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"build": A}, configfiles.fleet_schema())


# which chip


def both(folder: Path, *names: str) -> Path:
    """A file of several faked GPUs."""
    facts = json.loads((ROOT / "tests" / "fake_gpu.json").read_text())
    made = {
        "a": facts,
        "b": facts | {"uuid": "GPU-00000000-0000-4000-8000-00000000000b", "gpu_name": "Faked GPU B", "arch": "sm_80"},
        "twin": facts | {"uuid": "GPU-00000000-0000-4000-8000-0000000000a2"},
    }
    path = folder / "fakes.json"
    path.write_text(json.dumps([made[name] for name in names]))
    return path


def test_the_first_gpu_of_the_kind_is_taken_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.FAKE, str(both(tmp_path, "b", "a", "twin")))

    assert fleet.Target(arch=90).pick("x", device.discover()).device == TARGET
    assert fleet.Target(arch=80, gpu="GPU B").pick("x", device.discover()).device == OTHER
    with pytest.raises(UserError, match=r"target x asks for H200 of sm_90, but this job sees Faked GPU B \(sm_80\), "):
        fleet.Target(arch=90, gpu="H200").pick("x", device.discover())


def test_a_gpu_that_disappeared_is_said_to_be_gone() -> None:
    with pytest.raises(UserError, match="but this job sees no GPU; NVML is broken"):
        fleet.Target(arch=90).pick("x", device.Discovery([], ["NVML is broken"]))


def test_another_chip_of_the_same_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler gave the twin; the study was begun on A."""
    monkeypatch.setenv(device.FAKE, str(both(tmp_path, "a", "twin")))
    monkeypatch.setenv(device.VISIBLE, "1")

    with pytest.raises(UserError, match=f"target x was begun on another chip.*which has {TWIN}") as caught:
        harness.recorded_gpu("x", TARGET)

    assert "\n" not in str(caught.value)
    assert harness.recorded_gpu("x", TWIN).device == TWIN


def test_a_chip_of_this_host_that_the_job_was_not_given_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(device.FAKE, str(both(tmp_path, "a", "twin")))
    monkeypatch.setenv(device.VISIBLE, "1")

    assert harness.recorded_gpu(TARGET, TARGET).device == TARGET, "a local target is found by its id"
    with pytest.raises(UserError):
        harness.recorded_gpu("x", TARGET)


def test_machine_records_the_chip_the_job_was_given(
    tmp_path: Path, normbench: Callable[..., CompletedProcess[str]]
) -> None:
    path, out = write(tmp_path / "fleet.yaml", {"x": {"arch": 90}, "y": {"arch": 80}}), tmp_path / "machine.json"
    given = {"NORMBENCH_FAKE_GPU": str(both(tmp_path, "a", "twin")), "CUDA_VISIBLE_DEVICES": "1"}

    done = normbench("machine", "--target", "x", "--fleet", path, "--out", out, **given)
    refused = normbench("machine", "--target", "y", "--fleet", path, "--out", tmp_path / "none", **given)

    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["device"] == TWIN
    assert refused.returncode == 1
    assert "target y asks for any GPU of sm_80, but this job sees Faked GPU A (sm_90)" in refused.stderr
    assert not (tmp_path / "none").exists()


def test_a_worker_sees_one_gpu_by_uuid_whatever_was_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML and CUDA count in different orders, so an index from outside must not survive."""
    monkeypatch.setenv(device.VISIBLE, "0,1")
    monkeypatch.delenv(device.FAKE, raising=False)

    assert supervise.worker_environment({"uuid": "GPU-1234"})[device.VISIBLE] == "GPU-1234"


def test_a_host_whose_gpus_are_all_gone_is_named_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.FAKE, str(both(tmp_path)))

    with pytest.raises(UserError, match=f"{TARGET} is not a GPU of this host, which has no GPU"):
        harness.recorded_gpu(TARGET, TARGET)


def test_a_step_on_another_chip_writes_nothing(tmp_path: Path, normbench: Callable[..., CompletedProcess[str]]) -> None:
    """`machine` ran on the twin; the scheduler gave this step chip A."""
    machine, out = tmp_path / "machine.json", tmp_path / "ceilings.parquet"
    machine.write_text(json.dumps({"device": TWIN}))
    given = {"NORMBENCH_FAKE_GPU": str(both(tmp_path, "a", "twin")), "CUDA_VISIBLE_DEVICES": "0"}

    done = normbench("ceilings", "--target", "x", "--machine", machine, "--sweep", "none", "--out", out, **given)

    assert done.returncode == 1
    assert f"target x was begun on another chip ({TWIN} is not a GPU of this host, which has {TARGET})" in done.stderr
    assert not out.exists()


def test_a_lock_is_of_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(harness, "LOCK_WAIT_S", 0.1)

    with harness.gpu_lock("GPU-a"):
        with harness.gpu_lock("GPU-b"):
            pass
        with pytest.raises(Timeout), harness.gpu_lock("GPU-a"):
            pass
    with harness.gpu_lock("GPU-a"):
        pass


# what is submitted


def plan(checkout: Checkout, *arguments: str) -> str:
    return checkout.run("--dry-run", "report", *arguments, "--config", "fleet=fleet.yaml", gpu=None)


def test_a_host_without_a_gpu_plans_the_whole_fleet(checkout: Checkout) -> None:
    assert checkout.planned("report", "--config", "fleet=fleet.yaml") == {
        **{"sweep": 1, "compile": 2, "machine": 2, "ceilings": 2, "warm": 2, "measure": 4, "showdown": 4},
        **{"record": 2, "collect": 1, "page": 2, "index": 1, "report": 1},
    }


def test_nothing_asks_nvml_on_the_submitting_host(checkout: Checkout, tmp_path: Path) -> None:
    copy = checkout.copy(tmp_path / "copy")
    module = copy.path("workflow", "lib", "normbench", "nvml.py")
    module.write_text(module.read_text() + "\n\ndef start() -> None:\n    raise SystemExit('NVML was asked')\n")

    assert "NVML was asked" in copy.snakemake("--dry-run", "report", gpu=None).stderr
    assert copy.planned("report", "--config", "fleet=fleet.yaml")["measure"] == 4


def test_a_job_asks_for_what_reaches_its_target_and_no_more(checkout: Checkout) -> None:
    jobs = [block for block in plan(checkout).split("\n[") if "rule measure:" in block]
    asked = {target: next(job for job in jobs if f"target={target}," in job) for target in ("a", "b")}

    for text in ("mem_mb=1500", "runtime=10", "gpu_model=faked_a", "gpu=1"):
        assert re.search(rf"resources:.*\b{text}\b", asked["a"]), text
    for text in ("mem_mb=32000", "slurm_partition=gpu", "constraint=sxm&big"):
        assert text in asked["b"]
    assert "slurm_partition" not in asked["a"]
    assert "gpu_model" not in asked["b"]


def test_kernels_are_compiled_for_every_architecture_and_without_a_gpu(checkout: Checkout) -> None:
    compiled = [block for block in plan(checkout).split("\n[") if "rule compile:" in block]

    assert sorted(re.findall(r"arch=(sm_\d+)", "".join(compiled))) == ["sm_80", "sm_90"]
    assert all("gpu=" not in block for block in compiled)


@pytest.mark.plugins
@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_submits_a_target_as_one_job_that_asks_for_what_reaches_it(checkout: Checkout, profile: str) -> None:
    # a bucket would be asked what it holds; a folder stands in for it
    storage = ("--default-storage-provider", "fs", "--default-storage-prefix", str(checkout.path("bucket")))
    printed = checkout.with_plugins(
        *("--dry-run", "measurements", "--profile", f"workflow/profiles/{profile}"),
        *(storage if profile == "kubernetes" else ()),
        *("--config", "fleet=fleet.yaml", "--configfile", "tiny.yaml"),
    )

    text = printed.stdout + printed.stderr
    assert printed.returncode == 0, text
    assert sorted(re.findall(r"Group job (\w+)", text)) == ["measure_a", "measure_b"]
    measuring = [block for block in text.split("[") if re.search(r"rule measure:.*target=b", block, re.DOTALL)]
    assert len(measuring) == 2
    for wanted in ("gpu=1", "machine_type=a2-highgpu-1g", "gpu_manufacturer=nvidia", "slurm_partition=gpu"):
        assert all(re.search(rf"resources:.*\b{wanted}\b", block) for block in measuring), wanted
    compiling = [block for block in text.split("[") if "rule compile:" in block]
    assert compiling
    assert not any(re.search(r"gpu=1|machine_type", block) for block in compiling)


def test_every_profile_is_tested() -> None:
    assert sorted(path.parent.name for path in (ROOT / "workflow" / "profiles").glob("*/config.yaml")) == list(PROFILES)
