"""The targets of a fleet: kinds of GPUs on other hosts, and what a scheduler must be told to reach one of each.

``config/fleet.yaml`` is an example; ``--config fleet=FILE`` names the file of a study. Without one the local GPUs are
measured. Nothing here looks at a GPU: the host that submits need not have one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from normbench import device
from normbench.cli import UserError
from normbench.config import Arch, ConfigError
from normbench.nearest import allowed, closest

NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
RESERVED = frozenset({"build", "logs", "tables"})  # folders of results/ that are no target
Count = Annotated[int, Field(ge=1, strict=True)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]+$")]
# fields of a target that are Snakemake resources of its measuring jobs; executor plugins read them by these names
RESOURCES = (
    "gpu_model",
    "gpu_manufacturer",
    "mem_mb",
    "runtime",
    "slurm_partition",
    "slurm_account",
    "constraint",
    "qos",
    "machine_type",
)


class Target(BaseModel):
    """One kind of GPU and how to reach it. What is null is not asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arch: Arch = Field(description="architecture of its GPUs, 90 for sm_90; kernels are compiled for it")
    gpu: str | None = Field(
        default=None, min_length=1, description="text that the name of the GPU must hold, such as `H200`; else any GPU"
    )
    cpus: Count = Field(default=8, description="cores of a measuring job")
    mem_mb: Count = Field(default=32000, description="memory of a measuring job, MB")
    runtime: Count = Field(
        default=30, description="limit of one measuring job, minutes; all of a target run as one, with the sum"
    )
    gpu_model: Word | None = Field(default=None, description="Slurm: type of the GPU in `gres`, as `sinfo -o %G` lists")
    slurm_partition: Word | None = Field(default=None, description="Slurm: partition")
    slurm_account: Word | None = Field(default=None, description="Slurm: account")
    constraint: str | None = Field(default=None, min_length=1, description="Slurm: features the node must have")
    qos: Word | None = Field(default=None, description="Slurm: quality of service")
    machine_type: Word | None = Field(
        default=None, description="Kubernetes: the node's label `node.kubernetes.io/instance-type`"
    )
    gpu_manufacturer: Word | None = Field(default=None, description="Kubernetes: `nvidia`, for `nvidia.com/gpu`")

    @property
    def sm(self) -> str:
        return f"sm_{self.arch}"

    def pick(self, name: str, found: device.Discovery) -> device.Gpu:
        """The first visible GPU that is what the target says; ``name`` is the target's own.

        Raises:
            UserError: there is none; the sentence names those there are.
        """
        for gpu in found.gpus:
            if gpu.arch == self.sm and device.slug(self.gpu or "") in gpu.model:
                return gpu
        here = ", ".join(f"{gpu.name} ({gpu.arch or 'unknown architecture'})" for gpu in found.gpus) or "no GPU"
        wanted = f"{self.gpu or 'any GPU'} of {self.sm}"
        raise UserError("; ".join([f"target {name} asks for {wanted}, but this job sees {here}", *found.notes]))


Fleet = Mapping[str, Target]


def load(path: Path | str) -> dict[str, Target]:
    """The targets of a fleet file by name, in its order.

    Raises:
        ConfigError: the file cannot be read, an unknown key or a wrong value; one sentence that names it.
    """
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"fleet: {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"fleet: {path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not values:
        raise ConfigError(f"fleet: {path}: not a mapping of target names to what reaches them; see config/README.md")
    return {_name(path, name): _target(path, str(name), value) for name, value in values.items()}


def _name(path: Path, name: object) -> str:
    text = str(name)
    if not NAME.fullmatch(text) or text in RESERVED:
        raise ConfigError(
            f"fleet: {path}: {text!r} cannot name a target; use small letters, digits and dashes, but not "
            f"{', '.join(sorted(RESERVED))}"
        )
    return text


def _target(path: Path, name: str, values: object) -> Target:
    if not isinstance(values, dict):
        raise ConfigError(f"fleet: {path}: {name}: not a mapping of keys to values; see config/README.md")
    try:
        return Target(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = str(first["loc"][0])
    where = f"fleet: {path}: {name}.{key}"
    described = properties()
    if first["type"] == "extra_forbidden":
        raise ConfigError(f"{where}: unknown key; nearest valid key: {closest(key, list(described))}")
    if first["type"] == "missing":
        raise ConfigError(f"{where}: is missing; it is the {described[key]['description']}")
    raise ConfigError(f"{where}: {first['input']!r} is not {_allowed(described[key])}")


def _allowed(node: Mapping[str, Any]) -> str:
    node = next((part for part in node.get("anyOf", ()) if part.get("type") != "null"), node)
    return "one word" if "pattern" in node else allowed(node)


def properties() -> dict[str, Any]:
    """The keys of a target as JSON Schema describes them."""
    found: dict[str, Any] = Target.model_json_schema()["properties"]
    return found


def resources(fleet: Fleet) -> dict[str, Callable[[Any], int | str | None]]:
    """Snakemake resources of a measuring job by name, as functions of its wildcards; None asks for nothing."""
    return {name: partial(_of_target, fleet, name) for name in RESOURCES}


def threads(fleet: Fleet) -> Callable[[Any], int]:
    """Threads of a measuring job as a function of its wildcards."""
    return lambda wildcards: fleet[wildcards.target].cpus


def _of_target(fleet: Fleet, name: str, wildcards: Any) -> int | str | None:
    value: int | str | None = getattr(fleet[wildcards.target], name)
    return value
