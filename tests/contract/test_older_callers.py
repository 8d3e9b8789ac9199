"""What callers of worker-vllm 0.3.0 and of 2.x send is answered as it stands."""

import json
from typing import Any

import pytest
import requests

from local_endpoint import Record, Status
from served import Served, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ASKED = [{"role": "user", "content": "Why is RunPod the best platform?"}]
PROMPT = "Runpod is the best platform because"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 100}
# The tables of 0.3.0's page, each parameter with its default there.
OF_BOTH = {
    "temperature": 1.0,
    "top_p": 1.0,
    "n": 1,
    "best_of": 1,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": False,
    "stop_token_ids": [],
    "skip_special_tokens": True,
    "stop": [],
    "spaces_between_special_tokens": True,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "max_tokens": 16,
}
OF_ROUTES = {"seed": None, "logit_bias": None, "user": None, "include_stop_str_in_output": False}
CHATS = OF_BOTH | OF_ROUTES | {"add_generation_prompt": True, "echo": False, "stream": False}
COMPLETIONS = OF_BOTH | OF_ROUTES | {"suffix": None, "logprobs": None, "echo": False}
SIZES = {"max_batch_size": 50, "min_batch_size": 1, "batch_size_growth_factor": 3}


def answered(record: Record) -> Any:
    assert Status.COMPLETED == record.status, record.done[-1].value
    return record.done[-1].value["output"]


def test_the_openai_examples(tiny: Served) -> None:
    """The chats, completions and the list of models of 0.3.0's page, streamed and not."""
    client, model = tiny.client, "tiny"
    chat = client.chat.completions.create(model=model, messages=ASKED, **GREEDY)
    chunks = client.chat.completions.create(model=model, messages=ASKED, **GREEDY, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    completion = client.completions.create(model=model, prompt=PROMPT, **GREEDY)
    pieces = client.completions.create(model=model, prompt=PROMPT, **GREEDY, stream=True)
    written = "".join(piece.choices[0].text or "" for piece in pieces)

    assert chat.choices[0].message.content == said != ""
    assert completion.choices[0].text == written != ""
    assert model in [one.id for one in client.models.list()]


def test_the_http_example(tiny: Served) -> None:
    """The plain HTTP request of 0.3.0's page."""
    reply = requests.post(
        f"{tiny.endpoint.openai_url}/chat/completions",
        headers={"Authorization": f"Bearer {tiny.endpoint.api_key}"},
        json={"model": "tiny", "messages": ASKED, **GREEDY},
        timeout=60,
    )

    assert (200, "assistant") == (
        reply.status_code,
        reply.json()["choices"][0]["message"]["role"],
    )


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", CHATS | {"messages": ASKED}),
        ("/v1/completions", COMPLETIONS | {"prompt": PROMPT}),
        ("/v1/completions", {"prompt": [PROMPT, "a"], "max_tokens": 3}),
        ("/v1/completions", {"prompt": [[10, 11], [12]], "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": ASKED, "use_beam_search": True, "n": 2} | GREEDY),
        ("/v1/chat/completions", {"messages": ASKED, "guided_choice": ["yes", "no"]}),
        ("/v1/completions", {"prompt": PROMPT, "guided_regex": "[a-c]{3}"}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 3}),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 3}),
    ],
)
def test_every_parameter_of_the_routes(tiny: Served, route: str, body: dict[str, Any]) -> None:
    """Every parameter of 0.3.0's tables is taken, and the routes and older names of 2.x."""
    (reply,) = answered(tiny.run({"openai_route": route, "openai_input": body}))

    assert reply["usage"]
    if "guided_choice" in body:
        assert reply["choices"][0]["message"]["content"] in body["guided_choice"]
    if "guided_regex" in body:
        assert set(reply["choices"][0]["text"]) <= set("abc")


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": PROMPT},
        {"prompt": PROMPT, "apply_chat_template": True, "stream": True, **SIZES},
        {"prompt": "ignored", "messages": [{"role": "system", "content": "x"}, *ASKED]},
        {"prompt": PROMPT, "sampling_params": OF_BOTH | {"early_stopping": False}},
        {"prompt": PROMPT, "sampling_params": {"use_beam_search": True, "best_of": 2, "n": 1}},
        {"prompt": PROMPT, "sampling_params": {"early_stopping": "never"}},
        {"messages": ASKED, "sampling_params": {"guided_choice": ["yes", "no"]}},
    ],
)
def test_every_native_input(tiny: Served, given: dict[str, Any]) -> None:
    """The inputs and parameters of 0.3.0's tables are answered in its shape."""
    record = tiny.run(given)
    *_, last = answered(record)

    assert text(record)
    assert {"input", "output"} == last["usage"].keys()


def test_a_conversation_that_ends_with_the_assistant(tiny: Served) -> None:
    """The one example that needs a word more now is refused with it."""
    messages = [{"role": role, "content": "..."} for role in ("system", "user", "assistant")]
    refused = tiny.run({"messages": messages})
    error = json.loads(refused.done[-1].value["error"])["error"]

    assert "continue_final_message: true" in error["message"]
    assert text(tiny.run({"messages": messages, "continue_final_message": True}))
