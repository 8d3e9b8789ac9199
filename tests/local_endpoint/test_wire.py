"""Strict JSON in and out: how deep it may be nested, and halves of surrogate pairs."""

import json
import sys

import pytest

from local_endpoint import Status, wire


def nested(depth: int) -> str:
    """Return JSON of this depth, half of it lists and half objects."""
    return '[{"a":' * (depth // 2) + ("[]" if depth % 2 else "0") + "}]" * (depth // 2)


@pytest.mark.parametrize("depth", [1, 900, 2001, 10_000])
def test_deep_json(depth: int) -> None:
    """JSON that is nested deeper than Python's functions is read, and written as it was."""
    before = sys.getrecursionlimit()

    assert wire.dump(wire.parse(nested(depth).encode())).decode() == nested(depth)
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize(
    ("text", "depth"),
    [("[" * 11 + "]" * 11, 11), ('[{"a":' * 6 + "1" + "}]" * 6, 12), ("[" * 2_000_000, 2_000_000)],
)
def test_too_deep(text: str, depth: int) -> None:
    """JSON that is nested deeper than the limit is refused with its depth and the knob."""
    with pytest.raises(ValueError, match=rf"nested {depth:,} deep.* 10 \(max_depth\)"):
        wire.parse(text.encode(), 10)


@pytest.mark.parametrize(
    "value", [[[1]] * 100, {"a": "[{" * 100}, {"]": '\\"[' * 30}, ["\\", "[[[[[[[[[[[[", {}]]
)
def test_broad_is_not_deep(value: object) -> None:
    """Brackets beside each other, or in texts, do not count as depth."""
    assert wire.parse(json.dumps(value).encode(), 3) == value


@pytest.mark.parametrize("body", [{"input": 1, "deep": 0}, {"messages": 0, "deep": 0}])
@pytest.mark.parametrize("depth", [900, 901, 20_000])
def test_deep_requests(house, body: dict, depth: int) -> None:
    """A request is handed on up to the depth that the SDK can read; a deeper one is refused."""
    house.serve(openai_timeout_s=0.5)
    text = json.dumps(body).replace('"deep": 0', f'"deep": {nested(depth - 1)}')
    path = "run" if "input" in body else "openai/v1/chat/completions"
    answer = house.customer().session.post(f"{house.endpoint.url}/{path}", data=text, timeout=10)

    assert answer.status_code == (400 if depth > 900 else 200 if path == "run" else 504)
    assert ("max_depth" in answer.text) == (depth > 900)


def test_deeper_with_the_knob(house) -> None:
    """With the knob deeper jobs are handed on too, and each view of one is whole."""
    house.serve(max_depth=5000)
    job_input = nested(4998)
    url = f"{house.endpoint.url}/run"
    house.customer().session.post(url, data=f'{{"input": {job_input}}}', timeout=10)
    worker = house.worker()
    taken = worker.get("job-take").content
    job_id = taken.split(b'"')[3].decode()
    worker.post("job-stream", job_id, f'{{"output": {job_input}}}'.encode())
    worker.post("job-done", job_id, f'{{"output": [{job_input}]}}'.encode())
    customer = house.customer()
    control = f"{house.endpoint.url.split('/v2/')[0]}/control"
    views = [
        customer.get(f"stream/{job_id}"),
        customer.get(f"status/{job_id}"),
        customer.session.get(f"{control}/recording", timeout=10),
    ]

    assert taken == f'{{"id":"{job_id}","input":{job_input}}}'.encode()
    assert [job_input in view.text for view in views] == [True] * 3
    assert customer.session.get(f"{control}/jobs/{job_id}", timeout=10).status_code == 200
    assert house.endpoint.record(job_id).status is Status.COMPLETED


HALF = r'{"a\ud83d": ["\ud83d b", "\ude00"]}'


def test_half_of_a_surrogate_pair(house) -> None:
    """Half of a surrogate pair reaches worker and customer as the escape that was sent."""
    house.serve()
    customer, worker = house.customer(), house.worker()
    url = f"{house.endpoint.url}/run"
    job_id = customer.session.post(url, data=f'{{"input": {HALF}}}', timeout=10).json()["id"]
    taken = worker.get("job-take").content
    worker.post("job-done", job_id, f'{{"output": {HALF}}}'.encode())

    assert json.loads(taken.decode())["input"] == json.loads(HALF)
    assert customer.status(job_id)["output"] == json.loads(HALF)


def test_half_of_a_surrogate_pair_for_openai(house) -> None:
    """… also in what an OpenAI client gets, from yields that are texts or values."""
    house.serve()
    url = f"{house.endpoint.openai_url}/chat/completions"
    for value in (json.dumps(HALF), HALF):
        session = house.customer().session
        asking = house.later(lambda s=session: s.post(url, data=b"{}", timeout=10))
        worker = house.worker()
        worker.post("job-done", worker.take()["id"], f'{{"output": [{value}]}}'.encode())

        assert json.loads(asking.result().content.decode()) == json.loads(HALF)
