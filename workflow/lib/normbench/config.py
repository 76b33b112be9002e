"""The study's configuration: one typed source for defaults, schema, error messages and the documentation.

``load`` turns what Snakemake read into a ``Study`` or stops in one sentence that names the key and the nearest valid
value. Lists are put in one order without duplicates, so reordering a file changes nothing that is measured.
``python -m normbench.configfiles --write`` rewrites the files that follow from this module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from normbench import schema
from normbench.nearest import allowed, closest, nearest
from normbench.ops import MAX_HIDDEN, OPS
from normbench.points import dimensions
from normbench.wide import AFFINES, DISTRIBUTIONS, SHAPE

# what NVRTC 13.0 compiles for, from Turing on
ARCHS = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
WARP = 32
MAX_BLOCK = 1024
# `--config` keys that belong to a command, not to the study
COMMAND_KEYS = {
    "left": "archived run that `compare` starts from, device/run",
    "right": "archived run that `compare` judges, device/run",
    "fleet": "file that names the targets to measure, in place of the local GPUs",
}
T = TypeVar("T")


class ConfigError(ValueError):
    """A wrong configuration; the message is one sentence with the key and the nearest valid value."""


def _as_list(value: object) -> object:
    """``--config dtypes=bf16,fp16 hidden=4096`` arrives as text and number; null is an empty list."""
    if value is None:
        return []
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    return value


def _ordered(valid: Sequence[T]) -> Callable[[list[T]], list[T]]:
    return lambda values: sorted(set(values), key=valid.index)


def _sorted(values: list[T]) -> list[T]:
    return sorted(set(values))  # type: ignore[type-var]


def _without_sm(value: object) -> object:
    return value.removeprefix("sm_") if isinstance(value, str) else value


def _once(values: list[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _shape(value: str) -> str:
    """A shape of x as the wide regime takes it: a kernel sees rows and the product of the other dimensions."""
    if math.prod(dimensions(value)[1:]) > MAX_HIDDEN:
        raise ValueError("more than 2^24 elements a row")
    return value


def _arch(value: int) -> int:
    if value not in ARCHS:
        raise ValueError("unknown architecture")
    return value


if TYPE_CHECKING:
    OpName = str
    DType = str
    Regime = str
    DistributionName = str
    AffineName = str
else:
    OpName = Literal[tuple(OPS)]
    DType = Literal[schema.DTYPES]
    Regime = Literal[schema.REGIMES]
    DistributionName = Literal[DISTRIBUTIONS]
    AffineName = Literal[AFFINES]

# bounds stand before the validator, so that pydantic checks the number itself and puts them into the JSON Schema
_NUMBER = BeforeValidator(_no_bool)
_Whole = Annotated[int, _NUMBER]
_Real = Annotated[float, Field(allow_inf_nan=False), _NUMBER]
_Hidden = Annotated[int, Field(ge=1, le=MAX_HIDDEN), _NUMBER]
_Rows = Annotated[int, Field(ge=1, le=2**31), _NUMBER]
_Block = Annotated[int, Field(ge=WARP, le=MAX_BLOCK, multiple_of=WARP), _NUMBER]
Arch = Annotated[
    int,
    AfterValidator(_arch),
    _NUMBER,
    BeforeValidator(_without_sm),
    Field(json_schema_extra={"enum": list(ARCHS)}),
]
_AXIS = (BeforeValidator(_as_list), Field(min_length=1))
Hiddens = Annotated[list[_Hidden], *_AXIS, AfterValidator(_sorted)]
Rows = Annotated[list[_Rows], *_AXIS, AfterValidator(_sorted)]
Blocks = Annotated[list[_Block], *_AXIS, AfterValidator(_sorted)]
Archs = Annotated[list[Arch], *_AXIS, AfterValidator(_sorted)]
Ops = Annotated[list[OpName], *_AXIS, AfterValidator(_ordered(tuple(OPS)))]
DTypes = Annotated[list[DType], *_AXIS, AfterValidator(_ordered(schema.DTYPES))]
Regimes = Annotated[list[Regime], *_AXIS, AfterValidator(_ordered(schema.REGIMES))]
Patterns = Annotated[list[str], *_AXIS, AfterValidator(_sorted)]
_Shape = Annotated[str, AfterValidator(_shape), Field(pattern=SHAPE, examples=["16x64x256x256"])]
Shapes = Annotated[list[_Shape], *_AXIS, AfterValidator(_once)]
Distributions = Annotated[list[DistributionName], *_AXIS, AfterValidator(_ordered(DISTRIBUTIONS))]
Affines = Annotated[list[AffineName], *_AXIS, AfterValidator(_ordered(AFFINES))]
Seeds = Annotated[list[Annotated[int, Field(ge=0, le=2**31), _NUMBER]], *_AXIS, AfterValidator(_sorted)]
Epsilons = Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False), _NUMBER]], *_AXIS, AfterValidator(_sorted)]
_Extent = r"[1-9][0-9]{0,9}"


def _shapes(more: str, axis: int) -> Any:
    """Lists of shapes of x, in one order without duplicates.

    more: how many axes there are behind the first, as in a pattern. axis: the one that is normalised.
    """

    def bounded(value: str) -> str:
        if dimensions(value)[axis] > MAX_HIDDEN:
            raise ValueError("more than 2^24 elements to normalise")
        return value

    shape = Annotated[str, AfterValidator(bounded), Field(pattern=f"^{_Extent}(x{_Extent}){more}$")]
    return Annotated[list[shape], *_AXIS, AfterValidator(_sorted)]


if TYPE_CHECKING:
    Images: TypeAlias = list[str]
    ImagesLast: TypeAlias = list[str]
    Matrices: TypeAlias = list[str]
else:
    Images, ImagesLast, Matrices = _shapes("{2,3}", 1), _shapes("{2,3}", -1), _shapes("{1}", -1)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Latency(_Section):
    """Points with few rows, x and gamma warm in L2, timed in a CUDA graph."""

    rows: Rows = Field(default=[1, 128], description="row counts of the latency regime")
    hidden: Hiddens = Field(default=[4096], description="hidden sizes of the latency regime")


class Profile(_Section):
    """The point of the study that `profile` looks at, one launch of each kernel."""

    dtype: DType = Field(default="bf16", description="element type of the profiled point, where the study has it")
    hidden: _Hidden = Field(default=4096, description="hidden size of the profiled point, or the nearest of the study")


class Wide(_Section):
    """Few and long rows: the shapes of the wide regime, and what `verify` asks of a LayerNorm of them.

    A shape is x as the caller sees it; everything but its first dimension is normalised.
    """

    shapes: Shapes = Field(
        # KernelBench level 1 problem 40 first; 20672 and 20676 columns end in a whole and in a cut round of 128 chains
        default=[
            "16x64x256x256",
            "8x32x128x256",
            "1x16777216",
            "64x1048576",
            "4096x1x1x1024",
            "3x64x17x19",
            "16x20672",
            "16x20676",
        ],
        description="shapes of x such as 16x64x256x256, normalised over all but the first dimension",
    )
    dtypes: DTypes = Field(default=["fp32"], description="element types of the wide regime, of those of the study")
    distributions: Distributions = Field(
        default=list(DISTRIBUTIONS), description="values of x that `verify` tries at the first shape"
    )
    affine: Affines = Field(
        default=list(AFFINES), description="gamma 1 and beta 0 (default) or random ones, for `verify`"
    )
    seeds: Seeds = Field(default=[0, 1, 2], description="seeds of x, gamma and beta, for `verify`")
    eps: Epsilons = Field(
        default=[0.0, 1e-5, 1e-3], description="epsilons of the controls of `verify`: zero, tiny, NaN and infinity"
    )
    small_shapes: _Whole = Field(
        default=200, ge=0, description="random small shapes, types and affine forms that `verify` tries besides"
    )


class SmallMemory(_Section):
    """Tier for cards whose memory cannot hold the default tensors."""

    below_gb: _Real = Field(default=24.0, gt=0, description="cards with less memory than this (1e9 bytes) use the tier")
    elements: _Whole = Field(default=2**25, ge=1, description="elements per tensor in the stream regime on such cards")


class Scale(_Section):
    """Shapes of the scale-only norms (rmsnorm_channels, l1norm, l2norm), in the stream regime."""

    channels: Images = Field(
        default=["4x64x512x512"], description="images x channels x height x width, normalised over the channels"
    )
    channels_last: ImagesLast = Field(
        default=["2x512x512x128", "4x512x512x64", "8x512x512x32"],
        description="images x height x width x channels, as channels-last lies in memory, normalised over the channels",
    )
    rows: Matrices = Field(
        default=["2048x65535"], description="rows x elements of l1norm and l2norm, normalised over the elements"
    )


class Study(_Section):
    """Every key of config.yaml."""

    title: str = Field(default="normbench", min_length=1, description="title of the pages; measures nothing anew")
    ops: Ops = Field(default=["layernorm", "rmsnorm"], description="operations")
    dtypes: DTypes = Field(default=list(schema.DTYPES), description="element types of x and y")
    regimes: Regimes = Field(
        default=list(schema.USUAL_REGIMES),
        description="stream (bytes from memory), l2, latency (few rows, warm), wide (from memory, few and long rows)",
    )
    hidden: Hiddens = Field(
        default=[256, 768, 1024, 2048, 2049, 4096, 8192, 16384, 32768, 65536],
        description="hidden sizes of the stream regime",
    )
    elements: _Whole = Field(
        default=2**27,
        ge=1,
        description="elements per tensor in the stream regime; rows = elements // hidden, at least 1",
    )
    small_memory: SmallMemory = Field(default=SmallMemory(), description="tier for small cards")
    l2_hidden: Hiddens = Field(default=[4096], description="hidden sizes of the l2 regime")
    l2_bytes: _Whole = Field(
        # two buffer sets of x and y take 17 MB, a quarter of the L2 of an H200 (62.9 MB), those of a residual op twice
        # as much; with half of it, as in fp32 while this was counted in elements, where they lie is worth up to 5 %
        default=2**22,
        ge=1,
        description="bytes per tensor in the l2 regime, whatever the dtype; rows = l2_bytes // bytes of a row",
    )
    latency: Latency = Field(default=Latency(), description="shapes of the latency regime")
    wide: Wide = Field(default=Wide(), description="the wide regime, and what `verify` asks of it")
    residual: Literal["fp32", "round"] = Field(
        default="fp32",
        description="how an add op takes x + residual into its norm: as formed in fp32, or rounded to the type of x",
    )
    cast: Literal["torch", "llama"] = Field(
        default="torch",
        description="when rmsnorm casts to the type of x: torch once, at the end, or llama also before gamma",
    )
    gamma_offset: _Real = Field(default=0.0, description="added to gamma in fp32; 1 where gamma is kept about zero")
    eps: _Real = Field(default=1e-5, gt=0, description="added to the variance, or to the mean square, inside the root")
    scale: Scale = Field(default=Scale(), description="shapes of the scale-only norms")
    block: Blocks = Field(default=[64, 128, 256, 512, 1024], description="threads a block to sweep, multiples of 32")
    kernels: Patterns = Field(
        default=["*"], description="our kernels by stem pattern (`cta_*`); also path.cu or module:function from outside"
    )
    baselines: Patterns = Field(default=["*"], description="baselines by name pattern (`torch_*`)")
    archs: Archs = Field(default=[75, 80, 86, 89, 90, 100, 120], description="architectures of the target `cubins`")
    tune_samples: _Whole = Field(default=5, ge=1, description="samples of a variant in the first round of tuning")
    race_ms: _Real = Field(
        default=500.0, gt=0, description="timing budget of a showdown point, all contenders together, ms"
    )
    timeout_s: _Real = Field(default=60.0, gt=0, description="a case that takes longer is ended and becomes a row, s")
    audit_points: _Whole = Field(
        default=12, ge=1, description="points that `audit` times with other timers too, all operations together"
    )
    profile: Profile = Field(default=Profile(), description="the point that `profile` looks at")

    def measured(self) -> dict[str, Any]:
        """The study without what no number of it depends on: the title, the architectures of ``cubins``, and what only
        ``audit`` and ``profile`` look at."""
        return self.model_dump(exclude={"title", "archs", "audit_points", "profile"})


def root() -> Path:
    """The checkout: the folder above workflow/, or the working folder for a package installed without it."""
    checkout = Path(__file__).resolve().parents[3]
    return checkout if (checkout / "kernels").is_dir() else Path.cwd()


def kernel_stems(folder: Path | None = None) -> list[str]:
    """Stems of the files that ``kernelfile.find`` would read, sorted, without reading their headers."""
    files = ((folder or root()) / "kernels").glob("*/*")
    return sorted(
        path.stem
        for path in files
        if path.suffix in (".cu", ".py") and path.parent.name != "baselines" and "/// kernel\n" in path.read_text()
    )


def baseline_stems(folder: Path | None = None) -> list[str]:
    """Names of the baselines, sorted: the stems of kernels/baselines/."""
    files = ((folder or root()) / "kernels" / "baselines").glob("*.py")
    return sorted(path.stem for path in files if not path.name.startswith("_"))


def is_outside(pattern: str) -> bool:
    """True for a contender from outside the repository: ``path.cu``, ``path.py`` or ``module:function``."""
    return ":" in pattern or pattern.endswith((".cu", ".py"))


def selected(stems: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The stems that at least one pattern names, in their order."""
    wanted = list(patterns)
    return [stem for stem in stems if any(fnmatchcase(stem, pattern) for pattern in wanted)]


def load(values: Mapping[str, Any], folder: Path | None = None) -> Study:
    """A valid study of plain values as YAML or ``--config`` gives them; a missing key has its default.

    folder: the checkout whose kernels/ the patterns are matched against (default: this one).

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    if not isinstance(values, Mapping):
        raise ConfigError("config: not a mapping of keys to values; see config/README.md")
    try:
        study = Study(**{str(key): value for key, value in values.items() if key not in COMMAND_KEYS})
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None
    _check_patterns("kernels", study.kernels, kernel_stems(folder))
    _check_patterns("baselines", study.baselines, baseline_stems(folder))
    return study


def _check_patterns(key: str, patterns: list[str], stems: list[str]) -> None:
    for pattern in patterns:
        if key == "kernels" and is_outside(pattern):
            if ":" not in pattern and not Path(pattern).is_file():
                raise ConfigError(f"kernels: there is no file {pattern!r}; a kernel of ours is named by its stem")
        elif pattern != "*" and not selected(stems, [pattern]):
            raise ConfigError(
                f"{key}: {pattern!r} matches none; nearest valid value: {closest(pattern, stems or ['*'])}"
            )


def _sentence(error: ValidationError) -> str:
    """The first error in one sentence: key, what is wrong with it, nearest valid value."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if isinstance(part, str)]
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = [*properties(path[:-1]), *([] if path[:-1] else COMMAND_KEYS)]
        return f"{key}: unknown key; nearest valid key: {'.'.join([*path[:-1], closest(path[-1], known)])}"
    described = properties(path[:-1])[path[-1]]
    item = described.get("items", described)
    if first["type"] in ("too_short", "string_too_short"):
        return f"{key}: nothing is given; nearest valid value: {json.dumps(described['default'])}"
    wrong = f"{first['input']!r} is not {allowed(item)}"
    return f"{key}: {wrong}; nearest valid value: {nearest(first['input'], item, described['default'])}"


def properties(path: Sequence[str] = ()) -> dict[str, Any]:
    """The keys of the study, or of the section that ``path`` names, as JSON Schema describes them."""
    described = Study.model_json_schema()
    node: dict[str, Any] = described
    for part in path:
        node = described["$defs"][node["properties"][part]["$ref"].rpartition("/")[2]]
    found: dict[str, Any] = node["properties"]
    return found
