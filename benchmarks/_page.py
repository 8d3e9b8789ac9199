"""Write docs/benchmarks.md and its pictures from results/: `python benchmarks/_page.py`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

import _report
import pace
import start
from _contenders import EACH, NATIVE, OPENAI, PROXY, SERVE
from _report import Answer

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "benchmarks"
ORDER = ("throughput", "smoothness", "pace", "start", "door", "batch", "endpoint", "chain")
COLOURS = {
    OPENAI: "#0072b2",
    NATIVE: "#56b4e9",
    EACH: "#000000",
    SERVE: "#e69f00",
    PROXY: "#d55e00",
}

HEAD = """\
# Benchmarks

<!-- Written by `make bench` from benchmarks/results: do not edit. -->

What stands between an engine and its caller costs something; this page says how much.
The model is tiny (3.4 million parameters, on a CPU), so that the engine costs little and everything
else shows: **with a model of real size the differences are smaller**.
A figure is the median of its runs, or the worst of them where it says so.
`make bench` measures all again in under 20 minutes on two cores, and names what got worse.

The platform is a stand-in, `benchmarks/_stand_in.py`, the same for all that take jobs.
It is a process of its own and no part of the host's CPU: it only notes when a post comes, its share
stands in the tables, and as root it runs before all else, so that it is never late.
It does share the cores, so tokens a second beside AsyncLLM, which posts nothing, are too low.
"""


LIMITS = """\
### What limits those that are not met

- AsyncLLM answers nobody: it takes no jobs, reads no requests and posts nothing. With answers of
  1, 128 and 448 tokens, 64 at once, a job cost the host 2.1, 8.3 and 27.9 ms of CPU (native 1.6,
  7.4 and 24.3), AsyncLLM's own 0.6, 3.6 and 11.4 (2026-12-01, medians of 6 runs, a slow hour). So
  1.5 ms more are the job itself, before any token: take it, read it, vLLM's web app, its end. The
  rest is posts, about 0.45 ms each: by the profiles a third the SDK's and aiohttp's, a third vLLM's
  app, which writes the events, and a fifth the kernel's, in writing to a socket. With everything on
  two cores the engine waits meanwhile: the more, the shorter the answers, so most of all for 256
  streams of 64 tokens. Fewer posts are the only way to less, and they would be later:
  MAX_BATCH_DELAY_MS and MAX_POSTS_PER_SECOND say how late.
  A lower priority of the host (nice 3, SCHED_BATCH) gained nothing beyond the spread in 14 runs.
  On a GPU the engine does not share the host's cores.
- At the HTTP door a request of one token cost 2.6 ms of CPU, at `vllm serve` 1.4 (64 at once,
  medians of 10 runs, the same slow hour): the record, its metrics and log line, the limits, and an
  app within ours. What the first token waits for is 64 times that difference; afterwards a token
  costs less than theirs, because events are shared.
- In a slow hour an idle engine's own first token takes 70 ms instead of 10, and all that is counted
  in milliseconds from an idle start is late with it: the first token, and the paced stream's end.
"""


def goals(of: dict[str, Answer]) -> Iterator[tuple[str, str, float, str, float]]:
    """Give each goal: what, where, the figure, how it compares with its limit, and the limit."""
    fast, smooth, starts, paced = (
        of[name] for name in ("throughput", "smoothness", "start", "pace")
    )

    def share(figure: str, one: str, other: str, streams: int, far_ms: int = 0) -> float:
        """Return the median of the runs' ratios, each with its neighbour in time."""
        runs = (fast.row(name, streams, far_ms).figures[figure] for name in (one, other))
        return median(a / b for a, b in zip(*runs, strict=True))

    def shown(answer: Answer, figure: str, *row: object) -> float:
        return _report.value(figure, answer.row(*row).figures[figure])

    for path in (OPENAI, NATIVE):
        for streams in (64, 256):
            name = "tokens/s ÷ AsyncLLM, token by token"
            found = share("tokens_per_s", path, EACH, streams)
            yield name, f"{path}, {streams} streams", found, "≥", 0.95
    for path in (OPENAI, NATIVE):
        for streams in (64, 256):
            for far_ms in (0, 50):
                where = f"{path}, {streams} streams, round trip {far_ms} ms"
                found = share("tokens_per_s", path, PROXY, streams, far_ms)
                yield "tokens/s ÷ thinnest proxy", where, found, "≥", 1.25
    for other, limit in ((PROXY, 0.35), (SERVE, 0.7), (EACH, 2.2)):
        for path in (OPENAI, NATIVE):
            found = share("host_us_per_token", path, other, 64)
            yield f"host CPU ÷ {other}", f"{path}, 64 streams", found, "≤", limit
    sdk = smooth.rows[0].of["SDK"]
    for path in (OPENAI, NATIVE):
        for far_ms in (0, 100):
            where = f"{path}, 64 streams, round trip {far_ms} ms"
            for what, figure, limit in (
                ("99 %", "wait_p99_ms", 200),
                ("worst", "wait_worst_ms", 400),
            ):
                found = shown(smooth, figure, path, 64, far_ms, sdk)
                yield f"longest wait of a stream, {what}, ms", where, found, "≤", limit
    for what, figure, streams, limit in (
        ("first token over the engine's own, ms", "first_p50_ms", 1, 15),
        ("the last first token of a burst over the engine's own, ms", "first_last_ms", 100, 400),
    ):
        ours, mark = (shown(smooth, figure, name, streams, 0, sdk) for name in (OPENAI, EACH))
        yield what, f"{OPENAI}, {streams} at once", ours - mark, "≤", limit
    for far_ms in (0, 100):
        where = f"defaults, round trip {far_ms} ms"
        yield (
            "posts for 500 tokens at 80/s",
            where,
            shown(paced, "posts", pace.DEFAULTS, far_ms),
            "≤",
            70,
        )
    beyond = shown(paced, "beyond_ms", pace.DEFAULTS, 100)
    yield "their time beyond the ideal, ms", "defaults, round trip 100 ms", beyond, "≤", 200
    for name, figure, sign, limit in (
        ("tokens/s", "tokens_per_s", "≥", 0.97),
        ("first token", "first_p50_ms", "≤", 1),
    ):
        runs = (of["door"].row(who).figures[figure] for who in ("the door", SERVE))
        found = median(a / b for a, b in zip(*runs, strict=True))
        yield f"{name} ÷ vllm serve", "the HTTP door, 64 streams", found, sign, limit
    for what, figure, limit in (("ready", "ready_s", 0.85), ("memory", "memory_mb", 1.1)):
        runs = (starts.row(name).figures[figure] for name in ("worker", SERVE))
        found = median(a / b for a, b in zip(*runs, strict=True))
        yield f"{what} ÷ vllm serve", "defaults", found, "≤", limit


def goals_table(of: dict[str, Answer]) -> str:
    lines = []
    for what, where, found, sign, limit in goals(of):
        is_met = found >= limit if sign == "≥" else found <= limit
        lines.append(
            [what, where, f"{found:.3g}", f"{sign} {limit:g}", "yes" if is_met else "**no**"]
        )
    return table([["goal", "where", "measured", "limit", "met"], *lines])


def table(lines: list[list[str]]) -> str:
    head, *rows = lines
    marks = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, marks, *rows))


def against_streams(figure: str, label: str) -> Callable[[Answer, Axes], None]:
    def draw(answer: Answer, axes: Axes) -> None:
        for name, colour in COLOURS.items():
            rows = [r for r in answer.rows if tuple(r.of.values())[::2] == (name, 0)]
            streams = [row.of["streams"] for row in rows]
            found = [_report.value(figure, row.figures[figure]) for row in rows]
            axes.plot(streams, found, marker="o", label=name, color=colour)
        axes.set(xscale="log", yscale="log", xlabel="streams at once", ylabel=label)
        axes.set_xticks(streams, map(str, streams))
        axes.minorticks_off()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
        axes.legend()

    return draw


def tokens_over_time(answer: Answer, axes: Axes) -> None:
    beginning = axes.inset_axes((0.58, 0.1, 0.4, 0.45), xlim=(0, 1.5), ylim=(0, 120))
    for panel in (axes, beginning):
        for row in answer.rows:
            if row.of["round trip, ms"] == 100:
                posts = _report.value("posts", row.figures["posts"])
                label = f"{row.of['']}, {posts:.0f} posts"
                panel.step(*zip(*row.curve, strict=True), where="post", label=label, lw=1.2)
        panel.plot([0, pace.TOKENS / pace.RATE], [0, pace.TOKENS], "k:", label="ideal")
    axes.set(xlabel="seconds", ylabel="tokens that have arrived, round trip 100 ms", xlim=(0, 10))
    axes.grid(alpha=0.3)
    axes.legend()


def phases(answer: Answer, axes: Axes) -> None:
    for row in reversed(answer.rows):
        runs = {name: median(values) for name, values in row.figures.items()}
        parts = {name: runs[name] for name in runs if name not in start.COLUMNS}
        left = 0.0
        for name, seconds in (parts or {"until healthy": runs["ready_s"]}).items():
            axes.barh(row.of[""], seconds, left=left, label=name)
            left += seconds
    axes.set(xlabel="seconds until ready")
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.3))


DRAWN: dict[str, dict[str, Callable[[Answer, Axes], None]]] = {
    "throughput": {
        "tokens a second": against_streams("tokens_per_s", "tokens/s"),
        "CPU a token": against_streams("host_us_per_token", "host CPU, µs/token"),
        "first token": against_streams("first_p50_ms", "first token, median, ms"),
    },
    "pace": {"tokens over time": tokens_over_time},
    "start": {"phases of the start": phases},
}


def picture(name: str, answer: Answer, draw: Callable[[Answer, Axes], None]) -> str:
    """Draw one, and return the line that shows it."""
    file = f"{name.replace(' ', '-').lower()}.svg"
    figure, axes = plt.subplots(figsize=(8, 2.4 if name.startswith("phases") else 4.5))
    draw(answer, axes)
    axes.set_title(name[0].upper() + name[1:])
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / file, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return f"![{name}](benchmarks/{file})"


def main() -> None:
    mpl.rcParams.update({"svg.hashsalt": "worker-vllm", "svg.fonttype": "none"})
    files = {name: _report.RESULTS / f"{name}.json" for name in ORDER}
    answers = {
        name: _report.read(file.read_text()) for name, file in files.items() if file.exists()
    }
    parts = [HEAD, "## The goals\n", goals_table(answers), "", LIMITS]
    print(goals_table(answers))
    for name, answer in answers.items():
        pictures = [picture(one, answer, draw) for one, draw in DRAWN.get(name, {}).items()]
        about = "; ".join(f"{name}: {value}" for name, value in answer.conditions.items())
        parts += [f"\n## {answer.question}\n", answer.how, *(f"\n{one}" for one in pictures)]
        parts += [f"\n{table(answer.table())}", f"\n`benchmarks/{name}.py`; {about}."]
    (DOCS / "benchmarks.md").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
