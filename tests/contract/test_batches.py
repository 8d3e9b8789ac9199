"""Batches as they arrive at the platform."""

import itertools
import json

import pytest

from local_endpoint import Record
from served import Served

pytestmark = pytest.mark.timeout(300)

SIZES_OF_128 = [1, 3, 9, 27, 50, 38]
LONG = {"max_tokens": 128, "ignore_eos": True}


def native_sizes(record: Record) -> list[int]:
    outputs = [0] + [post.value["usage"]["output"] for post in record.stream]
    return [after - before for before, after in itertools.pairwise(outputs)]


def openai_sizes(record: Record) -> list[int]:
    """Count for each post the chunks that carry output."""
    sizes = []
    for post in record.stream:
        events = [e.removeprefix("data: ") for e in post.value.split("\n\n") if e]
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
        sizes.append(
            sum("role" not in c["choices"][0].get("delta", {}) for c in chunks if c["choices"])
        )
    return sizes


def test_the_sizes_of_128_tokens(tiny: Served) -> None:
    """128 tokens leave as 1, 3, 9, 27, 50 and 38, on both paths, without the timer."""
    native = tiny.run({"prompt": "Hello", "stream": True, "sampling_params": LONG})
    chat = tiny.run(
        {
            "openai_route": "/v1/chat/completions",
            "openai_input": LONG
            | {
                "messages": [{"role": "user", "content": "Hello"}],
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        }
    )

    assert SIZES_OF_128 == native_sizes(native)
    # On a busy machine vLLM joins outputs, so there may be fewer events than tokens at the end.
    events = openai_sizes(chat)[:6]
    assert [*SIZES_OF_128[:5], sum(events) - sum(SIZES_OF_128[:5])] == events
    assert sum(events) > 120


def test_a_job_chooses_its_sizes(tiny: Served) -> None:
    """The job's own sizes win over the deployment's, and a fraction is kept as one."""
    sizes = {"min_batch_size": 2, "max_batch_size": 10, "batch_size_growth_factor": 1.5}
    given = {"prompt": "Hello", "stream": True, "sampling_params": LONG | {"max_tokens": 35}}

    assert [2, 3, 4, 6, 10, 10] == native_sizes(tiny.run(given | sizes))
    assert [1] * 35 == native_sizes(tiny.run(given | {"max_batch_size": 1}))


def test_every_post_holds_whole_events(tiny: Served) -> None:
    """No post cuts an event, and the stream ends with DONE."""
    body = LONG | {"prompt": "Hello", "stream": True}
    record = tiny.run({"openai_route": "/v1/completions", "openai_input": body})

    assert all(post.value.endswith("\n\n") for post in record.stream)
    assert record.stream[-1].value.endswith("data: [DONE]\n\n")


def test_a_slow_platform_gets_fuller_posts(unusual: Served) -> None:
    """While a post is under way the next one fills up, to the largest size and no further."""
    params = {"max_tokens": 60, "ignore_eos": True}
    unusual.endpoint.faults.add("job-stream", answer_delay_ms=2000, times=None)
    try:
        record = unusual.run({"prompt": [9], "stream": True, "sampling_params": params})
    finally:
        unusual.endpoint.faults.clear()

    assert [1, 50, 9] == native_sizes(record)


@pytest.mark.parametrize("path", ["openai", "native"])
def test_a_heavy_batch_leaves_in_parts(tiny: Served, path: str) -> None:
    """However many tokens a post may hold, it stays below 256 KiB as the SDK writes it."""
    sizes = {"min_batch_size": 450, "max_batch_size": 450}
    asked = {"max_tokens": 450, "ignore_eos": True}
    if path == "native":
        values = {"output_scores": 20, "output_logits": 20, "logprobs": 20}
        given = {"prompt": "Hello", "stream": True, "sampling_params": asked | values}
    else:
        chat = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
        given = {
            "openai_route": "/v1/chat/completions",
            "openai_input": asked | chat | {"logprobs": True, "top_logprobs": 20},
        }
    record = tiny.run(given | sizes)
    bytes_of_posts = [post.size for post in record.stream]

    assert 600_000 < sum(bytes_of_posts)
    assert max(bytes_of_posts) < 256 * 1024 + 2000  # what the SDK adds around an output
    assert len(bytes_of_posts) < 20
