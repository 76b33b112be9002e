"""The files that follow from config.py and fleet.py: JSON Schemas, the default config.yaml, tables in config/README.md.

``python -m normbench.configfiles`` names those that have drifted (exit 1); ``--write`` rewrites them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normbench import fleet
from normbench.config import Study, properties, root
from normbench.nearest import allowed

BEGIN = "<!-- table of keys: written by `python -m normbench.configfiles --write` -->\n"
END = "<!-- end of table -->\n"
FLEET_BEGIN = "<!-- table of a target's keys: written by `python -m normbench.configfiles --write` -->\n"
HEAD = """\
# The default study: every key with its default. Written by `python -m normbench.configfiles --write`.
# Change a value here, put it into a file of your own (`--configfile mine.yaml`), or give it on the command line
# (`--config dtypes=bf16 hidden=[4096]`). The table of keys is in config/README.md.
"""


def json_schema() -> dict[str, Any]:
    """JSON Schema of config.yaml, for editors and for other programs."""
    schema = Study.model_json_schema()
    for node in (schema, *schema["$defs"].values()):
        for described in node["properties"].values():
            described.pop("title", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def fleet_schema() -> dict[str, Any]:
    """JSON Schema of a fleet file: targets by name."""
    target = fleet.Target.model_json_schema()
    for described in target["properties"].values():
        described.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "Targets of a fleet by name: kinds of GPUs and what reaches one of each.",
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{fleet.NAME.pattern}$", "not": {"enum": sorted(fleet.RESERVED)}},
        "additionalProperties": target,
    }


def fleet_table() -> str:
    """The table of a target's keys, one row a key."""
    rows = []
    for name, node in fleet.properties().items():
        default = "required" if "default" not in node else _yaml(node["default"])
        rows.append(f"| `{name}` | {'' if default == 'null' else f'`{default}`'} | {node['description']} |")
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]) + "\n"


def described_keys() -> Iterator[tuple[str, dict[str, Any]]]:
    """(dotted name, description) of every key that takes a value."""
    for name, described in properties().items():
        if "$ref" in described:
            yield from ((f"{name}.{inner}", node) for inner, node in properties([name]).items())
        else:
            yield name, described


def markdown_table() -> str:
    """The table of keys, one row a key."""
    rows = [
        f"| `{name}` | {_kind(node)} | `{_yaml(node['default'])}` | {node['description']} |"
        for name, node in described_keys()
    ]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def default_yaml() -> str:
    """config.yaml: each key with its default under a comment."""
    lines = []
    for name, node in properties().items():
        lines.append(f"\n# {node['description']}{'' if '$ref' in node else f': {_kind(node)}'}")
        if "$ref" not in node:
            lines.append(f"{name}: {_yaml(node['default'])}")
            continue
        lines.append(f"{name}:")
        for inner, described in properties([name]).items():
            lines.append(f"  # {described['description']}: {_kind(described)}")
            lines.append(f"  {inner}: {_yaml(described['default'])}")
    return HEAD + "\n".join(lines) + "\n"


def _kind(described: Mapping[str, Any]) -> str:
    if "items" not in described:
        return allowed(described)
    words = allowed(described["items"])
    return f"list of {words}" if words == "text" else f"list, each {words}"


def _yaml(value: object) -> str:
    """Flow style, which is JSON but for its quotes: bare words where YAML allows them."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, str):
        return value if value.replace("_", "").isalnum() else json.dumps(value)
    # YAML 1.1 reads 1e-05 as text: a number with an exponent needs a point
    text = json.dumps(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def contents(folder: Path) -> dict[Path, str]:
    """Each generated file below the checkout ``folder`` and what it should hold."""
    readme = folder / "config" / "README.md"
    text = readme.read_text()
    for begin, table in ((BEGIN, markdown_table()), (FLEET_BEGIN, fleet_table())):
        before, found, rest = text.partition(begin)
        text = before + begin + table + END + rest.partition(END)[2] if found else text
    return {
        folder / "workflow" / "schemas" / "config.schema.json": json.dumps(json_schema(), indent=2) + "\n",
        folder / "config" / "config.yaml": default_yaml(),
        folder / "workflow" / "schemas" / "fleet.schema.json": json.dumps(fleet_schema(), indent=2) + "\n",
        readme: text,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m normbench.configfiles", description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite them")
    args = parser.parse_args(argv)
    drifted = {path: text for path, text in contents(root()).items() if not path.is_file() or path.read_text() != text}
    for path, text in drifted.items():
        if args.write:
            path.write_text(text)
        print(f"{'wrote' if args.write else 'differs from config.py'}: {path.relative_to(root())}")
    return 0 if args.write or not drifted else 1


if __name__ == "__main__":
    raise SystemExit(main())
