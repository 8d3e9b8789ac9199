"""What a parameter's value must be: each check has a sentence and a judge."""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.facts import Facts
from worker.sentences import shown

# Beyond these a division turns logits of 32 bits into infinities.
COLDEST, HOTTEST = 1e-6, 1e6
MOST = 2**62  # the engine speaks MessagePack, and adds to some of these
# The V2 runner keeps these in 32 bits; more would end the engine.
MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True)
class Check:
    """What a value must be: `allowed` ends the sentence "… must be …", `read` judges.

    `read` returns the value as the engine wants it, or raises ValueError, whose text, where it has
    one, replaces `allowed`.
    """

    allowed: str
    read: Callable[[Any, Facts], Any]


def whole(least: int, most: int | None = None) -> Check:
    between = f"from {least:,} to {most:,}" if most is not None else f"of at least {least:,}"

    def read(value: Any, _: Facts) -> int:
        value = _from_text(value)
        if type(value) is float and value.is_integer():  # JSON has one kind of number
            value = int(value)
        if type(value) is not int or value < least or (most is not None and value > most):
            raise ValueError
        if value > MOST:
            raise ValueError(f"be at most {MOST:,}")
        return value

    return Check(f"a whole number {between}", read)


def number(
    least: float, most: float = math.inf, *, above: bool = False, below: bool = False
) -> Check:
    """`above` and `below` leave the bound itself out."""
    low = f"above {_plain(least)}" if above else f"of at least {_plain(least)}"
    high = "" if most == math.inf else f" and {'below' if below else 'at most'} {_plain(most)}"
    allowed = f"a number {low}{high}" if least != -math.inf else "a finite number"

    def read(value: Any, _: Facts) -> float:
        read = _float(_from_text(value))
        if not math.isfinite(read):
            raise ValueError
        if read < least or read > most or (above and read == least) or (below and read == most):
            raise ValueError
        return read

    return Check(allowed, read)


def _plain(value: float) -> str:
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise ValueError from None


def choice(*values: Any) -> Check:
    def read(value: Any, _: Facts) -> Any:
        if not any(value == one and type(value) is type(one) for one in values):
            raise ValueError
        return value

    named = [str(v).lower() if isinstance(v, bool) else f'"{v}"' for v in values]
    return Check(" or ".join([", ".join(named[:-1]), named[-1]] if named[1:] else named), read)


def _from_text(value: Any) -> Any:
    """Return the number that a text holds, as a form sends it; anything else as it is."""
    if not isinstance(value, str):
        return value
    if not value.isascii() or "_" in value:  # which Python reads as numbers
        raise ValueError
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    raise ValueError


def _read_flag(value: Any, _: Facts) -> bool:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise ValueError
    return text in ("true", "1")


FLAG = Check("true or false", _read_flag)


def _read_texts(value: Any, facts: Facts) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise ValueError
    _most(len(texts), "texts", facts, "max_stop_strings")
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError
    _most(sum(map(len, texts)), "characters together", facts, "max_stop_characters")
    return list(texts)


def _most(given: int, what: str, facts: Facts, limit: str) -> None:
    most = getattr(facts.limits, limit)
    if given > most:
        raise ValueError(f"have at most {most:,} {what}, and has {given:,} ({limit.upper()})")


TEXTS = Check("a text or a list of texts, none of them empty", _read_texts)


def _token_id(value: Any, facts: Facts) -> int:
    # On a GPU an id outside the vocabulary ends the engine, and no exception can be caught there.
    if type(value) is not int or not 0 <= value < facts.vocab_size:
        raise ValueError(
            f"hold token ids of this model, whole numbers from 0 to {facts.vocab_size - 1:,}"
        )
    return value


def read_ids(value: Any, facts: Facts) -> list[int]:
    if not isinstance(value, list) or not value:
        raise ValueError
    _most(len(value), "token ids", facts, "max_token_ids")
    return list(dict.fromkeys(_token_id(one, facts) for one in value))


def _read_id_or_ids(value: Any, facts: Facts) -> list[int]:
    return read_ids(value if isinstance(value, list) else [value], facts)


def read_sequences(value: Any, facts: Facts) -> list[list[int]]:
    if not isinstance(value, list) or not value:
        raise ValueError
    # Each once: the engine reads them inside a step that all requests share.
    sequences: dict[tuple[int, ...], None] = {}
    for ids in value:
        if not isinstance(ids, list) or not ids:
            raise ValueError
        _most(len(ids), "token ids in a sequence", facts, "max_token_ids")
        sequences[tuple(_token_id(one, facts) for one in ids)] = None
    return [list(ids) for ids in sequences]


def _read_sequence_bias(value: Any, facts: Facts) -> list[list[Any]]:
    if not isinstance(value, list) or not value:
        raise ValueError
    biases = {}  # of one that comes twice the last holds, as in transformers
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], list):
            raise ValueError
        ids, bias = entry
        bias = _float(bias)
        _most(len(ids), "token ids in a sequence", facts, "max_token_ids")
        if not ids or math.isnan(bias):
            raise ValueError
        if bias > HOTTEST:  # -inf forbids, as in transformers; the other would leave no number
            raise ValueError(f"hold biases of at most {_plain(HOTTEST)}")
        biases[tuple(_token_id(one, facts) for one in ids)] = bias
    return [[list(ids), bias] for ids, bias in biases.items()]


def _read_decay(value: Any, facts: Facts) -> list[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError
    start, factor = value
    return [whole(0).read(start, facts), number(0, 100, above=True).read(factor, facts)]


def _read_temperature(value: Any, facts: Facts) -> float:
    temperature: float = number(0, HOTTEST).read(value, facts)
    if 0 < temperature < COLDEST:
        raise ValueError
    return temperature


def _read_logprobs(value: Any, facts: Facts) -> int | None:
    if type(value) is bool:
        return 1 if value else None
    count: int = whole(-1).read(value, facts)
    return count


def _read_logit_bias(value: Any, facts: Facts) -> dict[int, float]:
    if not isinstance(value, dict):
        raise ValueError
    _most(len(value), "token ids", facts, "max_token_ids")
    biases = {}
    for key, bias in value.items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        # As on vLLM's own routes.
        biases[_token_id(token, facts)] = min(
            100.0, max(-100.0, number(-math.inf).read(bias, facts))
        )
    return biases


def _read_structured(value: Any, facts: Facts) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    for name, one in value.items():
        check = STRUCTURED_FIELDS.get(name)
        if check is not None and one is not None:
            try:
                check.read(one, facts)
            except ValueError:
                raise ValueError(f"have as {name} {check.allowed}") from None
    return value


def _read_choice(value: Any, _: Facts) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError
    return value


def _read_object(value: Any, _: Facts) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _read_schema(value: Any, facts: Facts) -> Any:
    return value if isinstance(value, dict) else TEXT.read(value, facts)


_HASHED: Mapping[str, Check] = {
    "greenlist_ratio": number(0, 1, above=True, below=True),
    "bias": number(-1000, 1000),
    "hashing_key": whole(0, 2**31),
    "seeding_scheme": choice("lefthash", "selfhash"),
    "context_width": whole(1, 64),
}
_SYNTHID: Mapping[str, Check] = {
    "ngram_len": whole(2, 64),
    "keys": Check("a list of 1 to 64 whole numbers", lambda v, _: _read_keys(v)),
    "context_history_size": whole(1, 65_536),
    "sampling_table_seed": whole(0, 2**31),
    "sampling_table_size": whole(2, 2**20),
    "skip_first_ngram_calls": FLAG,
    "debug_mode": FLAG,
}


def _read_keys(value: Any) -> list[int]:
    if not isinstance(value, list) or not 1 <= len(value) <= 64:
        raise ValueError
    if not all(type(key) is int and 0 <= key < 2**31 for key in value):
        raise ValueError
    return list(value)


def _read_watermark(value: Any, facts: Facts) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    is_synthid = "keys" in value or "ngram_len" in value
    checks = _SYNTHID if is_synthid else _HASHED
    if is_synthid and not ("keys" in value and "ngram_len" in value):
        raise ValueError("have both keys and ngram_len, which make it SynthID")
    read = {}
    for name, one in value.items():
        if name not in checks:
            raise ValueError(f"hold these fields only: {', '.join(checks)}; not {shown(name)}")
        try:
            read[name] = checks[name].read(one, facts)
        except ValueError:
            raise ValueError(f"have as {name} {checks[name].allowed}") from None
    return read


def _read_values(value: Any, facts: Facts) -> Any:
    return value if type(value) is bool else whole(0).read(value, facts)


IDS = Check("a list of token ids, not empty", read_ids)
ID_OR_IDS = Check("a token id or a list of them", _read_id_or_ids)
ONE_ID = Check("a token id of this model", _token_id)
SEQUENCES = Check("a list of lists of token ids, none of them empty", read_sequences)
SEQUENCE_BIAS = Check("a list of pairs [[token ids], bias]", _read_sequence_bias)
DECAY = Check(
    "[start, factor]: a whole number of tokens and a number above 0 and at most 100", _read_decay
)
TEMPERATURE = Check(
    f"0, or a number from {_plain(COLDEST)} to {_plain(HOTTEST)}", _read_temperature
)
PENALTY = number(COLDEST, HOTTEST)
LOGPROBS = Check("a whole number of at least -1, true for 1, or false", _read_logprobs)
LOGIT_BIAS = Check("an object of token ids and finite numbers", _read_logit_bias)
OBJECT = Check("an object", _read_object)
CHOICE = Check("a list of texts, not empty", _read_choice)
WATERMARK = Check("an object of transformers' WatermarkingConfig", _read_watermark)
VALUES = Check("true, false or the number of values for each token", _read_values)
TEXT = Check(
    "a text, not empty", lambda v, _: v if isinstance(v, str) and v else fail(ValueError())
)
SCHEMA = Check("a JSON schema, as an object or as a text", _read_schema)
REGEX = Check("a text", lambda v, _: v if isinstance(v, str) else fail(ValueError()))
STRUCTURED_FIELDS: Mapping[str, Check] = {
    "json": SCHEMA,
    "regex": REGEX,
    "choice": CHOICE,
    "grammar": TEXT,
    "json_object": Check("true", lambda v, _: v is True or fail(ValueError())),
    "whitespace_pattern": REGEX,
    "structural_tag": TEXT,
}
STRUCTURED = Check('an object, such as {"choice": ["yes", "no"]}', _read_structured)


def fail(error: Exception) -> Any:
    raise error


TEXTS_OR_NONE = Check(TEXTS.allowed, lambda v, f: [] if v == [] else _read_texts(v, f))
