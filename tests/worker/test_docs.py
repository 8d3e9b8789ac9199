"""What the operator's pages quote is what the worker says, and what they name there is."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import vllm

from local_endpoint import Status
from worker.configuration.layers import known_variables
from worker.configuration.variables import VARIABLES
from worker.engine import command_line

ROOT = Path(__file__).parents[2]
PAGES = ("deploy.md", "operate.md", "troubleshoot.md", "clients.md", "security.md")
# Where vLLM says what the page quotes of it.
VLLMS = ("v1/core/kv_cache_utils.py", "renderers/params.py", "entrypoints/openai/models/serving.py")
PREFIX = re.compile(r"^(error|worker|WARNING): ")
# RunPod's variables, those of the programs that the pages show, and a list in the source.
OTHERS = re.compile(r"RUNPOD_\w+|BASE_URL|OPEN_ROUTES|VLLM_PORT|PROMETHEUS_MULTIPROC_DIR")
# What makes nobody's request fail.
WAITS = {"MAX_CONCURRENCY", "MAX_BATCH_DELAY_MS", "MAX_POSTS_PER_SECOND"}
SHORT = 4  # what is left between two gaps and no words


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def literals(path: Path) -> Iterator[str]:
    """Return a file's texts, with … for each value that is put into one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "…"  # type: ignore[misc]
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sd]|\\\d", "…", node.value)


@pytest.fixture(scope="module")
def said() -> str:
    """Every text of the worker's source, of the local endpoint's, and of these files of vLLM's."""
    files = [*(ROOT / "src").rglob("*.py"), *(Path(vllm.__file__).parent / one for one in VLLMS)]
    return "\n".join(" ".join(one.split()) for path in files for one in literals(path))


def quoted() -> list[str]:
    """Return the lines of troubleshoot.md's blocks, and the sentences of its tables."""
    page = text("troubleshoot.md")
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    rows = re.findall(r"^\| \d{3} \| `+(.*?)`+ \|", page, re.MULTILINE)
    return [*lines, *rows]


@pytest.mark.parametrize("line", quoted())
def test_a_quoted_line_is_said(said: str, line: str) -> None:
    """Each piece of it between two gaps stands in the source."""
    pieces = [piece.strip(" .") for piece in PREFIX.sub("", line).split("…")]
    words = [piece for piece in pieces if len(piece) > SHORT]

    assert words
    assert [] == [piece for piece in words if piece not in said]


@pytest.mark.parametrize("page", PAGES)
def test_each_variable_exists(page: str) -> None:
    """Each variable that a page names is read by the worker or by vLLM."""
    named = set(re.findall(r"(?<![\w-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w-])", text(page)))
    known = {*known_variables(), *command_line.environment(), *(one.name for one in VARIABLES)}
    strange = {name for name in named - known - set(Status) if not OTHERS.fullmatch(name)}

    assert set() == strange
    assert "MAX_CONCURRENCY" in named or page != "operate.md"


@pytest.mark.parametrize("page", PAGES)
def test_each_link_leads_somewhere(page: str) -> None:
    """A link to another page, or to a chapter of one, has its end."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text(page)):
        path = (ROOT / "docs" / target) if target else ROOT / "docs" / page

        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


def test_every_limit_is_in_the_table() -> None:
    """The table of limits has every variable that says how much one job may ask for."""
    table = text("security.md").partition("## Limits have names")[2].partition("\n## ")[0]
    limits = {one.name for one in VARIABLES if one.name.startswith("MAX_")} - WAITS

    assert limits
    assert set() == {name for name in limits if f"`{name}`" not in table}


def test_the_clients_versions() -> None:
    """The versions of docs/clients.md are those that the tests install."""
    clients = ROOT / "tests/clients"
    locked = (clients / "requirements.txt").read_text()
    asked = (clients / "requirements.in").read_text()
    named = "|".join(re.findall(r"^[a-z-]+$", asked, re.MULTILINE))
    python = re.findall(rf"^(?:{named})==(\S+)", locked, re.MULTILINE)
    node = json.loads((clients / "package-lock.json").read_text())["packages"]
    names = json.loads((clients / "package.json").read_text())["dependencies"]
    there = {*python, *(node[f"node_modules/{name}"]["version"] for name in names)}
    table = text("clients.md").partition("## What each needs")[0]

    assert there == set(re.findall(r"\d+\.\d+\.\d+", table))
