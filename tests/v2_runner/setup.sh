#!/bin/sh
# Install Triton into .cache/triton-cpu for tests/v2_runner: not into .venv, where vLLM would take
# another model runner for finding it. Does nothing when requirements.txt is unchanged.
# usage: tests/v2_runner/setup.sh
set -eu
cd "$(dirname "$0")/../.."
folder=.cache/triton-cpu
locked=tests/v2_runner/requirements.txt

if cmp -s "$locked" "$folder/locked"; then
    exit 0
fi

printf '%s\n' "v2_runner: installing Triton into $folder (about 700 MB) …" >&2
rm -rf "$folder" "$folder.new"
.venv/bin/python -m uv --quiet pip install --python .venv/bin/python --no-deps \
    --target "$folder.new" --requirement "$locked"
cp "$locked" "$folder.new/locked"
mv "$folder.new" "$folder"
