"""The names this worker understands beside vLLM's own: its variables, what users call some of
vLLM's options, and what has lost its meaning.

The help text, the documentation, the reading and the errors all come from these tables.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from worker import spelling
from worker.facts import Limits, variable

EXTRA_ARGS = "VLLM_EXTRA_ARGS"
CONFIG_FILE = "VLLM_CONFIG_FILE"
NETWORK_VOLUME = "/runpod-volume"


@dataclass(frozen=True)
class Variable:
    """One of the worker's own variables; `field` is where `Settings` keeps it, if it does."""

    name: str
    field: str | None
    default: Any
    meaning: str
    least: float | None = None
    most: float | None = None
    aliases: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    word: str = ""  # that may stand for a number
    starts: str = ""  # with what each item of a list begins
    http: bool = False  # read only where requests come over HTTP: others use such names too

    @property
    def kind(self) -> str:
        kinds = {bool: "switch", int: "whole number", float: "number", tuple: "list"}
        kind = kinds.get(type(self.default), " or ".join(self.choices) or "text")
        return f"{kind} or {self.word}" if self.word else kind

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def read(self, text: str) -> Any:
        """Return the value. Raises ValueError with the end of a sentence."""
        if self.choices:
            text = text.strip().lower()
            if text not in self.choices:
                raise ValueError(f"must be {self.kind}")
            return text
        match self.kind:
            case "switch":
                return spelling.boolean(text)
            case "list":
                return _items(text, self.starts)
            case "text":
                return text.strip()
        if self.word and text.strip().lower() == self.word:
            return self.word
        number = read_number(text, type(self.default))
        if self.least is not None and number < self.least:
            raise ValueError(f"must be at least {self.least:g}")
        if self.most is not None and number > self.most:
            raise ValueError(f"must be at most {self.most:g}")
        return number


@dataclass(frozen=True)
class Own(Limits):
    """The worker's own variables, each under the field's name in capitals."""

    max_concurrency: int | str = variable(
        100,
        "How many jobs the worker works on at once. `auto`: as many as the engine runs at once "
        "(MAX_NUM_SEQS) and its cache holds when each fills a quarter of the context.",
        least=1,
        word="auto",
    )
    default_batch_size: int = variable(
        50, "The most tokens that one post of a stream carries.", least=1
    )
    default_min_batch_size: int = variable(
        1, "The tokens of a stream's first post.", least=1, aliases=("MIN_BATCH_SIZE",)
    )
    default_batch_size_growth_factor: float = variable(
        3.0,
        "How much larger each post is than the one before: 1, 3, 9, 27, 50, 50, … by default.",
        least=1,
        aliases=("BATCH_SIZE_GROWTH_FACTOR",),
    )
    max_batch_delay_ms: int = variable(
        100,
        "How far apart the posts of a stream may be while there are tokens to post, in "
        "milliseconds. 0: as far as it takes, and every post has exactly its size.",
        least=0,
    )
    max_posts_per_second: int = variable(
        400,
        "How much the worker posts for all its streams together: with many, each posts less often "
        "than MAX_BATCH_DELAY_MS says. Without effect where that is 0.",
        least=1,
    )
    stream_merge: bool = variable(
        True,
        "Let one event of an OpenAI stream tell of all the tokens that leave with the same post. "
        "0: an event for each token. Without effect where MAX_BATCH_DELAY_MS is 0.",
    )
    raw_openai_output: bool = variable(
        True,
        "Stream OpenAI answers as the text of server-sent events, which OpenAI's clients need. "
        "0: as lists of parsed objects.",
    )
    openai_errors_as_output: bool = variable(
        False,
        "1: a failed OpenAI job ends COMPLETED with the error as its output, instead of FAILED.",
    )
    strict_openai: bool = variable(
        False,
        "1: leave older names in requests (`guided_json`, `functions`, …) to vLLM, which ignores "
        "them.",
    )
    old_reply_names: bool = variable(
        False,
        "1: chats are answered in older names too (`reasoning_content` beside `reasoning`, "
        "`function_call` beside `tool_calls`), and not only those that ask in older names.",
    )
    receipts: bool = variable(
        False,
        "1: end each native answer with a `receipt`, as `receipt: true` in a job does: time in the "
        "queue and to the first token, prompt tokens from the cache, posts, versions, seed. The "
        "log's line of each job, on every route, has them too.",
    )
    max_result_mb: int = variable(
        10,
        "The largest result a job may have, in megabytes. RunPod refuses larger ones.",
        least=1,
    )
    batch_folder: str = variable(
        f"{NETWORK_VOLUME}/batches",
        "The folder that holds the files of batches; it is made if the folder above it exists.",
    )
    batch_reserved_slots: int = variable(
        8,
        "How many of the sequences that the engine runs at once (MAX_NUM_SEQS) batches leave to "
        "other jobs; half of them at most.",
        least=0,
    )
    max_line_mb: int = variable(4, "The largest line of a batch's input, in megabytes.", least=1)
    bucket_endpoint_url: str = variable(
        "",
        "The server of the worker's own bucket, for files of batches whose job brings no s3Config, "
        "and for adapters. All four BUCKET_ variables are needed.",
    )
    bucket_access_key_id: str = variable("", "The first of its keys.")
    bucket_secret_access_key: str = variable("", "The second of its keys.")
    bucket_name: str = variable(
        "",
        "The bucket, or a folder in it as `bucket/folder`: jobs may read and write all that lies "
        "below it, and nothing else.",
    )
    max_chains: int = variable(
        64,
        "How many sequences may run transformers' logits processors at once; others wait. They "
        "run inside the step that all requests share.",
        least=1,
    )
    max_costly_chains: int = variable(
        4,
        "How many of those may have a SynthID or selfhash watermark at once; others wait.",
        least=1,
        retired=("MAX_DEAR_CHAINS",),
    )
    extra_routes: tuple[str, ...] = variable(
        (),
        "More of vLLM's routes to open to jobs, such as `/v1/load_lora_adapter`.",
        starts="/",
    )
    lora_allowed: tuple[str, ...] = variable(
        (),
        "The adapters that a request may name without LORA_MODULES, as patterns such as `org/*`, "
        "`/runpod-volume/adapters/*` or `s3://bucket/adapters/*`: each is fetched and loaded at "
        "its first use.",
    )
    lora_disk_gb: int = variable(
        20,
        "How much of the disk the adapters of LORA_ALLOWED may take that were fetched, in "
        "gigabytes; those that were used longest ago are deleted.",
        least=1,
    )
    allow_private_media: bool = variable(
        False,
        "1: fetch images, audio, video and files of batches also from private, loopback and "
        "link-local addresses, and through the proxy that the environment names.",
    )
    worker_mode: str = variable(
        "queue",
        "How requests come in: `queue`, as RunPod's jobs; `load_balancer`, over HTTP on PORT, for "
        "RunPod's load-balancing endpoints and outside RunPod; `auto`, as jobs where RunPod sends "
        "some, else over HTTP.",
        choices=("queue", "load_balancer", "auto"),
        http=True,
    )
    port: int = variable(80, "Where HTTP requests are answered.", least=1, most=65535, http=True)
    port_health: int = variable(
        0, "Another port for HEALTH_CHECK_PATH. 0: PORT alone.", least=0, most=65535, http=True
    )
    health_check_path: str = variable(
        "/ping",
        "Over HTTP this path tells the worker's health: 204 while it starts, 200 when it is ready, "
        "503 when its engine is gone.",
        http=True,
    )
    api_key: str = variable(
        "",
        "The key that HTTP requests must send, as `Authorization: Bearer …`; empty: none. RunPod "
        "checks its own key before it sends a request on.",
        http=True,
    )
    max_body_mb: int = variable(
        30,
        "The largest body of an HTTP request, in megabytes. RunPod takes 30.",
        least=1,
        http=True,
    )
    shutdown_grace_s: int = variable(
        30,
        "How long HTTP requests may go on after SIGTERM, in seconds; no new ones are taken.",
        least=0,
        http=True,
    )
    metrics_port: int = variable(
        0,
        "The port on which Prometheus gets vLLM's metrics and the worker's, by HTTP. 0: none. "
        "A job of the route `/metrics` gets them too.",
        least=0,
        most=65535,
    )
    log_format: str = variable(
        "text",
        "json: write the log as one JSON object a line, the worker's lines and vLLM's alike.",
        choices=("text", "json"),
    )
    doctor: bool = variable(
        True,
        "End a start that is certain to fail before its weights are fetched. 0: leave it to vLLM.",
    )
    startup_timeout_s: int = variable(
        1800,
        "How long the start may stand still, in seconds, before the worker gives up: without a new "
        "phase, and without 16 MB more read, written or taken into memory.",
        least=1,
    )


def _of(cls: type[Limits], *, without: frozenset[str] = frozenset()) -> tuple[Variable, ...]:
    return tuple(
        Variable(one.name.upper(), one.name, one.default, **one.metadata)
        for one in fields(cls)
        if one.name not in without
    )


VARIABLES = (
    *_of(Own, without=frozenset(one.name for one in fields(Limits))),
    *_of(Limits),
    # Read elsewhere: before vLLM is imported, or as a whole layer of the configuration.
    Variable(
        "BASE_PATH",
        None,
        None,
        "Where models are stored, in `huggingface-cache`. "
        f"By default `{NETWORK_VOLUME}` where there is one, and can be written.",
    ),
    Variable("HF_TOKEN", None, None, "The Hugging Face token for gated and private models."),
    Variable(
        CONFIG_FILE, None, None, "A YAML file of vLLM's options, as for `vllm serve --config`."
    ),
    Variable(
        EXTRA_ARGS,
        None,
        None,
        "More of vLLM's command line, such as `--max-model-len 8k`. It overrides everything else.",
    ),
)
ALIASES = {
    "MODEL_NAME": "MODEL",
    "MODEL_REVISION": "REVISION",
    "MAX_MODEL_LENGTH": "MAX_MODEL_LEN",
    "TOKENIZER_NAME": "TOKENIZER",
    "CUSTOM_CHAT_TEMPLATE": "CHAT_TEMPLATE",
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "SERVED_MODEL_NAME",
    "OPENAI_RESPONSE_ROLE": "RESPONSE_ROLE",
}


def _items(text: str, starts: str) -> tuple[str, ...]:
    items = spelling.items(text)
    if not all(item.startswith(starts) for item in items):
        raise ValueError(f"must be paths that start with {starts}")
    return tuple(items)


def read_number(text: str, kind: Callable[[str], float]) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"is not a {'whole ' if kind is int else ''}number")
    return number
