"""The tables inside a page, as data links, as far as they fit."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import polars as pl
import polars.selectors as cs

from normbench import citation, columns, document, metrics, nvbench, schema
from normbench.measured import Measured

CSV_DIGITS = 7  # significant


@dataclass(frozen=True)
class Download:
    """A file inside the page, as a data link. rows: how many of ``noun`` it holds.

    plain: for a compressed file, the name under which the page's script hands it out unpacked; "" for others.
    """

    name: str
    link: str
    rows: int
    noun: str = "row"
    plain: str = ""

    @property
    def bytes(self) -> int:
        return len(self.link)


def of(one: Measured) -> Iterator[Download]:
    """The most asked-for first: the tables as stored, what their columns mean, then as text with derived columns."""
    stored = {name: frame for name, frame in one.stored.items() if not frame.is_empty()}
    for name, frame in stored.items():
        yield _download(f"{one.device}-{name}.parquet", frame, _parquet, "application/vnd.apache.parquet")
    yield _schema()
    yield _citation(one)
    if not one.stored["showdown"].is_empty():
        yield _nvbench(one)
    for name, frame in stored.items():
        derived = getattr(one, name).select(cs.by_name(*metrics.METRICS, require_all=False))
        yield _packed(f"{one.device}-{name}.csv", _csv(frame.select(~cs.list()).hstack(derived)), frame.height)


def _packed(name: str, content: bytes, rows: int, noun: str = "row") -> Download:
    """Text compresses to a tenth, and without that no page would hold it."""
    link = document.data_link(document.compressed(content), "application/gzip")
    return Download(f"{name}.gz", link, rows, noun, plain=name)


def _download(name: str, frame: pl.DataFrame, encode: Callable[[pl.DataFrame], bytes], media_type: str) -> Download:
    return Download(name, document.data_link(encode(frame), media_type), frame.height)


def _schema() -> Download:
    content, number = columns.json_text().encode(), sum(len(table.columns) for table in schema.TABLES.values())
    link = document.data_link(content, "application/schema+json")
    return Download("normbench-tables.schema.json", link, number, "column")


def _citation(one: Measured) -> Download:
    content = citation.text(one).encode()
    return Download("CITATION.cff", document.data_link(content, "application/yaml"), len(one.runs), "run")


def _nvbench(one: Measured) -> Download:
    text = nvbench.text(one.stored["showdown"], one.machine)
    return _packed(f"{one.device}-nvbench.json", text.encode(), text.count('"is_skipped"'), "state")


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=12, statistics=False)
    return buffer.getvalue()


def _csv(frame: pl.DataFrame) -> bytes:
    return frame.with_columns(cs.float().round_sig_figs(CSV_DIGITS)).write_csv().encode()


def fitting(downloads: Iterable[Download], room: int) -> tuple[list[Download], list[Download]]:
    """Those that fit into ``room`` bytes in the given order, and those that do not."""
    taken: list[Download] = []
    left_out: list[Download] = []
    for download in downloads:
        if download.bytes <= room:
            taken.append(download)
            room -= download.bytes
        else:
            left_out.append(download)
    return taken, left_out
