"""Prints one sentence for each thing that moved."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """What vLLM's app imports sets the root logger to ERROR: later tests read warnings."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Another vLLM may warn of anything while it is imported, and its import takes a while."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.timeout(120))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failed = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    moved: dict[str, list[str]] = {}
    for one in failed:
        if one.nodeid.startswith("tests/canary/"):
            sentence, _, room = str(one.longrepr).strip().splitlines()[-1].partition(" (used in ")
            moved.setdefault(sentence, []).append(room.removesuffix(")") or "all")
    if moved:
        terminalreporter.section("what moved")
    for sentence, rooms in moved.items():
        terminalreporter.write_line(f"- {sentence} (used in {', '.join(dict.fromkeys(rooms))})")
