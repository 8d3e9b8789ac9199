"""What the doctor says: one screen for a person, or one JSON object for a program."""

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from worker.doctor.cards import GIB
from worker.doctor.estimate import SOURCE, Answer, Sum, gib, too_large
from worker.doctor.examine import Report
from worker.doctor.wants import Wants
from worker.engine.planner import Capacity
from worker.model.download import shown_size

WIDTH = 60
LENGTHS = (1024, 4096, 16384, 65536)
COLOURS = {"fits": "green", "does not fit": "red", "cannot tell": "yellow"}


def show(report: Report, console: Console) -> None:
    """Draw the report; without colours where the console is no terminal."""
    if report.unjudged:
        console.print(_verdict("cannot tell", report.unjudged))
        console.print("vLLM takes the configuration; only a start can show what it needs.")
        _files(report, console)
    elif len(report.sums) == 1 and not report.refusals:
        _one(report, report.sums[0], console)
    else:
        _every(report, console)
    if report.wants:
        _wants(report.wants, console)
    for warning in report.warnings:
        console.print(f"WARNING: {warning}", markup=False)


def as_json(report: Report) -> str:
    """Return the report as JSON; sizes are bytes."""
    files = report.files
    return json.dumps(
        {
            "model": report.model,
            "exit_code": report.exit_code,
            "gpus": report.count,
            "weight_files": files and {k: v for k, v in vars(files).items() if k != "shapes"},
            "host": vars(report.host),
            "cards": [_values(one) for one in report.sums],
            "refused": report.refusals,
            "try": [{"change": one.change, **_values(one.sum)} for one in report.tries],
            "model_wants": report.wants and vars(report.wants),
            "unjudged": report.unjudged,
            "warnings": list(report.warnings),
            "runtime_source": SOURCE,
        },
        indent=2,
    )


def _values(one: Sum) -> dict[str, Any]:
    def cache(size: int, found: Capacity | str) -> Mapping[str, Any]:
        return {"bytes": size, **(vars(found) if isinstance(found, Capacity) else {"why": found})}

    return {
        "card": one.card.name,
        "answer": one.answer,
        "measured": one.is_measured,
        "memory": one.card.memory,
        "weights": one.weights,
        "runtime": vars(one.runtime),
        "cache": {
            "token_bytes": one.plan.token_bytes,
            "worst": cache(one.cache.least, one.worst),
            "best": cache(one.cache.most, one.best),
        },
        "max_model_len": one.plan.max_model_len,
        "longest_that_fits": one.longest(),
        "at_once": {length: round(one.at_once(length), 2) for length in _lengths(one)},
    }


def _one(report: Report, one: Sum, console: Console) -> None:
    cards = f"{report.count} x {one.card.name}" if report.count > 1 else one.card.name
    where = f"{cards}, {one.plan.max_model_len:,} tokens of context."
    console.print(_verdict(one.answer, f"{report.model} on {where}"))
    if one.weights > one.allowed:
        console.print(too_large(one.weights, one.allowed), highlight=False)
    elif isinstance(one.best, str):
        longest = one.plan.longest(max(one.cache.most, 0))
        console.print(
            f"A request of so many tokens does not fit into the KV cache; "
            f"{one.longest():,} to {longest:,} tokens do.",
            highlight=False,
        )
    elif isinstance(one.worst, str):
        console.print(
            "It depends on what a forward pass takes, which only the card can tell.", markup=False
        )
    console.print()
    parts = (
        ("weights", one.weights, "blue", gib(one.weights)),
        ("activations, graphs", one.runtime.most, "magenta", _gibs(*vars(one.runtime).values())),
        ("KV cache", max(one.cache.least, 0), "green", _gibs(*vars(one.cache).values())),
        ("left free", one.free, "bright_black", gib(one.free)),
    )
    total = max(sum(part[1] for part in parts), one.card.memory)
    bar = Text("  ")
    for (_, size, colour, _), sign in zip(parts, "█▓▒░", strict=True):
        bar.append(sign * round(WIDTH * size / total), colour)
    console.print(bar)
    each = " on each GPU" if report.count > 1 else ""
    for (name, _, colour, shown), sign in zip(parts, "█▓▒░", strict=True):
        console.print(Text.assemble("  ", (sign, colour), f" {name:<20} {shown}"))
    console.print(f"    {'of':<20} {gib(one.card.memory)}{each}", highlight=False)
    if isinstance(one.worst, Capacity):
        best = one.best.tokens if isinstance(one.best, Capacity) else one.worst.tokens
        tokens = f"{one.worst.tokens:,} to {best:,} tokens ({one.plan.token_bytes:,} bytes a token)"
        held = f"The cache holds {tokens}." if best else "The model keeps no cache."
        console.print(f"\n{held} At least so many requests at once:", highlight=False)
        for length in _lengths(one):
            console.print(
                f"  {_times(one.at_once(length)):>8} of {length:,} tokens", highlight=False
            )
    if report.tries:
        console.print("\nTry")
        for found in report.tries:
            length = found.sum.plan.max_model_len
            console.print(
                f"  {found.change}: {found.sum.answer}, "
                f"{_times(found.sum.at_once(length))} at once of {length:,} tokens, "
                f"{gib(found.sum.weights)} of weights",
                highlight=False,
                markup=False,
            )
    console.print()
    _files(report, console)
    if one.is_measured:
        console.print("Measured at a start of this model on such a card, with the same options.")
        return
    console.print(
        f"Activations and graphs: at least one layer's tensors, at most what was {SOURCE}.",
        style="dim",
        highlight=False,
    )


def _every(report: Report, console: Console) -> None:
    fitting = [one.card for one in report.sums if one.answer == "fits"]
    total = len(report.sums) + len(report.refusals)
    answer: Answer = ("fits", "does not fit", "cannot tell")[report.exit_code]
    where = f"any of {total} cards, one alone."
    if fitting:
        least = min(fitting, key=lambda card: card.mib).name
        where = f"{len(fitting)} of {total} cards, one alone; the smallest is {least}."
    console.print(_verdict(answer, f"{report.model} on {where}"))
    lengths = [length for length in _lengths(report.sums[0]) if length != LENGTHS[0]]
    console.print("At least so much KV cache, and so many requests at once of so many tokens:\n")
    table = Table(box=None)
    for name in ("card", "memory", "", "KV cache"):
        table.add_column(name, no_wrap=True)
    for length in lengths:
        short = f"{length // 1024}k" if length % 1024 == 0 else f"{length:,}"
        table.add_column(short, justify="right", no_wrap=True)
    for one in report.sums:
        its = Text(one.answer, COLOURS[one.answer])
        cache = gib(one.cache.least) if one.cache.least > 0 else "none"
        times = [_times(one.at_once(length)) for length in lengths]
        table.add_row(one.card.name, gib(one.card.memory), its, cache, *times)
    console.print(table)
    for name, why in report.refusals.items():
        console.print(f"{name}: {why}", markup=False)
    weights = sorted({gib(one.weights) for one in report.sums})
    console.print(f"Weights: {' or '.join(weights)}.", highlight=False)
    _files(report, console)
    console.print("GPU=L40S (or another) tells more of one card, and what to try.", style="dim")


def _wants(wants: Wants, console: Console) -> None:
    """Say what the model's own files ask for, which nobody has set."""
    lines = []
    to_set = dict(wants.set)
    thoughts = to_set.pop("REASONING_PARSER", "")
    if not wants.has_template:
        lines.append("no chat template: without a CUSTOM_CHAT_TEMPLATE conversations are refused")
    if wants.is_unknown:
        lines.append(
            "tools: its template knows them; which TOOL_CALL_PARSER fits is not known here"
        )
    elif to_set:
        calls = " with ".join(f"{name}={value}" for name, value in to_set.items())
        lines.append(f"tools: {calls} lets it call them")
    if thoughts:
        lines.append(f"thoughts: REASONING_PARSER={thoughts} parts them from the answer")
    if wants.changes:
        changes = ", ".join(f"{name}={value}" for name, value in wants.changes.items())
        lines.append(
            f"defaults: its generation_config.json says {changes} where a request says nothing; "
            "GENERATION_CONFIG=vllm leaves that out"
        )
    if lines:
        console.print("\nThe model's own files")
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False)


def _files(report: Report, console: Console) -> None:
    files = report.files
    if files is None:
        return
    if not files.count:
        console.print("Files: no weights are there.")
        return
    kinds = ", ".join(f"{shown_size(size)} {dtype}" for dtype, size in files.by_dtype.items())
    host = report.host
    beside = shown_size(host.disk - files.stored)
    lines = (
        f"Files: {files.count} of weights, {shown_size(files.stored)}"
        + (f" ({kinds})." if kinds else "."),
        f"Disk: {shown_size(host.disk)}"
        + (f", {beside} of them adapters or a draft model" if host.disk > files.stored else "")
        + f"; a container disk or volume with {host.disk_gb} GB free holds them.",
        f"Host memory: {shown_size(host.read_at_once)} to read the largest file"
        + (f", {shown_size(host.offloaded)} kept for the GPUs" if host.offloaded else "")
        + ", and the worker's processes.",
    )
    console.print("\n".join(lines), highlight=False, markup=False)


def _verdict(answer: Answer, of: str) -> Text:
    return Text.assemble((answer.capitalize(), f"bold {COLOURS[answer]}"), f": {of}")


def _lengths(one: Sum) -> tuple[int, ...]:
    most = one.plan.max_model_len
    return (*(length for length in LENGTHS if length < most), most)


def _times(count: float) -> str:
    return f"{int(count):,}" if count >= 10 or count < 1 else f"{int(count * 10) / 10:.1f}"


def _gibs(least: int, most: int) -> str:
    if most <= 0:
        return "none"
    if least == most:
        return gib(most)
    return f"{max(least, 0) / GIB:.1f} to {gib(most)}"
