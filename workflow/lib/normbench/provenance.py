"""Where the rows of a page come from: runs, the sources and versions that made them, and hashes of the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import formats
from normbench.measured import Measured
from normbench.points import canonical_json, short_hash

FACTS = {
    "gpu_name": "GPU",
    "arch": "architecture",
    "sm_count": "multiprocessors",
    "l2_bytes": "L2",
    "memory_bytes": "memory",
    "memory_bus_bits": "memory bus (bit)",
    "max_sm_clock_mhz": "highest SM clock (MHz)",
    "max_mem_clock_mhz": "highest memory clock (MHz)",
    "theoretical_gbps": "theoretical bandwidth (GB/s)",
    "power_limit_w": "power limit (W)",
    "ecc": "ECC",
    "mig": "MIG",
    "driver": "driver",
    "cuda_driver": "CUDA of the driver",
    "nvrtc": "NVRTC",
    "torch": "torch",
    "triton": "Triton",
    "cuda_core": "cuda-core",
    "cuda_bindings": "cuda-bindings",
    "python": "Python",
}
VERSIONS = ("driver", "nvrtc", "torch", "triton", "cuda_core", "cuda_bindings", "python")
BYTES = ("l2_bytes", "memory_bytes")


@dataclass(frozen=True)
class Origin:
    """One run that rows of the page come from.

    first, last: when its rows were finished, UTC. sources: hashes of what decides a number. commit: of the checkout it
    was published from, None where that was not kept. versions: by the name people know. study: hash of its
    configuration. files: SHA-256 by name. rows: how many of the page's races are from it.
    """

    run: str
    first: str | None
    last: str | None
    sources: tuple[str, ...]
    commit: str | None
    versions: dict[str, str]
    study: str | None
    files: dict[str, str]
    rows: int

    @property
    def checksums(self) -> str:
        """Lines that ``sha256sum --check`` takes."""
        return "\n".join(f"{digest}  {name}" for name, digest in sorted(self.files.items()))


def origins(one: Measured) -> list[Origin]:
    """Every run the page draws from, oldest first."""
    machines = {str(machine.get("run")): machine for machine in one.machines}
    return [_origin(run, machines.get(run, {}), one) for run in one.runs]


def _origin(run: str, machine: Mapping[str, Any], one: Measured) -> Origin:
    races, tuning = (frame.filter(pl.col("run") == run) for frame in (one.showdown, one.cases))
    rows = pl.concat([frame.select("measured_at", "sources") for frame in (races, tuning)])
    dates = rows["measured_at"].drop_nulls().sort()
    study = machine.get("study")
    return Origin(
        run=run,
        first=dates.first(),  # type: ignore[arg-type]
        last=dates.last(),  # type: ignore[arg-type]
        sources=tuple(rows["sources"].drop_nulls().unique().sort()),
        commit=machine.get("commit"),
        versions=dict(_versions(machine)),
        study=None if study is None else short_hash(canonical_json(study), 16),
        files=dict(machine.get("files") or {}),
        rows=races.height,
    )


def _versions(machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((FACTS[name], formats.fact(machine.get(name))) for name in VERSIONS)
    yield from ((name, formats.fact(version)) for name, version in sorted((machine.get("baselines") or {}).items()))


def facts(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything known of a machine and its software, as (label, text)."""
    values = [(label, machine.get(name), name in BYTES) for name, label in FACTS.items()]
    known = [(label, formats.binary_bytes(value) if size else formats.fact(value)) for label, value, size in values]
    return known + [(name, formats.fact(text)) for name, text in sorted((machine.get("baselines") or {}).items())]


def differences(machines: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...], bool]]:
    """Each fact side by side, as (label, a text for each machine, whether they differ)."""
    tables = [dict(facts(machine)) for machine in machines]
    labels = dict.fromkeys(label for table in tables for label in table)
    rows = [(label, tuple(table.get(label, formats.NONE) for table in tables)) for label in labels]
    return [(label, values, len(set(values)) > 1) for label, values in rows]
