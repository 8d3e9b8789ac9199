"""What a batch promises of its lines and its files, with answers that are given instead of made."""

import asyncio
import gzip
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from s3_server import client_of
from waiting import wait_until
from worker.batching import WHOLE, BatchSizes, Outbox
from worker.bulk import call as bulk_call
from worker.bulk.call import BatchCall, Bulk
from worker.call import begin
from worker.engine.places import Places
from worker.errors import EngineDied, RequestError
from worker.facts import Limits
from worker.record import Usage
from worker.request import BatchRequest, NativeRequest, Request, RouteRequest, read
from worker.storage import addresses
from worker.storage.bucket import Keys
from worker.storage.folder import Folder
from worker.storage.stores import Stores

pytestmark = pytest.mark.timeout(60)

PLACES = 8
OWN = {"key_id": "worker", "secret": "workers-secret", "home": "home/jobs", "is_bound": True}


class Free(Places):
    """Places that nobody else takes."""

    def __init__(self) -> None:
        self.number = PLACES
        self.others = 0

    @property
    def taken(self) -> int:
        return self.others

    @property
    def is_busy(self) -> bool:
        return False


class Answers:
    """A dialect that answers with the prompt's length, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.order: list[str] = []
        self.at_once = self.most = 0
        self.hold: asyncio.Event | None = None
        self.dies_at = 0

    def __call__(self, asked: Request) -> Any:
        answers = self

        class Call:
            usage = Usage(3, 2)

            async def answer(self, outbox: Outbox[Any]) -> None:
                prompt = prompt_of(asked)
                answers.asked[prompt] += 1
                answers.order.append(prompt)
                answers.at_once += 1
                answers.most = max(answers.most, answers.at_once)
                try:
                    if answers.dies_at and len(answers.order) >= answers.dies_at:
                        raise EngineDied()
                    await asyncio.sleep(0.001)
                    if answers.hold and len(answers.order) > PLACES:
                        await answers.hold.wait()
                    if "refuse" in prompt:
                        raise RequestError("No.", param="prompt")
                    outbox.put({"length": len(prompt)}, 0, 10)
                finally:
                    answers.at_once -= 1

            def join(self, items: list[Any]) -> Any:
                return items[0]

            def failure(self, error: RequestError) -> list[Any]:
                return [error.told()]

        return Call()


def prompt_of(asked: Request) -> str:
    if isinstance(asked, NativeRequest):
        return str(asked.prompts[0])
    assert isinstance(asked, RouteRequest)
    return str(asked.body["prompt"])


async def no_update(*_: Any) -> None:
    raise AssertionError("a batch of a moment tells of no progress")


def bulk(answers: Answers, folder: Path, keys: Keys | None = None, **more: Any) -> Bulk:
    private = more.pop("may_be_private", True)
    given: dict[str, Any] = {
        "dialect": answers,
        "places": Free(),
        "stores": Stores(Folder(str(folder)), keys, private),
        "limits": Limits(),
        "reserved": 2,
        "max_line_bytes": 4_000_000,
        "max_result_bytes": 10_000_000,
        "tell": no_update,
    }
    return Bulk(**given | more)


def line(name: str, prompt: str | None = None) -> dict[str, Any]:
    body = {"prompt": prompt or f"prompt {name}"}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def asked_for(batch: dict[str, Any], **job: Any) -> BatchRequest:
    asked = read({"id": "job", "input": {"batch": batch}, **job}, BatchSizes(max_delay_s=0))
    assert isinstance(asked, BatchRequest)
    return asked


async def answer(setting: Bulk, batch: dict[str, Any], **job: Any) -> list[Any]:
    """Return what a batch yields, as the handler joins it."""
    asked = asked_for(batch, **job)
    call = BatchCall(asked, setting)
    outbox: Outbox[Any] = Outbox(asked.sizes if asked.stream else WHOLE)
    answering = begin(call.answer(outbox), outbox)
    yields = []
    try:
        while (items := await outbox.next()) is not None:
            yields.append(call.join(items))
    finally:
        answering.cancel()
    return yields


def run(setting: Bulk, batch: dict[str, Any], **job: Any) -> list[Any]:
    return asyncio.run(answer(setting, batch, **job))


def results(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(one) for one in content.splitlines()]


BAD_LINES = [
    (b"{not json}\n", "no JSON"),
    (b'"text"\n', "must be an object"),
    (b'{"url": "/v1/completions", "body": {}}\n', "no custom_id"),
    (jsonl(line("a") | {"extra": 1}), '"extra"'),
    (jsonl(line("a") | {"url": "http://elsewhere/v1"}), "not a route"),
    (jsonl(line("a") | {"body": {"prompt": "x", "stream": True}}), "stream"),
    (jsonl({"id": "a", "batch": {"input": []}}), "no batch"),
    (jsonl({"id": "a", "prompt": "x", "promt": 1}), "promt"),
    (jsonl({"id": "a", "prompt": "refuse"}), "No."),
    (
        b'{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "\\ud800"}}\n',
        "is no JSON",
    ),
    (jsonl(line("a\ud800")), "is no JSON"),
    (jsonl(line("first")), 'the custom_id "first" too'),
    (jsonl(line("a", "x" * 5_000_000)), "MAX_LINE_MB"),
]


@pytest.mark.parametrize(("bad", "sentence"), BAD_LINES)
def test_a_bad_line_is_a_line_with_an_error(tmp_path: Path, bad: bytes, sentence: str) -> None:
    """Whatever is wrong with a line is said in its result, and the lines around it are answered.

    Sent again, none of them is computed or written a second time.
    """
    answers = Answers()
    (tmp_path / "in.jsonl").write_bytes(jsonl(line("first")) + bad + jsonl(line("last")))
    batch = {"input": "in.jsonl", "output": "out.jsonl", "ordered": True}
    said = [run(bulk(answers, tmp_path), batch)[-1]["batch"] for _ in range(2)]
    first, wrong, last = results(tmp_path / "out.jsonl")

    assert [200, 200] == [one["response"]["status_code"] for one in (first, last)]
    assert ["first", "last"] == [first["custom_id"], last["custom_id"]]
    assert sentence in wrong["error"]["message"]
    assert [(3, 1)] * 2 == [(one["done"], one["failed"]) for one in said]
    assert {1} == {count for prompt, count in answers.asked.items() if prompt != "refuse"}


def test_results_are_openais(tmp_path: Path) -> None:
    """A result line is one of OpenAI's Batch API, and a native input with an id has one too."""
    lines = [line("a"), {"id": "b", "prompt": "refuse"}]
    run(bulk(Answers(), tmp_path), {"input": lines, "output": "out.jsonl"})
    good, bad = sorted(results(tmp_path / "out.jsonl"), key=lambda one: one["id"])

    assert {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "job-1", "body": {"length": 8}},
        "error": None,
    } == good
    assert {"code": "BadRequestError", "message": "No."} == bad["error"]
    assert 400 == bad["response"]["status_code"] == bad["response"]["body"]["error"]["code"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "a/b/out.jsonl"])
@pytest.mark.parametrize("is_gzip", [False, True])
def test_a_stopped_batch_goes_on(tmp_path: Path, name: str, is_gzip: bool) -> None:
    """A cancelled batch leaves a valid file of what is done, and then goes on where it stopped.

    A torn end, as a killed worker leaves it, is cut off first. In the end every line is there
    once, in the order of the input, and none was computed twice but those under way.
    """
    content = jsonl(*(line(str(i)) for i in range(200)))
    (tmp_path / "in").write_bytes(gzip.compress(content) if is_gzip else content)
    batch = {"input": "in", "output": name, "ordered": True}
    answers = Answers()

    async def stop_halfway() -> None:
        running = asyncio.create_task(answer(bulk(answers, tmp_path), batch))
        while len(answers.order) < 100:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(stop_halfway())
    wait_until(lambda: not any(one.name.startswith("batch") for one in threading.enumerate()))
    out = tmp_path / name
    half = results(out)
    with out.open("ab") as file:
        file.write(gzip.compress(b'{"id": "batch_req_7", "custom_id": "7"')[:20])
    said = run(bulk(answers, tmp_path), batch)[-1]["batch"]

    assert 100 - PLACES <= len({one["custom_id"] for one in half}) == len(half) < 200
    assert [str(i) for i in range(200)] == [one["custom_id"] for one in results(out)]
    assert 200 == said["done"]
    assert sum(answers.asked.values()) <= 200 + PLACES
    assert 0 == run(bulk(fresh := Answers(), tmp_path), batch)[-1]["batch"]["failed"]
    assert not fresh.asked


def test_the_engine_dies(tmp_path: Path) -> None:
    """When the engine dies the batch fails with its sentence, and what was answered is on disk."""
    answers = Answers()
    answers.dies_at = 100
    lines = [line(str(i)) for i in range(200)]
    batch = {"input": lines, "output": "out.jsonl"}
    with pytest.raises(EngineDied):
        run(bulk(answers, tmp_path), batch)
    done = len(results(tmp_path / "out.jsonl"))
    answers.dies_at = 0
    run(bulk(answers, tmp_path), batch)
    every = results(tmp_path / "out.jsonl")

    # As many may be under way, and as many more on their way to the disk.
    assert 99 - 2 * PLACES <= done < 100
    assert 200 == len(every) == len({one["custom_id"] for one in every})


def test_room_is_left_to_others(tmp_path: Path) -> None:
    """A batch takes the engine's places but those reserved, fewer where others take some too.

    A line of several answers takes as many places, and `concurrency` is an upper bound.
    """
    lines = [line(str(i)) for i in range(100)]
    most = []
    for others, batch in ((0, {}), (4, {}), (50, {}), (0, {"concurrency": 3})):
        answers = Answers()
        setting = bulk(answers, tmp_path)
        setting.places.others = others  # type: ignore[attr-defined]
        run(setting, {"input": lines} | batch)
        most.append(answers.most)
    many = [line(str(i)) for i in range(20)]
    for one in many:
        one["body"]["n"] = 3
    run(bulk(answers := Answers(), tmp_path), {"input": many})

    assert [PLACES - 2, PLACES - 2 - 4, 1, 3] == most
    assert 2 == answers.most


def test_lines_that_begin_alike_are_near_each_other(tmp_path: Path) -> None:
    """Within a window lines go by their beginning, so that the prefix cache serves them."""
    prompts = [f"{'abc'[i % 3] * 100} {i}" for i in range(30)]
    lines = [line(str(i), prompt) for i, prompt in enumerate(prompts)]
    answers = Answers()
    run(bulk(answers, tmp_path), {"input": lines, "output": "out.jsonl"})

    assert 2 == sum(a[0] != b[0] for a, b in zip(answers.order, answers.order[1:], strict=False))


def test_without_output_the_lines_are_the_jobs_own(tmp_path: Path) -> None:
    """Without output lines stream as they are ready, and a summary ends them."""
    *some, last = run(bulk(Answers(), tmp_path), {"input": [line(str(i)) for i in range(50)]})
    found = [one["custom_id"] for piece in [*some, last] for one in piece["lines"]]

    assert sorted(map(str, range(50))) == sorted(found)
    assert (50, 0, 150, 100) == tuple(
        last["batch"][key] for key in ("done", "failed", "prompt_tokens", "output_tokens")
    )
    assert [] == list(tmp_path.iterdir())


def test_a_jobs_own_output_is_bounded(tmp_path: Path) -> None:
    """At MAX_RESULT_MB the batch ends with a sentence that says how to go on."""
    setting = bulk(Answers(), tmp_path, max_result_bytes=10_000)
    pieces = run(setting, {"input": [line(str(i)) for i in range(500)]})

    assert "MAX_RESULT_MB" in pieces[-1]["batch"]["ended"]
    assert 10 < sum(len(piece["lines"]) for piece in pieces) < 100
    assert sum(len(json.dumps(piece)) for piece in pieces) <= 10_000


def test_files_that_are_not_the_batchs_own(tmp_path: Path) -> None:
    """What is there and was not made by this batch is never overwritten, whatever made it."""
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / ".out.batch").write_text("mine too")
    run(bulk(Answers(), tmp_path), {"input": [line("a")], "output": "others.jsonl"})
    there = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("mine.txt", "others.jsonl", "out"):
        with pytest.raises(RequestError, match="is there already") as refused:
            run(bulk(Answers(), tmp_path), {"input": [line("b")], "output": name})
        assert 409 == refused.value.code

    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert there == {name: left[name] for name in there}


@pytest.mark.parametrize("key", ["input", "output"])
@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/passwd", "a/../../out", "link/file", "file-link", "pipe", "folder", "x\0y"],
)
def test_no_path_leads_out_of_the_folder(tmp_path: Path, key: str, name: str) -> None:
    """Neither a path nor a link reaches anything outside of BATCH_FOLDER."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside, inside / "folder"):
        folder.mkdir()
    (outside / "file").write_bytes(jsonl(line("a")))
    (inside / "link").symlink_to(outside)
    (inside / "file-link").symlink_to(outside / "file")
    os.mkfifo(inside / "pipe")
    good = {"input": [line("a")], "output": "good"}
    with pytest.raises(RequestError, match=key):
        run(bulk(Answers(), inside), good | {key: name})

    assert ["file"] == [path.name for path in outside.iterdir()]
    assert jsonl(line("a")) == (outside / "file").read_bytes()


def test_there_is_no_volume(tmp_path: Path) -> None:
    """Without a volume the sentence names the variable."""
    with pytest.raises(RequestError, match="BATCH_FOLDER"):
        run(bulk(Answers(), tmp_path / "no" / "batches"), {"input": [line("a")], "output": "out"})


def test_a_full_volume(volume: Path) -> None:
    """A full volume ends the batch with a sentence, and leaves whole lines to go on from."""
    lines = [line(str(i), "x" * 2000) for i in range(3000)]
    (volume / "ballast").write_bytes(b"x" * 1_900_000)
    batch = {"input": lines, "output": "out.jsonl"}
    with pytest.raises(RequestError, match="no room left") as refused:
        run(bulk(answers := Answers(), volume), batch)
    half = results(volume / "out.jsonl")
    (volume / "ballast").unlink()
    run(bulk(answers, volume), batch)
    every = results(volume / "out.jsonl")

    assert 507 == refused.value.code
    assert 0 < len(half) < 3000
    assert 3000 == len(every) == len({one["custom_id"] for one in every})


def test_an_input_that_breaks_off(tmp_path: Path) -> None:
    """A damaged file ends the batch with a sentence once the lines before that are answered."""
    content = gzip.compress(jsonl(*(line(str(i)) for i in range(5000))))
    (tmp_path / "in.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(RequestError, match="breaks off or is damaged after line") as told:
        run(bulk(Answers(), tmp_path), {"input": "in.gz", "output": "out"})
    after = int(told.value.message.partition("after line ")[2].partition(":")[0].replace(",", ""))

    assert 1000 < after == len(results(tmp_path / "out")) < 5000


def test_an_input_that_is_not_there(tmp_path: Path) -> None:
    """A wrong name leaves nothing behind, so that the right one can have the same output."""
    with pytest.raises(RequestError, match="does not exist"):
        run(bulk(Answers(), tmp_path), {"input": "in.jsonl", "output": "out"})

    assert [] == list(tmp_path.iterdir())


@pytest.fixture
def web() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server of files, to which a PUT adds one; some of its answers are bad."""
    files: dict[str, bytes] = {}

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/to/"))
                self.end_headers()
                return
            content = files.get(self.path.partition("?")[0])
            self.send_response(403 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"") + 7 * ("half" in self.path)))
            self.end_headers()
            self.wfile.write(content or b"")

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if "refuse" not in self.path:
                files[self.path.partition("?")[0]] = content
            self.send_response(403 if "refuse" in self.path else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("0.0.0.0", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


def test_addresses(tmp_path: Path, web: tuple[str, dict[str, bytes]]) -> None:
    """An input is fetched from an address, and a PUT takes the results, also compressed."""
    url, files = web
    files["/in.jsonl"] = jsonl(line("a"), line("b"))
    for name in ("/out.jsonl", "/out.jsonl.gz"):
        batch = {"input": f"{url}/in.jsonl?sig=secret", "output": f"{url}{name}?sig=secret"}
        said = run(bulk(Answers(), tmp_path), batch | {"ordered": True})[-1]["batch"]
        content = gzip.decompress(files[name]) if name.endswith(".gz") else files[name]

        assert ["a", "b"] == [json.loads(one)["custom_id"] for one in content.splitlines()]
        assert f"{url}{name}" == said["output"]


@pytest.mark.parametrize(
    ("key", "path", "sentence"),
    [
        ("input", "/missing", "answered 403"),
        ("input", "/half", "stopped after"),
        ("output", "/refuse", "answered 403"),
    ],
)
def test_addresses_that_fail(
    tmp_path: Path, web: tuple[str, dict[str, bytes]], key: str, path: str, sentence: str
) -> None:
    """What an address does wrong is a sentence without what signs it."""
    url, files = web
    files["/half"] = jsonl(line("a"))
    batch = {"input": [line("a")], key: f"{url}{path}?sig=secret"}
    with pytest.raises(RequestError, match=sentence) as refused:
        run(bulk(Answers(), tmp_path), batch)

    assert "secret" not in refused.value.message


@pytest.mark.parametrize("key", ["input", "output", "bucket"])
def test_private_addresses(
    tmp_path: Path,
    web: tuple[str, dict[str, bytes]],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No address, redirect or endpoint of a job's leads into a private network."""
    url, files = web
    files["/in"] = jsonl(line("a"))
    port, own, judge = url.rpartition(":")[2], "127.0.0.2", addresses.is_public
    # The one address that plays the public server; everything else is judged as it is.
    monkeypatch.setattr(addresses, "is_public", lambda ip: ip == own or judge(ip))
    setting = bulk(Answers(), tmp_path, may_be_private=False)
    job = {}
    if key == "bucket":
        job["s3Config"] = {"endpointUrl": url, "accessId": "a", "accessSecret": "b"}
        batch = {"input": "s3://bucket/in"}
        wrong = [batch]
    else:
        good = {"input": f"http://{own}:{port}/in"}
        assert 1 == run(setting, good)[-1]["batch"]["done"]
        names = [url, f"http://{own}:{port}/to/{url}"] if key == "input" else [url]
        wrong = [good | {key: f"{name}/in"} for name in names]
    for one in wrong:
        with pytest.raises(RequestError, match="ALLOW_PRIVATE_MEDIA"):
            run(setting, one, **job)


def test_a_bucket(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch reads from the worker's bucket and writes there; parts of it outlive a dead worker.

    At the end they are one object, which no other batch overwrites.
    """
    client = client_of(s3)
    client.put_object(
        Bucket="home", Key="jobs/in.jsonl", Body=jsonl(*(line(str(i)) for i in range(200)))
    )
    monkeypatch.setattr("worker.bulk.target.SHIP_S", 0.0)
    monkeypatch.setattr("worker.bulk.target.MERGED", 3)
    answers = Answers()
    answers.dies_at = 150
    setting = bulk(answers, tmp_path, Keys(s3, may_be_private=True, **OWN))  # type: ignore[arg-type]
    batch = {"input": "s3://home/jobs/in.jsonl", "output": "s3://home/jobs/out.jsonl.gz"}
    with pytest.raises(EngineDied):
        run(setting, batch)
    parts = client.list_objects_v2(Bucket="home", Prefix="jobs/out.jsonl.gz.parts/")["Contents"]
    answers.dies_at = 0
    said = run(setting, batch)[-1]["batch"]
    content = client.get_object(Bucket="home", Key="jobs/out.jsonl.gz")["Body"].read()
    names = [json.loads(one)["custom_id"] for one in gzip.decompress(content).splitlines()]
    left = client.list_objects_v2(Bucket="home", Prefix="jobs/out.jsonl.gz.parts/")
    again = run(setting, batch)[-1]["batch"]

    assert parts
    assert sorted(map(str, range(200))) == sorted(names)
    assert 200 == said["done"] == again["done"]
    assert sum(answers.asked.values()) <= 200 + PLACES
    assert "Contents" not in left
    for name in ("jobs/in.jsonl", "jobs/out.jsonl.gz"):
        with pytest.raises(RequestError, match="is there already"):
            run(setting, {"input": [line("a")], "output": f"s3://home/{name}"})


def test_whose_keys(tmp_path: Path, s3: str) -> None:
    """The worker's keys open its own folder alone, and a job's s3Config borrows nothing of them."""
    client_of(s3).put_object(Bucket="callers", Key="in", Body=jsonl(line("a")))
    own = bulk(Answers(), tmp_path, Keys(s3, may_be_private=True, **OWN))  # type: ignore[arg-type]
    config = {"endpointUrl": s3, "accessId": "a", "accessSecret": "b", "bucketName": "callers"}
    batch = {"input": "s3://callers/in"}

    assert 1 == run(own, batch, s3Config=config)[-1]["batch"]["done"]
    for address in (
        "s3://callers/in",
        "s3://home/in",
        "s3://home/jobs-too/in",
        "s3://home/jobs/../in",
    ):
        with pytest.raises(RequestError, match=r"BUCKET_NAME|no object"):
            run(own, {"input": address})
    for name in ("endpointUrl", "accessId", "accessSecret"):
        rest = {key: value for key, value in config.items() if key != name}
        with pytest.raises(RequestError, match=f"{name} is missing"):
            run(own, batch, s3Config=rest)
    with pytest.raises(RequestError, match="BUCKET_ENDPOINT_URL"):
        run(bulk(Answers(), tmp_path), batch)
    with pytest.raises(RequestError, match="there is no object"):
        run(own, {"input": "s3://callers/nothing"}, s3Config=config)
    with pytest.raises(RequestError, match="answered 404"):
        run(own, {"input": [line("a")], "output": "s3://no-bucket/x"}, s3Config=config)


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told while much is left, and none under way when the result comes."""
    monkeypatch.setattr(bulk_call, "TELL_S", 0.05)
    monkeypatch.setattr(bulk_call, "NEAR_END_S", 0.3)
    told: list[dict[str, Any]] = []
    under_way = 0

    async def tell(_: str, progress: dict[str, Any]) -> None:
        nonlocal under_way
        under_way += 1
        await asyncio.sleep(0.05)
        told.append(progress)
        under_way -= 1

    lines = [line(str(i)) for i in range(3000)]
    (tmp_path / "in").write_bytes(jsonl(*lines))
    setting = bulk(Answers(), tmp_path, tell=tell)
    run(setting, {"input": "in", "output": "out", "concurrency": 3})

    assert told
    assert 0 == under_way
    assert all(one["left_s"] >= 0 and one["done"] <= 3000 for one in told)
    assert max(one["done"] for one in told) < 3000


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ("text", "must be an object"),
        ({}, "input must be"),
        ({"input": 3}, "input must be"),
        ({"input": ""}, "input must be"),
        ({"input": [], "output": 3}, "output must be"),
        ({"input": [], "concurrency": 0}, "concurrency=0"),
        ({"input": [], "ordered": "perhaps"}, "neither true nor false"),
        ({"input": [], "outptu": "x"}, "Did you mean 'output'"),
    ],
)
def test_a_batch_that_is_none(batch: Any, sentence: str) -> None:
    """What is wrong with the job itself is refused before anything begins."""
    with pytest.raises(RequestError, match=sentence):
        read({"id": "job", "input": {"batch": batch}}, BatchSizes())
