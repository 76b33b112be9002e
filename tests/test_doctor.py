"""Doctor: it answers on every host, and says what to do about what it finds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench import doctor, host, imports, probes
from normbench.host import Host, Line
from tools_fixture import install

Verb = Callable[..., subprocess.CompletedProcess[str]]
FAKE = {"gpu_name": "NVIDIA Fake", "arch": "sm_90", "uuid": "GPU-0", "fake": True, "driver": "580.1"}


def gpu(fake: dict[str, Any] | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="NVIDIA Test", device="nvidia-test-000000", fake=fake, mig=False, arch="sm_90", uuid="GPU-0"
    )


def measuring_host(driver: str = "580.159.04") -> Host:
    return Host((gpu(),), driver)


def one(lines: Iterator[Line], what: str) -> Line:
    (line,) = [line for line in lines if line.what == what]
    return line


def test_probe_that_raises_hides_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Host) -> Iterator[Line]:
        yield Line("first", "ok", "fine")
        raise RuntimeError("libfoo is of another version\nand more")

    monkeypatch.setattr(doctor, "PROBES", (broken, probes.python))
    lines = doctor.examine(Host())
    assert [line.what for line in lines] == ["first", "broken", "Python"]
    assert lines[1].found == "RuntimeError: libfoo is of another version"


@pytest.mark.parametrize("here", [Host(), measuring_host(), Host((gpu(FAKE),)), Host(notes=("NVML does not start.",))])
@pytest.mark.parametrize("probe", [probe for probe in probes.PROBES if probe.__module__ == "normbench.probes"])
def test_host_of_some_kind_makes_a_probe_raise(probe: Any, here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_gpu", lambda gpu: Line(gpu.device, "ok", gpu.name))
    for line in probe(here):
        assert line.state in ("ok", "warn", "fail")
        assert line.found
        assert line.state != "fail" or line.todo, f"{line.what} fails without saying what to do"


@pytest.mark.parametrize(
    ("driver", "nvrtc", "state", "todo"),
    [
        ("580.159.04", 13, "ok", ""),
        ("575.57", 13, "fail", "pip install -e '.[cu12]'"),
        ("575.57", 12, "ok", ""),
        ("470.10", 13, "fail", "install driver 525 or newer"),
        ("470.10", 12, "fail", "install driver 525 or newer"),
        ("600.1", 14, "ok", ""),
    ],
)
def test_old_driver_is_not_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, driver: str, nvrtc: int, state: str, todo: str
) -> None:
    monkeypatch.setattr(probes, "_nvrtc", lambda: ((nvrtc, 0), [90]))
    line = one(probes.compiler(measuring_host(driver)), "driver")
    assert line.state == state
    assert todo in line.todo


def test_missing_nvrtc_is_grave_without_a_gpu_or_mild_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise RuntimeError("libnvrtc.so cannot be opened")

    monkeypatch.setattr(probes, "_nvrtc", absent)
    assert one(probes.compiler(Host()), "NVRTC").state == "warn"
    found = one(probes.compiler(measuring_host("570.1")), "NVRTC")
    assert (found.state, found.todo) == ("fail", "pip install -e '.[cu12]'")
    assert "libnvrtc.so" in found.found


def test_nvrtc_that_is_installed_is_not_found_or_does_not_compile() -> None:
    lines = list(probes.compiler(Host()))
    assert one(iter(lines), "compiling").state == "ok", lines
    line = one(iter(lines), "NVRTC")
    assert line.state == "ok", line.found
    assert "sm_75" in line.found


def test_missing_headers_are_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "TRIAL", "#include <no_such_header.h>\n")
    line = one(probes.compiler(measuring_host()), "compiling")
    assert line.state == "fail"
    assert "no_such_header.h" in line.found
    assert line.todo == "pip install -e '.[cu13]'"


def test_dependency_of_the_project_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probes, "_dependencies", lambda: ["no-such-package>=1", "torch>=999", "polars>=999; python_version<'3'"]
    )
    lines = {line.what: line for line in probes.packages(Host())}
    assert lines.keys() == {"no-such-package", "torch"}
    assert lines["no-such-package"].state == "fail"
    assert lines["torch"].state == "warn"
    assert "wanted >=999" in lines["torch"].found


def test_package_only_measuring_needs_fails_a_host_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torch" in probes.MEASURING
    monkeypatch.setattr(probes, "_dependencies", lambda: ["torch"])

    def missing(name: str) -> str:
        raise probes.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(probes.importlib.metadata, "version", missing)
    assert one(probes.packages(Host()), "torch").state == "warn"
    assert one(probes.packages(measuring_host()), "torch").state == "fail"


def test_neither_gpu_nor_archive_is_called_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probes, "root", lambda: tmp_path)
    assert one(probes.archive(Host()), "archive").state == "fail"
    assert one(probes.archive(measuring_host()), "archive").state == "warn"
    for run in ("a/1", "a/2", "b/1"):
        (tmp_path / "reports" / "data" / run).mkdir(parents=True)
        (tmp_path / "reports" / "data" / run / "machine.json").write_text("{}")
    assert one(probes.archive(Host()), "archive").found.startswith("3 runs of 2 devices")


def test_full_disk_is_called_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, state in ((10 * 2**30, "ok"), (2**30, "warn"), (2**20, "fail")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert one(probes.disk(Host()), "disk").state == state


def test_other_process_on_the_gpu_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda unit: SimpleNamespace(total=150_754_820_096),
        nvmlDeviceGetComputeRunningProcesses=lambda unit: [SimpleNamespace(pid=4711)],
    )
    monkeypatch.setattr(probes.nvml, "start", lambda: library)
    line = one(probes.gpus(measuring_host()), "nvidia-test-000000")
    assert line.state == "warn"
    assert "process 4711" in line.found
    assert "151 GB" in line.found
    library.nvmlDeviceGetComputeRunningProcesses = lambda unit: []
    assert one(probes.gpus(measuring_host()), "nvidia-test-000000").state == "ok"


@pytest.mark.parametrize(
    ("facts", "here", "state"),
    [
        ({"cuda": "13.0", "sees": True, "names": ["NVIDIA Test"]}, measuring_host(), "ok"),
        ({"cuda": "13.0", "sees": False, "names": []}, measuring_host(), "fail"),
        ({"cuda": None, "sees": False, "names": []}, measuring_host(), "fail"),
        ({"cuda": None, "sees": False, "names": []}, Host(), "ok"),
        ({"cuda": "13.0", "sees": False, "names": []}, Host(), "ok"),
    ],
)
def test_torch_that_sees_no_gpu_is_judged_alike_everywhere(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], here: Host, state: str
) -> None:
    monkeypatch.setattr(imports, "_python", lambda code: (0, f"a warning\n{json.dumps(facts)}\n"))
    (line,) = imports.torch(here)
    assert line.state == state
    assert bool(line.todo) == (state == "fail")


def test_import_that_dies_of_a_signal_takes_doctor_along() -> None:
    code, text = imports._python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert code != 0
    assert "signal 11" in text


def test_import_that_hangs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "TIMEOUT_S", 0.2)
    assert imports._python("import time; time.sleep(60)") == (124, "no answer in 0.2 s")


def pretend_installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    installed = [imports.sources.distributions()[name] for name in names]
    monkeypatch.setattr(imports.sources, "version", lambda package: "1.2.3" if package in installed else None)


def test_other_project_called_apex_passes_for_nvidias(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pretend_installed(monkeypatch, "apex")
    line = one(imports.baselines(Host()), "baseline apex")
    assert line.state == "warn"
    assert "another project" in line.found
    (tmp_path / "apex" / "normalization").mkdir()
    (tmp_path / "apex" / "normalization" / "fused_layer_norm.py").write_text(
        "fused_layer_norm_affine = fused_rms_norm_affine = None\n"
    )
    assert one(imports.baselines(Host()), "baseline apex") == Line("baseline apex", "ok", "1.2.3")


def test_broken_baseline_hides_its_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "liger_kernel.py").write_text("raise OSError('libcuda.so.1 is missing')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pretend_installed(monkeypatch, "liger")
    line = one(imports.baselines(Host()), "baseline liger")
    assert (line.state, line.found) == ("warn", "1.2.3: OSError: libcuda.so.1 is missing")
    assert line.todo == "optional: pip install -e '.[baselines]'"


def test_missing_baseline_fails_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch)
    lines = list(imports.baselines(Host()))
    assert {line.what for line in lines} >= {f"baseline {name}" for name in imports.BUNDLED | imports.ELSEWHERE.keys()}
    assert {line.state for line in lines} == {"warn"}
    assert all(line.todo for line in lines)


@pytest.mark.parametrize("states", [["ok", "warn"], ["ok", "fail"]])
def test_exit_code_and_json_disagree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], states: list[Any]
) -> None:
    lines = [Line(f"line {state}", state, "found [bold]x[/bold]", "do") for state in states]
    monkeypatch.setattr(doctor, "examine", lambda: lines)
    expected = int("fail" in states)
    assert doctor.main(SimpleNamespace(json=True)) == expected
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is not bool(expected)
    assert [line["state"] for line in printed["lines"]] == states
    assert doctor.main(SimpleNamespace(json=False)) == expected
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_table_needs_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    doctor.render([Line("GPU", "warn", "none", "nothing")])
    assert capsys.readouterr().out == "warn  GPU: none -> nothing\n"


def test_unreadable_fake_ends_in_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NORMBENCH_FAKE_GPU", str(tmp_path / "absent.json"))
    assert "absent.json" in host.look().notes[0]


@pytest.mark.slow
def test_doctor_crashes_or_imports_torch_where_it_looks(normbench: Verb, tmp_path: Path) -> None:
    fake = tmp_path / "fake.json"
    fake.write_text(json.dumps(FAKE))
    done = normbench("doctor", "--json", NORMBENCH_FAKE_GPU=str(fake))
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    assert any("faked" in line["found"] for line in report["lines"]), report["lines"]


def test_a_missing_inspector_keeps_nobody_from_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, monkeypatch, ncu="ncu.csv")
    monkeypatch.setenv("NORMBENCH_COMPUTE_SANITIZER", "no-such-program")

    lines = {line.what: line for line in probes.inspectors(measuring_host())}

    assert lines["ncu"].found.startswith("2025.3.1.0, ")
    assert lines["compute-sanitizer"].state == "warn"
    assert "target sanitize" in str(lines["compute-sanitizer"].todo)
    assert "NVBench" in lines
    assert list(probes.inspectors(Host())) == []
