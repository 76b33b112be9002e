"""Resident blocks against NVIDIA's occupancy calculator, and arithmetic done by hand from the published limits."""

from __future__ import annotations

import pytest

from normbench import occupancy
from normbench.config import Study

KNOWN = [
    # arch, block, registers, shared memory, resident blocks: what limits them
    (75, 256, 32, 0, 4),  # 32 warps
    (75, 32, 16, 0, 16),  # 16 blocks
    (75, 64, 32, 32 << 10, 2),  # shared memory, nothing reserved
    (75, 64, 32, 64 << 10, 1),
    (80, 128, 40, 0, 12),  # 40 registers: 1280 a warp, 12 warps a sub-partition
    (80, 128, 37, 0, 12),  # 37 are rounded up to 40
    (80, 256, 32, 0, 8),  # 64 warps
    (80, 32, 16, 0, 32),  # 32 blocks
    (80, 1024, 64, 0, 1),
    (80, 1024, 65, 0, 0),  # 72 * 1024 registers are more than there are
    (80, 128, 32, 40 << 10, 4),  # 164 KB in blocks of 41
    (80, 128, 32, 41 << 10, 3),
    (86, 1024, 32, 0, 1),  # 48 warps hold one block of 32
    (86, 64, 32, 0, 16),
    (86, 128, 32, 99 << 10, 1),
    (86, 128, 32, (99 << 10) + 1, 0),
    (89, 64, 32, 0, 24),
    (90, 512, 56, 0, 2),  # 56 registers: 9 warps a sub-partition, 36 in all
    (90, 128, 56, 384, 9),
    (90, 128, 255, 0, 2),  # 8 warps
    (90, 96, 32, 0, 21),  # three warps a block
    (90, 256, 32, 227 << 10, 1),
    (100, 1024, 32, 0, 2),
    (120, 512, 40, 0, 3),
    (120, 64, 40, 0, 24),
]


@pytest.mark.parametrize(("arch", "block", "registers", "smem_bytes", "blocks"), KNOWN)
def test_resident_blocks_as_the_calculator_has_them(
    arch: int, block: int, registers: int, smem_bytes: int, blocks: int
) -> None:
    assert occupancy.blocks_per_sm(arch, block, registers, smem_bytes) == blocks


def test_occupancy_counts_warps_not_threads() -> None:
    assert occupancy.occupancy(90, 128, 56, 0) == 36 / 64
    assert occupancy.occupancy(90, 48, 16, 0) == 1.0  # one and a half warps take two


def test_an_architecture_outside_the_table_is_unknown_not_zero() -> None:
    assert occupancy.blocks_per_sm(999, 128, 32, 0) is None
    assert occupancy.occupancy(999, 128, 32, 0) is None


def test_every_architecture_of_the_study_is_in_the_table() -> None:
    assert set(Study().archs) <= occupancy.LIMITS.keys()
