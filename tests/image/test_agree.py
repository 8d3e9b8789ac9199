"""Each fact that stands in several files is seen when one of them is edited alone."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import agree
import pytest

EDITS = [(fact, file) for fact, places in agree.FACTS.items() for file in places]
FILES = {file for places in (*agree.FACTS.values(), *agree.NAMES.values()) for file in places}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(agree.ROOT / file, tmp_path / file)
    return tmp_path


def edit(path: Path, pattern: str, replace: str) -> None:
    text = path.read_text()
    match = re.search(pattern, text, re.MULTILINE)
    assert match
    path.write_text(text[: match.start(1)] + replace + text[match.end(1) :])


def test_the_files_agree(copy: Path) -> None:
    """As they are, nothing is to be said."""
    assert [] == agree.problems(copy)


@pytest.mark.parametrize(("fact", "file"), EDITS)
def test_one_file_alone_is_seen(copy: Path, fact: str, file: str) -> None:
    """A version written into one file alone is named, with the file."""
    edit(copy / file, agree.FACTS[fact][file], "13.9" if "CUDA" in fact else "9.9.9")

    (problem,) = agree.problems(copy)

    assert fact in problem
    assert file in problem


@pytest.mark.parametrize("file", agree.NAMES["the build arguments of a model"])
def test_a_missing_build_argument_is_seen(copy: Path, file: str) -> None:
    """A build argument that one file does not know is named."""
    path = copy / file
    path.write_text(path.read_text().replace("LORA_MODULES", "ADAPTERS"))

    assert any("LORA_MODULES" in problem for problem in agree.problems(copy))


@pytest.mark.parametrize(("old", "new"), [('"12.9"', '"12.8"'), ("-cu129", "-cu128")])
def test_the_older_cuda_is_seen(copy: Path, old: str, new: str) -> None:
    """The CUDA of the older image is that of vLLM's tag."""
    path = copy / "docker-bake.hcl"
    path.write_text(path.read_text().replace(old, new))

    assert agree.problems(copy)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What docs/generate.py reads and writes."""
    root = tmp_path_factory.mktemp("sources")
    for folder in ("docs", "src", "tests", ".runpod"):
        leave = shutil.ignore_patterns("node_modules")
        shutil.copytree(agree.ROOT / folder, root / folder, ignore=leave)
    shutil.copy(agree.ROOT / "docker-bake.hcl", root)
    return root


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        (".runpod/hub.json", '"gpuCount": 1', '"gpuCount": 2', {".runpod/hub.json"}),
        (".runpod/tests.json", "50", "51", {".runpod/tests.json"}),
        ("docs/settings.md", "MAX_CONCURRENCY", "MAX_JOBS", {"docs/settings.md"}),
        ("docker-bake.hcl", '"13.0"', '"13.1"', {".runpod/hub.json", ".runpod/tests.json"}),
        (
            "src/worker/configuration/variables.py",
            "How many jobs the worker",
            "The jobs that the worker",
            {"docs/settings.md", ".runpod/hub.json"},
        ),
    ],
)
def test_a_generated_file_alone_is_seen(
    sources: Path, file: str, old: str, new: str, stale: set[str]
) -> None:
    """A generated file that was edited, or whose table was, is named."""
    path = sources / file
    before = path.read_text()
    path.write_text(before.replace(old, new))
    done = subprocess.run(
        [sys.executable, sources / "docs/generate.py", "--check"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    path.write_text(before)
    named, _, _ = done.stdout.rpartition(" is not what")

    assert before != before.replace(old, new)
    assert 1 == done.returncode
    assert stale == set(named.split(", "))
