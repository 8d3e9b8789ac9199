"""The HTTP door on a real engine: the same answers, real statuses, and health to the end."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import requests

import models
from served import DOOR_KEY, ENVIRON, ORIGIN, Door, Served, family_of, serve_door, start_door
from waiting import is_alive, wait_until

pytestmark = pytest.mark.timeout(400)

TINY = {"MODEL_NAME": str(models.path("tiny")), "SERVED_MODEL_NAME": "tiny,also-tiny"}
KEY = {"authorization": f"Bearer {DOOR_KEY}"}
VLLM_SERVE = "vllm.entrypoints.launchers.api_server.entry"  # what `vllm serve` runs
MESSAGES = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0.0, "max_tokens": 12}
ENDLESS = {"ignore_eos": True}
ONE_BY_ONE = {"min_batch_size": 1, "max_batch_size": 1}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", GREEDY | {"messages": MESSAGES, "logprobs": True}),
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 2, "seed": 1, "max_tokens": 12}),
    ("/v1/completions", GREEDY | {"prompt": "Hello", "stop": ["e"]}),
    ("/v1/completions", GREEDY | {"prompt": ["Hello", "you"], "model": "also-tiny"}),
    ("/v1/completions", GREEDY | {"prompt": "Hello", "generation_parameters": {"top_k": 5}}),
    ("/v1/messages", GREEDY | {"messages": MESSAGES}),
    ("/v1/responses", {"input": "Hello", "temperature": 0.0, "max_output_tokens": 12}),
    ("/tokenize", {"prompt": "Hello"}),
]
STREAMED = [  # of one answer: those of several come in any order
    (path, {name: value for name, value in body.items() if name != "logprobs"})
    for path, body in REQUESTS
    if path.startswith("/v1") and "n" not in body and not isinstance(body.get("prompt"), list)
]
# What differs between two askings: ids and times; and between two servers, a sum of their options.
OWN = re.compile(
    r"vllm-[\d.]+-[0-9a-f]+|(chatcmpl|cmpl|msg|resp|rs|gen)[-_][\w-]+|\b[0-9a-f]{16,32}\b"
    r'|"(created|created_at|completed_at)":\s?[\d.]+|\x00'
)
# Of an event what depends on how many tokens it holds.
TEXT = r'"(?:text|content|delta)":\s?"((?:[^"\\]|\\.)*)"'
UNEVEN = TEXT + r'|"sequence_number":\s?\d+'


def post(door: Door, path: str, body: Any, **options: Any) -> requests.Response:
    return requests.post(f"{door.url}{path}", json=body, headers=KEY, timeout=60, **options)


def plain(text: str) -> str:
    return OWN.sub("", text)


def told(stream: str) -> tuple[list[str], str]:
    """Return the kinds of events in a stream, each once in a row, and the text of all."""
    kinds: list[str] = []
    text = ""
    for event in plain(stream).strip().split("\n\n"):
        text += "".join(re.findall(TEXT, event))
        kind = re.sub(UNEVEN, "", event)
        if kinds[-1:] != [kind]:
            kinds.append(kind)
    return kinds, text


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_the_same_reply_as_a_jobs(
    door: Door, tiny: Served, path: str, body: dict[str, Any]
) -> None:
    """A request is answered as a job with the same body is, apart from ids and times."""
    reply = post(door, path, body)
    record = tiny.run({"openai_route": path, "openai_input": body})

    assert 200 == reply.status_code, reply.text
    (output,) = record.done[-1].value["output"]
    assert plain(json.dumps(output)) == plain(json.dumps(reply.json()))


@pytest.mark.parametrize(("path", "body"), STREAMED)
def test_the_same_stream_as_a_jobs(
    door: Door, tiny: Served, path: str, body: dict[str, Any]
) -> None:
    """A stream has the events that a job's has, and together the same text.

    How many tokens a slow machine's vLLM puts into one event is another matter.
    """
    body = body | {"stream": True}
    reply = post(door, path, body)
    record = tiny.run({"openai_route": path, "openai_input": body} | ONE_BY_ONE)

    assert told("".join(post.value for post in record.stream)) == told(reply.text)


def test_many_streams_say_each_its_own(door: Door) -> None:
    """Streams whose events may have to share a budget say together what one alone says."""
    bodies = [
        GREEDY | {"prompt": f"{i} is", "max_tokens": 100, "logprobs": 1} | ENDLESS
        for i in range(64)
    ]

    def streamed(body: dict[str, Any]) -> tuple[str, int]:
        events = [
            json.loads(line.removeprefix("data: "))["choices"][0]
            for line in post(door, "/v1/completions", body | {"stream": True}).text.splitlines()
            if line.startswith("data: {")
        ]
        text = "".join(event["text"] for event in events)
        return text, sum(len(event["logprobs"]["tokens"]) for event in events)

    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(streamed, bodies))

    assert [100] * len(bodies) == [tokens for _, tokens in together]
    assert all(together[i] == streamed(bodies[i]) for i in (0, 31, 63))


def test_native(door: Door, tiny: Served) -> None:
    """The native dialect answers as a job does, in one object or in events."""
    given = {"prompt": "Hello", "sampling_params": GREEDY | {"output_scores": 2}}
    (output,) = tiny.run(given).done[-1].value["output"]
    stream = post(door, "/native", given | {"stream": True}).text.strip().split("\n\n")
    events = [json.loads(event.removeprefix("data: ")) for event in stream[:-1]]

    assert output == post(door, "/native", given).json()
    assert "data: [DONE]" == stream[-1]
    assert 12 == events[-1]["usage"]["output"]
    tokens = [token for event in events for token in event["choices"][0]["tokens"]]
    assert "".join(output["choices"][0]["tokens"]) == "".join(tokens)


@pytest.mark.parametrize("path", ["/native", "/v1/completions"])
def test_the_same_id_twice(door: Door, path: str) -> None:
    """Requests that run at once under one id each get their own answer."""
    given = GREEDY | {"max_tokens": 60} | ENDLESS
    bodies: list[dict[str, Any]] = [
        {"prompt": word} | ({"sampling_params": given} if path == "/native" else given)
        for word in ("Hello", "Moon", "and so", "Why?")
    ]

    def said(body: dict[str, Any], **named: str) -> str:
        reply = requests.post(f"{door.url}{path}", json=body, headers=KEY | named, timeout=60)
        assert 200 == reply.status_code
        return str(reply.json()["choices"])

    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: said(body, **{"x-request-id": "same"}), bodies))

    assert [said(body) for body in bodies] == together
    assert len(set(together)) == len(bodies)


ERRORS: list[tuple[str, dict[str, Any], type[openai.APIStatusError]]] = [
    ("chat", {"temperature": 9.0}, openai.BadRequestError),
    ("chat", {"model": "nope"}, openai.NotFoundError),
    ("chat", {"extra_body": {"generation_parameters": {"nope": 1}}}, openai.BadRequestError),
    ("chat", {"max_tokens": 10**6}, openai.BadRequestError),
    ("chat", {"extra_body": {"structured_outputs": {"regex": "("}}}, openai.BadRequestError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("_", "given", "kind"), ERRORS)
def test_openais_client_raises_what_it_is(
    door: Door, _: str, given: dict[str, Any], kind: type[openai.APIStatusError], stream: bool
) -> None:
    """A caller's fault is the client's own exception, and is sent once."""
    before = door.log().count(" failed, ")
    with door.client() as client, pytest.raises(kind) as raised:
        client.chat.completions.create(
            **{"model": "tiny", "messages": MESSAGES, "stream": stream} | given
        )

    assert raised.value.status_code == raised.value.body["code"]
    assert before + 1 == door.log().count(" failed, ")
    assert raised.value.response.headers["x-request-id"] in door.log()


def test_keys_and_routes(door: Door) -> None:
    """A wrong key is 401 and a wrong route 404, as the clients know them; health needs no key."""
    with door.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with door.client() as client, pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat")
    with (
        anthropic.Anthropic(base_url=door.url, auth_token=DOOR_KEY) as claude,
        pytest.raises(anthropic.NotFoundError) as raised,
    ):
        claude.messages.create(
            model="nope", max_tokens=5, messages=[{"role": "user", "content": "Hello"}]
        )

    assert "not_found_error" == raised.value.body["error"]["type"]
    assert 200 == door.health()


def test_a_web_page_may_ask(door: Door) -> None:
    """A page may ask whose origin ALLOWED_ORIGINS names, and no other; a refusal says so too."""
    asks = {"origin": ORIGIN, "access-control-request-method": "POST"}
    allowed = requests.options(f"{door.url}/v1/completions", headers=asks, timeout=60)
    other = requests.options(
        f"{door.url}/v1/completions", headers=asks | {"origin": "https://evil.example"}, timeout=60
    )
    refused = requests.post(f"{door.url}/v1/completions", headers={"origin": ORIGIN}, timeout=60)

    assert (200, 400) == (allowed.status_code, other.status_code)
    assert ORIGIN == allowed.headers["access-control-allow-origin"]
    assert (401, ORIGIN) == (refused.status_code, refused.headers["access-control-allow-origin"])


def test_leaving_stops_the_answer(door: Door) -> None:
    """A client that leaves a stream has its request aborted, and a line in the log."""
    body = {"prompt": "Hello", "max_tokens": 480, "stream": True} | ENDLESS
    with post(door, "/v1/completions", body, stream=True) as reply:
        request_id = reply.headers["x-request-id"]
        next(reply.iter_lines())

    wait_until(lambda: f"job {request_id} cancelled" in door.log())
    wait_until(lambda: "vllm:num_requests_running{" in _metrics(door))
    wait_until(lambda: re.search(r"num_requests_running\{.*\} 0\.0", _metrics(door)) is not None)


def _metrics(door: Door) -> str:
    return requests.get(f"{door.url}/metrics", headers=KEY, timeout=60).text


def test_metrics(door: Door) -> None:
    """Prometheus reads vLLM's metrics and the worker's under their names, whatever it accepts."""
    openmetrics = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    reply = requests.get(f"{door.url}/metrics", headers=KEY | openmetrics, timeout=60)

    assert "vllm:num_requests_running{" in reply.text
    assert "worker_jobs_total{" in reply.text


class Watch:
    """The answers of a health check over time, each with how long after the first it came."""

    def __init__(self, door: Door) -> None:
        self.seen: list[tuple[float, int]] = []
        self._door, self._over = door, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        print("\n".join(f"{at_s:8.2f} s  {status}" for at_s, status in self.seen))

    def _watch(self) -> None:
        began_s = time.monotonic()
        while not self._over.wait(0.1):
            status = self._door.health()
            if not self.seen or self.seen[-1][1] != status:
                self.seen.append((time.monotonic() - began_s, status))

    @property
    def statuses(self) -> list[int]:
        return [status for _, status in self.seen]


def test_health_from_start_to_death() -> None:
    """Health is 204 while the worker loads, 200 when it is ready, 503 when its engine was killed.

    Until it is ready a request is told to come back, and when the engine dies it is told so.
    """
    with (
        start_door(TINY | {"MAX_MODEL_LEN": "2048"}) as door,
        Watch(door) as watch,
        door.client(max_retries=0) as client,
    ):
        wait_until(lambda: 204 in watch.statuses, 60)
        early = post(door, "/v1/completions", {"prompt": "Hello"})
        wait_until(lambda: 200 in watch.statuses, 240)
        family = family_of(door.process)
        post(door, "/v1/completions", {"prompt": "Hello", "max_tokens": 2})  # the first is slow
        with client.completions.create(
            model="tiny", prompt="Hello", n=32, stream=True, max_tokens=2000, extra_body=ENDLESS
        ) as stream:
            chunks = iter(stream)
            next(chunks)
            core = next(one for one in family if "EngineCore" in "".join(one.cmdline()))
            core.kill()
            killed_s = time.monotonic()
            wait_until(lambda: 503 in watch.statuses, 10)
            noticed_s = time.monotonic() - killed_s
            with pytest.raises(openai.APIError, match="engine stopped"):
                list(chunks)
        code = door.process.wait(20)
        wait_until(lambda: not any(map(is_alive, family)), 10)

    assert (503, "10") == (early.status_code, early.headers["retry-after"])
    assert [204, 200, 503] == [status for status in watch.statuses if status]
    print(f"503 after {noticed_s:.2f} s")
    assert 1 == code


@pytest.mark.slow
def test_an_orderly_end_under_load() -> None:
    """At SIGTERM no new request is taken, and those that run come to their end."""
    with serve_door(TINY | {"MAX_MODEL_LEN": "512"}) as door, door.client(max_retries=0) as client:
        streams = [
            client.completions.create(
                model="tiny", prompt="Hello", stream=True, max_tokens=400, extra_body=ENDLESS
            )
            for _ in range(4)
        ]
        for one in streams:
            next(one)
        door.process.send_signal(signal.SIGTERM)
        wait_until(lambda: door.health() == 0, 10)
        reasons = [list(one)[-1].choices[0].finish_reason for one in streams]

        assert ["length"] * 4 == reasons
        assert 0 == door.process.wait(30)


@pytest.mark.slow
def test_a_second_signal_ends_at_once() -> None:
    """A second SIGTERM does not wait for what runs."""
    with serve_door(TINY) as door, door.client(max_retries=0) as client:
        with client.completions.create(
            model="tiny", prompt="Hello", stream=True, max_tokens=480, extra_body=ENDLESS
        ) as stream:
            next(stream)
            for _ in range(2):
                door.process.send_signal(signal.SIGTERM)
                time.sleep(0.3)

        assert 128 + signal.SIGTERM == door.process.wait(5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_as_vllms_own_server(door: Door, tmp_path: Path) -> None:
    """`vllm serve` with the same model answers the same, apart from ids and times."""
    asked = [
        (path, {"model": "tiny"} | body | {"stream": given is STREAMED})
        for given in (REQUESTS, STREAMED)
        for path, body in given
        if "generation_parameters" not in body
    ]
    # The door first: while its engine works, the other's start would take minutes.
    ours = [_said(post(door, path, body)) for path, body in asked]
    port = "18431"
    command = [
        *(sys.executable, "-m", VLLM_SERVE, "--model", TINY["MODEL_NAME"]),
        *("--served-model-name", "tiny", "also-tiny", "--port", port, "--dtype", "float32"),
        *("--enforce-eager", "--max-model-len", ENVIRON["MAX_MODEL_LEN"]),
    ]
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, env=os.environ | ENVIRON, stdout=file, stderr=file, process_group=0
        ) as server,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: _is_up(url) or server.poll() is not None, 600, log.read_text)
            assert server.poll() is None, log.read_text()[-4000:]
            for (path, body), our in zip(asked, ours, strict=True):
                assert our == _said(requests.post(f"{url}{path}", json=body, timeout=60))
        finally:
            server.send_signal(signal.SIGINT)


def _said(reply: requests.Response) -> tuple[int, object]:
    is_stream = "text/event-stream" in reply.headers["content-type"]
    return reply.status_code, told(reply.text) if is_stream else plain(reply.text)


def _is_up(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False
