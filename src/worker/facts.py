"""What the engine is and what one job may cost: the values by which requests are judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def variable(default: Any, meaning: str, **more: Any) -> Any:
    """Return a dataclass field that the environment sets, by the field's name in capitals.

    `more` may hold `least`, the smallest number allowed, and `aliases` and `retired`, its other
    names and those that warn.
    """
    return field(default=default, metadata={"meaning": meaning, **more})


@dataclass(frozen=True)
class Limits:
    """What one job may cost."""

    default_max_tokens: int = variable(
        100,
        "How long a native answer may get where neither the job nor the model says so.",
        least=1,
    )
    max_num_beams: int = variable(
        16,
        "The most beams of one native answer: each is a request of its own at every token.",
        least=1,
    )
    max_sequences: int = variable(
        1024, "The most answers of one native job: its prompts times `n`.", least=1
    )
    max_scores: int = variable(
        20, "The most `output_scores` and `output_logits` for each token.", least=1
    )
    max_word_sequences: int = variable(
        128,
        "The most sequences of several tokens in `bad_words_ids` and `sequence_bias`.",
        least=1,
    )


@dataclass(frozen=True)
class Facts:
    """What a request's parameters are judged by: the engine's facts and the limits.

    `defaults` is what vLLM reads of the model's generation_config.json, `inherited` the rest of
    it; `eos` are token ids. `why_no_chain` says why there is no chain; empty where it runs.
    """

    vocab_size: int
    max_model_len: int
    eos: tuple[int, ...] = ()
    has_tokenizer: bool = True
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    inherited: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    why_no_chain: str = ""
