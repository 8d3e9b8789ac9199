"""Unchanged clients of Hugging Face and of Ollama judge the worker's HTTP door."""

from collections.abc import Callable
from typing import Any

import pytest
import requests

from served import DOOR_KEY, Door

pytestmark = pytest.mark.timeout(600)

Said = Callable[[str], dict[str, Any]]  # a program to what it printed
TOKENS = 30


def ask(door: Door, path: str, body: Any) -> Any:
    headers = {"authorization": f"Bearer {DOOR_KEY}"}
    return requests.post(f"{door.url}{path}", json=body, headers=headers, timeout=60).json()


@pytest.mark.parametrize("program", ["huggingface_hub_text.py", "text_generation_client.py"])
def test_hugging_faces_clients(of_the_door: Said, door: Door, program: str) -> None:
    """A text and its tokens come to Hugging Face's clients whole and as a stream, and errors."""
    said = of_the_door(program)
    greedy = {"temperature": 0, "max_tokens": TOKENS, "return_token_ids": True}
    native = ask(door, "/native", {"prompt": said["prompt"], "sampling_params": greedy})
    (choice,) = native["choices"]
    (text,) = choice["tokens"]

    assert [text] * 4 == [said["text"], said["whole"], "".join(said["pieces"]), said["stream_text"]]
    assert choice["token_ids"] == said["ids"] == said["stream_ids"]
    assert native["prompt_token_ids"] == said["prefill"]
    assert (TOKENS, TOKENS) == (said["whole_tokens"], said["stream_tokens"])
    assert "length" == said["finish_reason"]
    for name in ("error", "stream_error"):
        kind, sentence = said[name]
        assert "ValidationError" == kind
        assert "temperature" in sentence or "max_new_tokens" in sentence
    assert said["unauthorized"] == 401 or "key is missing or wrong" in said["unauthorized"]


def test_the_best_of_several(of_the_door: Said, door: Door) -> None:
    """Hugging Face's clients get the likeliest of several answers, and the others."""
    said = of_the_door("huggingface_hub_text.py")
    drawn = {"do_sample": True, "seed": 1, "max_tokens": TOKENS}

    def texts(**more: int) -> list[str]:
        asked = {"prompt": said["prompt"], "sampling_params": drawn | more}
        return [one["tokens"][0] for one in ask(door, "/native", asked)["choices"]]

    assert sorted(texts(n=3)) == sorted(said["best_of"])
    assert texts(best_of=3) == said["best_of"][:1]
    likelihoods = of_the_door("text_generation_client.py")["best_of"]
    assert 3 == len(likelihoods)
    assert max(likelihoods) == likelihoods[0]


def test_ollamas_client(of_the_door: Said, door: Door) -> None:
    """Ollama's client gets a chat and a prompt answered, and reads the errors."""
    said = of_the_door("ollama_client.py")
    greedy = {"temperature": 0, "max_tokens": TOKENS}
    messages = [{"role": "user", "content": said["prompt"]}]
    chat = ask(door, "/v1/chat/completions", {"messages": messages, **greedy})
    raw = ask(door, "/v1/completions", {"prompt": said["prompt"], **greedy})
    text = chat["choices"][0]["message"]["content"]

    assert [text] * 4 == [
        said["whole"],
        "".join(said["pieces"]),
        said["generated"],
        "".join(said["generated_pieces"]),
    ]
    assert raw["choices"][0]["text"] == said["raw"]
    assert len(said["pieces"]) > 1
    assert (TOKENS, TOKENS) == (said["whole_tokens"], said["stream_tokens"])
    assert ("length", "load", True) == (said["done_reason"], said["loaded"], said["took"])
    assert '"b"' == said["formatted"]
    assert ["completion"] == said["can"]
    assert [["tiny", 9999, 512], ["also-tiny", 9999, 512]] == said["running"]
    assert (["tiny", "also-tiny"], 512) == (said["served"], said["length"])
    for name, code in (("error", 404), ("stream_error", 404)):
        assert code == said[name][0]
        assert "The model `nope` does not exist" in said[name][1]
    assert 401 == said["unauthorized"]


def test_a_chat_of_hugging_faces_clients(of_the_door: Said, door: Door) -> None:
    """A chat of Hugging Face's clients is OpenAI's own route, which no model needs to be named to.

    A schema is followed as InferenceClient sends it.
    """
    said = of_the_door("huggingface_hub_text.py")
    greedy = {"temperature": 0, "max_tokens": TOKENS}
    messages = [{"role": "user", "content": said["prompt"]}]
    chat = ask(door, "/v1/chat/completions", {"messages": messages, **greedy})

    text = chat["choices"][0]["message"]["content"]
    assert [text] * 2 == [said["chat"], of_the_door("text_generation_client.py")["chat"]]
    assert '"b"' == said["formatted"]
