"""Registers, stack and shared memory of each kernel, read from a cubin: a 64-bit little-endian ELF file.

NVIDIA documents the section names (cuda-binary-utilities) but not the attribute records of ``.nv.info``; their layout
was read off cubins of NVRTC 13.0 and agrees with the compiler's log for every kernel of this repository.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

RESERVED_SMEM_BYTES = 1024  # which the driver keeps in every block from sm_90 on; the ELF counts it, the log does not

_FRAME_SIZE, _REGCOUNT = 0x11, 0x2F  # records of .nv.info: pairs of symbol index and value
_HAS_SIZE = 0x04  # format of a record whose payload follows its 16-bit size; others hold their value in its place


class CubinError(ValueError):
    """The bytes are not a cubin, or do not agree with the compiler's log."""


@dataclass(frozen=True)
class Section:
    name: str
    data: bytes
    link: int
    size: int


@dataclass(frozen=True)
class Usage:
    """One kernel; registers and stack frame a thread, static shared memory a block."""

    registers: int = 0
    stack_bytes: int = 0
    smem_bytes: int = 0
    code_bytes: int = 0


def parse(binary: bytes) -> dict[str, Usage]:
    """Usage by mangled name.

    Raises:
        CubinError: not an ELF file with symbols.
    """
    sections = _sections(binary)
    by_name = {section.name: section for section in sections}
    found = {
        name.removeprefix(".text."): Usage(code_bytes=section.size)
        for name, section in by_name.items()
        if name.startswith(".text.")
    }
    for name in found:
        if shared := by_name.get(f".nv.shared.{name}"):
            found[name] = replace(found[name], smem_bytes=shared.size)
    symbols = _symbols(by_name, sections)
    for kind, symbol, value in _attributes(by_name[".nv.info"].data if ".nv.info" in by_name else b""):
        name = symbols[symbol] if symbol < len(symbols) else ""
        if name in found and kind == _REGCOUNT:
            found[name] = replace(found[name], registers=value)
        elif name in found and kind == _FRAME_SIZE:
            found[name] = replace(found[name], stack_bytes=value)
    return found


def _sections(binary: bytes) -> list[Section]:
    if binary[:4] != b"\x7fELF" or len(binary) < 64 or binary[4:6] != b"\x02\x01":
        raise CubinError("not a cubin: no 64-bit little-endian ELF header")
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    entry, count, names_index = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", binary, table + index * entry) for index in range(count)]
    names = _data(binary, headers[names_index])
    return [
        Section(_text(names, header[0]), _data(binary, header), link=header[6], size=header[5]) for header in headers
    ]


def _data(binary: bytes, header: tuple[int, ...]) -> bytes:
    return b"" if header[1] == 8 else binary[header[4] : header[4] + header[5]]  # type 8 occupies no bytes of the file


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def _symbols(by_name: dict[str, Section], sections: list[Section]) -> list[str]:
    if ".symtab" not in by_name:
        raise CubinError("not a cubin: no symbol table")
    table = by_name[".symtab"]
    strings = sections[table.link].data
    return [_text(strings, offset) for offset, *_ in struct.iter_unpack("<IBBHQQ", table.data)]


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(kind, symbol index, value) of the records that speak of one symbol."""
    at = 0
    while at + 4 <= len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != _HAS_SIZE:
            continue
        if kind in (_FRAME_SIZE, _REGCOUNT):
            for symbol, value in struct.iter_unpack("<II", info[at : at + size]):
                yield kind, symbol, value
        at += size
