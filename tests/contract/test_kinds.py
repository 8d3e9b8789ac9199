"""Any kind of model: served at both doors, right as transformers is, and the rest refused.

Each kind's engine is started once, one after the other. What was seen of it is what docs/models.md
says: `SAVE_KINDS=1` writes it down, otherwise it is compared.
"""

import base64
import contextlib
import json
import re
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

import both_doors
import hub_stand_in
from builds import Build
from family import page
from family.making import GGUF_PLUGIN
from family.table import (
    BY_DAY,
    CHAT,
    KINDS,
    NATIVE,
    STARTS,
    WITH_IDS,
    Ask,
    Kind,
    Refusal,
    Start,
    first_tokens,
    image,
    png,
    url,
)
from local_endpoint import Status
from local_endpoint.process import free_port
from served import DOOR_KEY, JOB_S, Served, serve

pytestmark = pytest.mark.timeout(300)
NEAR = 1e-4
NEAR_IN_HALF = 0.15  # logarithms of chances, in bfloat16
SNAPSHOT = re.compile(r"/\S+/snapshots/\w+")  # another folder each time
# Kernels for few bits want instructions that not every processor has.
TOO_OLD = re.compile(r"SIGILL|exit code: None")


@dataclass
class Both:
    """A kind's worker, with both doors, and what was seen of it so far."""

    kind: Kind
    served: Served
    url: str
    seen: dict[str, str] = field(default_factory=dict)

    def job(self, given: Ask | Refusal, **more: Any) -> list[Any]:
        """Give it as a job; returns the job's output, or its error alone."""
        body = dict(given.body) | more
        if given.files:
            (file,) = given.files.values()
            body |= {"file": base64.b64encode(file).decode(), "filename": "sound.wav"}
        route = {"openai_route": given.route, "openai_input": body}
        record = self.served.run(body if given.route == NATIVE else route)
        end = record.done[-1].value
        if record.status == Status.COMPLETED:
            return list(end["output"])
        return [json.loads(end["error"])]

    def door(self, given: Ask | Refusal, **more: Any) -> requests.Response:
        """Give it to the HTTP door."""
        path = "/native" if given.route == NATIVE else given.route
        body = dict(given.body) | more
        files = {name: ("sound.wav", data) for name, data in given.files.items()}
        return requests.post(
            self.url + path,
            headers={"Authorization": f"Bearer {DOOR_KEY}"},
            **({"data": body, "files": files} if files else {"json": body}),
            timeout=JOB_S,
        )


@contextlib.contextmanager
def both(kind: Kind) -> Iterator[Both]:
    """Bake a kind from a hub, and serve it when there is no hub any more."""
    if kind.environ.get("PYTHONPATH") == str(GGUF_PLUGIN) and not GGUF_PLUGIN.exists():
        pytest.skip("the GGUF plugin is not here; `make test-all` fetches it")
    port, name = str(free_port()), f"tiny/{kind.model}"
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        with hub_stand_in.serve() as hub:
            hub.add_folder(name, kind.folder)
            name += f":{kind.quant}" * bool(kind.quant)
            baking = Build(hub, Path(root)).bake(MODEL_NAME=name)
        assert 0 == baking.returncode, baking.stderr
        environ = {
            "MODEL_NAME": name,
            "BASE_PATH": f"{root}/models",
            "HF_HUB_OFFLINE": "1",
            "SERVED_MODEL_NAME": "it",
            "GPU_MEMORY_UTILIZATION": "0.08",
            "PORT": port,
            "API_KEY": DOOR_KEY,
            **kind.environ,
        }
        served = stack.enter_context(serve(environ, program=(both_doors.__file__,)))
        yield Both(kind, served, f"http://127.0.0.1:{port}")


def last_line(death: BaseException) -> str:
    errors = [line for line in str(death).splitlines() if line.startswith("error: ")]
    return SNAPSHOT.sub("…", errors[-1].removeprefix("error: "))


def marked(kinds: Any) -> list[Any]:
    slow = (pytest.mark.slow,)
    return [pytest.param(k, marks=() if k.model in BY_DAY else slow, id=k.model) for k in kinds]


@pytest.fixture(scope="module", params=marked(k for k in KINDS if not k.cannot))
def one(request: pytest.FixtureRequest) -> Iterator[Both]:
    with contextlib.ExitStack() as stack:
        try:
            worker = stack.enter_context(both(request.param))
        except RuntimeError as death:
            why = last_line(death)
            if not TOO_OLD.search(why):
                raise
            if "SIGILL" in why:  # else it ended before its parent knew of what
                page.keep(request.param.model, {page.CANNOT: why})
            pytest.skip(why)
        yield worker
        page.keep(worker.kind.model, worker.seen)


def near(true: Any, got: Any) -> bool:
    if isinstance(true, dict):
        return got == pytest.approx({token: true.get(token, 0) for token in got}, abs=NEAR_IN_HALF)
    if isinstance(true, list) and true and isinstance(true[0], float):
        return len(true) == len(got) and got == pytest.approx(true, abs=NEAR)
    return bool(true == got)


def test_it_answers_as_transformers_does(one: Both) -> None:
    """Every route of the kind gives what transformers gives, as a job and over HTTP."""
    wrong = []
    for ask in one.kind.asks:
        true = ask.says and ask.says(one.kind.true_folder)
        one.seen[ask.route] = "works"
        for door, reply in (("job", one.job(ask)[0]), ("HTTP", one.door(ask).json())):
            got = None if "error" in reply else ask.read(reply)
            if got is None or not (ask.says is None or near(true, got)):
                wrong.append(f"{ask.route} {door}: {true} {got} {str(reply)[:500]}")
                one.seen[ask.route] = "wrong"

    assert not wrong, "\n".join(wrong)


def test_a_stream_is_the_same_text(one: Both) -> None:
    """What a stream's pieces say together is what the whole answer says, at both doors."""
    asks = [ask for ask in one.kind.asks if ask.streams]
    if not asks:
        pytest.skip("this kind has no stream")
    for ask in asks:
        whole = text_of([one.job(ask)[0]])
        job = one.job(ask, stream=True)
        events = "".join(job) if isinstance(job[0], str) else job
        pieces = list(parsed(events)) if isinstance(events, str) else events

        assert len(pieces) > 1
        assert whole == text_of(pieces)
        assert whole == text_of(list(parsed(one.door(ask, stream=True).text)))
        one.seen[ask.route + page.STREAMS] = "works"


def parsed(events: str) -> Iterator[Any]:
    for line in events.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def text_of(replies: list[Any]) -> str:
    """Return the text of a whole answer, or of a stream's pieces."""
    found = []
    for reply in replies:
        for choice in reply.get("choices", ()):
            message = choice.get("message") or choice.get("delta") or choice
            found += message.get("tokens") or [message.get("content") or message.get("text") or ""]
        found.append(reply.get("text", ""))
    return "".join(found)


def test_what_it_cannot_do_is_refused_in_a_sentence(one: Both) -> None:
    """A user's mistake is answered by a sentence that helps, the same at both doors."""
    wrong = []
    for refusal in one.kind.refusals:
        told = one.job(refusal)[0]["error"]
        reply = one.door(refusal)
        over_http = reply.json()["error"]
        if refusal.sentence not in told["message"] or told["message"] != over_http["message"]:
            wrong.append(f"{refusal.route} {refusal.sentence}: {told} {over_http}")
        assert told["code"] == reply.status_code
        one.seen[f"{refusal.route}: {refusal.mistake}"] = told["message"].partition(" Routes: ")[0]

    assert not wrong, "\n".join(wrong)
    assert one.served.process.poll() is None


@pytest.mark.slow
def test_an_image_by_its_address(tmp_path: Path) -> None:
    """An image that lies on a server is seen as the same one in the request is."""
    (kind,) = (one for one in KINDS if one.model == "kind-sees")
    (tmp_path / "red.png").write_bytes(base64.b64decode(png("red")))
    files = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    environ = {**kind.environ, "ALLOW_PRIVATE_MEDIA": "1"}
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), files) as server,
        both(replace(kind, environ=environ)) as one,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/red.png"
        asks = [
            Ask(CHAT, image(where) | WITH_IDS, None, first_tokens)
            for where in (url("red"), address)
        ]
        told = [[one.job(ask)[0], one.door(ask).json()] for ask in asks]
        server.shutdown()

    (first, *others) = (first_tokens(reply) for replies in told for reply in replies)
    assert [first] * 3 == others


def failure(kind: Kind) -> str:
    with pytest.raises(RuntimeError) as death, both(kind):
        pass
    return last_line(death.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(k, id=k.model) for k in KINDS if k.cannot])
def test_what_the_cpu_build_cannot_serve_says_why(kind: Kind) -> None:
    """A kind that vLLM's CPU build does not run ends the start, with vLLM's own reason."""
    why = failure(kind)
    page.keep(kind.model, {page.CANNOT: why})

    assert kind.cannot in why


@pytest.mark.slow
@pytest.mark.parametrize("start", [pytest.param(one, id=one.model) for one in STARTS])
def test_a_start_that_fails_says_what_helps(start: Start) -> None:
    """A variable that the kind needs, or cannot have, is named by the last line."""
    (kind,) = (one for one in KINDS if one.model == start.model)
    why = failure(replace(kind, environ=start.environ))
    page.keep(start.key, {start.mistake: why})

    assert start.sentence in why
