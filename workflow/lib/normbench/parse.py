"""What the rules know before the first job: contenders, GPUs, archive and parameters; the DAG is static.

Reads the config, kernel headers, folder names and NVML; makes no CUDA context, imports no torch, writes nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from normbench import archive, config, device, fleet, kernelfile, schema, sources, tools
from normbench.config import ConfigError, Study
from normbench.kernelfile import Kernel
from normbench.points import canonical_json

PACKAGE = Path("workflow/lib/normbench")
RESULTS = Path("results")
ARCHIVE = Path("reports/data")
# modules that decide what a cubin is; those that define a number are in sources.MEASURING
COMPILING = ("compile.py", "cubin.py", "kernelfile.py", "nvrtc.py", "occupancy.py", "ptxas.py")


@dataclass(frozen=True)
class Plan:
    """The study and everything on disk or in the machine that decides which jobs there are.

    kernels, baselines: the contenders that the config names, by stem. gpus: local ones to measure, by device id.
    versions: hash of the driver's and the libraries' versions. nvrtc: version of the compiler, None without one.
    slots: how many local GPUs measure at a time. fleet: targets on other hosts by name, in place of local GPUs.
    fleet_file: where they are named.
    """

    study: Study
    kernels: dict[str, Kernel]
    baselines: dict[str, Path]
    gpus: dict[str, device.Gpu]
    versions: str
    nvrtc: str | None
    slots: int
    fleet: Mapping[str, fleet.Target]
    fleet_file: str | None

    @property
    def targets(self) -> list[str]:
        """Keys of paths: device ids of local GPUs, or names of the fleet."""
        return list(self.fleet or self.gpus)

    def chip(self, target: str) -> str:
        """Name of the Snakemake resource, one of a kind, that a job on this target's GPU takes."""
        return f"gpu_{target.replace('-', '_')}"

    @property
    def claims(self) -> dict[str, Callable[[Any], int | str | None]]:
        """What a measuring job asks for beside the resource ``gpu``, by resource name."""
        return fleet.resources(self.fleet) if self.fleet else dict(self.chips)

    def threads(self, cores: int | None) -> int | Callable[[Any], int]:
        """Threads of a measuring job: what the target says, or its share of this host's ``cores``."""
        return fleet.threads(self.fleet) if self.fleet else max(1, (cores or 1) // self.slots)

    @property
    def chips(self) -> dict[str, Callable[[Any], int]]:
        """By resource name, whether a job with these wildcards runs on that GPU; nothing where one GPU is measured.

        The resource ``gpu`` says how many jobs measure at a time, these say that no two do on the same GPU.
        """
        if self.slots < 2:
            return {}
        return {self.chip(target): partial(_is_on, target) for target in self.targets}

    @property
    def measured(self) -> list[str]:
        """Stems of the kernels that serve an op and a regime of the study; the others are only compiled."""
        return [
            stem
            for stem, kernel in self.kernels.items()
            if set(kernel.ops) & set(self.study.ops) and set(kernel.regimes) & set(self.study.regimes)
        ]

    def racers(self, op: str) -> list[str]:
        """Stems of our kernels in the race of one op."""
        return [stem for stem in self.measured if op in self.kernels[stem].ops]

    @property
    def guests(self) -> list[str]:
        """Callables from outside the repository, ``module:function``; with nothing to tune they race as they are."""
        return [pattern for pattern in self.study.kernels if ":" in pattern]

    @property
    def guest_files(self) -> list[str]:
        """Sources of the guests that lie in the working folder; installed ones are not followed."""
        files = (Path(*guest.partition(":")[0].split(".")).with_suffix(".py") for guest in self.guests)
        return [str(path) for path in files if path.is_file()]

    @property
    def triton(self) -> list[str]:
        return [stem for stem in self.measured if self.kernels[stem].lang == "triton"]

    @property
    def compiled(self) -> list[str]:
        """Stems of the kernels that NVRTC compiles."""
        return [stem for stem, kernel in self.kernels.items() if kernel.lang == "cuda"]

    def paths(self, stems: Iterable[str]) -> list[str]:
        """Source files of kernels and baselines."""
        return [str(self.baselines.get(stem) or self.kernels[stem].path) for stem in stems]

    def headers(self, stem: str) -> list[str]:
        """The project's headers that a CUDA kernel includes."""
        kernel = self.kernels[stem]
        return [_relative(path) for path in kernelfile.included(kernel.path)] if kernel.lang == "cuda" else []

    def builds(self, target: str, stems: Iterable[str]) -> list[str]:
        """Compiled kernels a target needs, names and binary; Triton kernels and baselines have none."""
        folder = RESULTS / "build" / self.arch(target)
        return [str(folder / f"{stem}{end}") for stem in stems if stem in self.compiled for end in (".json", ".cubin")]

    def arch(self, target: str) -> str:
        """``sm_90`` of a target.

        Raises:
            ConfigError: the driver does not tell.
        """
        found = self.fleet[target].sm if self.fleet else self.gpus[target].arch
        if found is None:
            raise ConfigError(f"{target}: the driver does not tell the compute capability, so nothing can be compiled")
        return found

    @property
    def archs(self) -> list[str]:
        """Architectures of ``cubins``."""
        return [f"sm_{arch}" for arch in self.study.archs]

    @property
    def known_archs(self) -> set[str]:
        """Every architecture there can be a cubin for: the config's, the local GPUs', and those compiled before."""
        before = {folder.name for folder in (RESULTS / "build").glob("sm_*")}
        return {*self.archs, *map(self.arch, self.targets), *before}

    @cached_property
    def archived(self) -> list[Path]:
        return archive.folders(ARCHIVE)

    @cached_property
    def visiting(self) -> list[Path]:
        """Finished studies of other targets in results/, say from a shared folder; no rule can touch them."""
        return [folder for folder in archive.local_folders(RESULTS) if folder.name not in self.targets]

    @property
    def devices(self) -> list[str]:
        """Every device that gets a page, one of a fleet under its target's name until it is published."""
        found = {folder.parent.name for folder in self.archived} | {folder.name for folder in self.visiting}
        return sorted(found | set(self.targets))

    @property
    def finished_files(self) -> list[str]:
        """Files of the archive and of visiting studies: inputs that no rule makes."""
        return sorted(str(path) for folder in (*self.archived, *self.visiting) for path in archive.files(folder))

    @property
    def resources(self) -> list[str]:
        """Tables of the compiler's figures for local studies: the local architectures, and those compiled before."""
        if not (self.targets or self.visiting):
            return []
        before = {path for path in (RESULTS / "build").glob("sm_*/*.parquet") if path.stem in self.compiled}
        local = {
            RESULTS / "build" / self.arch(target) / f"{stem}.parquet"
            for target in self.targets
            for stem in self.measured
            if stem in self.compiled
        }
        return sorted(map(str, before | local))

    @property
    def asked(self) -> list[str]:
        """Tables of ``verify``, ``sanitize``, ``profile`` and ``audit`` that exist; once asked for, they are kept up to
        date like the rest."""
        parts = {*self.measured, *self.baselines, *self.study.ops}
        folders = (RESULTS / target / name for target in self.targets for name in schema.ASKED)
        return sorted(str(path) for folder in folders for path in folder.glob("*.parquet") if path.stem in parts)

    @property
    def timers(self) -> str:
        """A rule parameter: the version of NVBench here, whose rows are made again once it is installed."""
        return "" if self.fleet else f"cuda-bench {sources.version('cuda-bench')}"

    @property
    def audited(self) -> int:
        """Points of ``audit`` for each op."""
        return max(1, self.study.audit_points // len(self.study.ops))

    def tool(self, name: str) -> str:
        """A rule parameter: rows that were skipped for want of a tool are made again once it is installed.

        Nothing is said of the hosts of a fleet, which are not this one.
        """
        return "" if self.fleet else f"{name} {'found' if tools.present(name) else 'missing'}"

    def compared_files(self, run: str) -> list[str]:
        """Files of the archived run that ``--config left=…`` or ``right=…`` names.

        Raises:
            ArchiveError: there is none.
        """
        return [str(path) for path in archive.files(archive.locate(str(run), ARCHIVE))]

    def comparison(self, left: str, right: str) -> str:
        """The page of ``compare``, beside those of the devices."""
        return f"reports/{archive.comparison(str(left), str(right))}.html"


def plan(values: Mapping[str, Any], resources: Mapping[str, Any]) -> Plan:
    """Everything the rules need, from Snakemake's config and its global resources.

    The first visible GPU is measured, or as many as ``--resources gpu=N`` gives; with ``--config fleet=FILE`` its
    targets are, and no GPU is looked for.

    Raises:
        ValueError: a wrong config or kernel header; the message is one sentence.
    """
    study = config.load(values, Path())
    elsewhere = fleet.load(values["fleet"]) if values.get("fleet") else {}
    found = device.Discovery([], []) if elsewhere else device.discover_visible()
    given = getattr(resources.get("gpu"), "value", None)
    gpus = {gpu.device: gpu for gpu in found.gpus[: given if isinstance(given, int) and given > 0 else 1]}
    return Plan(
        study=study,
        kernels=_kernels(study),
        baselines=_baselines(study),
        gpus=gpus,
        versions=sources.versions(found.driver),
        nvrtc=sources.nvrtc_version(),
        slots=max(1, len(gpus)),
        fleet=elsewhere,
        fleet_file=str(values["fleet"]) if elsewhere else None,
    )


def _is_on(target: str, wildcards: Any) -> int:
    return int(wildcards.target == target)


def _kernels(study: Study) -> dict[str, Kernel]:
    ours = {kernel.stem: kernel for kernel in kernelfile.find("kernels")}
    inside = [pattern for pattern in study.kernels if not config.is_outside(pattern)]
    chosen = {stem: ours[stem] for stem in config.selected(ours, inside)}
    for path in study.kernels:
        if config.is_outside(path) and ":" not in path:
            kernel = kernelfile.load(path)
            if kernel.stem in ours:
                raise ConfigError(f"kernels: the stem of {path} is taken by {ours[kernel.stem].path}; rename the file")
            chosen[kernel.stem] = kernel
    return chosen


def _baselines(study: Study) -> dict[str, Path]:
    stems = config.selected(config.baseline_stems(Path()), study.baselines)
    paths = {stem: Path("kernels/baselines") / f"{stem}.py" for stem in stems}
    return {stem: path for stem, path in paths.items() if set(sources.regimes(path.read_text())) & set(study.regimes)}


def names(stems: Iterable[str]) -> str:
    """A wildcard constraint that matches ``stems`` and nothing else, so nothing at all where there are none."""
    return "|".join(re.escape(stem) for stem in sorted(set(stems))) or "(?!)"


def modules(patterns: Iterable[str]) -> list[str]:
    """Files of the package by pattern, relative to the checkout, so that moving it re-runs nothing."""
    return sorted({str(path) for pattern in patterns for path in PACKAGE.glob(pattern) if path.is_file()})


def imported(verb: str) -> list[str]:
    """The module of a verb and every module of the package it imports, directly or not, relative to the checkout."""
    found: set[Path] = set()
    queue = [PACKAGE / f"{verb}.py"]
    while queue:
        path = queue.pop()
        if path not in found and path.is_file():
            found.add(path)
            queue += [PACKAGE / f"{name}.py" for name in _imports(path)]
    return sorted(map(str, found))


@cache
def _imports(path: Path) -> frozenset[str]:
    """Names of the modules a file imports from the package, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "normbench":
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("normbench."):
            found.add(str(node.module).split(".")[1])
    return frozenset(found)


def measuring() -> list[str]:
    """The files that define what a number means."""
    return _files(path.name for path in sources.measuring_modules())


def verifying() -> list[str]:
    """The files that define the inputs of ``verify`` and what is done with them."""
    return _files(sources.VERIFYING)


def auditing() -> list[str]:
    """The files that define what ``audit`` compares."""
    return _files(sources.AUDITING)


def sanitizing() -> list[str]:
    """The files that define what is launched under compute-sanitizer and how its log is read."""
    return _files(sources.SANITIZING)


def profiling() -> list[str]:
    """The files that define what is launched under ncu and how its figures are read."""
    return _files(sources.PROFILING)


def _files(names: Iterable[str]) -> list[str]:
    return [str(PACKAGE / name) for name in names]


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)


def parameter(value: object) -> str:
    """One canonical text for a rule parameter; Snakemake compares parameters as a set of values without names."""
    return canonical_json(value)
