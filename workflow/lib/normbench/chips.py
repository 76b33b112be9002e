"""GPUs of one model beside each other: how far chips of the same name differ, and which contender wins on most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from normbench import formats, metrics

# equal work by equal code: a chip is not slower for having raced older kernels
SAME = ("point", "contender", "sources")


@dataclass(frozen=True)
class Spread:
    """One chip among those of its model.

    shared: rows (same point, contender and sources) that another chip of the model has too, of which the rest is
    computed. cost: median and largest time over the fastest chip's, minus one. copy_gbps: median bandwidth of the
    device copy. clock_mhz: median SM clock. Null where nothing is shared or nothing was read.
    """

    device: str
    shared: int
    cost: float | None
    cost_max: float | None
    copy_gbps: float | None
    clock_mhz: float | None


def spread(raced: pl.DataFrame) -> list[Spread]:
    """The chips in ``raced``, races of one model with bandwidths, by device id; empty for a single chip."""
    devices = sorted(raced["device"].unique())
    if len(devices) < 2:
        return []
    timed = raced.filter(metrics.QUOTABLE & ~metrics.TWIN & pl.col("regime").eq("stream"))
    shared = (
        timed.filter(pl.col("device").n_unique().over(SAME) > 1)
        .with_columns(cost=pl.col("time_us_p50") / pl.col("time_us_p50").min().over(SAME) - 1)
        .group_by("device")
        .agg(
            pl.len().alias("shared"),
            pl.col("cost").median(),
            pl.col("cost").max().alias("cost_max"),
            pl.col("gbps").filter(pl.col("contender") == "copy").median().alias("copy_gbps"),
            pl.coalesce("sm_clock_gpu_mhz", "sm_clock_mhz_p50").median().alias("clock_mhz"),
        )
    )
    known = {row["device"]: Spread(**row) for row in shared.iter_rows(named=True)}
    return [known.get(device, Spread(device, 0, None, None, None, None)) for device in devices]


def consensus(lines: Iterable[Sequence[dict[str, Any] | None]]) -> list[dict[str, Any] | None]:
    """Column by column over the chips' winners: who wins on most chips, on how many of how many, and how fast there."""
    return [_most([cell for cell in column if cell]) for column in zip(*lines, strict=True)]


def _most(cells: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if not cells:
        return None
    names = sorted(cell["contender"] for cell in cells)
    winner = max(sorted(set(names)), key=names.count)
    wins = [cell for cell in cells if cell["contender"] == winner]
    return {
        "contender": winner,
        "role": wins[0]["role"],
        "gbps": formats.span(cell["gbps"] for cell in wins),
        "wins": len(wins),
        "chips": len(cells),
    }
