#!/bin/sh
# Make .venv from requirements.txt. Does nothing when the lock and the Python are unchanged.
# usage: builder/setup.sh PYTHON
set -eu
cd "$(dirname "$0")/.."
python=$1

say() { printf '%s\n' "$*" >&2; }

command -v "$python" >/dev/null || {
    say "setup: there is no $python here; PYTHON=/path/to/python3.11 make … names another."
    exit 1
}
[ "$(uname -s)" = Linux ] || {
    say "setup: the CPU build of vLLM exists for Linux only, and this is $(uname -s)."
    exit 1
}
[ "$(uname -m)" = x86_64 ] || {
    say "setup: this environment is locked for x86_64, and this machine is $(uname -m)."
    exit 1
}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || {
    say "setup: this environment is locked for Python 3.11, and $python is $version;" \
        "PYTHON=/path/to/python3.11 make … names another."
    exit 1
}

stamp=.venv/locked
if [ -e "$stamp" ] && cmp -s requirements.txt "$stamp"; then
    exit 0
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
