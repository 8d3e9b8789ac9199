"""Write the pages of this folder that come from the code, or check that they are up to date.

python docs/generate.py            writes them
python docs/generate.py --check    says which are stale, and exits with 1
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))
# vLLM reads the help texts of its options only where this stands on the command line.
ARGUMENTS, sys.argv[1:] = sys.argv[1:], ["--help"]

from local_endpoint import knobs  # noqa: E402
from worker import options  # noqa: E402
from worker.variables import ALIASES, RETIRED, VARIABLES  # noqa: E402

SETTINGS = """\
# Settings

<!-- Written by docs/generate.py from the worker's tables and vLLM's parser: do not edit. -->

The worker is configured with environment variables.
`python -m worker --check` reads them, says what is wrong, and loads nothing.
At the start one block lists every value that differs from its default, and where it came from.

An option that is set in several places takes the first of: `VLLM_EXTRA_ARGS`, the environment,
`VLLM_CONFIG_FILE`, what the image was built with, vLLM's default.

**Unset** is an empty value, `None`, `none`, `null` (unless that is one of the option's choices),
`{}`, `[]`, and `0` where an option cannot be 0.
**Switches** understand `true`, `1`, `yes`, `on` and `false`, `0`, `no`, `off` in any case.
**Lists** are words between commas or spaces, or a JSON list.
**JSON objects** are written as JSON; `LIMIT_MM_PER_PROMPT` also as `image=1,video=0`.
Two names of one setting with different values stop the start.
"""


def settings_page() -> str:
    """Return docs/settings.md."""
    own = ((_names(v.names), v.kind, _default(v.default), v.meaning) for v in VARIABLES)
    aliases = ((f"`{alias}`", f"`{name}`") for alias, name in ALIASES.items())
    advice: dict[str, list[str]] = {}
    for row in RETIRED.values():
        advice.setdefault(row.advice, []).append(row.name)
    retired = ((_names(names), f"{text}.") for text, names in advice.items())
    parts = [
        SETTINGS,
        "## The worker's own variables\n",
        _table(("Variable", "Type", "Default", "Meaning"), own),
        "## Names that users of this worker know\n",
        "Each is another name of one of vLLM's options.\n",
        _table(("Name", "Option"), aliases),
        "## Retired names\n",
        "Each warns, does what is said here, and stops nothing.\n",
        _table(("Name", "Instead"), retired),
        f"## vLLM's options\n\nAs of vLLM {options.version()}: each is the variable of the command "
        "line option, `MAX_MODEL_LEN` for `--max-model-len`.\n"
        "An empty default is one that vLLM chooses, for the model or the machine.\n",
    ]
    every = options.options().values()
    for group in dict.fromkeys(option.group for option in every if not option.server):
        rows = (
            (_names(o.names), o.accepts, _default(o.shown_default or None), o.meaning)
            for o in every
            if o.group == group and not o.server
        )
        parts += [f"### {group}\n", _table(("Variable", "Accepts", "Default", "Meaning"), rows)]
    parts += [
        "## Not read from the environment\n",
        "These belong to vLLM's HTTP server, which does not run here, and names such as `PORT` are "
        "often set for somebody else.\n`VLLM_EXTRA_ARGS` sets them; an API key is ignored.\n",
        ", ".join(f"`{o.name}`" for o in every if o.server) + ".\n",
    ]
    return "\n".join(parts)


KNOBS = """\
# Knobs of the local endpoint

<!-- Written by docs/generate.py from src/local_endpoint/knobs.py: do not edit. -->

`--knob NAME=VALUE` on the command line, `Knobs(name=value)` in Python; they can be changed live.
Names ending in `_s` are seconds, in `_ms` milliseconds; sizes are bytes of the JSON text.
The default is what RunPod documents, what was observed there, what is assumed because neither is
known, or ours: something a real endpoint does not have.
"""


def knobs_page() -> str:
    """Return docs/local-endpoint-knobs.md."""
    rows = (
        (f"`{one.name}`", one.accepts, f"`{one.default}`", one.basis, one.meaning)
        for one in knobs.describe()
    )
    return f"{KNOBS}\n{_table(('Knob', 'Accepts', 'Default', 'Basis', 'Meaning'), rows)}"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "local-endpoint-knobs.md": knobs_page,
}


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(value: object) -> str:
    return "" if value in (None, ()) else f"`{options.show('', value)}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    stale = []
    for name, page in PAGES.items():
        path, text = HERE / name, page()
        if ARGUMENTS != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(f"docs/{name}")
    if stale:
        print(f"{', '.join(stale)} is not what docs/generate.py writes: run it, and commit.")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
