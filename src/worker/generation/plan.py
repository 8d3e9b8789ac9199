"""What a job asks of the engine, decided: a frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.engine.sampling_params import SamplingParams
from worker.errors import invalid_parameter
from worker.facts import Facts
from worker.processor.order import Order


@dataclass(frozen=True)
class Beams:
    """A beam search: `width` beams, of which the `returned` best come back."""

    width: int
    returned: int
    length_penalty: float
    early_stopping: bool | str
    do_sample: bool


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance; `negative` is a text, token ids, or the prompt's last token."""

    scale: float
    negative: str | list[int] | None


@dataclass(frozen=True)
class Plan:
    """What a native job asks of the engine, but for what depends on the prompt's length.

    `params` is for one request; `order` is None where vLLM's own fields do it all. `scores` and
    `logits` are the values of each token that the reply holds. `ranked` answers remain of best_of;
    `has_logprobs` says whether the job asked for some itself.
    `eos` is what the job itself says. `is_least_inherited`: not the job but the
    model asks for a least length, which then gives way to the job's. `truncate` are the fields
    of vLLM's that cut the prompt.
    """

    params: SamplingParams
    order: Order | None
    has_length: bool
    is_least_inherited: bool
    max_length: int | None
    truncate: Mapping[str, Any]
    beams: Beams | None
    guidance: Guidance | None
    heal: bool
    max_time_s: float | None
    scores: int
    logits: int
    ranked: int | None
    has_logprobs: bool
    token_ids: bool
    eos: tuple[int, ...]
    bos: int | None
    facts: Facts
    warnings: tuple[str, ...]

    @property
    def sequences(self) -> int:
        """How many answers there are for each prompt."""
        if self.beams:
            return self.beams.returned
        return self.ranked or int(self.params.n)

    @property
    def shows_each_step(self) -> bool:
        """Whether each output is looked at as soon as it comes."""
        has_deadline = self.max_time_s is not None
        return bool(self.beams or self.guidance or self.scores or self.logits or has_deadline)

    @property
    def is_costly(self) -> bool:
        """Whether a watermark is asked for whose every token costs thousands of operations."""
        watermark = (self.order.fields if self.order else {}).get("watermarking_config") or {}
        return "keys" in watermark or watermark.get("seeding_scheme") == "selfhash"

    def max_tokens(self, prompt_tokens: int) -> int:
        """Return how many tokens an answer to a prompt of this length may have.

        Raises RequestError where max_length or min_length leaves no room.
        """
        wanted = self.params.max_tokens
        assert wanted is not None
        if self.max_length is not None:
            if prompt_tokens >= self.max_length:
                raise invalid_parameter(
                    "max_length",
                    f"max_length={self.max_length} counts the prompt, which has {prompt_tokens} "
                    "tokens already. max_new_tokens counts the answer alone.",
                )
            wanted = self.max_length - prompt_tokens
        fields = self.order.fields if self.order else {}
        least = fields.get("min_new_tokens") or fields.get("min_length", 0) - prompt_tokens
        if least > wanted:
            if self.has_length and not self.is_least_inherited:
                name = "min_new_tokens" if fields.get("min_new_tokens") else "min_length"
                raise invalid_parameter(
                    name,
                    f"{name}={fields[name]} asks for more tokens than the {wanted} that the "
                    "answer may have.",
                )
            wanted = wanted if self.has_length else least
        if self.facts.most_tokens is not None:
            wanted = min(wanted, self.facts.most_tokens)
        return int(min(wanted, self.facts.max_model_len - prompt_tokens))
