"""What the project's own source imports, reads from imported names and calls by them.

These rows write themselves: the source is read, and an import that is added has its row.
"""

import ast
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from canary.touch import prove, rows

BASE = Path(__file__).parents[2]
SOURCES = {"src/worker": "", "builder": "builder/"}


def written() -> dict[str, list[str]]:
    """Return what each file of the project touches by name."""
    return {
        prefix + str(path.relative_to(BASE / folder).with_suffix("")): list(
            dict.fromkeys(_touches(ast.parse(path.read_text())))
        )
        for folder, prefix in SOURCES.items()
        for path in sorted((BASE / folder).rglob("*.py"))
    }


def _touches(tree: ast.AST) -> Iterator[str]:
    names: dict[str, str] = {}  # what the file calls it: `module:name`
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if _is_foreign(one.name))
        elif isinstance(node, ast.ImportFrom) and _is_foreign(node.module or ""):
            names |= {one.asname or one.name: f"{node.module}:{one.name}" for one in node.names}
    yield from names.values()
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    for call in calls:
        unclear = any(isinstance(one, ast.Starred) for one in call.args)
        if (what := _name(call.func, names)) and not unclear:
            words = ["_"] * len(call.args) + [f"{one.arg}=" for one in call.keywords if one.arg]
            if all(one.arg for one in call.keywords):
                yield f"{what}({', '.join(words)})"
    called = [call.func for call in calls]
    for node in nodes:
        is_read = isinstance(node, ast.Attribute) and node not in called
        if is_read and (what := _name(node, names)):
            yield what


def _name(node: ast.AST, names: Mapping[str, str]) -> str | None:
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            return f"{names[name]}.{attr}" if name in names else None
    return None


def _is_foreign(module: str) -> bool:
    return module.split(".")[0] in ("vllm", "transformers")


@rows(written())
def test_a_name_in_the_source(room: str, row: str) -> None:
    """Every imported name is where it was, and takes what it is called with."""
    prove(room, row, strict="(" not in row)


def test_what_vllm_needs_beside_itself() -> None:
    """Another vLLM is imported with the packages of requirements.txt alone."""
    beside = Path(str(find_spec("vllm").origin)).parents[1]  # type: ignore[union-attr]
    names = {one.name for one in distributions(path=[str(beside)])}
    new = set() if "torch" in names else names - {"vllm"}  # the installed one is among all
    if new:
        pytest.fail(f"vLLM is not imported without {', '.join(sorted(new))}", pytrace=False)


def test_the_source_is_searched() -> None:
    """Imports, attributes and calls are all found."""
    found = {row for its in written().values() for row in its}

    assert "vllm.sampling_params:SamplingParams" in found
    assert "vllm.sampling_params:RequestOutputKind.FINAL_ONLY" in found
    assert any(row.startswith("vllm") and row.endswith("(_)") for row in found)
