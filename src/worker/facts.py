"""What the engine is and what one job may cost: the values by which requests are judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEEPEST = 300  # how deep JSON may nest so that Python's own parsers and copiers can follow


def variable(default: Any, meaning: str, **more: Any) -> Any:
    """Return a dataclass field that the environment sets, by the field's name in capitals.

    `more` may hold `least` and `most`, the numbers allowed, `choices`, the texts allowed, `word`,
    one that may stand for a number, `starts`, with what the items of a list begin, and `aliases`
    and `retired`, its other names and those that warn.
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
        2048,
        "The most answers of one job, on every route: its prompts (or inputs) times `n`.",
        least=1,
    )
    max_scores: int = variable(
        20, "The most `output_scores` and `output_logits` for each token.", least=1
    )
    max_word_sequences: int = variable(
        128,
        "The most sequences of several tokens in `bad_words_ids` and `sequence_bias`.",
        least=1,
    )
    max_stop_strings: int = variable(
        256, "The most texts of each of `stop`, `stop_strings` and `bad_words`.", least=1
    )
    max_stop_characters: int = variable(
        16_384, "The most characters that the texts of one of these have together.", least=1
    )
    max_token_ids: int = variable(
        32_768,
        "The most entries of one parameter that lists token ids, such as `logit_bias`, "
        "`stop_token_ids` or `suppress_tokens`.",
        least=1,
    )
    max_choices: int = variable(
        4096, "The most texts of the `choice` of structured outputs.", least=1
    )
    max_grammar_bytes: int = variable(
        65_536,
        "The largest schema, regular expression, grammar or choice of structured outputs. Nothing "
        "can stop its compilation, and others wait for it.",
        least=1,
    )
    max_optional_properties: int = variable(
        500,
        "The most properties of one JSON schema that are not `required`: the time to compile it "
        "grows with the square of their number.",
        least=1,
    )
    max_string_lengths: int = variable(
        32,
        "The most different pairs of `minLength` and `maxLength` in one JSON schema: each may take "
        "seconds to compile.",
        least=1,
    )
    max_input_depth: int = variable(
        128, "How deep the objects and lists of an input may nest.", least=8, most=DEEPEST - 2
    )
    max_input_values: int = variable(
        50_000,
        "The most fields of objects, and objects and lists inside lists, that an input may hold "
        "(numbers and texts in a list do not count).",
        least=100,
    )
    max_name_length: int = variable(
        1024,
        "The most characters of a job's id, a route, and a body's `model` and `request_id`.",
        least=1,
    )


@dataclass(frozen=True)
class Facts:
    """What a request's parameters are judged by: the engine's facts and the limits.

    `defaults` is what vLLM reads of the model's generation_config.json, `inherited` the rest of
    it; `eos` are token ids. `most_tokens` is the deployment's own limit of an answer's length.
    `why_no_chain` says why there is no chain; empty where it runs. `merges` is STREAM_MERGE,
    `receipts` is RECEIPTS.
    """

    vocab_size: int
    max_model_len: int
    most_tokens: int | None = None
    eos: tuple[int, ...] = ()
    has_tokenizer: bool = True
    parses_reasoning: bool = False
    merges: bool = True
    receipts: bool = False
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    inherited: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    why_no_chain: str = ""
