"""The end of a native job whose requests end in a way that vLLM does not tell of."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.batching import WHOLE, BatchSizes, Outbox
from worker.engine.refusals import Refusals
from worker.engine.server import Engine
from worker.errors import RequestError
from worker.facts import Facts
from worker.generation.turns import Turns
from worker.native.call import NativeCall
from worker.request import read

pytestmark = pytest.mark.timeout(60)


class Cancelled(NativeCall):
    """A job of two prompts; a request of the second is cancelled from within, by nobody's order."""

    async def _render(self, _: Any) -> list[Any]:
        return [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2]}]

    async def _send(self, writer: Any, _: Any) -> None:
        if writer.first:
            raise asyncio.CancelledError


def test_a_request_that_is_cancelled_from_within() -> None:
    """The job fails with a sentence: what its neighbours wrote is no whole answer."""
    models = SimpleNamespace(lora_requests={}, base_model_paths=[])
    app = SimpleNamespace(
        state=SimpleNamespace(openai_serving_completion=True, openai_serving_models=models)
    )
    engine = Engine(
        SimpleNamespace(errored=False),
        app,
        None,
        "",
        Path("/dev/null"),
        Refusals(Path("/dev/null")),
    )
    asked = read({"id": "job-1", "input": {"prompt": ["a", "b"]}}, BatchSizes())
    call = Cancelled(asked, engine, Facts(vocab_size=100, max_model_len=100), Turns(1, 1))

    with pytest.raises(RequestError) as caught:
        asyncio.run(call.answer(Outbox(WHOLE)))

    assert 500 == caught.value.code
