"""What a request's parameters are judged by: the engine's facts, and what one job may cost."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worker.errors import RequestError
from worker.facts import Deployment
from worker.parameters import BY_NAME, INHERITED, NEUTRAL

if TYPE_CHECKING:
    from worker.chain import Order

log = logging.getLogger("worker")


def facts_of(config: Any, **others: Any) -> Deployment:
    """Read the facts of vLLM's VllmConfig; `others` are the fields that it does not know."""
    model = config.model_config
    given = dict(model.try_get_generation_config())
    given |= model.override_generation_config
    eos = given.get("eos_token_id", getattr(model.hf_text_config, "eos_token_id", None))
    speculative = config.speculative_config
    deployment = Deployment(
        vocab_size=model.get_vocab_size(),
        max_model_len=model.max_model_len,
        eos=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        has_tokenizer=not model.skip_tokenizer_init,
        engine_options={
            "enforce_eager": model.enforce_eager,
            "kv_cache_dtype": config.cache_config.cache_dtype,
            "speculative_config": speculative
            and {
                name: getattr(speculative, name, None)
                for name in ("method", "num_speculative_tokens", "prompt_lookup_max")
            },
        },
        defaults=model.get_diff_sampling_param(),
        **others,
    )
    if model.generation_config == "vllm":
        given = dict(model.override_generation_config)
    return replace(deployment, inherited=_inherited(given, deployment))


def _inherited(given: Mapping[str, Any], deployment: Deployment) -> dict[str, Any]:
    kept = {}
    for name in INHERITED:
        value = given.get(name)
        if value is None or value == NEUTRAL.get(name):
            continue
        try:
            kept[name] = BY_NAME[name].read(name, value, deployment)
        except RequestError as error:
            log.warning("generation_config.json is not followed: %s", error.message)
    return kept


class Turns:
    """How many sequences may run the chain at once: it runs inside every request's step.

    The others wait, the first first. Used on the engine's loop.
    """

    def __init__(self, chains: int, dear: int) -> None:
        self._chains = _Slots("MAX_CHAINS", chains)
        self._dear = _Slots("MAX_DEAR_CHAINS", dear)

    @asynccontextmanager
    async def taken(
        self, order: "Order | None", *, is_dear: bool, sequences: int = 1
    ) -> AsyncIterator[None]:
        """Wait for the turn of so many sequences. Raises RequestError where it could never come."""
        async with AsyncExitStack() as stack:
            if order is not None:
                if is_dear:
                    await stack.enter_async_context(self._dear.taken(sequences))
                await stack.enter_async_context(self._chains.taken(sequences))
            yield


class _Slots:
    def __init__(self, variable: str, count: int) -> None:
        self._variable, self._count = variable, count
        self._free = asyncio.Semaphore(count)
        self._entrance = asyncio.Lock()  # two that hold a part each would wait for ever

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[None]:
        if count > self._count:
            raise RequestError(
                f"{count:,} sequences at once are more than the {self._count:,} that may have "
                f"these parameters on this worker ({self._variable}).",
                type="invalid_parameter",
            )
        held = 0
        try:
            async with self._entrance:
                for _ in range(count):
                    await self._free.acquire()
                    held += 1
            yield
        finally:
            for _ in range(held):
                self._free.release()
