"""What the engine is: the values by which requests are judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What one job may cost; each is a variable of the same name."""

    max_num_beams: int = 16
    max_sequences: int = 1024
    max_scores: int = 20
    max_word_sequences: int = 128


@dataclass(frozen=True)
class Deployment:
    """What a request's parameters are judged by: the engine's facts and the limits.

    `defaults` is what vLLM reads of the model's generation_config.json, `inherited` the rest of
    it; `eos` are token ids. `no_chain` says why there is no chain; empty where it runs.
    """

    vocab_size: int
    max_model_len: int
    eos: tuple[int, ...] = ()
    has_tokenizer: bool = True
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    inherited: Mapping[str, Any] = field(default_factory=dict)
    default_max_tokens: int = 100
    limits: Limits = field(default_factory=Limits)
    no_chain: str = ""
