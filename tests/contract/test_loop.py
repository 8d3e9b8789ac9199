"""Nothing that a caller can make large holds the event loop up, so a neighbour's stream goes on."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import models
from local_endpoint import Status
from served import Served, cancel, serve
from waiting import wait_until
from worker.facts import Limits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

NEIGHBOUR = {
    "prompt": "Hello",
    "stream": True,
    "sampling_params": {"temperature": 0, "max_tokens": 1900, "ignore_eos": True},
}
FRAME = re.compile(r'File "(\S+/(?:src/worker|site-packages/(?:vllm|runpod))/)\S+", line .*\n(.*)')
TEXT = "word " * 1_600_000  # 8 MB; RunPod takes 10 MB by /run
LIMITS = Limits()


@dataclass(frozen=True)
class Probed:
    """A worker whose event loop is watched."""

    served: Served
    lags: Path

    def worst_lags(self, since_s: float, until_s: float) -> tuple[tuple[float, str], float]:
        """Return the longest lags of a time, in seconds: our own with what the loop was doing
        then, and the one that is vLLM's or the SDK's."""
        lines = self.lags.read_text().splitlines()[:-1]  # the last is perhaps being written
        lags = [
            (lag, doing)
            for asked_s, lag, doing in map(json.loads, lines)
            if since_s <= asked_s + lag and asked_s <= until_s
        ]
        ours = max((lag for lag in lags if is_ours(lag[1])), default=(0.0, ""))
        return ours, max((lag for lag, doing in lags if not is_ours(doing)), default=0.0)


def is_ours(doing: str) -> bool:
    """Say whether the loop was in code of the worker's, or of a library that the worker called."""
    frames = FRAME.findall(doing)
    return not frames or ("/src/worker/" in frames[-1][0] and "run_until" not in frames[-1][1])


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probed]:
    lags = tmp_path_factory.mktemp("lags") / "lags"
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "MAX_MODEL_LEN": "2048",
        "ENABLE_AUTO_TOOL_CHOICE": "1",
        "TOOL_CALL_PARSER": "hermes",
        "LAG_FILE": str(lags),
    }
    with serve(environ, program=(str(Path(__file__).parents[1] / "probed_worker.py"),)) as served:
        yield Probed(served, lags)


def native(prompt: Any = "Hello", **given: Any) -> dict[str, Any]:
    return {"prompt": prompt, "sampling_params": {"max_tokens": 4} | given}


def route(path: str, **given: Any) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": given}


def chat(**given: Any) -> dict[str, Any]:
    return route("/v1/chat/completions", **{"messages": turns(1), "max_tokens": 4} | given)


def completion(**given: Any) -> dict[str, Any]:
    return route("/v1/completions", **{"prompt": "Hello", "max_tokens": 4} | given)


def turns(count: int, content: Any = "Hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}] * count


def parts(count: int) -> list[dict[str, Any]]:
    return turns(1, [{"type": "text", "text": "x"}] * count)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def tool(index: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": f"f{index}", "parameters": schema}}


def words(count: int, length: int) -> list[str]:
    return [f"{i}".ljust(length, "x") for i in range(count)]


VALUES, TEXTS = LIMITS.max_input_values, LIMITS.max_stop_strings
LETTERS, IDS = LIMITS.max_stop_characters, LIMITS.max_token_ids
MANY = {f"key{i}": 1 for i in range(20_000)}
# Of each kind the worst that is allowed, and what is far beyond it.
HOSTILE = {
    "a long text": native(TEXT),
    "one long word": native("a" * 8_000_000),
    "long token ids": native([5] * 1_500_000),
    "many texts": native(["Hello"] * LIMITS.max_sequences, max_tokens=1),
    "too many texts": native(["Hello"] * 100_000),
    "a long turn": {"messages": turns(1, TEXT)},
    "many turns": {"messages": turns(VALUES // 4)},
    "too many turns": {"messages": turns(100_000)},
    "unknown keys": MANY,
    "unknown keys beside a prompt": native() | MANY,
    "unknown parameters": native(**MANY),
    "a deep prompt": {"prompt": nested(900)},
    "stop texts": native(stop=words(TEXTS, LETTERS // TEXTS)),
    "too many stop texts": native(stop=words(20_000, 6)),
    "a long stop text": native(stop=["s" * 8_000_000]),
    "bad words": native(bad_words=words(TEXTS, LETTERS // TEXTS)),
    "too many bad words": native(bad_words=words(100_000, 6)),
    "a long bad word": native(bad_words=["bad " * 1_000_000]),
    "biases": native(logit_bias={str(i): 1 for i in range(4096)}),
    "too many biases": native(logit_bias={str(i): 1 for i in range(50_000)}),
    "forbidden ids": native(suppress_tokens=[5] * IDS),
    "too many forbidden ids": native(suppress_tokens=[5] * 1_000_000),
    "too many stop ids": native(stop_token_ids=[5] * 1_000_000),
    "bad word ids": native(bad_words_ids=[[i] for i in range(2, 4096)]),
    "too many bad word ids": native(bad_words_ids=[[5, 6]] * 100_000),
    "one long bad word's ids": native(bad_words_ids=[[5] * 1_000_000]),
    "choices": native(structured_outputs={"choice": words(LIMITS.max_choices, 8)}),
    "too many choices": native(structured_outputs={"choice": words(100_000, 8)}),
    "many answers": native(n=LIMITS.max_sequences, max_tokens=1),
    "beams": native(num_beams=LIMITS.max_num_beams, max_tokens=100, ignore_eos=True),
    "drawn beams": native(
        num_beams=LIMITS.max_num_beams, do_sample=True, max_tokens=50, ignore_eos=True
    ),
    "guidance": native("word " * 1000, guidance_scale=1.5, max_tokens=30, stop=words(TEXTS, 8)),
    "log-probabilities": native(logprobs=20, n=16, max_tokens=100, ignore_eos=True),
    "the prompt's log-probabilities": native("word " * 1000, prompt_logprobs=20),
    "scores": native(
        output_scores=LIMITS.max_scores,
        output_logits=LIMITS.max_scores,
        n=16,
        max_tokens=50,
        ignore_eos=True,
    ),
    "chat: a long turn": chat(messages=turns(1, TEXT)),
    "chat: many turns": chat(messages=turns(VALUES // 4)),
    "chat: too many turns": chat(messages=turns(100_000)),
    "chat: many parts": chat(messages=parts(VALUES // 4)),
    "chat: too many parts": chat(messages=parts(100_000)),
    "chat: tools": chat(tools=[tool(i) for i in range(VALUES // 12)]),
    "chat: too many tools": chat(tools=[tool(i) for i in range(20_000)]),
    "chat: bad words": chat(bad_words=words(TEXTS, LETTERS // TEXTS)),
    "chat: a long bad word": chat(bad_words=["bad " * 1_000_000]),
    "chat: too many stop texts": chat(stop=words(20_000, 6)),
    "chat: biases": chat(logit_bias={str(i): 1 for i in range(4096)}),
    "chat: many answers": chat(n=LIMITS.max_sequences, max_tokens=1),
    "chat: too many answers": chat(n=16_384),
    "chat: a long name": chat(model="m" * 8_000_000),
    "chat: unknown fields": chat(**MANY),
    "chat: log-probabilities": chat(logprobs=True, top_logprobs=20, n=16, max_tokens=100),
    "completion: a long text": completion(prompt=TEXT),
    "completion: long token ids": completion(prompt=[5] * 1_500_000),
    "completion: many texts": completion(prompt=["Hello"] * LIMITS.max_sequences, max_tokens=1),
    "completion: too many texts": completion(prompt=["x"] * 100_000),
    "completion: generation parameters": completion(generation_parameters=MANY),
    "completion: echo": completion(prompt="word " * 1000, echo=True, logprobs=20),
    "responses: a long text": route("/v1/responses", input=TEXT, max_output_tokens=4),
    "messages: a long turn": route("/v1/messages", messages=turns(1, TEXT), max_tokens=4),
    "messages: many turns": route("/v1/messages", messages=turns(VALUES // 4), max_tokens=4),
    "tokenize": {"route": "/tokenize", "body": {"prompt": TEXT}},
    "detokenize": {"route": "/detokenize", "body": {"tokens": [10] * 1_500_000}},
    "a long file": {"route": "/v1/audio/transcriptions", "body": {"file": "QUJD" * 2_000_000}},
    "a long route": {"route": "/x" * 500_000},
}


def beside(probed: Probed, given: dict[str, Any] | None) -> tuple[tuple[float, str], float, float]:
    """Run a job beside a stream, or wait a while.

    Return the longest lags meanwhile (`Probed.worst_lags`), and the stream's longest gap, seconds.
    """
    served = probed.served
    neighbour = served.endpoint.submit(NEIGHBOUR)

    def posts() -> tuple[Any, ...]:
        return served.endpoint.record(neighbour).stream

    wait_until(lambda: len(posts()) > 5)
    began_s, seen = time.monotonic(), len(posts())
    if given is None:
        wait_until(lambda: len(posts()) > seen + 8)
    else:
        served.run(given, 120)
        wait_until(lambda: len(posts()) > seen + 1 or served.endpoint.record(neighbour).done)
    ours, theirs_s = probed.worst_lags(began_s, time.monotonic())
    cancel(served, neighbour)
    times_s = [post.at_s for post in posts()[seen - 1 :]]
    return ours, theirs_s, max((b - a for a, b in pairwise(times_s)), default=0.0)


def test_a_neighbour_goes_on(probed: Probed) -> None:
    """The worst of every kind, one after another, beside a stream that hardly notices.

    Our code may hold the loop up ten times as long as a turn takes beside the stream alone, and
    50 ms in any case. What vLLM and the SDK take for such a job is printed, and so are the stream's
    gaps: the endpoint, which reads the large jobs, is in here too.
    """
    idle = [beside(probed, None) for _ in range(3)]
    most_lag_s = max(0.05, 10 * max(lag_s for (lag_s, _), *_ in idle))
    late = []
    print(f"alone: lag {most_lag_s * 100:.0f} ms, gap {max(gap_s for *_, gap_s in idle):.3f} s")
    for name, given in HOSTILE.items():
        (lag_s, doing), theirs_s, gap_s = beside(probed, given)
        print(
            f"{name}: lag {lag_s * 1000:.0f} ms, vLLM's or the SDK's {theirs_s * 1000:.0f} ms, "
            f"gap {gap_s:.3f} s"
        )
        if lag_s > most_lag_s:
            late.append(f"{name}: lag {lag_s:.3f} s\n{doing}")
    assert not late, "\n".join(late)


def test_the_worker_is_sound_afterwards(probed: Probed) -> None:
    assert Status.COMPLETED == probed.served.run(native()).status
