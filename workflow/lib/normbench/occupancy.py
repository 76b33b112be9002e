"""Resident blocks a multiprocessor, from the published limits of each architecture.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Allocation granularities: the
occupancy calculator of Nsight Compute, which allocates registers to warps in each of the four sub-partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
SUBPARTITIONS = 4
REGISTERS = 65536  # a multiprocessor, and the most a block may have, on every architecture below
REGISTER_UNIT = 256  # registers are given to a warp in multiples of this


@dataclass(frozen=True)
class Limits:
    """One architecture: resident warps and blocks, shared memory in all and for one block (with the opt-in)."""

    warps: int
    blocks: int
    smem_bytes: int
    block_smem_bytes: int
    smem_unit_bytes: int = 128
    smem_reserved_bytes: int = 1024  # kept by the driver in every block


LIMITS = {
    75: Limits(32, 16, 64 << 10, 64 << 10, smem_unit_bytes=256, smem_reserved_bytes=0),
    80: Limits(64, 32, 164 << 10, 163 << 10),
    86: Limits(48, 16, 100 << 10, 99 << 10),
    87: Limits(48, 16, 164 << 10, 163 << 10),
    89: Limits(48, 24, 100 << 10, 99 << 10),
    90: Limits(64, 32, 228 << 10, 227 << 10),
    100: Limits(64, 32, 228 << 10, 227 << 10),
    103: Limits(64, 32, 228 << 10, 227 << 10),
    110: Limits(48, 24, 228 << 10, 227 << 10),
    120: Limits(48, 24, 100 << 10, 99 << 10),
    121: Limits(48, 24, 100 << 10, 99 << 10),
}


def blocks_per_sm(arch: int, block: int, registers: int, smem_bytes: int) -> int | None:
    """Resident blocks of ``block`` threads by warps, registers and shared memory; 0: it cannot be launched.

    registers: a thread. smem_bytes: a block, static and dynamic. None: an architecture that is not in the table.
    """
    limits = LIMITS.get(arch)
    if limits is None:
        return None
    warps = -(-block // WARP)
    if smem_bytes > limits.block_smem_bytes:
        return 0
    smem = _round_up(smem_bytes + limits.smem_reserved_bytes, limits.smem_unit_bytes)
    by_smem = limits.smem_bytes // smem if smem else limits.blocks
    return min(limits.blocks, limits.warps // warps, _by_registers(warps, registers), by_smem)


def _by_registers(warps: int, registers: int) -> int:
    a_warp = _round_up(max(registers, 1) * WARP, REGISTER_UNIT)
    if _round_up(warps, SUBPARTITIONS) * a_warp > REGISTERS:
        return 0
    return REGISTERS // SUBPARTITIONS // a_warp * SUBPARTITIONS // warps


def occupancy(arch: int, block: int, registers: int, smem_bytes: int) -> float | None:
    """Resident warps over the most the architecture holds; arguments as ``blocks_per_sm``."""
    blocks = blocks_per_sm(arch, block, registers, smem_bytes)
    return None if blocks is None else blocks * -(-block // WARP) / LIMITS[arch].warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
