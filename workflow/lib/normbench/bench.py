"""Verb ``bench``: check and time one contender at one point, by hand (worker side: benching.py)."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from normbench import config, device, harness, kernelfile, ops, schema, sources
from normbench.cli import UserError
from normbench.journal import Journal
from normbench.points import Point, Semantics, dimensions
from normbench.supervise import Supervisor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("contender", help="kernel file, baseline file or module:function")
    parser.add_argument("--op", choices=sorted(ops.OPS), required=True)
    parser.add_argument("--dtype", choices=schema.DTYPES, default="bf16")
    parser.add_argument("--rows", type=int, help="default: 2^27 elements in all")
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--hidden", type=int)
    work.add_argument("--shape", help="of x, such as 4x64x512x512, where another axis than the last is normalised")
    parser.add_argument("--regime", choices=schema.REGIMES, default="stream")
    parser.add_argument("--semantics", default="default", help="JSON, e.g. '{\"eps\":1e-6}'")
    parser.add_argument("--block", type=int, nargs="*", help="block sizes to try (default: the study's)")
    parser.add_argument("--variant", type=json.loads, help="JSON of axes: time this variant only")
    parser.add_argument("--device", help="device id, where there are several GPUs")


def main(args: argparse.Namespace) -> int:
    blocks = blocks_of(args)
    study = config.load({"block": blocks} if blocks else {})
    point = point_of(args, study.elements)
    gpu = local_gpu(args.device)
    with tempfile.TemporaryDirectory() as folder:
        build = built(args.contender, gpu, study.block, Path(folder), point.semantics)
        task = {
            "verb": "bench",
            "uuid": gpu.uuid,
            "device": gpu.device,
            "sources": sources.sources(),
            "study": {"block": study.block, "tune_samples": study.tune_samples, "race_ms": study.race_ms},
            "environment": harness.environment(gpu.device),
            "spec": args.contender,
            "build": str(build) if build else None,
            "variant": args.variant,
            "points": [point.identity()],
        }
        with harness.gpu_lock(gpu.uuid):
            done = Supervisor(task, Journal(None, ""), study.timeout_s, lambda _: None).run()
    return report(point, *outcome(args.contender, {unit: entry["row"] for unit, entry in done.items()}))


def blocks_of(args: argparse.Namespace) -> list[int]:
    """Block sizes asked for, in words or by the variant, which the study need not sweep; empty: the study's."""
    variant = args.variant or {}
    return list(args.block or ([variant["block"]] if "block" in variant else []))


def point_of(args: argparse.Namespace, elements: int) -> Point:
    """The work of the arguments; of rows that are not counted, ``elements`` in all.

    Raises:
        UserError: there is none.
    """
    semantics = Semantics.parse(args.semantics)
    if args.shape is not None:
        try:
            return ops.point_of(args.op, args.dtype, dimensions(args.shape), args.regime, semantics)
        except ValueError as error:
            raise UserError(f"--shape {args.shape}: {error}") from None
    config.load({"hidden": [args.hidden]})
    rows = max(1, elements // args.hidden) if args.rows is None else args.rows
    if rows < 1:
        raise UserError(f"rows: {rows} is not a whole number from 1 on")
    return Point(args.op, args.dtype, rows, args.hidden, args.regime, semantics)


def local_gpu(wanted: str | None) -> device.Gpu:
    """The GPU asked for, or the first one.

    Raises:
        UserError: there is none.
    """
    if wanted:
        return device.find(wanted)
    gpus = device.local_gpus()
    if not gpus:
        raise UserError("no GPU here; `normbench doctor` says what is missing")
    return gpus[0]


def built(spec: str, gpu: device.Gpu, blocks: list[int], folder: Path, semantics: Semantics) -> Path | None:
    """Compile a CUDA contender for this GPU and these semantics into ``folder``; None for the others.

    Raises:
        UserError: it does not compile; the first useful line of the log.
    """
    if not spec.endswith(".cu"):
        return None
    from normbench import compile as compiler

    kernel = kernelfile.load(spec)
    out = folder / kernel.stem
    modes = kernelfile.Modes.of(semantics)
    compiler.compile_kernel(kernel, int(str(gpu.arch or "sm_90").removeprefix("sm_")), blocks, out, modes)
    path = out.with_suffix(".json")
    error = json.loads(path.read_text()).get("error")
    if error:
        raise UserError(f"{spec}: {error}")
    return path


def outcome(contender: str, rows: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the contender's row in the race, or what kept it out; the rows of the others) from the rows by unit."""
    race = {unit: row for unit, row in rows.items() if unit.startswith("race ")}
    own = race.pop(f"race {contender}", None)
    return own or next(row for unit, row in rows.items() if unit not in race), list(race.values())


def report(point: Point, own: dict[str, Any], others: list[dict[str, Any]]) -> int:
    """Print the race as a table; 1 where the contender has no time."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{point.op} {point.dtype} {point.shape.replace('x', ' x ')} ({point.regime})")
    for name in ("contender", "variant", "check", "us", "GB/s", "% of ceiling", "verdict"):
        table.add_column(name)
    for row in (own, *others):
        table.add_row(*_cells(row))
    Console().print(table)
    if own["status"] != "ok":
        print(own["reason"], file=sys.stderr)
        return 1
    return 0


def _cells(row: dict[str, Any]) -> list[str]:
    time, moved, ceiling = row.get("time_us_p50"), row.get("bytes"), row.get("ceiling_gbps")
    gbps = moved / time / 1e3 if time and moved else None
    ulps = row.get("err_ulp_max")
    kept = row["status"] == "ok" and row.get("accurate") is not False
    check = "ok" if kept else f"{row['status']}: {row.get('reason')}"
    return [
        str(row["contender"]),
        str(row.get("variant") or ""),
        check + (f" ({ulps:.2f} ulp)" if ulps is not None else ""),
        f"{time:.2f}" if time else "",
        f"{gbps:.0f}" if gbps else "",
        f"{100 * gbps / ceiling:.1f}" if gbps and ceiling else "",
        str(row.get("verdict") or ""),
    ]
