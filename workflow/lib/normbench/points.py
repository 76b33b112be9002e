"""What is measured: points of the study and the semantics that define their work.

A point is a piece of work, whoever does it: op, dtype, rows, hidden, regime, shape, semantics. Contenders of one point
are comparable; two points never are.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace

from normbench import schema

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
STREAMING = ("stream", "wide")  # regimes whose buffers rotate beyond L2
CASTS = ("torch", "llama")
RESIDUALS = ("fp32", "round")  # of add ops


def dimensions(shape: str) -> tuple[int, ...]:
    """(16, 64, 256, 256) of ``16x64x256x256``."""
    return tuple(map(int, shape.split("x")))


@dataclass(frozen=True)
class Semantics:
    """What else defines the work, with the defaults that make up the word ``default``.

    param_dtype: type of gamma and beta (None: the type of x). gamma, beta: present or absent.
    stats: forward: mean and rstd are written; backward: given as inputs (None: the op's default).
    residual: add ops: ``round`` (sum rounded to dtype before the norm) or ``fp32``; backward: a gradient added to dx.
    cast: RMSNorm ``torch`` (one cast at the end) or ``llama`` (cast before gamma). offset: added to gamma in fp32.
    row_stride: elements between rows of x (None: hidden). axis: of ``shape``, the one that is normalised: -1, or 1 for
    the channel forms (None: the op's default).
    """

    param_dtype: str | None = None
    gamma: bool = True
    beta: bool | None = None
    eps: float = 1e-5
    stats: bool | None = None
    residual: str | None = None
    cast: str = "torch"
    offset: float = 0.0
    row_stride: int | None = None
    axis: int | None = None

    def __str__(self) -> str:
        changed = {
            item.name: getattr(self, item.name) for item in fields(self) if getattr(self, item.name) != item.default
        }
        return canonical_json(changed) if changed else "default"

    @classmethod
    def parse(cls, text: str) -> Semantics:
        """Inverse of ``str``.

        Raises:
            ValueError: the text is not ``default`` and not a JSON object of known fields.
        """
        if text == "default":
            return cls()
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise ValueError(f"semantics: {text!r} is neither 'default' nor a JSON object")
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"semantics: unknown key {name!r}; known: {', '.join(sorted(known))}")
        return cls(**values)


@dataclass(frozen=True)
class Point:
    """One piece of work. ``shape`` is x as the caller sees it; rows and hidden are what is normalised: ``rows`` times
    ``hidden`` elements, wherever they lie."""

    op: str
    dtype: str
    rows: int
    hidden: int
    regime: str = "stream"
    semantics: Semantics = field(default_factory=Semantics)
    shape: str = ""

    def __post_init__(self) -> None:
        if not self.shape:
            object.__setattr__(self, "shape", f"{self.rows}x{self.hidden}")

    @property
    def dims(self) -> tuple[int, ...]:
        """``shape`` as numbers."""
        return dimensions(self.shape)

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def param_dtype(self) -> str:
        return self.semantics.param_dtype or self.dtype

    @property
    def streams(self) -> bool:
        """Whether every byte comes from memory, so that the memory roof is its measure."""
        return self.regime in STREAMING

    @property
    def has_two_contracts(self) -> bool:
        """Whether torch's bits are a contract of their own beside the float64 tolerance, which torch itself fails on
        rows that are long enough."""
        return self.regime == "wide"

    @property
    def row_stride(self) -> int:
        return self.semantics.row_stride or self.hidden

    def identity(self) -> dict[str, object]:
        """The identity columns of a table row, all but device, run, contender and lang."""
        row = asdict(self) | {"semantics": str(self.semantics)}
        return row | {"point": short_hash(canonical_json(row), 12)}

    @property
    def key(self) -> str:
        return str(self.identity()["point"])

    def with_rows(self, rows: int) -> Point:
        return replace(self, rows=rows, shape="")

    @classmethod
    def from_identity(cls, row: dict[str, object]) -> Point:
        names = ("op", "dtype", "rows", "hidden", "regime", "shape")
        values = {name: row[name] for name in names}
        return cls(**values, semantics=Semantics.parse(str(row["semantics"])))  # type: ignore[arg-type]


def canonical_json(value: object) -> str:
    """One text for equal values: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def short_hash(text: str | bytes, digits: int = 7) -> str:
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:digits]


assert set(ELEMENT_BYTES) == set(schema.DTYPES)
assert set(STREAMING) <= set(schema.REGIMES)
