#!/bin/sh
# Make .venv from requirements.txt. Does nothing when the lock and the Python are unchanged.
# usage: builder/setup.sh PYTHON
set -eu
cd "$(dirname "$0")/.."
python=$1

say() { printf '%s\n' "$*" >&2; }

[ "$(uname -s)" = Linux ] || {
    say "setup: the CPU build of vLLM exists for Linux only, and this is $(uname -s)."
    exit 1
}
[ "$(uname -m)" = x86_64 ] || {
    say "setup: this environment is locked for x86_64, and this machine is $(uname -m)."
    exit 1
}
stamp=.venv/locked
if [ -e "$stamp" ] && cmp -s requirements.txt "$stamp"; then
    exit 0
fi

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none; }

# Print the path of a Python 3.11 that uv has fetched, or fail; uv comes from PyPI where it is absent.
fetched() {
    uv=$(command -v uv) || {
        "$python" -m venv .cache/uv || return 1
        .cache/uv/bin/pip install -q "$(grep -o '^uv==[^ ]*' requirements.txt)" || return 1
        uv=.cache/uv/bin/uv
    }
    "$uv" python install 3.11 && "$uv" python find 3.11
}

found=$(version "$python")
if [ "$found" != 3.11 ] && [ "$(version python3.11)" = 3.11 ]; then
    python=python3.11
elif [ "$found" != 3.11 ]; then
    say "setup: this environment is locked for Python 3.11, and $python is $found: fetching 3.11 …"
    mkdir -p .cache
    python=$(fetched 2>.cache/uv.log | tail -n 1)
    [ "$(version "${python:-none}")" = 3.11 ] || {
        say "setup: uv could not fetch Python 3.11 (.cache/uv.log). Install it in another way;" \
            "PYTHON=/path/to/python3.11 make … names it."
        exit 1
    }
fi

say "setup: making .venv (about 2 GB, a few minutes the first time) …"
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check -qq "$@"; }

# The CPU build of torch is on no PyPI: a configured wheel folder may have it, else PyTorch's index.
torch=$(grep -o '^torch==[^ ]*' requirements.txt)
pip install --no-deps "$torch" 2>.venv/torch.log ||
    pip install --no-deps "$torch" --index-url https://download.pytorch.org/whl/cpu || {
    say "setup: $torch was found neither by pip as it is configured (.venv/torch.log) nor at" \
        "download.pytorch.org."
    exit 1
}
pip install --no-deps --requirement requirements.txt

# src/ on the path, so that .venv/bin/python -m worker works from anywhere.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$PWD/src" >"$site/worker-vllm.pth"
cp requirements.txt "$stamp"
say "setup: done."
