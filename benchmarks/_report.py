"""The answer to one question: a table with its conditions, and the same as JSON.

A figure is kept as one value of each run. Shown is their median, or the worst of them where the
name says so. With --save the answer goes to results/ beside this file, where the last committed
one is what the next is compared with.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass
class Row:
    """One row of a table: whose it is, and each figure's values, one of a run.

    `curve` are points of its last run, where there is a picture of them.
    """

    of: dict[str, Any]
    figures: dict[str, list[float]] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)

    def add(self, run: Mapping[str, float]) -> None:
        for name, value in run.items():
            self.figures.setdefault(name, []).append(round(value, 3))

    @property
    def name(self) -> str:
        return ", ".join(f"{value} {label}".strip() for label, value in self.of.items())


@dataclass
class Answer:
    """`columns` are the figures that the table shows, with their headings."""

    question: str
    how: str
    conditions: dict[str, Any]
    columns: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    def row(self, *of: Any) -> Row:
        """Return the row of this. Raises StopIteration where there is none."""
        return next(row for row in self.rows if tuple(row.of.values()) == of)

    def table(self) -> list[list[str]]:
        """Return the cells, with a line of headings."""
        head = [*self.rows[0].of, *self.columns.values()]
        cells = ([_cell(name, row.figures.get(name)) for name in self.columns] for row in self.rows)
        return [
            head,
            *([*map(str, r.of.values()), *c] for r, c in zip(self.rows, cells, strict=True)),
        ]


def value(name: str, runs: list[float]) -> float:
    """Return what is shown of a figure's runs."""
    return max(runs) if "worst" in name else statistics.median(runs)


def _cell(name: str, runs: list[float] | None) -> str:
    if not runs:
        return ""
    shown = value(name, runs)
    return f"{shown:,.0f}" if abs(shown) >= 100 else f"{shown:.3g}"


def options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("--save", action="store_true", help="keep the answer in results/")
    return parser.parse_args()


@contextlib.contextmanager
def question(
    file: str,
    doc: str,
    columns: dict[str, str],
    options: argparse.Namespace,
    conditions: dict[str, Any],
) -> Iterator[Answer]:
    """Print the answer that the block has filled in, and what got worse; keep it where asked."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # ends children
    asked, _, how = doc.partition("\n\n")
    about = _conditions() | conditions
    began_s = time.monotonic()
    answer = Answer(asked, how.strip(), about, columns)
    yield answer
    about["load after"] = round(os.getloadavg()[0], 1)
    about["minutes"] = round((time.monotonic() - began_s) / 60, 1)
    print(f"{asked}\n{', '.join(f'{name} {value}' for name, value in about.items())}")
    lines = answer.table()
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    labels = len(answer.rows[0].of)
    for line in lines:
        cells = enumerate(zip(line, widths, strict=True))
        print("  ".join(c.ljust(w) if i < labels else c.rjust(w) for i, (c, w) in cells))
    name = Path(file).stem
    for sentence in worse(name, answer):
        print(sentence)
    print(flush=True)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(_json(answer))


def _json(answer: Answer) -> str:
    """Return it with one row on a line, so that a difference can be read."""
    kept = asdict(answer)
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in kept.pop("rows"))
    head = json.dumps(kept, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n "rows": [\n{rows}\n ]\n}}\n'


def read(text: str | bytes) -> Answer:
    """Return what `question` has kept."""
    kept = json.loads(text)
    return Answer(**kept | {"rows": [Row(**row) for row in kept["rows"]]})


def worse(name: str, answer: Answer) -> list[str]:
    """Name each figure that is worse than in the last committed answer, by more than its spread."""
    kept = subprocess.run(
        ["git", "show", f"HEAD:./results/{name}.json"], cwd=RESULTS.parent, capture_output=True
    )
    if kept.returncode:
        return []
    before = read(kept.stdout)
    old = {row.name: row.figures for row in before.rows}
    found = []
    for row in answer.rows:
        for figure, heading in answer.columns.items():
            pair = (old.get(row.name, {}).get(figure, []), row.figures.get(figure, []))
            if min(map(len, pair)) < 2:
                continue  # nothing tells its spread
            was, is_now = (value(figure, runs) for runs in pair)
            lost = was - is_now if "per_s" in figure else is_now - was
            if lost > max(max(runs) - min(runs) for runs in pair):
                found.append(f"- {row.name}: {heading} {was:.4g} → {is_now:.4g}")
    where = f"the run of {before.conditions['date']} at {before.conditions['commit']}"
    if before.conditions["machine"] != answer.conditions["machine"]:
        where += f", on another machine ({before.conditions['machine']})"
    if not found:
        return [f"Nothing is worse by more than its spread than in {where}."]
    return [f"Worse by more than its spread than in {where}:", *found]


def _conditions() -> dict[str, Any]:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    cpu = Path("/proc/cpuinfo").read_text().partition("model name\t: ")[2].partition("\n")[0]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "machine": f"{os.cpu_count()} cores, {cpu or platform.machine()}",
        "Python": platform.python_version(),
        "vLLM": metadata.version(metadata.packages_distributions()["vllm"][0]),
        "SDK": metadata.version("runpod"),
        "load before": round(os.getloadavg()[0], 1),
    }
