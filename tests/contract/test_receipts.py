"""Receipts: what an answer took, in native jobs that ask for it and in the log of all routes."""

from importlib import metadata
from typing import Any

import pytest
import requests

import both_doors
import models
from local_endpoint.process import free_port
from served import DOOR_KEY, Served, serve, text

pytestmark = pytest.mark.timeout(300)

LONG = "Once upon a time there was a number that nobody had ever counted to. " * 8


def job(*, receipt: bool, **more: Any) -> dict[str, Any]:
    params = {"max_tokens": 20, "ignore_eos": True, "temperature": 0, "seed": 7}
    return {"prompt": LONG, "sampling_params": params, "receipt": receipt} | more


@pytest.mark.parametrize("stream", [False, True])
def test_a_native_receipt(tiny: Served, stream: bool) -> None:
    """The last piece says what the answer took, and nothing else of the answer changes."""
    plain = tiny.run(job(receipt=False, stream=stream))
    record = tiny.run(job(receipt=True, stream=stream))
    *before, last = record.done[-1].value["output"]
    receipt = last["receipt"]

    assert text(plain) == text(record)
    assert not any("receipt" in one for one in [*before, *plain.done[-1].value["output"]])
    assert 0 < receipt["queue_s"] <= receipt["first_token_s"] < 60
    assert receipt["engine_tokens_per_s"] > 0
    assert len(record.stream) == receipt["posts"]
    assert 0 < receipt["cached_tokens"] <= last["usage"]["input"]  # the first job has left them
    assert (7, None) == (receipt["seed"], receipt["adapter"])
    assert metadata.version("runpod") == receipt["versions"]["runpod"]


@pytest.mark.slow
def test_receipts_in_the_log() -> None:
    """With RECEIPTS=1 each route's line in the log has the same, of jobs and of HTTP requests; an
    OpenAI reply is vLLM's."""
    port = free_port()
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "RECEIPTS": "1",
        "PORT": str(port),
        "API_KEY": DOOR_KEY,
    }
    with serve(environ, program=(both_doors.__file__,)) as served:
        body = {"prompt": LONG, "max_tokens": 20}
        given = {"openai_route": "/v1/completions", "openai_input": body}
        replies = [served.run(given).done[-1].value["output"] for _ in range(2)]
        native = served.run({"prompt": LONG}).done[-1].value["output"]
        key = {"Authorization": f"Bearer {DOOR_KEY}"}
        url = f"http://127.0.0.1:{port}/v1/completions"
        over_http = requests.post(url, json=body, headers=key, timeout=60).json()
        lines = [line for line in served.log().splitlines() if " completed: " in line]

    assert not any("receipt" in reply[0] for reply in [*replies, [over_http]])
    assert "receipt" in native[-1]
    assert len(lines) >= 4
    assert all("queue_s=" in line and "cached_tokens=" in line for line in lines[-4:])
