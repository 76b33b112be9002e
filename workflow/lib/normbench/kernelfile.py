"""A kernel file: one file, one contender, described by a TOML block at its top.

The block says which ops it serves, which axes to sweep and how to launch it, as small expressions over the point; so a
kernel that needs two launches is described, not coded. Reading one imports neither torch nor triton.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from normbench import ops, schema
from normbench.points import ELEMENT_BYTES, Point, Semantics

C_TYPES = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}
NORM_FLAGS = {"layernorm": 0, "rmsnorm": 1, "add_layernorm": 0, "add_rmsnorm": 1}
NORM_FLAGS |= {"layernorm_bwd": 0, "rmsnorm_bwd": 1, "rmsnorm_channels": 1, "l1norm": 2, "l2norm": 3}
ADD_FLAGS = {None: 0, "fp32": 1, "round": 2}  # by residual mode
LLAMA, OFFSET = 1, 2  # bits of GAMMA
LANGS = {".cu": "cuda", ".py": "triton"}
TENSORS = ("x", "gamma", "beta", "residual", "dy", "mean", "rstd", "y", "sum", "dx", "dgamma", "dbeta")
ARGUMENTS = frozenset((*TENSORS, "rows", "hidden", "inner", "x_stride", "y_stride", "eps", "offset", "sm_count"))
LAYOUTS = ("rows", "channels")
REDUCTION = "reduction"
Names = Mapping[str, Any]
Variant = dict[str, int]


class KernelError(ValueError):
    """A kernel file's header is wrong; the message names the file and the key."""


class Unknown(Exception):
    """An expression names something that is not known yet, such as ``hidden`` while compiling."""


def cdiv(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def even(work: int, resident: int, multiple: int = 1) -> int:
    """How many of ``resident`` workers share ``work`` pieces out evenly, as a multiple of ``multiple``.

    8192 rows over 264 blocks are 31 rows for most and 32 for 8 of them, who work alone in the end; over 256 blocks they
    are 32 for all.
    """
    most = max(resident // multiple, 1) * multiple
    return cdiv(cdiv(work, cdiv(work, most)), multiple) * multiple


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "cdiv": cdiv,
    "even": even,
    "int": int,
    "abs": abs,
}
_NODES = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.Pow,
    ast.LShift,
    ast.RShift,
    ast.BitAnd,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.In,
    ast.NotIn,
    ast.IfExp,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.List,
)


@cache
def _code(expression: str) -> tuple[CodeType, frozenset[str]]:
    """Compile an arithmetic expression; nothing but names, numbers, strings and the functions above gets through."""
    tree = ast.parse(expression, mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ValueError(f"{type(node).__name__} is not allowed in {expression!r}")
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) not in _FUNCTIONS:
            raise ValueError(f"unknown function in {expression!r}; known: {', '.join(_FUNCTIONS)}")
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - set(_FUNCTIONS)
    return compile(tree, expression, "eval"), names


def evaluate(expression: str | int, names: Names) -> Any:
    """Value of an expression.

    Raises:
        Unknown: it names something that ``names`` lacks.
    """
    if isinstance(expression, int):
        return expression
    code, wanted = _code(expression)
    missing = wanted - names.keys()
    if missing:
        raise Unknown(f"{', '.join(sorted(missing))} in {expression!r}")
    return eval(code, {"__builtins__": {}}, {**_FUNCTIONS, **names})


@dataclass(frozen=True)
class Launch:
    """One kernel launch: name expression and geometry, all as expressions over ``launch_names``.

    when: variants that make this launch, by their axes; the others leave it out.
    pdl: whether it may begin before the launch before it has ended (programmatic dependent launch).
    part: "reduction" where it forms dgamma and dbeta and does nothing else, so that the launches before it can be timed
    without it; "" where it is none such.
    """

    name: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    args: tuple[str, ...]
    smem: str = "0"
    cluster: str = "0"
    cooperative: bool = False
    when: str = "1"
    pdl: str = "0"
    part: str = ""

    def symbol(self, names: Names) -> str:
        """The NVRTC name expression of one variant."""
        return self.name.format_map(names)


@dataclass(frozen=True)
class Skip:
    """A refusal: points for which ``when`` holds are rows with status skipped and this reason."""

    when: str
    reason: str


@dataclass(frozen=True)
class Kernel:
    """One contender of ours. ``card`` is the prose under the header; ``sha`` covers the file and what it includes.

    zeroed: scratch that holds zeros before the first launch; the rest holds anything.
    profiled: axes of which ``profile`` looks at every value, each with the fastest variant that has it.
    regimes: those of a study that it is measured in; by hand it may be asked for any work.
    layouts: how x may lie (``ops.layout``).
    gammas: whether it knows cast orders and offsets of gamma: its launches name {GAMMA}, or ask their ``t`` for them.
    parted: whether what only forms dgamma and dbeta can be left out: launches of the part "reduction", or a question to
    ``t.reduces``.
    """

    stem: str
    path: Path
    lang: str
    summary: str
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    axes: dict[str, tuple[int, ...] | str]
    where: tuple[str, ...]
    skip: tuple[Skip, ...]
    scratch: dict[str, str]
    launches: tuple[Launch, ...]
    card: str
    sha: str
    gammas: bool = False
    parted: bool = False
    zeroed: tuple[str, ...] = ()
    profiled: tuple[str, ...] = ()
    regimes: tuple[str, ...] = schema.USUAL_REGIMES
    layouts: tuple[str, ...] = LAYOUTS[:1]

    def launched(self, names: Names) -> list[Launch]:
        """The launches that a variant makes; ``names`` hold its axes."""
        return [launch for launch in self.launches if evaluate(launch.when, names)]

    def serves(self, point: Point) -> bool:
        """Whether its header names the op, the type and the layout of the work."""
        return point.op in self.ops and point.dtype in self.dtypes and ops.layout(point) in self.layouts

    def refusal(self, names: Names) -> str | None:
        """Why this kernel does not serve the work, or None. ``names`` as from ``launch_names``."""
        if names["op"] not in self.ops:
            return f"{self.stem} serves {', '.join(self.ops)}, not {names['op']}"
        if names["dtype"] not in self.dtypes:
            return f"{self.stem} serves {', '.join(self.dtypes)}, not {names['dtype']}"
        if names["layout"] not in self.layouts:
            return f"{self.stem} takes x as {' or '.join(self.layouts)}, not as {names['layout']}"
        if names["GAMMA"] and not self.gammas:
            return f"{self.stem} multiplies the fp32 value by gamma as it is: no other cast order, no offset"
        for skip in self.skip:
            if evaluate(skip.when, names):
                return skip.reason
        return None

    def variants(self, blocks: tuple[int, ...] | list[int], names: Names) -> list[Variant]:
        """Every combination of the axes that meets all clauses ``names`` can decide, in the order of the header."""
        values = [tuple(blocks) if isinstance(axis, str) else axis for axis in self.axes.values()]
        found: Iterator[Variant] = (dict(zip(self.axes, picked, strict=True)) for picked in itertools.product(*values))
        return [variant for variant in found if self._allows({**names, **variant})]

    def _allows(self, names: Names) -> bool:
        for clause in self.where:
            try:
                if not evaluate(clause, names):
                    return False
            except Unknown:
                continue
        return True

    def asks(self, name: str) -> bool:
        """Whether a grid or a size of scratch names it."""
        texts = [*self.scratch.values(), *(text for launch in self.launches for text in launch.grid)]
        return any(re.search(rf"\b{name}\b", text) for text in texts)

    def wanted(self, names: Names) -> list[Launch]:
        """The launches of one variant at some work: of those that it makes, the ones whose grid has blocks."""
        return [one for one in self.launched(names) if _has_blocks(one, names)]

    def reduces(self, names: Names) -> bool:
        """Whether the variant has something to leave out at some work (see ``parted``)."""
        if self.lang == "triton":
            return self.parted
        return any(one.part == REDUCTION and _has_blocks(one, names) for one in self.launched(names))

    def compilations(
        self, blocks: tuple[int, ...] | list[int], arch: int, modes: Modes | None = None
    ) -> Iterator[dict[str, Any]]:
        """Names of everything to compile: op, dtype, param_dtype and variant, as far as known before launch.

        modes: those that are wanted, where the kernel has them and they differ for op and dtype (None: the plain ones).
        """
        modes = modes or Modes()
        for op, dtype in itertools.product(self.ops, self.dtypes):
            for param_dtype in param_dtypes(op, dtype):
                gammas = gamma_flags(op, dtype, modes.gammas if self.gammas else (0,))
                for add, gamma in itertools.product(add_flags(op, dtype, modes.adds), gammas):
                    names = compile_names(op, dtype, param_dtype, arch, add, gamma)
                    for variant in self.variants(blocks, names):
                        yield {**names, **variant, "variant": variant}


def _has_blocks(launch: Launch, names: Names) -> bool:
    return all(evaluate(size, names) for size in launch.grid)


def param_dtypes(op: str, dtype: str) -> tuple[str, ...]:
    """Types of gamma and beta that an op is compiled for: that of x and fp32; the former where it has neither."""
    if op in ops.OPS and ops.OPS[op].scale:
        return (dtype,)
    return tuple(dict.fromkeys((dtype, "fp32")))


@dataclass(frozen=True)
class Modes:
    """Values of ADD and GAMMA to compile for: the plain ones, and what else a study or a launch asks for."""

    adds: tuple[int, ...] = (ADD_FLAGS["fp32"],)
    gammas: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, semantics: Semantics) -> Modes:
        """The plain ones, and those of work with these semantics; without gamma it has no offset."""
        adds = (ADD_FLAGS["fp32"], ADD_FLAGS[semantics.residual or "fp32"])
        llama = LLAMA * (semantics.cast == "llama")
        gammas = (0, llama, llama | OFFSET * bool(semantics.offset))
        return cls(tuple(dict.fromkeys(adds)), tuple(dict.fromkeys(gammas)))


def add_flags(op: str, dtype: str, wanted: Iterable[int]) -> tuple[int, ...]:
    """Values of ADD that are code of their own: none where nothing is added, and in fp32 the modes are the same."""
    if op not in ops.OPS or not ops.OPS[op].adds:
        return (0,)
    return (ADD_FLAGS["fp32"],) if dtype == "fp32" else tuple(flag for flag in wanted if flag)


def gamma_flags(op: str, dtype: str, wanted: Iterable[int]) -> tuple[int, ...]:
    """Values of GAMMA that are code of their own: in fp32, and where nothing is cast, the cast orders are the same."""
    casts = op in ops.OPS and ops.OPS[op].casts and dtype != "fp32"
    return tuple(dict.fromkeys(flag if casts else flag & ~LLAMA for flag in wanted))


def compile_names(op: str, dtype: str, param_dtype: str, arch: int, add: int = 0, gamma: int = 0) -> dict[str, Any]:
    """What an expression may name before the work is known. add: one of ``add_flags``; gamma: of ``gamma_flags``."""
    return {
        "ADD": add,
        "GAMMA": gamma,
        "op": op,
        "dtype": dtype,
        "param_dtype": param_dtype,
        "T": C_TYPES[dtype],
        "W": C_TYPES[param_dtype],
        "NORM": NORM_FLAGS.get(op, -1),
        "x_bytes": ELEMENT_BYTES[dtype],
        "w_bytes": ELEMENT_BYTES[param_dtype],
        "arch": arch,
    }


def launch_names(point: Point, arch: int, sm_count: int, aligned: int) -> dict[str, Any]:
    """What an expression may name when the work is known.

    aligned: largest power of two, at most 16, that divides every base pointer and row pitch in bytes.
    """
    (add,) = add_flags(point.op, point.dtype, (ADD_FLAGS[ops.residual_mode(point)],))
    offset = point.semantics.offset if ops.has_gamma(point) else 0.0
    asked = Modes.of(Semantics(cast=ops.cast_order(point), offset=offset)).gammas[-1]
    (gamma,) = gamma_flags(point.op, point.dtype, (asked,))
    return compile_names(point.op, point.dtype, point.param_dtype, arch, add, gamma) | {
        "regime": point.regime,
        "rows": point.rows,
        "hidden": point.hidden,
        "inner": ops.inner(point),
        "layout": ops.layout(point),
        "sm_count": sm_count,
        "aligned": aligned,
    }


def pitch_alignment(point: Point) -> int:
    """``aligned`` for tensors whose bases are aligned: what the row pitch alone allows, of a channel form that of a
    channel's pixels."""
    pixels = ops.inner(point)
    pitch = (point.row_stride if pixels == 1 else pixels) * point.element_bytes
    params = 0 if ops.OPS[point.op].scale else point.hidden * ELEMENT_BYTES[point.param_dtype]
    return next(size for size in (16, 8, 4, 2, 1) if pitch % size == 0 and params % min(size, 16) == 0)


def find(root: Path | str) -> list[Kernel]:
    """Every kernel below ``root``, sorted by stem.

    Raises:
        KernelError: a bad header, or two files with one stem.
    """
    kernels: dict[str, Kernel] = {}
    for path in sorted(Path(root).rglob("*")):
        if path.suffix in LANGS and path.parent.name != "baselines" and _block(path.read_text(), path.suffix):
            kernel = load(path)
            if kernel.stem in kernels:
                raise KernelError(f"{path}: the stem {kernel.stem} is taken by {kernels[kernel.stem].path}")
            kernels[kernel.stem] = kernel
    return [kernels[stem] for stem in sorted(kernels)]


def load(path: Path | str) -> Kernel:
    """Read one kernel file.

    Raises:
        KernelError: no header, bad TOML, an unknown key or a bad expression.
    """
    path = Path(path)
    if path.suffix not in LANGS:
        raise KernelError(f"{path}: a kernel file ends in .cu or .py")
    try:
        text = path.read_text()
    except OSError as error:
        raise KernelError(f"{path}: {error.strerror}") from error
    found = _block(text, path.suffix)
    if found is None:
        raise KernelError(f"{path}: no '/// kernel' block at its top; see kernels/README.md")
    header, card, line = found
    try:
        values = tomllib.loads(header)
    except tomllib.TOMLDecodeError as error:
        raise KernelError(f"{path}: {_file_line(str(error), line)}") from error
    return _build(path, text, values, card)


def _block(text: str, suffix: str) -> tuple[str, str, int] | None:
    """(header, card, line of the header's first row) of a source text, comment marks removed."""
    mark = "//" if suffix == ".cu" else "#"
    lines = text.splitlines()
    bare = [line[len(mark) :].removeprefix(" ") if line.startswith(mark) else None for line in lines]
    if "/// kernel" not in bare:
        return None
    start = bare.index("/// kernel")
    try:
        end = bare.index("///", start + 1)
    except ValueError:
        return None
    header = [line if line is not None else "" for line in bare[start + 1 : end]]
    card = itertools.takewhile(lambda line: line is not None, bare[end + 1 :])
    return "\n".join(header), "\n".join(str(line) for line in card).strip(), start + 2


def _file_line(message: str, first: int) -> str:
    return re.sub(r"line (\d+)", lambda match: f"line {int(match[1]) + first - 1}", message)


_KEYS = {"summary", "ops", "dtypes", "layouts", "regimes", "where", "skip", "axes", "scratch", "zeroed", "profiled"}
_KEYS |= {"launches"}
_LAUNCH_KEYS = {"name", "grid", "block", "args", "smem", "cluster", "cooperative", "when", "pdl", "part"}


def _build(path: Path, text: str, values: dict[str, Any], card: str) -> Kernel:
    _known(path, values, _KEYS, "")
    for key in ("summary", "ops", "dtypes"):
        if key not in values:
            raise KernelError(f"{path}: key {key!r} is missing")
    lang = LANGS[path.suffix]
    launches = tuple(_launch(path, entry) for entry in values.get("launches", ()))
    if lang == "cuda" and not launches:
        raise KernelError(f"{path}: a CUDA kernel needs at least one [[launches]]")
    axes = {name: axis if axis == "study" else tuple(axis) for name, axis in values.get("axes", {}).items()}
    kernel = Kernel(
        stem=path.stem,
        path=path,
        lang=lang,
        summary=values["summary"],
        ops=tuple(values["ops"]),
        dtypes=tuple(values["dtypes"]),
        layouts=tuple(values.get("layouts", LAYOUTS[:1])),
        axes=axes,
        where=tuple(values.get("where", ())),
        skip=tuple(Skip(**entry) for entry in values.get("skip", ())),
        scratch=dict(values.get("scratch", {})),
        launches=launches,
        card=card,
        sha=_sha(path, text),
        zeroed=_named(path, values, "zeroed", "scratch"),
        profiled=_named(path, values, "profiled", "axes"),
        regimes=_regimes(path, values.get("regimes", schema.USUAL_REGIMES)),
        gammas=("{GAMMA}" if lang == "cuda" else "t.offset") in text,
        parted=_parted(path, launches) or (lang == "triton" and "t.reduces" in text),
    )
    _check_expressions(kernel)
    return kernel


def _known(path: Path, values: Names, known: set[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise KernelError(f"{path}: unknown key {where}{key!r}; known: {', '.join(sorted(known))}")


def _named(path: Path, values: dict[str, Any], key: str, table: str) -> tuple[str, ...]:
    """Names in the list ``key``, which must be keys of ``table``."""
    for name in values.get(key, ()):
        if name not in values.get(table, {}):
            raise KernelError(f"{path}: {key} names {name!r}, which is not in {table}")
    return tuple(values.get(key, ()))


def _regimes(path: Path, names: Iterable[str]) -> tuple[str, ...]:
    for name in names:
        if name not in schema.REGIMES:
            raise KernelError(f"{path}: unknown regime {name!r}; known: {', '.join(schema.REGIMES)}")
    return tuple(names)


def _launch(path: Path, entry: dict[str, Any]) -> Launch:
    _known(path, entry, _LAUNCH_KEYS, "launches.")
    values = dict(entry)
    for key in ("grid", "block"):
        value = values.get(key)
        if value is None:
            raise KernelError(f"{path}: key 'launches.{key}' is missing")
        values[key] = tuple(map(str, value)) if isinstance(value, list) else (str(value),)
    for key in ("smem", "cluster", "pdl"):
        if key in values:
            values[key] = str(values[key])
    values["args"] = tuple(values.get("args", ()))
    return Launch(**values)


def _parted(path: Path, launches: tuple[Launch, ...]) -> bool:
    """Whether some launches are a part of their own; they come last, so that the others can do without them."""
    parts = [launch.part for launch in launches]
    for part in parts:
        if part not in ("", REDUCTION):
            raise KernelError(f"{path}: unknown launches.part {part!r}; known: {REDUCTION}")
    if parts != sorted(parts) or parts[:1] == [REDUCTION]:
        raise KernelError(f"{path}: launches of the part {REDUCTION!r} come last, after one that is none")
    return REDUCTION in parts


def _check_expressions(kernel: Kernel) -> None:
    expressions = [*kernel.where, *(skip.when for skip in kernel.skip), *kernel.scratch.values()]
    for launch in kernel.launches:
        expressions += [*launch.grid, *launch.block, launch.smem, launch.cluster, launch.when, launch.pdl]
        for argument in launch.args:
            if argument not in ARGUMENTS | kernel.scratch.keys() | kernel.axes.keys():
                raise KernelError(f"{kernel.path}: unknown argument {argument!r} in launches.args")
    for expression in expressions:
        try:
            _code(expression)
        except (SyntaxError, ValueError) as error:
            raise KernelError(f"{kernel.path}: bad expression {expression!r}: {error}") from error


_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)


def included(path: Path) -> list[Path]:
    """The project's own headers a CUDA file includes, directly or not, sorted."""
    root = path.parent.parent
    found: set[Path] = set()
    queue = [path]
    while queue:
        for name in _INCLUDE.findall(queue.pop().read_text()):
            header = next((folder / name for folder in (root, path.parent) if (folder / name).is_file()), None)
            if header is not None and header not in found:
                found.add(header)
                queue.append(header)
    return sorted(found)


def _sha(path: Path, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    if path.suffix == ".cu":
        for header in included(path):
            digest.update(header.read_bytes())
    return digest.hexdigest()
