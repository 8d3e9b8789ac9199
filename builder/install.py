"""Install what the image adds to vLLM's, and prove that nothing of vLLM's moved.

usage: python3 builder/install.py REQUIREMENTS [NAME==VERSION …]

Of the pinned packages only those are installed that the base image lacks, and without their
dependencies, so that no package of the base changes. What an addition asks for and does not find
must be explained in the list below, or the build fails.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# What an addition asks for and does not get, and why that is right.
EXPLAINED = {
    ("runpod", "fastapi"): "only the SDK's own test server wants a newer one; the engine's stays",
}


def main(path: str, *more: str) -> int:
    pins = read("\n".join([Path(path).read_text(), *more]))
    before = installed()
    missing = {name: version for name, version in pins.items() if name not in before}
    for name in sorted(pins.keys() - missing.keys()):
        print(f"{name} {before[name]} is the base image's, and stays.")
    if missing:
        wanted = [f"{name}=={version}" for name, version in missing.items()]
        subprocess.run([*installer(), "--no-deps", *wanted], check=True)
    after = installed()
    problems = [*moved(before, after), *unmet(missing)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def read(requirements: str) -> dict[str, str]:
    """Return the pinned version of each package in a requirements file."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    pinned = (line.partition(";")[0].split("==") for line in lines if line)
    return {canonicalize_name(name.strip()): version.strip() for name, version in pinned}


def installed() -> dict[str, str]:
    """Return the version of every package that would be imported, as the disk says now."""
    found: dict[str, str] = {}
    for one in metadata.distributions():  # in the order of the path: setuptools carries copies
        found.setdefault(canonicalize_name(one.name), one.version)
    return found


def installer() -> list[str]:
    """Return the command that installs into this Python: pip, or uv where there is no pip."""
    if importlib.util.find_spec("pip"):
        os.environ["PIP_BREAK_SYSTEM_PACKAGES"] = "1"  # the image's Python is the system's
        os.environ["PIP_ROOT_USER_ACTION"] = "ignore"
        return [sys.executable, "-m", "pip", "install", "--no-cache-dir"]
    uv = ["uv", "pip", "install", "--no-cache", "--break-system-packages"]
    return [*uv, "--python", sys.executable]


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[str]:
    """Name the packages of the base that are not what they were."""
    for name, version in sorted(before.items()):
        if after.get(name) != version:
            yield f"{name} of the base image was {version} and is {after.get(name, 'gone')}"


def unmet(additions: Iterable[str]) -> Iterable[str]:
    """Name what the additions ask for and do not find, and print what of it is explained."""
    have = installed()
    for name in additions:
        for text in metadata.requires(name) or ():
            wanted = Requirement(text)
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            found = have.get(canonicalize_name(wanted.name))
            if found and wanted.specifier.contains(found, prereleases=True):
                continue
            said = f"{name} wants {wanted.name}{wanted.specifier}, and finds {found or 'none'}"
            if why := EXPLAINED.get((name, canonicalize_name(wanted.name))):
                print(f"{said}: {why}.")
            else:
                yield said


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
