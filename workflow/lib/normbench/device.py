"""Which GPUs are here and what state they are in, told by NVML alone: no CUDA context, no torch, nothing but readings.

A GPU is known by its UUID, never by an index: NVML and CUDA count in different orders. Its device id, the key of every
path and table, is a slug of its name and six hex digits of a hash of its UUID. Where NVML is absent or broken there is
no GPU, and ``discover`` says why. The environment variable NORMBENCH_FAKE_GPU names a JSON file that stands in for NVML
in tests: one mapping shaped like machine.json with a ``uuid``, or a list of them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench import nvml
from normbench.cli import UserError
from normbench.points import short_hash

FAKE = "NORMBENCH_FAKE_GPU"
VISIBLE = "CUDA_VISIBLE_DEVICES"
Facts = dict[str, Any]


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of one.

    index: of the physical GPU in NVML's order, for people only. parent: UUID of the physical GPU. arch: ``sm_90``, or
    None where the driver does not tell. fake: what NORMBENCH_FAKE_GPU says of it, or None for a real one.
    """

    uuid: str
    index: int
    name: str
    arch: str | None
    parent: str
    fake: Facts | None = None

    @property
    def mig(self) -> bool:
        return self.uuid != self.parent

    @property
    def model(self) -> str:
        """Slug of the name, ``nvidia-h200``; pages group devices by it."""
        return slug(self.name)

    @property
    def device(self) -> str:
        """Device id, ``nvidia-h200-3f9a1c``."""
        return f"{self.model}-{short_hash(self.uuid, 6)}"


@dataclass(frozen=True)
class Discovery:
    """gpus: those asked for, in order. notes: a sentence on each thing that keeps others away. driver: its version."""

    gpus: list[Gpu]
    notes: list[str]
    driver: str | None = None


def slug(name: str) -> str:
    """Lower-case letters and digits of ``name``, everything else a single dash."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def theoretical_gbps(mem_clock_mhz: float | None, bus_bits: int | None) -> float | None:
    """Peak memory bandwidth in GB/s: two transfers a clock times the bus width; None where a factor is unknown or 0."""
    if not mem_clock_mhz or not bus_bits:
        return None
    return round(2 * mem_clock_mhz * 1e6 * bus_bits / 8 / 1e9, 1)


def local_gpus() -> list[Gpu]:
    """The GPUs CUDA_VISIBLE_DEVICES shows."""
    return discover_visible().gpus


def discover_visible() -> Discovery:
    """``discover`` of the GPUs CUDA_VISIBLE_DEVICES shows; what keeps others away is said on stderr."""
    found = discover(os.environ.get(VISIBLE))
    for note in found.notes:
        print(f"normbench: {note}", file=sys.stderr)
    return found


def find(device: str, visible: str | None = None) -> Gpu:
    """The GPU with that device id among those a CUDA_VISIBLE_DEVICES of ``visible`` shows, None for all of this host.

    Raises:
        UserError: there is none; the sentence names those there are.
    """
    found = discover(visible)
    for gpu in found.gpus:
        if gpu.device == device:
            return gpu
    here = ", ".join(gpu.device for gpu in found.gpus) or "no GPU"
    raise UserError("; ".join([f"{device} is not a GPU of this host, which has {here}", *found.notes]))


def discover(visible: str | None = None) -> Discovery:
    """The GPUs a CUDA_VISIBLE_DEVICES of ``visible`` shows, None for all; without NVML there are none.

    Raises:
        UserError: the file of NORMBENCH_FAKE_GPU cannot be read.
    """
    if os.environ.get(FAKE):
        entries = _fakes(Path(os.environ[FAKE]))
        gpus, notes = choose([_fake(index, entry) for index, entry in enumerate(entries)], visible)
        return Discovery(gpus, notes, entries[0].get("driver") if entries else None)
    try:
        library = nvml.start()
    except nvml.NvmlMissing as error:
        return Discovery([], [str(error)] if error.worth_saying else [])
    try:
        gpus, notes = choose(_inventory(library), visible)
    except library.NVMLError as error:
        gpus, notes = [], [f"NVML cannot list the GPUs: {error}."]
    return Discovery(gpus, notes, nvml.Query(library).ask("driver", "nvmlSystemGetDriverVersion"))


def choose(gpus: list[Gpu], visible: str | None) -> tuple[list[Gpu], list[str]]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, in its order, and notes on a token that names none.

    As in CUDA, a token that matches nothing hides all that follow; nothing ever falls back to index 0.
    """
    if visible is None:
        return gpus, []
    chosen: list[Gpu] = []
    for token in filter(None, (token.strip() for token in visible.split(","))):
        if token in ("-1", "NoDevFiles"):
            break
        matches = _matches(gpus, token)
        if len({gpu.parent for gpu in matches}) != 1:
            count = "several GPUs" if matches else "no GPU"
            return chosen, [f"{VISIBLE}: {token!r} matches {count} of NVML; name one by its UUID (nvidia-smi -L)."]
        if token.isdecimal() and _ambiguous(gpus):
            return chosen, [
                f"{VISIBLE}: index {token} is ambiguous among GPUs of several models, since CUDA counts the fastest "
                "first; name one by its UUID (nvidia-smi -L) or set CUDA_DEVICE_ORDER=PCI_BUS_ID."
            ]
        if matches[0] not in chosen:
            chosen.append(matches[0])
    return chosen, []


def _matches(gpus: list[Gpu], token: str) -> list[Gpu]:
    """GPUs of one token: index, (short) UUID of a GPU or of a MIG instance; a GPU stands for its first instance."""
    if token.isdecimal():
        return [gpu for gpu in gpus if gpu.index == int(token)]
    if token.startswith("MIG-"):
        return [gpu for gpu in gpus if gpu.mig and gpu.uuid.startswith(token)]
    return [gpu for gpu in gpus if gpu.parent.startswith(f"GPU-{token.removeprefix('GPU-')}")]


def _ambiguous(gpus: list[Gpu]) -> bool:
    return len({gpu.name for gpu in gpus if not gpu.mig}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _inventory(library: Any) -> list[Gpu]:
    gpus: list[Gpu] = []
    for index in range(library.nvmlDeviceGetCount()):
        card = library.nvmlDeviceGetHandleByIndex(index)
        parent = library.nvmlDeviceGetUUID(card)
        arch = nvml.Query(library).ask("arch", "nvmlDeviceGetCudaComputeCapability", card, take=_arch)
        # with MIG on, CUDA can use the instances but not the GPU itself
        for unit in _mig_instances(library, card) or [card]:
            uuid, name = library.nvmlDeviceGetUUID(unit), library.nvmlDeviceGetName(unit)
            gpus.append(Gpu(uuid, index, name, arch, parent))
    return gpus


def _arch(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def _mig_instances(library: Any, card: Any) -> list[Any]:
    query = nvml.Query(library)
    if query.ask("mig", "nvmlDeviceGetMigMode", card, take=lambda modes: modes[0]) != 1:
        return []
    count = query.ask("count", "nvmlDeviceGetMaxMigDeviceCount", card) or 0
    found = (query.ask(str(index), "nvmlDeviceGetMigDeviceHandleByIndex", card, index) for index in range(count))
    return [instance for instance in found if instance is not None]


def _fakes(path: Path) -> list[Facts]:
    try:
        values = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{FAKE}: {path} cannot be read: {error}") from error
    return values if isinstance(values, list) else [values]


def _fake(index: int, values: Mapping[str, Any]) -> Gpu:
    uuid = str(values["uuid"])
    return Gpu(uuid, index, values["gpu_name"], values.get("arch"), uuid, fake={**values, "fake": True})


READINGS = ("sm_mhz", "mem_mhz", "power_w", "temp_c", "throttle_reasons")


class Nvml:
    """Clock state of one GPU while it is measured; handles are kept: 2 to 22 µs a reading on an H200 once warm.

    A refused reading is None and not asked for again; ``notes`` holds the reason. Without NVML all are None; a faked
    GPU reads its maximum clocks. Clocks, power and temperature of a MIG instance are those of its card.
    """

    def __init__(self, uuid: str) -> None:
        self.notes: dict[str, str] = {}
        self._fixed: dict[str, float | int | None] = dict.fromkeys(READINGS)
        self._query: nvml.Query | None = None
        if os.environ.get(FAKE):
            fake = next((entry for entry in _fakes(Path(os.environ[FAKE])) if entry["uuid"] == uuid), {})
            self._fixed |= {"sm_mhz": fake.get("max_sm_clock_mhz"), "mem_mhz": fake.get("max_mem_clock_mhz")}
            return
        try:
            self._query = nvml.Query(nvml.start())
        except nvml.NvmlMissing as error:
            self.notes = dict.fromkeys(READINGS, str(error))
            return
        self._unit = self._query.ask("gpu", "nvmlDeviceGetHandleByUUID", uuid)
        self._card = self._unit
        if uuid.startswith("MIG-") and self._unit is not None:
            self._card = self._query.ask("card", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self._unit)
        self.notes = self._query.notes
        if self._card is None:
            self._query = None

    def clocks(self) -> dict[str, float | int | None]:
        """SM and memory clock in MHz, power in W (the board refreshes it every 100 ms), temperature in °C and the
        bits of the clock-event reasons, under the names of READINGS."""
        if self._query is None:
            return dict(self._fixed)
        library = self._query.nvml
        power_mw = self._ask("power_w", "nvmlDeviceGetPowerUsage")
        return {
            "sm_mhz": self._ask("sm_mhz", "nvmlDeviceGetClockInfo", library.NVML_CLOCK_SM),
            "mem_mhz": self._ask("mem_mhz", "nvmlDeviceGetClockInfo", library.NVML_CLOCK_MEM),
            "power_w": None if power_mw is None else power_mw / 1000,
            "temp_c": self._ask("temp_c", "nvmlDeviceGetTemperature", library.NVML_TEMPERATURE_GPU),
            "throttle_reasons": self._ask("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
        }

    def other_processes(self, pid: int) -> list[int]:
        """Compute processes on the GPU besides ``pid``, which must have a context there.

        In a container NVML gives the host's process ids, so ``pid`` is not among them; then one is taken for ours.
        """
        if self._query is None or "processes" in self.notes:
            return []
        found = self._query.ask("processes", "nvmlDeviceGetComputeRunningProcesses", self._unit) or []
        pids = sorted({process.pid for process in found})
        return [other for other in pids if other != pid] if pid in pids else pids[1:]

    def _ask(self, name: str, function: str, *args: Any) -> Any:
        if self._query is None or name in self.notes:
            return None
        return self._query.ask(name, function, self._card, *args)
