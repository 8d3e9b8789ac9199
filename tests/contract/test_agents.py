"""What agents and their clients do: tools, thoughts, Anthropic's route, adapters that change."""

import json
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import models
from local_endpoint import Record, Status
from served import JOB_S, Served, cancel, running_requests, serve
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)

HELLO = [{"role": "user", "content": "Hello"}]
PLAIN: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0}
KEEP_ALIVE = ": keep-alive\n\n"


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One sequence at a time, tools and thoughts, signs of life, and adapters at run time."""
    base = tmp_path_factory.mktemp("adapters") / "base"
    shutil.copytree(models.path("tiny-lora"), base)
    environ = {
        "MODEL_NAME": str(models.path("tiny-thinking")),
        "SERVED_MODEL_NAME": "tiny",
        "MAX_NUM_SEQS": "1",
        "SSE_KEEP_ALIVE_INTERVAL": "1",
        "ENABLE_AUTO_TOOL_CHOICE": "1",
        "TOOL_CALL_PARSER": "hermes",
        "REASONING_PARSER": "qwen3",
        "STRUCTURED_OUTPUTS_CONFIG": '{"disable_any_whitespace": true, "backend": "xgrammar"}',
        "ENABLE_LORA": "1",
        "LORA_MODULES": json.dumps([{"name": "base", "path": str(base)}]),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "EXTRA_ROUTES": "/v1/load_lora_adapter,/v1/unload_lora_adapter,/v1/load_lora_adaptor",
    }
    with serve(environ) as served:
        yield served


def ask(served: Served, path: str, **body: Any) -> Record:
    return served.run({"openai_route": path, "openai_input": body})


def chat(served: Served, **body: Any) -> Record:
    return ask(served, "/v1/chat/completions", **{"messages": HELLO, "max_tokens": 8} | body)


def output(record: Record) -> Any:
    assert Status.COMPLETED == record.status, record.done[-1].value
    return record.done[-1].value["output"]


def failure(record: Record) -> dict[str, Any]:
    assert Status.FAILED == record.status, record.done[-1].value
    return dict(json.loads(record.done[-1].value["error"]))


def events(record: Record) -> list[str]:
    return "".join(post.value for post in record.stream).split("\n\n")[:-1]


# --- the start


def test_the_start_names_what_is_wrong_with_the_configuration(agents: Served) -> None:
    """Adapters on a CPU, and an extra route that no route is, are said before the first job."""
    start = agents.log().partition("phase: ready")[0]

    assert 1 == start.count("worker: Adapters on a CPU")
    assert 1 == start.count("worker: EXTRA_ROUTES")
    assert "/v1/load_lora_adaptor. Did you mean '/v1/load_lora_adapter'?" in start


# --- signs of life


@pytest.mark.parametrize("size", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_a_stream_that_waits_shows_that_it_lives(agents: Served, size: int) -> None:
    """Behind a long job the comments of SSE_KEEP_ALIVE_INTERVAL leave at once, and count nothing.

    A stream that is cancelled while it waits gives its place back.
    """
    asked = PLAIN | {"messages": HELLO, "max_tokens": 8, "stream": True}
    wait = {"openai_route": "/v1/chat/completions", "openai_input": asked}
    sizes = {"min_batch_size": size, "max_batch_size": size}
    first = agents.endpoint.submit(
        {"prompt": "x", "sampling_params": {"max_tokens": 500, "n": 8, "ignore_eos": True}}
    )
    wait_until(lambda: running_requests(agents))
    left = agents.endpoint.submit(wait)
    stays = agents.endpoint.submit(wait | sizes)
    for job in (left, stays):
        wait_until(lambda job=job: agents.endpoint.record(job).stream)
    cancel(agents, left)
    cancel(agents, first)
    record = agents.endpoint.wait_for_end(stays, JOB_S)
    said = [post.value for post in record.stream]
    alone = agents.run(wait | sizes)

    assert KEEP_ALIVE == said[0]
    assert {KEEP_ALIVE} == {one for one in said if one.startswith(":")}
    assert written(alone) == written(record)


def written(record: Record) -> str:
    """Return what a streamed chat says: vLLM joins deltas where its reader is slow."""
    return "".join(delta.get("content") or "" for delta in texts(record))


def texts(record: Record) -> list[Any]:
    """Return the deltas of a streamed chat, in order."""
    data = (one.removeprefix("data: ") for one in events(record) if one.startswith("data: {"))
    return [choice["delta"] for one in data for choice in json.loads(one)["choices"]]


# --- tools


@pytest.mark.parametrize("choice", ["auto", "required", "none", "named"])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"parameters": None},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"parameters": {"type": "object", "properties": {}}},
    ],
)
def test_a_tool_without_parameters(agents: Served, parameters: dict[str, Any], choice: str) -> None:
    """A tool need not have parameters, whatever is asked of it; a strict empty list allows `{}`."""
    asked: Any = {"type": "function", "function": {"name": "now"}} if choice == "named" else choice
    for strict in ({}, {"strict": True}):
        tools = [{"type": "function", "function": {"name": "now", **parameters, **strict}}]
        (reply,) = output(chat(agents, **PLAIN, tools=tools, tool_choice=asked, max_tokens=100))
        calls = reply["choices"][0]["message"].get("tool_calls") or []

        if choice == "named" and strict and "properties" in (parameters.get("parameters") or {}):
            assert ["{}"] == [call["function"]["arguments"] for call in calls]
        for call in calls:
            json.loads(call["function"]["arguments"])
        if choice == "named" and not strict:
            assert ["now"] == [call["function"]["name"] for call in calls]


@pytest.mark.parametrize(
    "given", [{"tool_choice": None}, {"tools": None, "tool_choice": "none"}, {"tools": None}]
)
def test_no_tools_are_no_tools(agents: Served, given: dict[str, Any]) -> None:
    """null for what a client does not use is the same as leaving it out."""
    (plain,), (reply,) = output(chat(agents, **PLAIN)), output(chat(agents, **PLAIN | given))

    assert plain["choices"][0]["message"] == reply["choices"][0]["message"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_an_empty_list_of_tools(agents: Served, choice: str) -> None:
    """An empty list of tools is refused in words, as OpenAI refuses it."""
    error = failure(chat(agents, tools=[], tool_choice=choice))["error"]

    assert (400, "tools") == (error["code"], error["param"])


# --- structured outputs

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x y", 2]}},
    "required": ["a", "b"],
}


def test_no_blanks_where_none_are_wanted(agents: Served) -> None:
    """STRUCTURED_OUTPUTS_CONFIG reaches the engine: a model cannot fill its answer with blanks."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    (reply,) = output(chat(agents, **PLAIN, response_format=wanted, max_tokens=60))
    text = reply["choices"][0]["message"]["content"]

    assert {"a", "b"} == json.loads(text).keys()
    assert " " not in text.replace("x y", "")
    assert '"disable_any_whitespace": true' in agents.log()


def test_an_answer_that_is_cut_says_so(agents: Served) -> None:
    """A structured answer that max_tokens cuts has the finish reason `length`."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    (reply,) = output(chat(agents, **PLAIN, response_format=wanted, max_tokens=3))

    assert "length" == reply["choices"][0]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_is_none(agents: Served, stream: bool) -> None:
    """What vLLM calls an invalid grammar comes with the backend's reason, on both paths."""
    wrong = {"structured_outputs": {"grammar": "root ::= nobody"}}
    for record in (
        chat(agents, stream=stream, **wrong),
        agents.run({"prompt": "x", "stream": stream, "sampling_params": wrong}),
    ):
        error = failure(record)["error"]

        assert 400 == error["code"]
        assert "nobody" in error["message"]


# --- thoughts


@pytest.mark.parametrize("stream", [False, True])
def test_all_thought_and_no_answer(agents: Served, stream: bool) -> None:
    """An answer that is cut within its thought is null and says so; a hidden thought stays hidden.

    Neither log-probabilities nor token ids tell it.
    """
    hidden = {"include_reasoning": False, "logprobs": True, "return_token_ids": True}
    shown, unseen = (
        chat(agents, stream=stream, temperature=0, max_tokens=10, **more) for more in ({}, hidden)
    )
    if stream:
        thought = "".join(delta.get("reasoning") or "" for delta in texts(shown))
        content = "".join(delta.get("content") or "" for delta in texts(shown))
        assert (True, "") == (bool(thought), content)
        assert {"role", "content"} >= {key for delta in texts(unseen) for key in delta}
        chosen = [json.loads(one[6:]) for one in events(unseen) if one.startswith("data: {")]
        choices = [choice for one in chosen for choice in one["choices"]]
        assert "length" == choices[-1]["finish_reason"]
    else:
        (reply,) = output(shown)
        message = reply["choices"][0]["message"]
        assert (None, True) == (message["content"], bool(message["reasoning"]))
        assert ("length", 10) == (
            reply["choices"][0]["finish_reason"],
            reply["usage"]["completion_tokens"],
        )
        choices = output(unseen)[0]["choices"]
        assert choices[0]["message"]["reasoning"] is None
    for choice in choices:
        assert (None, None) == (choice.get("logprobs"), choice.get("token_ids"))


# --- older names


@pytest.mark.parametrize("stream", [False, True])
def test_older_names_of_structured_outputs(agents: Served, stream: bool) -> None:
    """guided_choice, which vLLM ignores today, bounds the answer, and the log says so once."""
    older = PLAIN | {"guided_choice": ["zebra"], "stream": stream}
    record = chat(agents, **older)

    assert "zebra" == (
        written(record) if stream else output(record)[0]["choices"][0]["message"]["content"]
    )
    assert 1 == agents.log().count("A request uses guided_choice")


@pytest.mark.parametrize("stream", [False, True])
def test_functions(agents: Served, stream: bool) -> None:
    """A request with functions is answered with a call, as it was before there were tools."""
    asked = {"functions": [{"name": "now"}], "function_call": {"name": "now"}}
    record = chat(agents, **PLAIN, **asked, stream=stream, max_tokens=40)
    said = texts(record) if stream else [output(record)[0]["choices"][0]["message"]]
    told = [one for one in said if one.get("tool_calls")]

    assert [one["tool_calls"][0]["function"] for one in told] == [
        one["function_call"] for one in told
    ]
    assert "now" == "".join(one["function_call"].get("name") or "" for one in told)


def test_older_names_in_replies(agents: Served) -> None:
    """A reply has older names only where the request has."""
    today = chat(agents, temperature=0)
    told = [{"role": "assistant", "content": "a", "reasoning_content": "b"}]
    before = chat(agents, temperature=0, messages=[*told, *HELLO])
    messages = [output(one)[0]["choices"][0]["message"] for one in (today, before)]

    assert "reasoning_content" not in messages[0]
    assert messages[1]["reasoning"] == messages[1]["reasoning_content"]


# --- Anthropic's route


def anthropics(served: Served, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=served.endpoint.openai_url.removesuffix("/v1"),
        auth_token=served.endpoint.api_key,
        max_retries=0,
        timeout=JOB_S,
        **options,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_system_messages_within_the_list(agents: Served, stream: bool) -> None:
    """Newer agents put system messages into Anthropic's list; they are answered."""
    body: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 8,
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "system", "content": "b"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "c", "cache_control": {"type": "ephemeral"}}],
            },
        ],
        "system": [{"type": "text", "text": "s"}],
        "metadata": {"user_id": "u"},
    }
    record = ask(agents, "/v1/messages", **body, stream=stream)
    said = output(record)

    assert "message_start" in said[0] if stream else "message" == said[0]["type"]


def test_messages_that_end_with_the_assistant(agents: Served) -> None:
    """Anthropic's route goes on with the assistant's last words, as that dialect means it."""
    prefilled = [*HELLO, {"role": "assistant", "content": "1, 2,"}]
    blocks = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "1, 2,"}]}]
    asked = {"temperature": 0, "max_tokens": 8}
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    (chats,) = output(chat(agents, messages=prefilled, **asked, **goes_on))
    for messages in (prefilled, blocks):
        (reply,) = output(ask(agents, "/v1/messages", model="tiny", messages=messages, **asked))
        (count,) = output(ask(agents, "/v1/messages/count_tokens", model="tiny", messages=messages))
        said = "".join(one.get("text", one.get("thinking", "")) for one in reply["content"])
        expected = chats["choices"][0]["message"]

        assert (expected["content"] or expected["reasoning"]) == said
        assert chats["usage"]["prompt_tokens"] == reply["usage"]["input_tokens"]
        assert chats["usage"]["prompt_tokens"] == count["input_tokens"]


ANTHROPIC_ERRORS: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "nope"}, 404, "not_found_error", "does not exist"),
    ({"messages": None}, 400, "invalid_request_error", "messages"),
    ({"max_tokens": 5000}, 400, "invalid_request_error", "512"),
    (
        {"messages": [{"role": "user", "content": [{"type": "nope"}]}]},
        400,
        "invalid_request_error",
        "'text'",
    ),
    ({"messages": [{"role": "user", "content": "x " * 999}]}, 400, "invalid_request_error", "512"),
]


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("given", "code", "kind", "words"), ANTHROPIC_ERRORS)
def test_anthropics_errors(
    agents: Served,
    given: dict[str, Any],
    code: int,
    kind: str,
    words: str,
    stream: bool,
    route: str,
) -> None:
    """An error of Anthropic's route has Anthropic's envelope and types, streamed and not."""
    if "count" in route and (stream or "max_tokens" in given or words == "512"):
        return  # nothing is generated there, and nothing streamed
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "stream": stream} | given
    record = ask(agents, route, **body)
    told = failure(record)

    assert ("error", kind, code) == (told["type"], told["error"]["type"], told["error"]["code"])
    assert words in told["error"]["message"]
    assert "parameter=" not in told["error"]["message"]
    if stream:
        (post,) = record.stream
        name, data = post.value.strip().split("\n")
        assert "event: error" == name
        assert told == json.loads(data.removeprefix("data: "))


def test_anthropics_client_reads_errors(agents: Served) -> None:
    """The official client raises an error for a stream that tells one, with its sentence."""
    with (
        anthropics(agents) as client,
        pytest.raises(anthropic.APIError, match="does not exist"),
        client.messages.stream(
            model="nope", max_tokens=5, messages=[{"role": "user", "content": "Hello"}]
        ) as stream,
    ):
        stream.get_final_message()


def test_batches_change_no_event(agents: Served) -> None:
    """In posts of one and of fifty tokens the events are the same, key for key.

    A client that reads each delta's keys sees those that vLLM wrote.
    """
    for path in ("/v1/messages", "/v1/chat/completions"):
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "stream": True}
        asked = {"openai_route": path, "openai_input": body | {"temperature": 0}}
        lists = []
        for size in (1, 50):
            sizes = {"min_batch_size": size, "max_batch_size": size}
            record = agents.run(asked | sizes)
            output(record)
            # A busy engine hands over two tokens in one event: the kinds count, in their order.
            lists.append([kind for kind, _ in groupby(map(shape, events(record)))])

        assert lists[0] == lists[1]
        assert not any("tool_calls" in one for one in lists[0])
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "stream": True}
    with anthropics(agents) as client:
        kinds = [one.type for one in client.messages.create(**asked)]

    assert ("message_start", "message_stop") == (kinds[0], kinds[-1])


def shape(event: str) -> str:
    """Return an event with what differs from answer to answer left out."""
    name, _, data = event.rpartition("data: ")
    if not data.startswith("{"):
        return event
    return name + json.dumps(_same(json.loads(data)))


def _same(value: Any) -> Any:
    if isinstance(value, dict):
        differ = ("id", "created", "signature", "content", "text")
        return {k: "…" if k in differ else _same(v) for k, v in value.items()}
    return [_same(one) for one in value] if isinstance(value, list) else value


# --- models and adapters


def test_one_model_by_its_name(agents: Served) -> None:
    """`models.retrieve` answers from the list, and what is not there is a 404 in OpenAI's shape."""
    for card in agents.client.models.list().data:
        found = agents.client.models.retrieve(card.id)

        assert (card.id, card.root, card.parent) == (found.id, found.root, found.parent)
    error = failure(agents.run({"openai_route": "/v1/models/nope"}))["error"]

    assert (404, "NotFoundError", "model") == (error["code"], error["type"], error["param"])
    with pytest.raises(openai.APIStatusError, match="does not exist"):
        agents.client.models.retrieve("nope")


def test_an_adapter_whose_files_change(agents: Served, tmp_path: Path) -> None:
    """No answer is made from what an older version of the adapter's files has cached.

    In place the reload is refused with the reason; unloaded and loaded, the new files count.
    """
    folder = tmp_path / "adapter"
    shutil.copytree(models.path("tiny-lora"), folder)
    prompt = "a long prompt " * 100  # more than one block of the cache

    def load(name: str, **more: Any) -> Record:
        path = str(folder)
        return ask(agents, "/v1/load_lora_adapter", lora_name=name, lora_path=path, **more)

    def said(name: str, **more: Any) -> str:
        body = {"model": name, "prompt": prompt, "max_tokens": 20, "temperature": 0} | more
        return str(output(ask(agents, "/v1/completions", **body))[0]["choices"][0]["text"])

    assert ["Success: LoRA adapter 'changing' added successfully."] == output(load("changing"))
    old = said("changing")
    salted = said("changing", cache_salt="a")
    models.lora(folder, seed=2)
    refusal = failure(load("changing", load_inplace=True))["error"]
    assert (400, "load_inplace") == (refusal["code"], refusal["param"])
    assert "path" in refusal["message"]
    output(ask(agents, "/v1/unload_lora_adapter", lora_name="changing"))
    output(load("changing"))
    output(load("fresh"))
    new = said("changing")

    assert old == salted != new
    assert [new, new] == [said("fresh"), said("changing", cache_salt="a")]


# --- what is refused


def test_a_misspelt_adapter_route_is_no_route(agents: Served) -> None:
    """The route that EXTRA_ROUTES misspelt is none."""
    error = failure(ask(agents, "/v1/load_lora_adaptor", lora_name="a"))["error"]

    assert 404 == error["code"]
