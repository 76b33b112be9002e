"""Few and long rows: the points of the wide regime, and the inputs that ``verify`` gives whoever serves them.

The protocol is that of a public note on LayerNorm at the shape of KernelBench level 1 problem 40: the race on uniform
input, and beside it every distribution that tells statistics with torch's bits from others, and others that are more
accurate from such that are not.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from normbench import schema
from normbench.inputs import Case
from normbench.points import Point, Semantics, dimensions

REGIME = "wide"
OPS = ("layernorm", "rmsnorm")  # that have a wide form
SHAPE = r"^[1-9][0-9]*(x[1-9][0-9]*)+$"
CONTROLS = ("zero", "tiny", "nan_inf")  # tried at the smallest shape, with every epsilon
AFFINES = ("default", "random")


def point(op: str, dtype: str, shape: str, semantics: Semantics) -> Point:
    """The work on x of a shape, normalised over everything but its first dimension."""
    rows, *normalised = dimensions(shape)
    return Point(op, dtype, rows, math.prod(normalised), REGIME, semantics, shape)


def cases(op: str, dtype: str, asked: Mapping[str, Any]) -> Iterator[Case]:
    """What ``verify`` tries of one op and dtype. asked: the section ``wide`` of the configuration.

    The first shape gets every distribution with every seed and affine form, once more with the statistics saved, and a
    graph that is captured with other values than it is replayed with; the other shapes the values that tell contracts
    apart; the smallest one what is zero, tiny or no number, with every epsilon. Random small shapes follow, in every
    type of the study.
    """
    if op not in OPS:
        return
    if dtype in asked["dtypes"]:
        yield from _full_size(op, dtype, asked)
        yield from _other_shapes(op, dtype, asked)
        yield from _controls(op, dtype, asked)
    yield from _small(op, dtype, asked["small_shapes"])


def given(case: Case, saves: bool) -> bool:
    """Whether a contender is asked: a baseline, of which few save statistics for the caller, only where none are."""
    return saves or not case.point.semantics.stats


def _case(name: str, work: Point, distribution: str, affine: str = "random", **more: Any) -> Case:
    fill = partial(FILLS[distribution], work.dtype)
    return Case(f"wide.{name}", work, x=None, plain=affine == "random", fill=fill, **more)


def _full_size(op: str, dtype: str, asked: Mapping[str, Any]) -> Iterator[Case]:
    shape = asked["shapes"][0]
    usual = [name for name in asked["distributions"] if name not in CONTROLS]
    for saved in (None, True):
        work = point(op, dtype, shape, Semantics(stats=saved))
        for distribution, affine, seed in itertools.product(usual, asked["affine"], asked["seeds"]):
            yield _case(f"{distribution}.{affine}.{seed}", work, distribution, affine)
    for affine in asked["affine"]:
        yield _case(f"replay.{affine}", point(op, dtype, shape, Semantics()), "uniform", affine, replayed=True)


def _other_shapes(op: str, dtype: str, asked: Mapping[str, Any]) -> Iterator[Case]:
    for shape, saved in itertools.product(asked["shapes"][1:], (None, True)):
        for distribution in ("uniform", "offset_1000", "constant_1e4"):
            yield _case(distribution, point(op, dtype, shape, Semantics(stats=saved)), distribution)


def _controls(op: str, dtype: str, asked: Mapping[str, Any]) -> Iterator[Case]:
    shape = min(asked["shapes"], key=lambda one: math.prod(dimensions(one)))
    wanted = [name for name in asked["distributions"] if name in CONTROLS]
    for distribution, eps, saved in itertools.product(wanted, asked["eps"], (None, True)):
        yield _case(f"{distribution}.eps", point(op, dtype, shape, Semantics(eps=eps, stats=saved)), distribution)


def _small(op: str, dtype: str, count: int) -> Iterator[Case]:
    """Of ``count`` random works of an op, in all types together, those of one type: rows of whole groups of four
    elements, since torch's vector path takes no others, with gamma, beta, both or neither."""
    draw = random.Random(op)
    for number in range(count):
        drawn = draw.choice(schema.DTYPES)
        rows, hidden = draw.randint(1, 40), 4 * draw.choice((draw.randint(1, 64), draw.randint(1, 4096)))
        gamma, beta = draw.random() < 0.75, draw.random() < 0.75
        semantics = Semantics(gamma=gamma, beta=beta if op == "layernorm" else None, stats=True)
        distribution = draw.choice(DISTRIBUTIONS)
        if drawn == dtype:
            yield _case(f"small_{number:03}", point(op, dtype, f"{rows}x{hidden}", semantics), distribution)


# values of x, written in place: (dtype, tensor, generator)


def _uniform(dtype: str, x: Any, generator: Any) -> None:
    x.uniform_(generator=generator)


def _normal(dtype: str, x: Any, generator: Any, scale: float = 1.0, offset: float = 0.0) -> None:
    x.normal_(generator=generator)
    if scale != 1.0:
        x.mul_(scale)
    if offset:
        x.add_(offset)


def _constant(dtype: str, x: Any, generator: Any, value: float = 0.0) -> None:
    x.fill_(value)


def _tiny(dtype: str, x: Any, generator: Any) -> None:
    """So small that epsilon decides, and that fp16 holds few digits; their squares are not denormal in fp32."""
    _normal(dtype, x, generator, 1e-6 if dtype == "fp16" else 1e-12)


def _nan_inf(dtype: str, x: Any, generator: Any) -> None:
    """One NaN, infinity or -infinity a row, by turns; N(0, 1) else."""
    x.normal_(generator=generator)
    for row, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        x[row::3, 0] = value


Fills = Callable[[str, Any, Any], None]
FILLS: dict[str, Fills] = {
    "uniform": _uniform,
    "normal": _normal,
    "scaled_100": partial(_normal, scale=100.0),
    "offset_1000": partial(_normal, offset=1000.0),
    "constant_1e4": partial(_constant, value=1e4),
    "zero": _constant,
    "tiny": _tiny,
    "nan_inf": _nan_inf,
}
DISTRIBUTIONS = tuple(FILLS)
