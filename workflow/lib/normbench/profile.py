"""Verb ``profile``: one launch of a kernel's winner under Nsight Compute (the program under it: profiling.py).

A missing tool, or one that may not read the counters, is a row with status skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from normbench import compile, harness, kernelfile, nvrtc, ops, profiler, sass, schema, showdown, tools, wide
from normbench.harness import Measurement
from normbench.kernelfile import Kernel, Variant
from normbench.points import Point, canonical_json
from normbench.supervise import utc_now, worker_environment

TOOL = "ncu"
TOOL_S = 300.0  # one launch, replayed for every group of counters
Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_arguments(parser, journal=False)
    parser.add_argument("--kernel", required=True, help="kernel file of ours")
    parser.add_argument("--cases", type=Path, required=True, help="its tuning table, for the winner")
    parser.add_argument("--dtype", default="bf16", help="of the point, where the study has it")
    parser.add_argument("--hidden", type=int, default=4096, help="of the point, or the nearest the study has")


def main(args: argparse.Namespace) -> int:
    kernel = kernelfile.load(args.kernel)
    measurement = Measurement(args, "profile", f"profile-{kernel.stem}")
    point = representative(measurement.points, kernel, args.dtype, args.hidden)
    rows = [] if point is None else _rows(measurement, kernel, point, args.cases)
    harness.write(rows, schema.PROFILE, args.out)
    return 0


def representative(points: Sequence[Point], kernel: Kernel, dtype: str, hidden: int) -> Point | None:
    """The study's point to profile a kernel at: its first op, ``dtype`` where it is there, the nearest hidden size by
    ratio; None where the study streams nothing of what the kernel serves."""
    served = [
        point
        for point in points
        if point.streams and point.regime in kernel.regimes and point.op in kernel.ops and point.dtype in kernel.dtypes
    ]
    return min(
        served,
        key=lambda point: (
            kernel.ops.index(point.op),
            point.dtype != dtype,
            # of the wide regime the first shape of the study
            (0.0, 0) if point.regime == wide.REGIME else (abs(math.log(point.hidden / hidden)), point.hidden),
        ),
        default=None,
    )


def looked_at(kernel: Kernel, point: Point, cases: Path) -> list[Variant]:
    """The winner at the point, and of each value of a profiled axis the fastest variant that has it."""
    winner = showdown.winners([cases]).get((point.key, kernel.stem))
    if winner is None:
        return []
    timed = schema.read(cases, schema.CASES).filter(pl.col("status") == "ok", pl.col("point") == point.key)
    variants = [json.loads(text) for text in timed.sort("time_us_p50")["variant"]]
    found = [json.loads(winner[1])]
    for axis in kernel.profiled:
        fastest: dict[int, Variant] = {found[0][axis]: found[0]}
        for variant in variants:
            fastest.setdefault(variant[axis], variant)
        found += [variant for variant in fastest.values() if variant not in found]
    return found


def _rows(measurement: Measurement, kernel: Kernel, point: Point, cases: Path) -> list[Row]:
    task = measurement.task()
    row = point.identity() | {"device": task["device"], "run": "local", "contender": kernel.stem, "lang": kernel.lang}
    row |= {"sources": task["sources"], "measured_at": utc_now(), "bytes": ops.compulsory_bytes(point)}
    variants = looked_at(kernel, point, cases)
    if not variants:
        reason = f"{kernel.stem} has no variant with a time at this point; its tuning says why"
        return [row | {"status": "skipped", "reason": reason}]
    arch, sm_count = compile.architecture(str(measurement.machine["arch"])), int(measurement.machine["sm_count"])
    with harness.gpu_lock(measurement.gpu.uuid):
        environment = worker_environment(task)
        found = [profile(kernel, point, variant, (arch, sm_count), environment) for variant in variants]
    return [row | {"variant": canonical_json(variant)} | one for variant, one in zip(variants, found, strict=True)]


def profile(
    kernel: Kernel, point: Point, variant: Variant, device: tuple[int, int], environment: dict[str, str]
) -> Row:
    """Status, reason and figures of one launch. device: architecture and number of multiprocessors."""
    try:
        tool = tools.find(TOOL)
    except tools.ToolMissing as missing:
        print(f"normbench profile: {missing}", file=sys.stderr)
        return {"status": "skipped", "reason": str(missing)}
    with tempfile.TemporaryDirectory(prefix="normbench-profile-") as folder:
        log, cubin, told = (Path(folder, name) for name in ("ncu.csv", "code.cubin", "task.json"))
        try:
            build = _build(kernel, point, variant, device, cubin)
        except nvrtc.CompileError as error:
            return {"status": "compile_error", "reason": str(error)}
        task = {"spec": str(kernel.path), "build": build, "point": point.identity(), "variant": variant}
        told.write_text(json.dumps(task | {"cubin": str(cubin)}))
        program = [sys.executable, "-m", "normbench.profiling", str(told)]
        ran = tools.run(profiler.command(tool, log, program), environment, TOOL_S)
        text = (log.read_text(errors="replace") if log.exists() else "") or ran.out
        found = judge(ran, profiler.parse(text))
        if found["status"] == "ok":
            binary = cubin.read_bytes() if cubin.exists() else b""
            found["loads"], found["stores"] = sass.widths(binary) if binary else (None, None)
        else:
            print(f"{text[-4000:]}{ran.err[-2000:]}", file=sys.stderr)
    return found | {"version": tools.version(tool)}


def _build(kernel: Kernel, point: Point, variant: Variant, device: tuple[int, int], cubin: Path) -> str | None:
    """The one variant of a CUDA kernel, so that all machine code there is belongs to it."""
    if kernel.lang != "cuda":
        return None
    arch, sm_count = device
    names = kernelfile.launch_names(point, arch, sm_count, kernelfile.pitch_alignment(point)) | variant
    return str(compile.compile_launched(kernel, arch, [names], cubin, lineinfo=False))


def judge(ran: tools.Ran, report: profiler.Report) -> Row:
    """Status, reason and the columns of one run."""
    if report.kernels:
        return {"status": "ok", "reason": None} | profiler.columns(report.kernels)
    if ran.code is None:
        return {"status": "timeout", "reason": f"took longer than {TOOL_S:.0f} s and was ended"}
    if report.refusal:
        return {"status": "skipped", "reason": report.refusal}
    return {"status": "launch_error", "reason": f"nothing was profiled: {report.error or ran.words}"}
