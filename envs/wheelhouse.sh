#!/usr/bin/env bash
# envs/wheelhouse.sh SET DIR [PYTHON]: wheels of envs/SET.txt for x86-64 Linux into DIR, to install without a network.
#   SET      gpu (torch too, several gigabytes), beside-torch (the host has torch and triton) or report (pages from the archive)
#   PYTHON   Python version of the other host, default 3.12; the pins are made for it
# Every file is checked against the hashes of envs/SET.txt. Needs pip here; nothing is installed.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,4s/^# *//p' "$0" >&2; exit 2; }
pins=$(dirname "$0")/$1.txt wheels=$2 python=${3:-3.12}
[ -f "$pins" ] || { echo "wheelhouse: there is no $pins; known: gpu, beside-torch, report" >&2; exit 2; }
mkdir -p "$wheels"

platforms=(manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_24 manylinux_2_17 manylinux_2_12 manylinux2014 manylinux2010 manylinux1)
python3 -m pip download --quiet --require-hashes --no-deps --requirement "$pins" --dest "$wheels" \
    --implementation cp --python-version "$python" $(printf -- '--platform %s_x86_64 ' "${platforms[@]}")

# a package that is published as source only becomes a wheel here; all of those are pure Python
find "$wheels" -name '*.tar.gz' | while read -r source; do
    python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$source"
    rm "$source"
done
# what an editable install of the checkout builds with
python3 -m pip download --quiet --no-deps --dest "$wheels" 'setuptools>=77'
du -sh "$wheels"
