"""What the tests saw of each kind, kept in seen.json, and docs/models.md, which is made of it."""

import json
import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from family.table import KINDS, NATIVE, ROUTES, STARTS, Kind

SEEN = Path(__file__).parent / "seen.json"
CANNOT = "cannot"
STREAMS = " streams"

HEAD = """\
# Models

<!-- Written by docs/generate.py from what tests/contract/test_kinds.py saw: do not edit. -->

A tiny random model of each kind is baked as an image is, and served without a network by one engine
with both doors: a RunPod job and an HTTP request get the same.
Its answers are transformers' in float32: greedy tokens and transcriptions equal, embeddings, scores
and classes within 0.0001. In bfloat16 the chances of the likeliest next tokens are, within 0.15.
What is refused is refused in a sentence, below, before the engine has worked for it.
Recordings are read by soundfile and PyAV here, and by torchcodec in vLLM's image.

vLLM {vllm} on a CPU, transformers {transformers}, {date}.
"""


def seen() -> dict[str, dict[str, str]]:
    return dict(json.loads(SEEN.read_text())) if SEEN.exists() else {}


def keep(name: str, now: dict[str, str]) -> None:
    """Write down what was seen of a model, or compare it with what was. Raises AssertionError."""
    import transformers
    import vllm

    before = seen()
    if os.environ.get("SAVE_KINDS"):
        versions = {"vllm": vllm.__version__, "transformers": transformers.__version__}
        about = {"about": versions | {"date": date.today().isoformat()}}
        text = json.dumps(before | {name: now} | about, indent=2, sort_keys=True)
        SEEN.write_text(text + "\n")
        return
    known = before.get(name, {})
    if "SIGILL" in known.get(CANNOT, "") and CANNOT not in now:
        return  # this processor has the instructions that the page's lacked
    differs = {key: (known.get(key), told) for key, told in now.items() if known.get(key) != told}
    assert not differs, f"docs/models.md says otherwise of {name}: {differs}"


def rows() -> Iterator[tuple[str, ...]]:
    """Give the page's table: each kind, and each route of it."""
    known = seen()
    for kind in KINDS:
        if CANNOT not in (of := known.get(kind.model, {CANNOT: ""})):
            title = kind.title + f": {kind.note}" * bool(kind.note)
            yield (title, _environ(kind), *(_cell(route.route, of) for route in ROUTES))


def impossible() -> Iterator[tuple[str, str]]:
    """Give the kinds that vLLM's CPU build does not serve, each with its last line."""
    known = seen()
    for kind in KINDS:
        if why := known.get(kind.model, {}).get(CANNOT):
            yield kind.title, f"`{why}`"


def starts() -> Iterator[tuple[str, str, str]]:
    """Give each start that fails: whose, with which variables, and its last line."""
    known, titles = seen(), {kind.model: kind.title for kind in KINDS}
    for start in STARTS:
        for environ, why in known.get(start.key, {}).items():
            yield titles[start.model], f"`{environ}`", why


def refusals() -> Iterator[tuple[str, str, str, str]]:
    """Give each mistake once: whose, where, and the sentence."""
    known, told = seen(), dict[tuple[str, str, str], list[str]]()
    for kind in KINDS:
        for name, sentence in known.get(kind.model, {}).items():
            route, _, mistake = name.partition(": ")
            if mistake:
                told.setdefault((mistake, route, sentence), []).append(kind.title)
    for (mistake, route, sentence), titles in told.items():
        whose = titles[0] if len(titles) == 1 else f"{len(titles)} kinds, such as {titles[0]}"
        yield mistake, f"`{route}`", whose, sentence


def _environ(kind: Kind) -> str:
    return ", ".join(
        f"`{name}={value}`" for name, value in kind.environ.items() if name != "PYTHONPATH"
    )


def _cell(route: str, of: dict[str, str]) -> str:
    if route not in of:
        return "refused" if any(name.startswith(f"{route}: ") for name in of) else ""
    return "works, streams" if route + STREAMS in of else "works"


def columns() -> tuple[str, ...]:
    return tuple("native" if one.route == NATIVE else f"`{one.route}`" for one in ROUTES)
