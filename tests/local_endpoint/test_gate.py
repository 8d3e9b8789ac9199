"""Requests that are not for this endpoint, or not allowed, are told what would be right."""

import openai
import pytest
import requests


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/v1/chat/completions", "/v2/local/openai/v1/chat/completions"),
        ("/openai/v1/models", "/v2/local/openai/v1/models"),
        ("/v2/other/openai/v1/models", "/v2/local/openai/v1/models"),
        ("/v2/local/v1/chat/completions", "/v2/local/openai/v1/chat/completions"),
        ("/v2/other/run", "/v2/local/run"),
        ("/run", "/v2/local/run"),
        ("/v2/local/nothing", "/v2/local/run"),
        ("/v2/local/status", "/v2/local/run"),
    ],
)
def test_wrong_address(house, path: str, right: str) -> None:
    """A wrong address is answered with the right one, as OpenAI's clients read it on their path."""
    origin = house.serve().url.split("/v2/")[0]
    answer = house.customer().session.get(origin + path, timeout=10)
    error = answer.json()["error"]

    assert answer.status_code == 404
    assert isinstance(error, dict) == ("/v1/" in path)
    assert f"{origin}{right}" in (error["message"] if isinstance(error, dict) else error)


@pytest.mark.parametrize("path", ["run", "runsync", "cancel/x", "openai/v1/chat/completions"])
def test_wrong_method(house, path: str) -> None:
    """A GET where a POST is meant names the right method, in its text and in its header."""
    house.serve()
    answer = house.customer().get(path)
    error = answer.json()["error"]

    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert "POST" in (error["message"] if "openai" in path else error)


@pytest.mark.parametrize("path", ["health", "openai/v1/models", "job-take/w1"])
@pytest.mark.parametrize(("key", "word"), [("", "missing"), ("Bearer wrong", "not this")])
def test_wrong_key(house, path: str, key: str, word: str) -> None:
    """Without the key the answer names the header in which it belongs, and never a key."""
    house.serve()
    answer = requests.get(
        f"{house.endpoint.url}/{path}", headers={"Authorization": key}, timeout=10
    )
    error = answer.json()["error"]
    message = error["message"] if "openai" in path else error

    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert word in message
    assert "Authorization: Bearer" in message
    assert "local-" not in message


def test_openai_client(house) -> None:
    """The official client shows the sentence for a wrong base URL and for a wrong key."""
    endpoint = house.serve()
    wrong = [
        ("/v2/local/v1", endpoint.api_key, openai.NotFoundError, endpoint.openai_url),
        ("/v2/local/openai/v1", "wrong", openai.AuthenticationError, "Authorization"),
    ]
    origin = endpoint.url.split("/v2/")[0]
    for path, key, kind, words in wrong:
        client = openai.OpenAI(base_url=origin + path, api_key=key, max_retries=0)
        with client, pytest.raises(kind) as caught:
            client.models.list(timeout=10)

        assert words in caught.value.body["message"]
