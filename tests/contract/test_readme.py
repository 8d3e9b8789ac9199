"""The README's examples, run as they stand."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from local_endpoint import Knobs
from served import Served

README = Path(__file__).parents[2] / "README.md"
pytestmark = pytest.mark.timeout(300)


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def environ(served: Served) -> dict[str, str]:
    return os.environ | {
        "BASE_URL": served.endpoint.openai_url,
        "RUNPOD_API_KEY": served.endpoint.api_key,
    }


def test_the_python_example(smollm2: Served) -> None:
    """The example for OpenAI's client streams an answer, with only its two variables set."""
    (example,) = examples("python")
    done = subprocess.run(
        [sys.executable, "-c", example],
        env=environ(smollm2),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert len(done.stdout) > 20


def test_the_curl_example(smollm2: Served) -> None:
    """The example for RunPod's own API gives a reply of the shape that stands below it."""
    command = next(example for example in examples("sh") if "curl" in example)
    done = subprocess.run(
        ["bash", "-c", command],
        env=environ(smollm2),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    reply = json.loads(done.stdout)
    shown = json.loads(examples("json")[0])

    assert shown["status"] == reply["status"]
    assert shown["output"][0].keys() == reply["output"][0].keys()
    assert shown["output"][0]["choices"][0].keys() == reply["output"][0]["choices"][0].keys()


def test_what_it_says_of_failures(smollm2: Served) -> None:
    """A failed request is a 500 with the worker's own code, and three jobs where it is repeated."""
    model = smollm2.client.models.list().data[0].id
    wrong = {"messages": [{"role": "user", "content": "Hello"}], "model": model}
    jobs = len(smollm2.endpoint.records())
    with pytest.raises(openai.InternalServerError) as caught:
        smollm2.client.with_options(max_retries=2).chat.completions.create(**wrong, temperature=-1)
    repeated = len(smollm2.endpoint.records()) - jobs
    with pytest.raises(openai.InternalServerError) as unknown:
        smollm2.client.chat.completions.create(**wrong | {"model": "unknown"})
    once = len(smollm2.endpoint.records()) - jobs - repeated
    smollm2.endpoint.set_knobs(openai_failed_status="code")
    try:
        with pytest.raises(openai.BadRequestError):
            smollm2.client.chat.completions.create(**wrong, temperature=-1)
    finally:
        smollm2.endpoint.set_knobs(openai_failed_status=Knobs().openai_failed_status)

    assert (caught.value.body["code"], unknown.value.body["code"]) == (400, 404)
    assert "temperature" in caught.value.body["message"]
    assert (repeated, once) == (3, 1)


def test_the_commands_exist() -> None:
    """Every `make` verb that the README names is one of the Makefile's."""
    named = set(re.findall(r"(?:^|`)(?:\S+=\S+ )?make ([a-z-]+)", README.read_text(), re.MULTILINE))
    verbs = set(re.findall(r"^([a-z-]+):", (README.parent / "Makefile").read_text(), re.MULTILINE))

    assert set() == named - verbs
