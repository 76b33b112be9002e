"""Verb ``columns``: the schema as text, or as a JSON Schema of the tables written as lists of objects."""

from __future__ import annotations

import argparse
import json
from typing import Any

import polars as pl

from normbench import metrics, schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
CHOICES = {
    "status": schema.STATUSES,
    "verdict": schema.VERDICTS,
    "dtype": schema.DTYPES,
    "regime": schema.REGIMES,
    "lang": schema.LANGS,
}
Json = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", choices=sorted(schema.TABLES), help="only this table")
    parser.add_argument("--json", action="store_true", help="as a JSON Schema")


def main(args: argparse.Namespace) -> int:
    print(json_text(args.table) if args.json else schema.describe(args.table))
    return 0


def json_text(only: str | None = None) -> str:
    return json.dumps(json_schema(only), indent=1)


def json_schema(only: str | None = None) -> Json:
    """JSON Schema (draft 2020-12) of an object that holds every table, or ``only`` one, as a list of rows.

    ``x-unit`` is the unit of a column, ``x-key`` the columns that identify a row; a download as CSV may add the columns
    of ``derived``.
    """
    tables = [schema.TABLES[only]] if only else list(schema.TABLES.values())
    return {
        "$schema": DIALECT,
        "title": "normbench tables",
        "description": "Null is not measured, never 0. Times are microseconds, rates 1e9 bytes a second.",
        "type": "object",
        "properties": {table.name: {"type": "array", "items": {"$ref": f"#/$defs/{table.name}"}} for table in tables},
        "$defs": {table.name: _row(table) for table in tables} | {"derived": _derived()},
    }


def _row(table: schema.Table) -> Json:
    return {
        "description": table.meaning,
        "type": "object",
        "properties": {column.name: _column(column) for column in table.columns},
        "required": [column.name for column in table.columns if column.required],
        "additionalProperties": False,
        "x-key": list(table.key),
    }


def _column(column: schema.Column) -> Json:
    kind = _type(column.dtype)
    if not column.required:
        kind = {"anyOf": [kind, {"type": "null"}]} if "items" in kind else {"type": [kind["type"], "null"]}
    choices: tuple[str | None, ...] = CHOICES.get(column.name, ())
    if choices and not column.required:
        choices = (*choices, None)
    return (
        kind
        | ({"enum": list(choices)} if choices else {})
        | {"description": column.meaning}
        | ({"x-unit": column.unit} if column.unit else {})
    )


def _type(dtype: Any) -> Json:
    if isinstance(dtype, pl.List):
        return {"type": "array", "items": _type(dtype.inner)}
    if dtype == pl.String:
        return {"type": "string"}
    if dtype == pl.Boolean:
        return {"type": "boolean"}
    return {"type": "integer" if dtype.is_integer() else "number"}


def _derived() -> Json:
    columns = {
        name: {"description": metric.meaning} | ({"x-unit": metric.unit} if metric.unit else {})
        for name, metric in metrics.METRICS.items()
    }
    return {"description": "Computed from the tables, not stored in them.", "type": "object", "properties": columns}
