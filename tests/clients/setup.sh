#!/bin/sh
# Install the clients that tests/clients runs: Python's into .cache/clients-venv, Node's into
# node_modules. Does nothing when the locks are unchanged. Without npm there are no Node clients.
# usage: tests/clients/setup.sh
set -eu
cd "$(dirname "$0")/../.."
venv=.cache/clients-venv
here=tests/clients

say() { printf '%s\n' "$*" >&2; }
uv() { .venv/bin/python -m uv --quiet "$@"; }

if ! cmp -s "$here/requirements.txt" "$venv/locked"; then
    say "clients: installing the Python clients into $venv …"
    [ -x "$venv/bin/python" ] || uv venv --clear --python .venv/bin/python "$venv"
    uv pip sync --python "$venv/bin/python" "$here/requirements.txt"
    cp "$here/requirements.txt" "$venv/locked"
fi

if command -v npm >/dev/null && ! cmp -s "$here/package-lock.json" "$here/node_modules/locked"; then
    say "clients: installing the Node clients into $here/node_modules …"
    (cd "$here" && npm ci --silent --no-audit --no-fund --no-update-notifier)
    cp "$here/package-lock.json" "$here/node_modules/locked"
fi
