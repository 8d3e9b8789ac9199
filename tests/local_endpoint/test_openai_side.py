import json

import openai
import pytest
import requests

from local_endpoint import Status
from waiting import wait_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}


def ask(house, body, path: str = "v1/chat/completions"):
    return house.later(house.customer().post, f"openai/{path}", body)


def test_job(house) -> None:
    """A request becomes a job with route and body, whatever its method, headers and query."""
    house.serve()
    worker = house.worker()
    asking = house.later(house.customer().post, "openai/v1/any/thing?a=b", CHAT)
    job = worker.take()
    worker.done(job["id"], output=[])

    assert job["input"] == {"openai_route": "/v1/any/thing", "openai_input": CHAT}
    assert asking.result().status_code == 200


@pytest.mark.parametrize(
    ("knob", "extra"),
    [
        ("absent", {}),
        ("null", {"openai_input": None}),
        ("empty", {"openai_input": {}}),
    ],
)
def test_no_body(house, knob: str, extra: dict) -> None:
    """A request without body, as for the models, gives the worker what the knob says."""
    house.serve(models_input=knob)
    asking = house.later(house.customer().get, "openai/v1/models")
    worker = house.worker()
    job = worker.take()
    worker.done(job["id"], output=[])
    asking.result()

    assert job["input"] == {"openai_route": "/v1/models", **extra}


@pytest.mark.parametrize(
    ("yields", "expected"),
    [
        (['{"a":  1}'], '{"a":  1}'),
        ([{"a": "ü"}], '{"a":"ü"}'),
        ([["a"]], '["a"]'),
        (['{"a"', ": 1}"], '{"a": 1}'),
        ([{"a": 1}, {"b": 2}], '[{"a":1},{"b":2}]'),
    ],
)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_whole_answer(house, yields: list, expected: str, is_streamed: bool) -> None:
    """Without streaming a string is passed as it is, one object as JSON, several as an array."""
    house.serve()
    asking = ask(house, CHAT)
    worker = house.worker()
    job_id = worker.take()["id"]
    if is_streamed:
        for value in yields:
            worker.stream(job_id, value)
    worker.done(job_id, output=[] if is_streamed else yields)
    answer = asking.result()

    assert (answer.status_code, answer.text) == (200, expected)
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"


def test_stream_passes_through(house) -> None:
    """With streaming each string arrives as it is, as soon as it is posted."""
    house.serve()
    worker = house.worker()
    asking = house.later(
        lambda: house.customer().post("openai/v1/chat/completions", STREAM, stream=True)
    )
    job_id = worker.take()["id"]
    worker.stream(job_id, "data: ü\n\nda")
    with asking.result() as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        parts = answer.iter_content(None)
        assert next(parts) == "data: ü\n\nda".encode()
        worker.stream(job_id, "ta: [DONE]\n\n")
        assert next(parts) == b"ta: [DONE]\n\n"
        worker.stream(job_id, {"a": 1})
        assert next(parts) == b'{"a":1}'
        worker.done(job_id, output=[])
        assert list(parts) == []


@pytest.mark.parametrize("body", [CHAT, STREAM])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        ('{"error": {"message": "too long", "type": "t", "code": 400}}', "too long"),
        ("it broke", "it broke"),
        ('["no", "object"]', '["no", "object"]'),
    ],
)
def test_failed(house, body: dict, error: str, message: str) -> None:
    """A client of a failed job gets status 500 and a message it can read."""
    house.serve()
    worker = house.worker()
    with openai.OpenAI(
        base_url=house.endpoint.openai_url, api_key=house.endpoint.api_key, max_retries=0
    ) as client:
        asking = house.later(lambda: client.chat.completions.create(**body, timeout=10))
        worker.done(worker.take()["id"], error=error)
        with pytest.raises(openai.InternalServerError) as caught:
            asking.result()

    assert caught.value.body["message"] == message


def test_failed_status(house) -> None:
    """The HTTP status of a failed job is a knob, since the platform's is not known."""
    house.serve(openai_failed_status=200)
    asking = ask(house, CHAT)
    worker = house.worker()
    worker.done(worker.take()["id"], error="sorry")

    expected = {"error": {"message": "sorry", "type": "server_error"}}
    assert (asking.result().status_code, asking.result().json()) == (200, expected)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ('{"error": {"message": "m", "code": 400}}', openai.BadRequestError),
        ('{"error": {"message": "m", "code": 404}}', openai.NotFoundError),
        (
            '{"error": {"message": "m", "code": "context_length_exceeded"}}',
            openai.InternalServerError,
        ),
        ('{"error": {"message": "m", "code": 200}}', openai.InternalServerError),
        ("m", openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_failed_with_its_code(house, body: dict, error: str, kind: type) -> None:
    """With the knob at `code` the HTTP status is that of the error, where it names one."""
    house.serve(openai_failed_status="code")
    worker = house.worker()
    with openai.OpenAI(
        base_url=house.endpoint.openai_url, api_key=house.endpoint.api_key, max_retries=0
    ) as client:
        asking = house.later(lambda: client.chat.completions.create(**body, timeout=10))
        worker.done(worker.take()["id"], error=error)
        with pytest.raises(openai.APIStatusError) as caught:
            asking.result()

    assert (type(caught.value), caught.value.body["message"]) == (kind, "m")


def test_failed_midway(house) -> None:
    """When a job fails after it has streamed, the answer ends after what was sent."""
    house.serve()
    asking = ask(house, STREAM)
    worker = house.worker()
    job_id = worker.take()["id"]
    worker.stream(job_id, "data: a\n\n")
    worker.done(job_id, error="sorry")

    assert (asking.result().status_code, asking.result().text) == (200, "data: a\n\n")


def test_cancelled(house) -> None:
    """A job cancelled by somebody else ends its request as a failure."""
    house.serve()
    asking = ask(house, STREAM)
    job_id = house.worker().take()["id"]
    house.customer().post(f"cancel/{job_id}")

    assert asking.result().status_code == 500


def raw_request(house, body: dict):
    line = "POST /v2/local/openai/v1/chat/completions"
    return house.raw_request(line, house.endpoint.api_key, json.dumps(body))


@pytest.mark.parametrize("body", [CHAT, STREAM])
@pytest.mark.parametrize("has_output", [False, True])
def test_disconnect_cancels(house, body: dict, has_output: bool) -> None:
    """A client that goes away has its job cancelled, and the worker told to stop it."""
    house.serve()
    connection = raw_request(house, body)
    worker = house.worker()
    job_id = worker.take()["id"]
    if has_output:
        worker.stream(job_id, "data: a\n\n")
    connection.close()

    assert house.endpoint.wait_for_end(job_id, timeout_s=5).status is Status.CANCELLED
    assert worker.get("job-stop").json() == {"jobsToStop": [job_id]}


def test_disconnect_ignored(house) -> None:
    """With the knob off, the job of a client that goes away goes on."""
    house.serve(cancel_on_disconnect=False)
    connection = raw_request(house, STREAM)
    worker = house.worker()
    job_id = worker.take()["id"]
    waiters = house.endpoint._endpoint.waiters
    assert job_id in waiters._waiting
    connection.close()
    wait_until(lambda: job_id not in waiters._waiting)
    worker.done(job_id, output=[])

    assert house.endpoint.wait_for_end(job_id).status is Status.COMPLETED


def test_timeout(house) -> None:
    """A request that takes too long is answered 504, and its job cancelled."""
    house.serve(openai_timeout_s=0.2)
    asking = ask(house, CHAT)
    job_id = house.worker().take()["id"]

    assert asking.result().status_code == 504
    assert house.endpoint.wait_for_end(job_id).status is Status.CANCELLED


def test_lost_worker_midway(house) -> None:
    """When a worker is lost after it has streamed, the answer ends and does not start again."""
    house.serve()
    asking = ask(house, STREAM)
    worker = house.worker()
    job_id = worker.take()["id"]
    worker.stream(job_id, "data: a\n\n")
    job = house.endpoint._endpoint.jobs.get(job_id)
    wait_until(lambda: not job.run.chunks)
    house.endpoint.lose_worker("w1")

    assert asking.result().text == "data: a\n\n"
    assert house.endpoint.wait_for_end(job_id).status is Status.CANCELLED


@pytest.mark.parametrize(("body", "status"), [(b"not json", 400), (b'"%s"' % (b"x" * 2000), 413)])
def test_bad_request(house, body: bytes, status: int) -> None:
    """A body that cannot become a job is refused in the shape which OpenAI's clients read."""
    house.serve(max_body_run=1000, oversize_request_status=413)
    url = f"{house.endpoint.openai_url}/chat/completions"
    headers = {"Authorization": f"Bearer {house.endpoint.api_key}"}
    answer = requests.post(url, data=body, headers=headers, timeout=10)

    assert answer.status_code == status
    assert isinstance(answer.json()["error"]["message"], str)
