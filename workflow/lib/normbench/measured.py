"""What one device's page is made of: its newest points with every derived number, and where each came from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from normbench import formats, kernelfile, metrics, schema

Machine = Mapping[str, Any]
ABSENT = "–"
ELSEWHERE = "  # its file is not in this checkout; the commit of the run has it"  # a comment to the shell too
MACHINE = (*(name for name in schema.MACHINE if name != "device"), "study", "commit", "files")


@dataclass(frozen=True)
class Archive:
    """The collected tables and the machines they came from."""

    cases: pl.DataFrame
    showdown: pl.DataFrame
    checks: pl.DataFrame
    ceilings: pl.DataFrame
    resources: pl.DataFrame
    machines: tuple[Machine, ...]
    audit: pl.DataFrame = field(default_factory=schema.AUDIT.empty)
    sanitize: pl.DataFrame = field(default_factory=schema.SANITIZE.empty)
    profile: pl.DataFrame = field(default_factory=schema.PROFILE.empty)

    @property
    def devices(self) -> list[str]:
        return sorted({str(machine["device"]) for machine in self.machines})

    def page(self, device: str) -> str:
        """Name of the device's page: its id, or the target of a study that is not in the archive yet."""
        targets = [str(one.get("target") or device) for one in self.machines if one["device"] == device]
        return device if device in targets else min(targets)

    def of(self, device: str) -> Archive:
        """The part of one device.

        Raises:
            ValueError: the archive has no such device.
        """
        if device not in self.devices:
            raise ValueError(f"device {device!r} is in no table; known: {', '.join(self.devices) or 'none'}")
        tables = {
            name: getattr(self, name).filter(pl.col("device").eq_missing(pl.lit(device))) for name in schema.TABLES
        }
        return Archive(**tables, machines=tuple(one for one in self.machines if one["device"] == device))


def load(folder: Path | str, name: str | None = None, tables: Collection[str] = tuple(schema.TABLES)) -> Archive:
    """Read ``results/tables``; a table that is absent is empty.

    name: the one device or target whose rows are wanted (default: all). tables: those wanted; the others are empty.

    Raises:
        ValueError: a file is not what the schema says, machines.json is not a list, or there is no such device; the
            message names it.
    """
    folder = Path(folder)
    machines = _machines(folder / "machines.json")
    device = name if name is None else device_id(machines, name)
    read = {
        name: _table(folder / f"{name}.parquet", table, device) if name in tables else table.empty()
        for name, table in schema.TABLES.items()
    }
    return Archive(**read, machines=tuple(one for one in machines if device in (None, one["device"])))


def device_id(machines: Sequence[Machine], name: str) -> str:
    """The device id of a name, which may also be the target of results/ that its study lies in.

    Raises:
        ValueError: there is neither.
    """
    devices = {str(one["device"]) for one in machines}
    targets = {str(one.get("target")): str(one["device"]) for one in machines}
    if name not in devices and name not in targets:
        raise ValueError(f"device {name!r} is in no table; known: {', '.join(sorted(devices)) or 'none'}")
    return name if name in devices else targets[name]


def _table(path: Path, table: schema.Table, device: str | None) -> pl.DataFrame:
    return schema.read(path, table, device) if path.exists() else table.empty()


def _machines(path: Path) -> tuple[Machine, ...]:
    if not path.exists():
        return ()
    try:
        machines = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(machines, list) or not all(isinstance(one, dict) and "device" in one for one in machines):
        raise ValueError(f"{path}: not a list of machines with a device each")
    return tuple(sorted(machines, key=lambda one: (str(one["device"]), str(one.get("run")))))


@dataclass(frozen=True)
class Measured:
    """One device, ready to draw.

    cases, showdown: each point from the newest run that has it, with the metrics, ``aligned``, the winner columns and
    the evidence columns (``samples``, ``interval``, ``clocks``, ``command``) that tooltips show.
    machine: facts of the newest run, with every key of MACHINE, null where unknown. machines: those of every run.
    stored: the same rows as the tables hold them, by table name, for the downloads.
    paths: contender to its file, as a person at the top of the repository names it. kernels: ours, for the cards.
    """

    device: str
    machine: Machine
    machines: tuple[Machine, ...]
    runs: tuple[str, ...]
    cases: pl.DataFrame
    showdown: pl.DataFrame
    checks: pl.DataFrame
    ceilings: pl.DataFrame
    resources: pl.DataFrame
    audit: pl.DataFrame
    sanitize: pl.DataFrame
    profile: pl.DataFrame
    stored: Mapping[str, pl.DataFrame]
    paths: Mapping[str, str]
    kernels: tuple[kernelfile.Kernel, ...] = ()

    def ceiling(self, name: str) -> float | None:
        """The largest value of one measured ceiling over all sizes, in the unit of the table; null when absent."""
        value = self.ceilings.filter(pl.col("name") == name)["value"].max()
        return None if value is None else float(value)  # type: ignore[arg-type]


def measured(
    archive: Archive, device: str, kernels: Sequence[kernelfile.Kernel] = (), root: Path | None = None
) -> Measured:
    """Join, derive and order what the archive knows about ``device``.

    root: the folder of kernel files, for the paths in the commands that reproduce a row.
    ``op`` carries the semantics where they are not the op's default, so that unlike work never shares a chart or a row.
    """
    own = archive.of(device)
    paths = {kernel.stem: kernel.path.as_posix() for kernel in kernels} | _paths(root)
    stored = {
        "showdown": metrics.newest(own.showdown),
        "cases": metrics.newest(own.cases, "contender"),
        "checks": metrics.newest(own.checks, "contender", "case"),
        "ceilings": _latest(own.ceilings, "name", "size_bytes"),
        "resources": _latest(own.resources, "contender"),
        "audit": metrics.newest(own.audit, "contender"),
        "sanitize": metrics.newest(own.sanitize, "contender", "tool"),
        "profile": metrics.newest(own.profile, "contender"),
    }
    cases = metrics.derive(stored["cases"], own.machines)
    showdown = races(stored["showdown"], own)
    return Measured(
        device=device,
        machine=dict.fromkeys(MACHINE) | dict(own.machines[-1]),
        machines=tuple(dict.fromkeys(MACHINE) | dict(one) for one in own.machines),
        runs=tuple(sorted({*cases["run"], *showdown["run"]})),
        cases=labelled(with_evidence(cases, paths)),
        showdown=labelled(with_evidence(showdown, paths)),
        checks=_with_role(stored["checks"]),
        ceilings=stored["ceilings"],
        resources=_with_role(stored["resources"]),
        audit=labelled(stored["audit"]),
        sanitize=stored["sanitize"],
        profile=labelled(stored["profile"]),
        stored=stored,
        paths=paths,
        kernels=tuple(kernels),
    )


def _latest(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    return frame.filter(pl.col("run").eq_missing(pl.col("run").max().over(keys)))


def races(showdown: pl.DataFrame, archive: Archive) -> pl.DataFrame:
    """Rows of the archive's ``showdown`` with the tuned roofs, every metric and the winner columns."""
    roofed = metrics.with_roofs(showdown, archive.ceilings)
    return metrics.with_winners(metrics.derive(roofed, archive.machines))


def labelled(frame: pl.DataFrame) -> pl.DataFrame:
    """``op`` with the semantics where they are not the op's default."""
    special = pl.format("{} {}", "op", "semantics")
    return frame.with_columns(op=pl.when(pl.col("semantics") == "default").then("op").otherwise(special))


def _with_role(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(metrics.METRICS["role"].expression.alias("role"))


def _paths(root: Path | None) -> dict[str, str]:
    """Contender to the file a person passes to ``normbench bench``, relative to where ``root`` lies."""
    if root is None or not root.is_dir():
        return {}
    files = (path for path in sorted(root.rglob("*")) if path.suffix in (".cu", ".py"))
    return {path.stem: (Path(root.resolve().name) / path.relative_to(root)).as_posix() for path in files}


def with_evidence(frame: pl.DataFrame, paths: Mapping[str, str]) -> pl.DataFrame:
    """Add what a tooltip shows beside the numbers: samples, interval, clock state, the command that repeats the row."""
    taken = pl.col("samples_us").list
    frame = frame.with_columns(taken.min().alias("shortest"), taken.max().alias("longest"))
    rows = list(frame.drop("samples_us").iter_rows(named=True))
    return frame.with_columns(
        pl.col("reason").map_elements(formats.plain, return_dtype=pl.String),
        pl.Series("samples", [_samples(row) for row in rows], pl.String),
        pl.Series("interval", [_interval(row) for row in rows], pl.String),
        pl.Series("clocks", [_clocks(row) for row in rows], pl.String),
        pl.Series("command", [command(row, paths) for row in rows], pl.String),
    ).drop("shortest", "longest")


def _samples(row: Mapping[str, Any]) -> str:
    """How many, and between what they lie."""
    if row["n_samples"] is None:
        return ABSENT
    spread = "" if row["shortest"] is None else f", {row['shortest']:.5g}–{row['longest']:.5g} µs"
    return f"{row['n_samples']}{spread}"


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row.get("time_us_lo"), row.get("time_us_hi")
    return ABSENT if low is None or high is None else f"{low:.5g}–{high:.5g} µs"


def _clocks(row: Mapping[str, Any]) -> str:
    sm = row["sm_clock_gpu_mhz"] or row["sm_clock_mhz_p50"]
    readings = (
        ("SM {:.0f} MHz", sm),
        ("memory {:.0f} MHz", row["mem_clock_mhz_p50"]),
        ("{:.0f} W", row["power_w_p50"]),
        ("{:.0f} °C", row["temp_c_max"]),
    )
    return ", ".join(text.format(value) for text, value in readings if value is not None) or ABSENT


def command(row: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """The shell command that checks and times the row's contender, in its variant, at the row's point; a twin's is that
    of whom it is the twin."""
    contender = row["contender"].removesuffix(schema.TWIN)
    words = ["normbench", "bench", paths.get(contender, contender)]
    plain = row["shape"] in (None, f"{row['rows']}x{row['hidden']}")
    for name in ("op", "dtype", *(("rows", "hidden") if plain else ("shape",))):
        words += [f"--{name}", str(row[name])]
    if row["regime"] != "stream":
        words += ["--regime", row["regime"]]
    if row["semantics"] != "default":
        words += ["--semantics", row["semantics"]]
    if row["variant"] not in (None, "{}"):
        words += ["--variant", row["variant"]]
    elsewhere = paths and contender not in paths
    return shlex.join(words) + (ELSEWHERE if elsewhere else "")
