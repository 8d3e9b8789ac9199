"""Write the pages of this folder and .runpod that come from the code, or check them.

python docs/generate.py            writes them
python docs/generate.py --check    says which are stale, and exits with 1
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]
# vLLM reads the help texts of its options only where this stands on the command line.
ARGUMENTS, sys.argv[1:] = sys.argv[1:], ["--help"]

import hub  # noqa: E402
from prometheus_client import REGISTRY  # noqa: E402

from family import page as models  # noqa: E402
from local_endpoint import knobs  # noqa: E402
from worker import metrics, sentences  # noqa: E402, F401 - the first registers its own
from worker.configuration.retired import RETIRED  # noqa: E402
from worker.configuration.variables import ALIASES, VARIABLES  # noqa: E402
from worker.engine import command_line  # noqa: E402
from worker.facts import Facts  # noqa: E402
from worker.generation.parameter import Parameter  # noqa: E402
from worker.generation.table import PARAMETERS  # noqa: E402

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
A dotted name sets one key of an object: `STRUCTURED_OUTPUTS_CONFIG.BACKEND=xgrammar`.
Two names of one setting with different values stop the start.
"""


def settings_page() -> str:
    """Return docs/settings.md."""
    own = ((_names(v.names), v.kind, _default(v.default), v.meaning) for v in VARIABLES)
    aliases = ((f"`{alias}`", f"`{name}`") for alias, name in ALIASES.items())
    advice: dict[str, list[str]] = {}
    for old in VARIABLES:
        if old.retired:
            advice[f"{old.name} is its name now, and takes its value"] = list(old.retired)
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
        f"## vLLM's options\n\nAs of vLLM {command_line.version()}: each is the variable of the "
        "command line option, `MAX_MODEL_LEN` for `--max-model-len`.\n"
        "An empty default is one that vLLM chooses, for the model or the machine.\n",
    ]
    every = command_line.options().values()
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
        (f"`{one['name']}`", one["accepts"], f"`{one['default']}`", one["basis"], one["meaning"])
        for one in knobs.describe()
    )
    return f"{KNOBS}\n{_table(('Knob', 'Accepts', 'Default', 'Basis', 'Meaning'), rows)}"


# The table in docs/operate.md; the rest of that page is written by hand.
BEGINNING, END = "<!-- The table is written by docs/generate.py. -->\n\n", "\n<!-- Its end. -->"


def operate_page() -> str:
    """Return docs/operate.md with the table of the worker's metrics."""
    rows = (
        (f"`{one.name}{'_total' * (one.type == 'counter')}`", one.type, one.documentation)
        for one in REGISTRY.collect()
        if one.name.startswith("worker_")
    )
    before, _, after = (HERE / "operate.md").read_text(encoding="utf-8").partition(BEGINNING)
    table = _table(("Metric", "Type", "Meaning"), rows)
    return f"{before}{BEGINNING}{table}{END}{after.partition(END)[2]}"


PARAMETERS_INTRO = """\
# Generation parameters

<!-- Written by docs/generate.py from src/worker/generation/table.py: do not edit. -->

A job takes the parameters of transformers' `generate()` and of vLLM's `SamplingParams` by their
names, and Hugging Face's give the tokens that `generate()` would give.

```json
{
  "prompt": "The sky is",
  "sampling_params": {"max_new_tokens": 20, "typical_p": 0.9, "no_repeat_ngram_size": 3}
}
```

On `/v1/completions` and `/v1/chat/completions` the same names go into one more field of the body:

```python
client.completions.create(
    model=model,
    prompt="The sky is",
    max_tokens=20,
    extra_body={"generation_parameters": {"typical_p": 0.9, "no_repeat_ngram_size": 3}},
)
```

There `max_length`, `bos_token_id`, what needs several requests (`num_beams`, `guidance_scale`,
`token_healing`, `best_of`, `max_time`) and what adds to the native reply (`output_scores` and the
like) are refused by their names.

A number may be text (`"0.7"`), a switch `true`, `false`, `1`, `0` or their text.
`null` is as if it were not there.

## Where a value comes from

The first of these that says something:

1. The job.
2. The model's `generation_config.json`. vLLM reads `temperature`, `top_k`, `top_p`, `min_p`,
   `max_new_tokens` and its penalties there. The worker adds what vLLM drops: every parameter of
   the chain, `num_beams`, `length_penalty`, `early_stopping` and `guidance_scale`; of these an
   OpenAI route takes those of the chain, and only beside `generation_parameters`.
   `GENERATION_CONFIG=vllm` leaves the file out, `OVERRIDE_GENERATION_CONFIG` overrides it.
3. `DEFAULT_MAX_TOKENS`, for the length of a native answer.
4. vLLM's default: sampling with temperature 1, where transformers' is greedy.

## The chain

The chain is transformers' own logits processors, in transformers' own order, inside the engine and
batched with all other requests.
A request uses it if one of its parameters becomes the chain in the tables below, and for what vLLM
refuses or does in another order: a `temperature` above 2 or between 0 and 0.01, `top_p` of 0, and
`top_p` together with `min_p`.
Then `temperature`, `top_k`, `top_p`, `min_p` and `repetition_penalty` run in the chain too.
`MAX_CHAINS` bounds how many requests use it at once.
Where it cannot run, as beside speculation on vLLM's V1 runner, what needs it is refused.

## Errors and warnings

A name that is not on this page, a value out of its range, and two parameters that contradict each
other end the job with one sentence:

```json
{
  "error": {
    "message": "typical_p=1.5: it must be a number above 0 and at most 1.",
    "type": "invalid_parameter",
    "param": "typical_p",
    "code": 400
  }
}
```

`type` is `invalid_parameter`, `unsupported_parameter` for what this worker does not offer, or
`deployment_parameter` for what this worker was not started for.
Both dialects may be mixed, but `max_tokens` beside another `max_new_tokens` is a contradiction.
Between two of Hugging Face's own, the one wins that its documentation names.

What has no effect is no error, as in transformers.
The first yield of a native reply then holds `warnings`, a list of sentences.
OpenAI's replies have no place for them.

## In a native reply

| Key | Where | What |
| --- | --- | --- |
| `scores`, `logits` | choice | for each token `{"token_ids": […], "values": […]}`, best first |
| `logprobs`, `prompt_logprobs` | choice | each token's own, and the likeliest tokens' |
| `token_ids` | choice | the answer's token ids |
| `score` | choice | a beam's score |
| `finish_reason` | choice | `stop`, `length` or `max_time` |
| `stop_reason` | choice | the stop text or id that ended it |
| `prompt_token_ids` | reply | the prompt's token ids, healed ones included |
| `warnings` | reply | what had no effect |

In the tables below an example goes into `sampling_params`.
"""
# The row each part of the page begins with.
PARTS = {
    "max_new_tokens": "Length and end",
    "do_sample": "Strategy",
    "temperature": "What becomes of the logits",
    "num_return_sequences": "What comes back",
    "eos_token_id": "Special tokens and the prompt",
    "max_tokens": "vLLM's own",
    "best_of": "vLLM's older ones, and this worker's",
}


def parameters_page() -> str:
    """Return docs/parameters.md."""
    parts: dict[str, list[Parameter]] = {name: [] for name in PARTS.values()}
    part = ""
    for row in PARAMETERS:
        part = PARTS.get(row.name, part)
        if row.kind not in ("deployment", "refused"):
            parts[part].append(row)
    head = ("Parameter", "What it does", "Allowed", "Becomes", "Differences", "Example")
    page = [PARAMETERS_INTRO]
    for title, rows in parts.items():
        page += [f"## {title}\n", _table(head, map(_parameter, rows))]
    fixed = (
        (_names((p.name, *p.aliases)), p.meaning, f"`{p.option}`" if p.option else "", p.differs)
        for p in PARAMETERS
        if p.kind == "deployment"
    )
    refused = (
        (f"`{p.name}`", p.meaning, p.differs, _accepted(p))
        for p in PARAMETERS
        if p.kind == "refused"
    )
    page += [
        "## Fixed when the worker starts\n",
        "Accepted where the value is what this worker does anyway, and refused otherwise, with the "
        "variable that sets it.\n",
        _table(("Parameter", "What it does", "Variable", "Here"), fixed),
        "## Refused\n",
        "Each with its reason, or with what to give instead. A value that asks for what is done "
        "anyway is accepted.\n",
        _table(("Parameter", "What it is", "The error ends", "Accepted"), refused),
    ]
    return "\n".join(page)


def _parameter(row: Parameter) -> tuple[str, ...]:
    becomes = row.becomes or f"`{row.name}`"
    allowed = row.check.allowed if row.check else ""
    example = "" if row.example is None else f"`{json.dumps({row.name: row.example})[1:-1]}`"
    names = _names((row.name, *row.aliases))
    return names, row.meaning, allowed, becomes, row.differs, example


def _accepted(row: Parameter) -> str:
    nothing = (0, 1) if row.check is None else (False,)
    return ", ".join(f"`{json.dumps(v)}`" for v in nothing if row.fits(v, Facts(0, 0)))


def models_page() -> str:
    """Return docs/models.md."""
    head = models.HEAD.format(**models.seen()["about"])
    return "\n".join(
        [
            head,
            _table(("Kind", "Variables", *models.columns()), models.rows()),
            "## What vLLM's CPU build cannot\n",
            "Each was started, and this is its last line. None of it is known of a GPU.\n",
            _table(("Kind", "Last line"), models.impossible()),
            "## Starts that fail\n",
            _table(("Kind", "Variables", "Last line"), models.starts()),
            "## What is refused\n",
            "At both doors alike; where a route is missing, its own routes follow.\n",
            _table(("Sent", "To", "A model of the kind", "Answer"), models.refusals()),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "models.md": models_page,
    "settings.md": settings_page,
    "parameters.md": parameters_page,
    "local-endpoint-knobs.md": knobs_page,
    "operate.md": operate_page,
    "../.runpod/hub.json": hub.listing,
    "../.runpod/tests.json": hub.tests,
}


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(value: object) -> str:
    return "" if value in (None, ()) else f"`{sentences.show('', value)}`"


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
            stale.append(os.path.normpath(f"docs/{name}"))
    if stale:
        print(f"{', '.join(stale)} is not what docs/generate.py writes: run it, and commit.")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
