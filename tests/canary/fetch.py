"""Put another vLLM's Python into a folder: `python -m canary.fetch VERSION FOLDER`.

Of its wheel only what can be read comes along: no kernels, and none of its dependencies but those
that it needs at its import and that are absent here, because no vLLM needed them before.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from canary.test_imports import written

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
WHEEL = ["--no-deps", "--only-binary=:all:"]
# Prints the name of each package that a module misses; what else fails is told by its row.
IMPORT = """
import contextlib, importlib, sys
for module in sys.argv[1:]:
    with contextlib.suppress(Exception):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            print(error.name)
"""


def fetch(version: str, folder: Path) -> None:
    """Make the folder. Raises CalledProcessError, after pip's words, where there is no wheel."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        print(f"fetching vllm=={version} …", flush=True)
        subprocess.run([*PIP, "download", *WHEEL, f"vllm=={version}", "-d", place], check=True)
        (wheel,) = Path(place).glob("vllm-*.whl")
        made = Path(place) / "made"
        with zipfile.ZipFile(wheel) as file:
            files = [n for n in file.namelist() if n.endswith((".py", ".json")) or "-info/" in n]
            file.extractall(made, files)
        (info,) = made.glob("vllm-*.dist-info")
        needed = {
            canonicalize_name(one.name): str(one)
            for one in map(Requirement, PathDistribution(info).requires or ())
        }
        while missing := _missing(made) & needed.keys():
            specs = [needed.pop(name) for name in sorted(missing)]
            subprocess.run([*PIP, "install", *WHEEL, "--target", str(made), *specs], check=True)
        made.rename(folder)


def _missing(folder: Path) -> set[str]:
    """Return the packages that the modules which the project imports miss with this vLLM."""
    touched = {row.split(":")[0] for its in written().values() for row in its}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *sorted(touched)],
        env=os.environ | {"PYTHONPATH": str(folder), "VLLM_TARGET_DEVICE": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=300,
    )
    return {canonicalize_name(name) for name in done.stdout.split()}


if __name__ == "__main__":
    if not Path(sys.argv[2]).exists():
        try:
            fetch(sys.argv[1], Path(sys.argv[2]))
        except subprocess.CalledProcessError as error:
            sys.exit(f"pip could not do it: {' '.join(error.cmd[4:])}")
