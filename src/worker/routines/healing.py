"""Token healing: the model completes the last token of a prompt."""

import asyncio
from typing import Any, ClassVar

import torch
from transformers.generation import utils as transformers_utils
from transformers.generation.utils import GenerationMixin

from worker.processor.order import Order
from worker.routines.asker import Asker


class _Asks(Exception):  # noqa: N818 - what it does
    """The one-token request that heal_tokens needs answered."""

    def __init__(self, ids: list[int], order: Order) -> None:
        self.ids, self.order = ids, order


class _HealStub:
    """transformers' heal_tokens, whose one-token generate() knows the token or raises _Asks.

    So it runs twice, and holds no thread while the engine works.
    """

    heal_tokens = GenerationMixin.heal_tokens

    def __init__(self, token: int | None) -> None:
        self._token = token

    def generate(self, ids: torch.Tensor, generation_config: Any) -> torch.Tensor:
        if self._token is not None:
            return torch.cat([ids, torch.tensor([[self._token]])], dim=1)
        bias = [
            [list(key), value]
            for key, value in generation_config.sequence_bias.items()
            if key[0] is not None
        ]
        fields = {"sequence_bias": bias, "do_sample": False}
        raise _Asks(ids[0].tolist(), Order(fields=fields))


class _KeptTrie:
    """transformers makes a trie of the whole vocabulary at every call, 0.3 s; here it is kept."""

    _kept: ClassVar[dict[int, Any]] = {}
    _make = transformers_utils.ExtensionsTrie

    def __new__(cls, vocabulary: dict[str, int]) -> Any:
        # A worker has one tokenizer, so its size tells it apart.
        if len(vocabulary) not in cls._kept:
            cls._kept[len(vocabulary)] = cls._make(vocabulary)
        return cls._kept[len(vocabulary)]


transformers_utils.ExtensionsTrie = _KeptTrie


async def heal(asker: Asker, prompt: list[int]) -> list[int] | None:
    """Return the prompt with its last token completed by the model, as transformers heals it.

    None where transformers 5.19 fails: it looks the token's text up in the vocabulary, and with
    some tokenizers a token that begins with a space is not found; others have no bos token, or
    none to pad with.
    """

    async def run(token: int | None = None) -> list[int] | None:
        heal_tokens, ids = _HealStub(token).heal_tokens, torch.tensor([prompt])
        try:
            healed = await asyncio.to_thread(heal_tokens, ids, asker.tokenizer)
        except (KeyError, TypeError, ValueError):
            return None
        return [int(one) for one in healed[0]]

    try:
        return await run()
    except _Asks as asks:
        made = await asker.ask(asks.ids, asks.order, "heal", max_tokens=1)
        asker.records()
        return await run(made.token_ids[0])
