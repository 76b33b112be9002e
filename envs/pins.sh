#!/usr/bin/env bash
# envs/pins.sh: writes the pins below envs/ anew from pyproject.toml, for Python 3.12 on x86-64 Linux. Needs uv.
# Exported requirements with hashes rather than a lock file: pip and conda read them, and they name no package index.
set -euo pipefail
cd "$(dirname "$0")/.."

# dependencies WITHOUT: the dependencies of pyproject.toml but those named
dependencies() {
    python3 - "$@" <<'PYTHON'
import re, sys, tomllib
for text in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]:
    if re.match(r"[\w-]+", text)[0] not in sys.argv[1:]:
        print(text)
PYTHON
}

# extra NAME: the requirements of an extra
extra() {
    python3 -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")' "$1"
}

# pin NAME MEANING: requirements on standard input to envs/NAME.txt
pin() {
    { echo "# $2"; echo "# Written by envs/pins.sh from pyproject.toml."; } > "envs/$1.txt"
    uv pip compile --quiet --python-version 3.12 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate - >> "envs/$1.txt"
}

{ dependencies; extra cu13; } | pin gpu "Everything to measure on a GPU whose driver is 580 or newer."
{ dependencies torch triton; extra cu13; } | pin beside-torch "What a GPU host lacks that has torch and triton already."
dependencies torch triton cuda-core cuda-python nvidia-ml-py numpy | pin report "What builds pages from the archive."
