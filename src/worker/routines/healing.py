"""Token healing: the model completes the last token of a prompt."""

import asyncio
from typing import Any, ClassVar

import torch
from transformers.generation import utils as transformers_utils
from transformers.generation.utils import GenerationMixin

from worker.processor.order import Order
from worker.routines.asker import Asker


class _HealStub:
    """transformers' heal_tokens, whose one-token generate() asks the engine."""

    heal_tokens = GenerationMixin.heal_tokens

    def __init__(self, asker: Asker, loop: asyncio.AbstractEventLoop) -> None:
        self._asker = asker
        self._loop = loop

    def generate(self, ids: torch.Tensor, generation_config: Any) -> torch.Tensor:
        bias = [
            [list(key), value]
            for key, value in generation_config.sequence_bias.items()
            if key[0] is not None
        ]
        order = Order(fields={"sequence_bias": bias, "do_sample": False})
        asked = self._asker.ask(ids[0].tolist(), order, "heal", max_tokens=1)
        made = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        return torch.cat([ids, torch.tensor([list(made.token_ids)])], dim=1)


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
    stub = _HealStub(asker, asyncio.get_running_loop())
    try:
        healed = await asyncio.to_thread(stub.heal_tokens, torch.tensor([prompt]), asker.tokenizer)
    except (KeyError, TypeError, ValueError):
        return None
    asker.records()
    return [int(token) for token in healed[0]]
