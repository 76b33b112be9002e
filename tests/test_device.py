"""Which GPU is measured, and what is known of it, when NVML is there, half there, or not there at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normbench import device, machine, nvml, parse, sources
from normbench.cli import UserError

FAKE = Path(__file__).with_name("fake_gpu.json")
UUIDS = [f"GPU-{digit * 8}-0000-4000-8000-000000000000" for digit in "abcd"]
MIG = [f"MIG-{digit * 8}-0000-4000-8000-000000000000" for digit in "12"]


class NVMLError(Exception):
    """Stands for pynvml's class of that name."""

    def __init__(self, value: int = 3, text: str = "Not Supported") -> None:
        super().__init__(text)
        self.value = value


class FakeNvml:
    """As much of pynvml as we use: cards by index, instances by (card, slot); ``refused`` functions raise."""

    NVMLError = NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, names: list[str], mig: dict[int, list[str]] | None = None, refused: str = "") -> None:
        self.names, self.mig, self.refused = names, mig or {}, refused.split()
        self.calls: list[str] = []
        self.processes: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls.append(name)
            if name in self.refused:
                return self._refuse
        return super().__getattribute__(name)

    def _refuse(self, *_: object) -> None:
        raise NVMLError()

    def nvmlInit(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13020

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[int, int | None]:
        return index, None

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> tuple[int, int | None]:
        for card in range(len(self.names)):
            for handle in [(card, None), *((card, slot) for slot in range(len(self.mig.get(card, []))))]:
                if self._uuid(handle) == uuid:
                    return handle
        raise NVMLError(6, "Not Found")

    def _uuid(self, handle: tuple[int, int | None]) -> str:
        card, slot = handle
        return UUIDS[card] if slot is None else self.mig[card][slot]

    def nvmlDeviceGetUUID(self, handle: tuple[int, int | None]) -> str:
        return self._uuid(handle)

    def nvmlDeviceGetName(self, handle: tuple[int, int | None]) -> str:
        return self.names[handle[0]] + (" MIG 1g.10gb" if handle[1] is not None else "")

    def nvmlDeviceGetCudaComputeCapability(self, _: object) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMigMode(self, handle: tuple[int, int | None]) -> tuple[int, int]:
        return (int(handle[0] in self.mig),) * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, _: object) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: tuple[int, int | None], slot: int) -> tuple[int, int | None]:
        if slot >= len(self.mig[card[0]]):
            raise NVMLError(6, "Not Found")
        return card[0], slot

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, unit: tuple[int, int | None]) -> tuple[int, int | None]:
        return unit[0], None

    def nvmlDeviceGetMemoryInfo(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(total=1 << 36)

    def nvmlDeviceGetMemoryBusWidth(self, _: object) -> int:
        return 6016

    def nvmlDeviceGetMaxClockInfo(self, _: object, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetPowerManagementLimit(self, _: object) -> int:
        return 700_000

    def nvmlDeviceGetEccMode(self, _: object) -> tuple[int, int]:
        return 1, 1

    def nvmlDeviceGetClockInfo(self, _: object, kind: int) -> int:
        return {1: 1500, 2: 0}[kind]

    def nvmlDeviceGetPowerUsage(self, _: object) -> int:
        return 350_500

    def nvmlDeviceGetTemperature(self, _: object, __: int) -> int:
        return 40

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: object) -> int:
        return 0

    def nvmlDeviceGetComputeRunningProcesses(self, _: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self.processes]


Install = Callable[..., FakeNvml]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a FakeNvml in the place of pynvml."""

    def put(*arguments: Any, **options: Any) -> FakeNvml:
        library = FakeNvml(*arguments, **options)
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return library

    for name in (device.FAKE, device.VISIBLE, "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return put


@pytest.mark.parametrize("visible", ["3", UUIDS[3], "GPU-dddd", "dddd", " 3 ", "GPU-dddddddd,0"])
def test_a_visible_device_is_found_however_it_is_named(install: Install, visible: str) -> None:
    """T8: four GPUs in NVML, CUDA device 0 is NVML index 3."""
    install(["NVIDIA H200"] * 4)

    found = device.discover(visible)

    assert found.gpus[0].index == 3
    assert found.gpus[0].uuid == UUIDS[3]
    assert found.notes == []


@pytest.mark.parametrize("visible", [MIG[1], MIG[1][:12]])
def test_a_mig_instance_is_found_on_its_card(install: Install, visible: str) -> None:
    install(["NVIDIA A100"] * 4, mig={3: MIG})

    (gpu,) = device.discover(visible).gpus

    assert (gpu.uuid, gpu.index, gpu.mig) == (MIG[1], 3, True)
    assert gpu.device.startswith("nvidia-a100-mig-1g-10gb-")


def test_a_card_with_mig_on_stands_for_its_first_instance(install: Install) -> None:
    """CUDA cannot use the card itself then."""
    install(["NVIDIA A100"] * 2, mig={1: MIG})

    assert [gpu.uuid for gpu in device.discover().gpus] == [UUIDS[0], *MIG]
    assert [gpu.uuid for gpu in device.discover("1").gpus] == [MIG[0]]


@pytest.mark.parametrize("visible", ["4", "GPU-eeee", "MIG-99999999", "GPU-"])
def test_no_match_is_no_gpu_and_a_warning_never_index_0(install: Install, visible: str) -> None:
    install(["NVIDIA H200"] * 4)

    found = device.discover(visible)

    assert found.gpus == []
    assert visible in found.notes[0]
    assert "nvidia-smi -L" in found.notes[0]


def test_a_wrong_token_hides_what_follows_as_in_cuda(install: Install) -> None:
    install(["NVIDIA H200"] * 4)

    assert [gpu.index for gpu in device.discover("2,9,1").gpus] == [2]


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_hidden_gpus_stay_hidden_without_a_warning(install: Install, visible: str) -> None:
    install(["NVIDIA H200"] * 4)

    assert device.discover(visible) == device.Discovery([], [], "580.1")


def test_an_index_among_unlike_cards_is_not_guessed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA counts the fastest first, NVML by bus."""
    install(["NVIDIA T4", "NVIDIA H200"])

    assert device.discover("0").gpus == []
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in device.discover("0").notes[0]

    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert [gpu.name for gpu in device.discover("0").gpus] == ["NVIDIA T4"]


def test_two_cards_of_one_model_have_two_ids() -> None:
    ids = {device.Gpu(uuid, 0, "NVIDIA H200", "sm_90", uuid).device for uuid in UUIDS}

    assert len(ids) == 4
    assert all(name.startswith("nvidia-h200-") and len(name) == len("nvidia-h200-") + 6 for name in ids)


def test_an_unknown_target_is_answered_with_those_there_are(install: Install) -> None:
    install(["NVIDIA H200"])

    with pytest.raises(UserError, match=r"^nvidia-h200-ffffff is not a GPU of this host, which has nvidia-h200-\w{6}$"):
        device.find("nvidia-h200-ffffff")


@pytest.mark.parametrize(
    ("clock", "width", "expected"),
    [
        (7000, 352, 616.0),
        (10501, 384, 1008.1),
        (9001, 192, 432.0),
        (5501, 192, 264.0),
        (0, 384, None),
        (None, 384, None),
        (7000, None, None),
    ],
)
def test_theoretical_bandwidth(clock: int | None, width: int | None, expected: float | None) -> None:
    """T10: a clock of 0 means unknown, not 0 GB/s."""
    assert device.theoretical_gbps(clock, width) == expected


REFUSED = "nvmlDeviceGetMaxClockInfo nvmlDeviceGetClockInfo nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetEccMode"


def test_refused_facts_are_null_with_their_reason(install: Install) -> None:
    """T11."""
    install(["NVIDIA H200"], refused=REFUSED)
    (gpu,) = device.discover().gpus

    facts = machine.describe(gpu)

    assert facts["max_sm_clock_mhz"] is None
    assert "Not Supported" in facts["notes"]["max_sm_clock_mhz"]
    assert facts["theoretical_gbps"] is None
    assert facts["memory_bus_bits"] == 6016
    assert list(facts) == list(machine.FIELDS)


def test_every_null_fact_has_a_reason(install: Install) -> None:
    """This host has no CUDA driver, so the multiprocessors cannot be counted."""
    install(["NVIDIA H200"])
    (gpu,) = device.discover().gpus

    facts = machine.describe(gpu)

    nulls = {name for name, value in facts.items() if value is None}
    assert nulls <= facts["notes"].keys()
    assert facts["theoretical_gbps"] == 4814.3
    assert (facts["cuda_driver"], facts["power_limit_w"], facts["ecc"]) == ("13.2", 700.0, True)


def test_a_function_the_package_lacks_is_a_null(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(["NVIDIA H200"])
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetMemoryBusWidth")
    (gpu,) = device.discover().gpus

    facts = machine.describe(gpu)

    assert facts["memory_bus_bits"] is None
    assert "not in this nvidia-ml-py" in facts["notes"]["memory_bus_bits"]


def test_a_reading_of_zero_is_not_null(install: Install) -> None:
    install(["NVIDIA H200"])

    readings = device.Nvml(UUIDS[0]).clocks()

    assert readings == {"sm_mhz": 1500, "mem_mhz": 0, "power_w": 350.5, "temp_c": 40, "throttle_reasons": 0}


def test_a_refused_reading_is_asked_for_once(install: Install) -> None:
    """A reading may cost a millisecond, and the timing loop pays for it."""
    library = install(["NVIDIA H200"], refused=REFUSED)
    readings = device.Nvml(UUIDS[0])

    for _ in range(3):
        values = readings.clocks()

    assert (values["sm_mhz"], values["throttle_reasons"], values["temp_c"]) == (None, None, 40)
    assert library.calls.count("nvmlDeviceGetCurrentClocksEventReasons") == 1
    assert "Not Supported" in readings.notes["throttle_reasons"]


def test_a_mig_instance_reads_the_clocks_of_its_card(install: Install) -> None:
    install(["NVIDIA A100"], mig={0: MIG})

    assert device.Nvml(MIG[1]).clocks()["sm_mhz"] == 1500


@pytest.mark.parametrize(
    ("running", "others"),
    [([42], []), ([42, 77], [77]), ([], []), ([4711], []), ([4711, 4712], [4712])],
)
def test_our_own_process_is_no_other_process(install: Install, running: list[int], others: list[int]) -> None:
    """In a container NVML counts in the host's process ids: one stranger is ourselves."""
    install(["NVIDIA H200"]).processes = running

    assert device.Nvml(UUIDS[0]).other_processes(pid=42) == others


@pytest.mark.parametrize("value", [12, 18])
def test_a_library_that_does_not_start_is_no_gpu(install: Install, monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    """T13: without a library nobody expects a GPU; with the wrong one somebody does, and is told."""
    install([])

    def fail(_: FakeNvml) -> None:
        raise NVMLError(value, "Driver/library version mismatch")

    monkeypatch.setattr(FakeNvml, "nvmlInit", fail)

    found = device.discover()

    assert found.gpus == []
    assert found.notes == ([] if value == 12 else ["NVML does not start: Driver/library version mismatch."])
    assert set(device.Nvml(UUIDS[0]).clocks().values()) == {None}


def test_without_the_package_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """T13."""
    monkeypatch.delenv(device.FAKE, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert device.discover().gpus == []
    with pytest.raises(nvml.NvmlMissing, match="nvidia-ml-py is not installed"):
        nvml.start()


def test_parsing_and_reporting_import_nothing_of_cuda() -> None:
    """T13: a report on a laptop must not pay for torch, nor need it."""
    code = (
        "import sys; from normbench import parse, collect, publish, compare;"
        "parse.plan({}, {});"
        "print([name for name in ('torch', 'triton', 'cuda', 'pynvml.smi', 'altair') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_a_faked_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.FAKE, str(FAKE))
    monkeypatch.delenv(device.VISIBLE, raising=False)

    (gpu,) = device.local_gpus()
    facts = machine.describe(gpu)

    assert facts["fake"] is True
    assert facts["device"] == gpu.device == device.find(gpu.device).device
    assert facts["driver"] == json.loads(FAKE.read_text())["driver"]
    assert device.Nvml(gpu.uuid).clocks()["sm_mhz"] == 1500


def test_an_unreadable_fake_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(device.FAKE, str(tmp_path / "none.json"))

    with pytest.raises(UserError, match=r"NORMBENCH_FAKE_GPU: .*none\.json cannot be read"):
        device.discover()


def test_machine_facts_are_the_same_bytes_every_time(
    tmp_path: Path, normbench: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A clock reading in machine.json would re-measure the study whenever it is made again."""
    target = "faked-gpu-a-8842ec"
    for name in ("one", "two"):
        made = normbench("machine", "--target", target, "--out", tmp_path / name, NORMBENCH_FAKE_GPU=str(FAKE))
        assert made.returncode == 0, made.stderr

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_another_driver_or_library_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources.versions("580.1")

    assert sources.versions("580.1") == before
    assert sources.versions("580.2") != before
    monkeypatch.setattr(sources, "baseline_versions", lambda: {"liger": "0.0.0"})
    assert sources.versions("580.1") != before


def test_only_nvidias_apex_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package index has another project of that name."""
    monkeypatch.setattr(sources, "version", lambda name: "0.9" if name == "apex" else None)
    monkeypatch.setattr(sources, "find_spec", lambda _: None)

    assert sources.baseline_versions() == {}


def test_the_measuring_modules_are_there() -> None:
    """A renamed module would silently stop to re-measure."""
    assert sorted(path.name for path in sources.measuring_modules()) == sorted(sources.MEASURING)


def test_a_constraint_matches_the_names_and_nothing_else() -> None:
    import re

    assert re.fullmatch(parse.names(["a.b", "c"]), "a.b")
    assert not re.fullmatch(parse.names(["a.b", "c"]), "axb")
    assert not re.fullmatch(parse.names([]), "")
