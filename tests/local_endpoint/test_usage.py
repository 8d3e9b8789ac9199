import pytest

from local_endpoint.usage import events, output_tokens


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"choices": [], "usage": {"input": 3, "output": 5}}, 5),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 5}}, 5),
        ({"usage": {"input_tokens": 3, "output_tokens": 5}}, 5),
        ('{"usage": {"prompt_tokens": 3, "completion_tokens": 5}}', 5),
        ('data: {"usage":{"completion_tokens":4}}\n\ndata: {"usage":{"completion_tokens":5}}\n', 5),
        ('data: {"type": "message_delta", "usage": {"output_tokens": 5}}\n\n', 5),
        ([{"usage": {"output": 4}}, {"usage": {"output": 5}}, "data: [DONE]"], 5),
        ('data: {"choices":[],"usage":null}\n\n', None),
        ({"usage": {"output": "many"}}, None),
        ("plain text", None),
        (["a", 1, None, {}], None),
    ],
)
def test_output_tokens(value, tokens) -> None:
    """The number of tokens is read from any dialect's usage, the latest one."""
    assert output_tokens(value) == tokens


def test_events() -> None:
    """Where nothing is reported, events with JSON are counted, but neither DONE nor an error."""
    assert events('data: {"a":1}\n\ndata: {"error": {"code": 400}}\n\ndata: [DONE]\n\n') == 1
    assert events('data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n') == 2
    assert events({"a": 1}) == 0
