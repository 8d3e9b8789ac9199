"""What a caller sees of an error, judged by the official client's own models."""

import json
from typing import Any, NoReturn

import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic import BaseModel, ValidationError

from worker.errors import EngineDied, RequestError, SettingsError, WorkerError
from worker.sentences import nearest, shown

ERRORS = {
    "plain": RequestError("prompt is empty."),
    "every field": RequestError("No such model.", code=404, type="NotFoundError", param="model"),
    "not ASCII": RequestError("Kein Modell namens „Frühling“ 🌷\n"),
    "quotes": RequestError("""It's "quoted" and \\escaped."""),
    "half an emoji": RequestError("\ud83d is not text."),
    "no words": RequestError(""),
    "engine died": EngineDied(),
}


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
def test_text_is_strict_json(error: RequestError) -> None:
    """An error's text is JSON that every parser takes and UTF-8 can carry, with nothing lost."""
    text = error.text().encode("utf-8").decode("utf-8")

    sent = json.loads(text, parse_constant=refuse)

    assert {"message", "type", "param", "code"} == set(sent["error"])
    assert error.message.replace("\ud83d", "?") == sent["error"]["message"]
    assert (error.type, error.param, error.code) == (
        sent["error"]["type"],
        sent["error"]["param"],
        sent["error"]["code"],
    )


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize(
    "model",
    [ChatCompletion, ChatCompletionChunk, Completion, CreateEmbeddingResponse, Model, Response],
)
def test_an_error_is_no_hollow_success(error: RequestError, model: type[BaseModel]) -> None:
    """No model of the official client takes an error for an answer."""
    with pytest.raises(ValidationError):
        model.model_validate(error.body())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, "BadRequestError"),
        (404, "NotFoundError"),
        (405, "MethodNotAllowedError"),
        (413, "PayloadTooLargeError"),
        (422, "UnprocessableEntityError"),
        (500, "InternalServerError"),
        (503, "ServiceUnavailableError"),
        (599, "InternalServerError"),
    ],
)
def test_type_follows_the_code(code: int, kind: str) -> None:
    """An error that names no type gets the one of its HTTP status."""
    error = RequestError("No.", code=code)

    assert (kind, code) == (error.type, error.body()["error"]["code"])


def test_no_error_is_silent() -> None:
    """An exception without words still gives the caller a sentence."""
    assert RequestError("").message == "The request failed, and nothing says why."


def test_engine_died_says_what_to_do() -> None:
    """A job that lost its engine is told to come again, with a code that clients retry."""
    error = EngineDied()

    assert (500, True) == (error.code, error.message.endswith("Send the request again."))
    assert isinstance(error, RequestError)


def test_settings_error_keeps_every_problem() -> None:
    """All that is wrong with a configuration is told at once, one problem a line."""
    error = SettingsError("A='x' is wrong.", "B='y' is wrong.")

    assert ("A='x' is wrong.", "B='y' is wrong.") == error.problems
    assert str(error) == "A='x' is wrong.\nB='y' is wrong."
    assert isinstance(error, WorkerError)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("tempratur", " Did you mean 'temperature'?"),
        ("messgaes", " Did you mean 'messages'?"),
        ("temperature", " Did you mean 'temperature'?"),
        ("zebra", ""),
        ("", ""),
    ],
)
def test_nearest(word: str, hint: str) -> None:
    """A probable misspelling is answered with the right name, anything else with nothing."""
    assert hint == nearest(word, ["temperature", "messages", "prompt"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("it's", '"it\'s"'),
        ({"a": [1.5, None]}, '{"a": [1.5, null]}'),
        ("é" * 500, '"' + "é" * 78 + "…"),
        (b"no JSON", "\"b'no JSON'\""),
    ],
)
def test_shown(value: Any, text: str) -> None:
    """A sentence quotes a value as the caller wrote it, in JSON, and never at full length."""
    assert text == shown(value)
