"""What a caller reads of a body that is not of the form that vLLM's routes take."""

import cProfile
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeRequest

from worker.engine.validation import in_words

HELLO = [{"role": "user", "content": "Hello"}]
NOPE = [{"role": "user", "content": [{"type": "nope", "text": "x"}]}]


@pytest.mark.parametrize(
    ("form", "body", "field", "words"),
    [
        (ChatCompletionRequest, {}, "messages", "required"),
        (ChatCompletionRequest, {"messages": HELLO, "seed": 2**70}, "seed", "less than"),
        (ChatCompletionRequest, {"messages": HELLO, "seed": "x", "n": "x"}, "seed", "integer"),
        (ChatCompletionRequest, {"n": "x", "messages": HELLO, "seed": "x"}, "n", "integer"),
        (ChatCompletionRequest, {"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content",
            "valid string",
        ),
        (
            ChatCompletionRequest,
            {"messages": HELLO, "tools": [{"type": "function"}]},
            "tools.0.function",
            "required",
        ),
        (
            ChatCompletionRequest,
            {"messages": HELLO, "response_format": {"type": "nope"}},
            "response_format.type",
            "'json_schema'",
        ),
        (CompletionRequest, {"prompt": "x", "stop": 5}, "stop", "string or a valid list"),
        (ResponsesRequest, {"input": 5}, "input", "string or a valid list"),
        (ResponsesRequest, {"input": NOPE}, "input.0.content.0.type", "'input_text'"),
        (
            AnthropicMessagesRequest,
            {"model": "m", "max_tokens": 5, "messages": NOPE},
            "messages.0.content.0.type",
            "'text'",
        ),
        (AnthropicMessagesRequest, {"model": "m"}, "messages", "messages and max_tokens"),
        (TokenizeRequest, {}, "prompt", "prompt or messages"),
        (TokenizeRequest, {"prompt": 5}, "prompt", "valid string"),
        (EmbeddingRequest, {"input": "x", "encoding_format": "y"}, "encoding_format", "'float'"),
        (EmbeddingRequest, {"input": "x", "dimensions": "y"}, "dimensions", "integer"),
        (EmbeddingRequest, {"input": {"a": 1}}, "input", "valid string"),
    ],
)
def test_the_field_that_was_sent_first(form: Any, body: Any, field: str, words: str) -> None:
    """A refusal names one field, the first of those sent that are wrong, and no other form's."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(form).validate_python(body)
    sentence, param = in_words(caught.value.errors(), body)

    assert field == param
    assert words.lower() in sentence.lower()
    assert 1 == sentence.count(": ")


def test_many_errors_cost_no_more_than_as_many() -> None:
    """Ten times the errors take about ten times the work: a caller can send thousands."""
    steps = []
    for count in (200, 2000):
        body = {"messages": [{"role": "x", "content": 5}] * count}
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(ChatCompletionRequest).validate_python(body)
        profile = cProfile.Profile()
        profile.runcall(in_words, caught.value.errors(), body)
        steps.append(sum(entry.callcount for entry in profile.getstats()))

    assert steps[1] < 15 * steps[0]
