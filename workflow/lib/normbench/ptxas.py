"""What ``ptxas -v`` says of each kernel: the only source of spilled bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


@dataclass(frozen=True)
class Usage:
    """One kernel as the compiler's log has it; registers and stack a thread, shared memory a block."""

    registers: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    smem_bytes: int = 0


def parse(log: str) -> dict[str, Usage]:
    """Usage by mangled name. ``spill_bytes`` adds spill stores and spill loads."""
    found: dict[str, Usage] = {}
    name = ""
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
            found[name] = Usage()
        elif name and (spills := _SPILLS.search(line)):
            stack, stores, loads = map(int, spills.groups())
            found[name] = replace(found[name], stack_bytes=stack, spill_bytes=stores + loads)
        elif name and (registers := _REGISTERS.search(line)):
            shared = _SHARED.search(line)
            smem = int(shared[1]) if shared else 0
            found[name] = replace(found[name], registers=int(registers[1]), smem_bytes=smem)
    return found


def remarks(log: str) -> str:
    """The log without what ``-v`` adds: warnings and errors. Compile times would differ from run to run."""
    return "\n".join(line for line in log.strip("\0\n ").splitlines() if line.strip("\0 ") and not _chatter(line))


def _chatter(line: str) -> bool:
    return bool(line.startswith("ptxas info") or _SPILLS.search(line) or "Function properties for" in line)
