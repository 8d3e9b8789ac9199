"""The table of generation parameters is complete, and each row of it is fit for the page."""

import dataclasses
import inspect
import json
import math
import re
import warnings
from typing import Any

import pytest
from transformers import GenerationConfig, GenerationMixin

from worker.configuration.variables import VARIABLES
from worker.engine import command_line
from worker.facts import Facts, Limits
from worker.generation import checks, parameter
from worker.generation.checks import Check
from worker.generation.parameter import Parameter
from worker.generation.table import BY_NAME, PARAMETERS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, at vLLM's import
    OPTIONS = command_line.options()

HERE = Facts(vocab_size=1000, max_model_len=256, eos=(2,))

# The names of transformers 5.19's reference of generation parameters, in its groups.
REFERENCE: dict[str, tuple[str, ...]] = {
    "length": (
        *("max_new_tokens", "max_length", "min_new_tokens", "min_length", "early_stopping"),
        *("max_time", "stop_strings"),
    ),
    "strategy": ("do_sample", "num_beams", "use_mtp"),
    "cache": ("use_cache", "cache_implementation", "cache_config", "max_cache_len"),
    "logits": (
        *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff"),
        *("eta_cutoff", "repetition_penalty", "encoder_repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "bad_words_ids", "renormalize_logits", "forced_bos_token_id"),
        *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "sequence_bias", "token_healing"),
        *("guidance_scale", "watermarking_config"),
    ),
    "outputs": (
        *("num_return_sequences", "output_scores", "output_logits", "output_hidden_states"),
        *("output_attentions", "return_dict_in_generate"),
    ),
    "special tokens": ("eos_token_id", "bos_token_id", "pad_token_id"),
    "encoder-decoder": ("encoder_no_repeat_ngram_size", "decoder_start_token_id"),
    "assistant": (
        *("prompt_lookup_num_tokens", "max_matching_ngram_size", "num_assistant_tokens"),
        *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "is_assistant"),
        *("assistant_lookbehind", "target_lookbehind", "assistant_early_exit"),
        *("assistant_ensemble_weight", "speculation_type"),
    ),
    "compilation": ("compile_config", "disable_compile"),
}
NAMES = [name for group in REFERENCE.values() for name in group]
# What GenerationConfig has beside the reference, none of it a generation parameter.
BESIDE = {"transformers_version"}


def test_the_reference_has_62_names() -> None:
    """Its two language versions name the same 62."""
    assert 62 == len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_reference_is_in_the_table(name: str) -> None:
    """Whoever comes with a name of transformers' finds it: taken, or refused with a sentence."""
    row = BY_NAME[name]

    assert name == row.name
    assert row.reference in ("Hugging Face", "both")


def test_a_new_transformers_hides_no_name() -> None:
    """What a GenerationConfig of the installed transformers holds is in the table."""
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}

    assert set() == fields - set(BY_NAME) - BESIDE


def test_a_new_transformers_hides_no_argument() -> None:
    """What generate() itself takes is in the table too."""
    arguments = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}

    assert set() == arguments - set(BY_NAME)


def test_names_are_said_once() -> None:
    """No row hides another."""
    names = [name for row in PARAMETERS for name in (row.name, *row.aliases)]

    assert len(names) == len(set(names)) == len(BY_NAME)


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: row.name)
def test_every_row_can_be_read(row: Parameter) -> None:
    """A row's texts are sentences, and it says what its kind of row must say."""
    assert row.kind in parameter.KINDS
    for text in (row.meaning, row.differs):
        assert text == "" or text.endswith(".")
        assert "\n" not in text
    assert row.meaning
    assert row.kind != "refused" or row.differs
    assert row.kind not in ("chain", "routine") or row.becomes
    assert row.kind in ("deployment", "refused") or row.check is not None


@pytest.mark.parametrize(
    "row", [row for row in PARAMETERS if row.example is not None], ids=lambda row: row.name
)
def test_every_example_is_legal(row: Parameter) -> None:
    """What the page shows is taken, and is JSON."""
    assert row.check is not None

    row.check.read(json.loads(json.dumps(row.example)), Facts(4096, 256))


@pytest.mark.parametrize("kind", ["native", "chain", "routine", "output"])
def test_who_works_here_has_an_example(kind: str) -> None:
    """Of the reference's parameters that do something each has an example."""
    without = [n for n in NAMES if BY_NAME[n].kind == kind and BY_NAME[n].example is None]

    assert [] == without


def test_every_variable_exists() -> None:
    """A sentence that names a variable names one that this worker reads."""
    known = {name for variable in VARIABLES for name in variable.names}
    known |= {name for option in OPTIONS.values() for name in option.names}
    known |= {one.name.upper() for one in dataclasses.fields(Limits)}
    said = {row.option for row in PARAMETERS if row.kind == "deployment"} - {""}
    for row in PARAMETERS:
        said |= set(re.findall(r"\b[A-Z]{3,}_[A-Z_]+\b", f"{row.meaning} {row.differs}"))

    assert set() == said - known


ALLOWED = [
    (checks.whole(1), "a whole number of at least 1"),
    (checks.whole(0, 1_000_000), "a whole number from 0 to 1,000,000"),
    (checks.number(0, 1), "a number of at least 0 and at most 1"),
    (checks.number(0, 1, above=True, below=True), "a number above 0 and below 1"),
    (checks.number(0, above=True), "a number above 0"),
    (checks.number(-math.inf), "a finite number"),
    (checks.number(-100, 0.5), "a number of at least -100 and at most 0.5"),
    (checks.choice("a"), '"a"'),
    (checks.choice(True, False, "never"), 'true, false or "never"'),
]


@pytest.mark.parametrize(("check", "allowed"), ALLOWED)
def test_what_is_allowed_is_said_in_words(check: Check, allowed: str) -> None:
    """The range in a sentence is the range that is judged."""
    assert allowed == check.allowed


@pytest.mark.parametrize(
    ("check", "value", "read"),
    [
        (checks.whole(1), 5, 5),
        (checks.whole(1), 5.0, 5),
        (checks.whole(1), "5", 5),
        (checks.whole(1, 5), "5.0", 5),
        (checks.whole(-1), -1, -1),
        (checks.number(0, 1), 0, 0.0),
        (checks.number(0, 1), "1e-3", 0.001),
        (checks.number(0), 1, 1.0),
        (checks.FLAG, "TRUE", True),
        (checks.FLAG, 0, False),
        (checks.TEXTS, "a", ["a"]),
        (checks.ID_OR_IDS, 5, [5]),
        (checks.ID_OR_IDS, [5, 6, 5], [5, 6]),
        (checks.DECAY, [3, 2], [3, 2.0]),
        (checks.VALUES, True, True),
        (checks.VALUES, "3", 3),
        (checks.SEQUENCE_BIAS, [[[5], -math.inf]], [[[5], -math.inf]]),
    ],
)
def test_readings(check: Check, value: Any, read: Any) -> None:
    """A value is read as the engine wants it: an integer where HF wants a float becomes one."""
    found = check.read(value, HERE)

    assert (read, type(read)) == (found, type(found))


def is_refused(check: Check, value: Any) -> bool:
    try:
        check.read(value, HERE)
    except ValueError:
        return True
    return False


NUMBERS: list[Any] = [True, None, "", "x", "nan", "1_0", "١", math.nan, math.inf, [], {}, 10**400]


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("check", [checks.whole(0), checks.number(0)])
def test_what_is_no_number(check: Check, value: Any) -> None:
    """Nothing but a number passes for one, and nothing else than ValueError is raised."""
    assert is_refused(check, value)


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.number(0, 1, above=True), 0),
        (checks.number(0, 1, below=True), 1),
        (checks.number(0, 1), 1.0000001),
        (checks.whole(0, 5), 6),
        (checks.whole(0), -1),
        (checks.whole(0), 2**62 + 1),
        (checks.choice(True, "a"), 1),
    ],
)
def test_bounds(check: Check, value: Any) -> None:
    """A bound that is left out is out, and a 1 is no true."""
    assert is_refused(check, value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("watermarking_config", "With `num_beams` SynthID follows the tokens of each beam"),
        ("guidance_scale", "Beside `num_beams` it is refused, where generate() takes both"),
        ("token_healing", "Where generate() raises"),
    ],
)
def test_where_it_parts_from_generate_is_said(name: str, words: str) -> None:
    """What was seen to differ from generate() stands in the parameter's row."""
    assert words in BY_NAME[name].differs
