"""Verb ``compile``: a kernel file to one cubin with all its variants, for one architecture, without a GPU.

Writes three files: the cubin, a JSON file with the mangled names, and the ``resources`` rows. A compile error is not a
failed job but a JSON file with ``error`` and rows with status compile_error, so the other kernels of a study go on.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from normbench import cubin, kernelfile, nvrtc, occupancy, ptxas, schema
from normbench.kernelfile import Kernel, Modes, Unknown
from normbench.points import CASTS, RESIDUALS, Semantics, canonical_json

LOG_TAIL = 2000  # characters of warnings kept in the JSON file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", type=Path, help="the .cu file")
    parser.add_argument("--arch", type=architecture, required=True, help="90 or sm_90")
    default = ["64", "128", "256", "512", "1024"]
    parser.add_argument("--block", nargs="+", default=default, help="threads a block to sweep")
    parser.add_argument("--residual", choices=RESIDUALS, default="fp32", help="compile this mode of add ops too")
    parser.add_argument("--cast", choices=CASTS, default="torch", help="compile this order of rmsnorm too")
    parser.add_argument("--offset", type=float, default=0.0, help="compile with an offset of gamma too, unless it is 0")
    parser.add_argument("--out", type=Path, required=True, help="OUT.cubin, OUT.json and OUT.parquet are written")


def main(args: argparse.Namespace) -> int:
    """0 also when the kernel has an error: that is a result, in the files."""
    kernel = kernelfile.load(args.kernel)
    if kernel.lang != "cuda":
        raise kernelfile.KernelError(f"{args.kernel}: only CUDA kernels are compiled ahead; Triton compiles its own")
    modes = Modes.of(Semantics(residual=args.residual, cast=args.cast, offset=args.offset))
    error = compile_kernel(kernel, args.arch, blocks(args.block), args.out, modes)
    print(f"{kernel.stem} sm_{args.arch}: {error or 'compiled'}")
    return 0


def architecture(text: str) -> int:
    """90 of "90" or "sm_90"."""
    match = re.fullmatch(r"(?:sm_)?(\d{2,3})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no architecture such as 90 or sm_90")
    return int(match[1])


def blocks(words: Iterable[str]) -> list[int]:
    """Block sizes of ``64 128`` or of one JSON list ``[64,128]``.

    Raises:
        ValueError: one of them is no multiple of 32 from 32 to 1024.
    """
    sizes = [int(number) for number in re.findall(r"-?\d+", " ".join(words))]
    for size in sizes:
        if size % 32 or not 32 <= size <= 1024:
            raise ValueError(f"--block: {size} is no multiple of 32 from 32 to 1024")
    return sizes


def compile_kernel(
    kernel: Kernel, arch: int, block_sizes: list[int], out: Path, modes: Modes | None = None
) -> str | None:
    """Compile and write ``out``.cubin, .json and .parquet (a suffix of ``out`` is ignored); returns the error, if any.

    modes: what to compile for (None: the plain ones).

    Raises:
        ToolchainError: there is no compiler to do it with.
        CubinError: the compiler's log and the cubin disagree.
    """
    entries = entries_of(kernel, block_sizes, arch, modes)
    try:
        _compile(kernel, arch, entries, out)
    except nvrtc.CompileError as error:
        facts: dict[str, Any] = {"arch": f"sm_{arch}", "sha": kernel.sha, "lowered": {}, "error": str(error)}
        failed = {"status": "compile_error", "reason": str(error), "block": None}
        _write(out, b"", facts | {"log_tail": error.log[-LOG_TAIL:]}, [entry | failed for entry in entries])
        return str(error)
    return None


def compile_launched(kernel: Kernel, arch: int, launched: list[dict[str, Any]], out: Path, lineinfo: bool) -> Path:
    """Compile what some launches need and nothing else, and write the same files; returns the JSON one.

    launched: names of each launch, as from ``kernelfile.launch_names`` with the variant. lineinfo: source lines in the
    machine code, which stays the same.

    Raises:
        CompileError: the kernel has an error.
    """
    symbols = {launch.symbol(names) for names in launched for launch in kernel.launched(names)}
    sizes = sorted({names["block"] for names in launched if "block" in names})
    modes = Modes(*(tuple(sorted({names[flag] for names in launched})) for flag in ("ADD", "GAMMA")))
    entries = [entry for entry in entries_of(kernel, sizes, arch, modes) if entry["symbol"] in symbols]
    _compile(kernel, arch, entries, out, lineinfo)
    return out.with_suffix(".json")


def _compile(kernel: Kernel, arch: int, entries: list[dict[str, Any]], out: Path, lineinfo: bool = False) -> None:
    built = nvrtc.build(kernel.path, sorted({entry["symbol"] for entry in entries}), arch, lineinfo=lineinfo)
    facts = {
        "arch": built.arch,
        "compiler": built.compiler,
        "format": built.format,
        "jit": built.jit,
        "log_tail": ptxas.remarks(built.log)[-LOG_TAIL:],
        "lowered": built.lowered,
        "sha": kernel.sha,
    }
    usage = {} if built.jit else usages(built, arch)
    done = {"status": "ok", "compiler": built.compiler}
    rows = [entry | done | _static(entry, usage.get(built.lowered[entry["symbol"]]), arch) for entry in entries]
    _write(out, built.binary, facts, rows)


def entries_of(kernel: Kernel, block_sizes: list[int], arch: int, modes: Modes | None = None) -> list[dict[str, Any]]:
    """One entry per op, dtype, param_dtype, variant, launch and symbol: identity of a resources row, block and memory.

    A launch of which nothing depends on ADD or GAMMA has one for all their values.
    """
    entries = []
    for names in kernel.compilations(block_sizes, arch, modes):
        for index, launch in enumerate(kernel.launches):
            if not kernelfile.evaluate(launch.when, names):
                continue
            entries.append(
                {
                    "contender": kernel.stem,
                    "lang": kernel.lang,
                    "arch": f"sm_{arch}",
                    "op": names["op"],
                    "dtype": names["dtype"],
                    "param_dtype": names["param_dtype"],
                    "variant": canonical_json(names["variant"]),
                    "launch": index,
                    "symbol": launch.symbol(names),
                    "block": _threads(launch, names),
                    "smem_bytes": _known(launch.smem, names),
                }
            )
    return list({canonical_json(entry): entry for entry in entries}.values())


def _threads(launch: kernelfile.Launch, names: dict[str, Any]) -> int | None:
    total = 1
    for expression in launch.block:
        size = _known(expression, names)
        if size is None:
            return None
        total *= size
    return total


def _known(expression: str, names: dict[str, Any]) -> int | None:
    """Value of an expression, or None where it depends on the work (hidden, rows)."""
    try:
        return int(kernelfile.evaluate(expression, names))
    except Unknown:
        return None


def usages(built: nvrtc.Built, arch: int) -> dict[str, ptxas.Usage]:
    """Usage of every kernel by mangled name, from the log and confirmed by the cubin.

    Raises:
        CubinError: they disagree, or one of them misses a kernel.
    """
    logged, stored = ptxas.parse(built.log), cubin.parse(built.binary)
    for symbol, name in built.lowered.items():
        if name not in logged or name not in stored:
            raise cubin.CubinError(f"{symbol} is missing in the compiler's {'log' if name in stored else 'output'}")
        reserved = cubin.RESERVED_SMEM_BYTES if arch >= 90 else 0
        said = (logged[name].registers, logged[name].stack_bytes, logged[name].smem_bytes)
        has = (stored[name].registers, stored[name].stack_bytes, max(stored[name].smem_bytes - reserved, 0))
        if said != has:
            raise cubin.CubinError(
                f"{symbol}: registers, stack and shared memory are {said} in the compiler's log, {has} in the cubin"
            )
    return logged


def _static(entry: dict[str, Any], usage: ptxas.Usage | None, arch: int) -> dict[str, Any]:
    """The resources columns of one entry; null where the driver has yet to compile, or the work decides."""
    if usage is None:
        return {"smem_bytes": None}
    found: dict[str, Any] = {"registers": usage.registers, "spill_bytes": usage.spill_bytes, "smem_bytes": None}
    if entry["smem_bytes"] is None:
        return found
    smem = usage.smem_bytes + entry["smem_bytes"]
    if entry["block"] is not None:
        shape = (arch, entry["block"], usage.registers, smem)
        found |= {"blocks_per_sm": occupancy.blocks_per_sm(*shape), "occupancy": occupancy.occupancy(*shape)}
    return found | {"smem_bytes": smem}


def _write(out: Path, binary: bytes, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    out = out.with_suffix("") if out.suffix in (".cubin", ".json", ".parquet") else out
    with schema.atomic(out.with_name(f"{out.name}.cubin")) as path:
        path.write_bytes(binary)
    names = {column.name: column.dtype for column in schema.RESOURCES.columns}
    frame = pl.DataFrame([{name: row.get(name) for name in names} for row in rows], schema=names)
    schema.write(frame, schema.RESOURCES, out.with_name(f"{out.name}.parquet"))
    with schema.atomic(out.with_name(f"{out.name}.json")) as path:
        path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
