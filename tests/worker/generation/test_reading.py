"""A job's sampling parameters become a plan for the engine, or one sentence about a parameter."""

import copy
import json
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams

from worker.errors import RequestError
from worker.facts import Facts, Limits
from worker.generation import inherited, reading, table
from worker.generation.plan import Beams, Guidance, Plan
from worker.openai import bodies

VOCAB = 1000
HERE = Facts(vocab_size=VOCAB, max_model_len=256, eos=(2,))
MTP = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}
NGRAM = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
    }
}
NAN, INFINITY = math.nan, math.inf
HUGE = 10**400  # no float holds it

INTERNAL = {
    "extra_args",
    "output_kind",
    "output_text_buffer_length",
    "routed_experts_prompt_start",
    "skip_clone",
    "trace_decode_token_ids",
}
# Their results come in a field of vLLM's output that no reply holds.
UNSEEN = {"prompt_logprob_token_ids", "prompt_logprob_start"}
# A legal value, different from vLLM's default, for each of vLLM's own parameters.
VALUES: dict[str, Any] = {
    "allowed_token_ids": [1, 2],
    "bad_words": ["damn"],
    "detokenize": False,
    "flat_logprobs": True,
    "frequency_penalty": 0.5,
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "logit_bias": {"5": -1.5},
    "logprob_token_ids": [3, 4],
    "logprobs": 2,
    "max_tokens": 7,
    "min_p": 0.1,
    "min_tokens": 3,
    "n": 2,
    "presence_penalty": -0.5,
    "prompt_logprobs": 1,
    "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
    "repetition_penalty": 1.3,
    "seed": 42,
    "skip_reading_prefix_cache": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["END"],
    "stop_token_ids": [9],
    "stream_interval": 4,
    "structured_outputs": {"regex": "[a-z]+"},
    "temperature": 0.7,
    "thinking_token_budget": 64,
    "top_k": 20,
    "top_p": 0.8,
    "watermarking": False,
}
# All together, without what turns the others off or needs the chain.
TOGETHER = VALUES | {"detokenize": True, "min_p": 0.0}


def plan(given: dict[str, Any], *, stream: bool = False, **facts: Any) -> Plan:
    return reading.read(given, replace(HERE, **facts), stream=stream)


def refusal(given: dict[str, Any], **facts: Any) -> RequestError:
    """Return the error, whose sentence is one that every sentence must be like."""
    with pytest.raises(RequestError) as refused:
        plan(given, **facts)
    judge(refused.value)
    return refused.value


def judge(error: RequestError) -> None:
    kinds = {"invalid_parameter", "unsupported_parameter", "deployment_parameter"}
    assert 400 == error.code
    assert error.type in kinds
    assert error.param is not None
    assert error.message[-1] in ".?"
    assert len(error.message) < 800
    for trace in ("\n", "{'", "['", "None", "True,", "<class", "Error"):
        assert trace not in error.message


def plain(value: Any) -> Any:
    """Turn a field of SamplingParams back into what a job would say."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {k: v for k, v in vars(value).items() if v and not k.startswith("_")}
    if isinstance(value, dict):
        return {str(k): v for k, v in value.items()}
    return value


def found(plan: Plan, path: str) -> Any:
    """Return what stands at `params.max_tokens`, `order.typical_p`, `max_length`, …"""
    room, _, name = path.rpartition(".")
    if room == "params":
        return plain(getattr(plan.params, name))
    if room == "order":
        assert plan.order is not None
        return plan.order.eos if name == "eos" else plan.order.fields.get(name)
    return getattr(plan, name)


def test_every_field_has_a_value_here() -> None:
    """A job may use every field of vLLM's but the internal ones: a new vLLM cannot hide one.

    What a reply could not hold is refused.
    """
    fields = {f.name for f in msgspec.structs.fields(SamplingParams) if f.name[0] != "_"}

    assert set(VALUES) == fields - INTERNAL - UNSEEN
    assert {"refused"} == {table.BY_NAME[name].kind for name in UNSEEN}
    assert set(VALUES) <= set(table.names())


@pytest.mark.parametrize("name", VALUES)
def test_every_field_arrives(name: str) -> None:
    """Each of vLLM's parameters reaches vLLM with the value that the job gave."""
    params = plan({name: VALUES[name]}).params

    assert VALUES[name] == plain(getattr(params, name))


@pytest.mark.parametrize("name", table.BY_NAME)
def test_null_is_left_out(name: str) -> None:
    """A parameter given as null is as if it were not given at all, whichever it is."""
    assert plan({}) == plan({name: None})


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"stop": "END"}, "stop", ["END"]),
        ({"stop": []}, "stop", []),
        ({"bad_words": "damn"}, "bad_words", ["damn"]),
        ({"max_tokens": "5"}, "max_tokens", 5),
        ({"max_tokens": "5.0"}, "max_tokens", 5),
        ({"max_tokens": 5.0}, "max_tokens", 5),
        ({"temperature": "0.5"}, "temperature", 0.5),
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 1}, "temperature", 1.0),
        ({"ignore_eos": "true"}, "ignore_eos", True),
        ({"ignore_eos": "True"}, "ignore_eos", True),
        ({"ignore_eos": 1}, "ignore_eos", True),
        ({"ignore_eos": "1"}, "ignore_eos", True),
        ({"ignore_eos": 0}, "ignore_eos", False),
        ({"ignore_eos": "false"}, "ignore_eos", False),
        ({"seed": -1}, "seed", None),
        ({"seed": 2**62}, "seed", 2**62),
        ({"top_k": -1}, "top_k", -1),
        ({"top_k": "40"}, "top_k", 40),
        ({"logprobs": True}, "logprobs", 1),
        ({"logprobs": False}, "logprobs", None),
        ({"logprobs": 0}, "logprobs", 0),
        ({"logprobs": -1}, "logprobs", -1),
        ({"thinking_token_budget": -1}, "thinking_token_budget", None),
        ({"logit_bias": {"5": 1000}}, "logit_bias", {"5": 100.0}),
        ({"stop_token_ids": [7, 7, 8]}, "stop_token_ids", [7, 8]),
    ],
)
def test_spellings(given: dict[str, Any], field: str, value: Any) -> None:
    """Numbers and booleans that a form sent as text, and vLLM's own short forms, mean the same."""
    assert value == plain(getattr(plan(given).params, field))


# Each of the reference's names that is not the deployment's: what becomes of a legal value.
EFFECTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # Length
    ({"max_new_tokens": 7}, {"params.max_tokens": 7, "has_length": True}),
    ({"max_length": 9}, {"max_length": 9, "has_length": True}),
    ({"min_new_tokens": 5}, {"order.min_new_tokens": 5, "params.min_tokens": 0}),
    ({"min_length": 5}, {"order.min_length": 5}),
    ({"max_time": 2}, {"max_time_s": 2.0, "order": None}),
    (
        {"stop_strings": "END"},
        {"params.stop": ["END"], "params.include_stop_str_in_output": True, "order": None},
    ),
    ({"stop_strings": ["a", "b"]}, {"params.stop": ["a", "b"]}),
    # Strategy
    ({"do_sample": False}, {"params.temperature": 0.0, "order": None}),
    ({"do_sample": True}, {"params.temperature": 1.0, "order": None}),
    ({"num_beams": 4}, {"beams": Beams(4, 1, 1.0, False, False), "order.do_sample": False}),
    ({"beam_width": 4}, {"beams": Beams(4, 1, 1.0, False, False)}),
    ({"num_beams": 1}, {"beams": None, "order": None}),
    (
        {"num_beams": 3, "early_stopping": "never", "length_penalty": -1},
        {"beams": Beams(3, 1, -1.0, "never", False)},
    ),
    (
        {"num_beams": 3, "early_stopping": True, "do_sample": True, "num_return_sequences": 2},
        {"beams": Beams(3, 2, 1.0, True, True), "sequences": 2, "params.n": 1},
    ),
    # Logits: vLLM's own fields where they are enough
    ({"temperature": 1.5}, {"params.temperature": 1.5, "order": None}),
    ({"top_k": 20}, {"params.top_k": 20, "order": None}),
    ({"top_p": 0.5}, {"params.top_p": 0.5, "order": None}),
    ({"min_p": 0.1}, {"params.min_p": 0.1, "order": None}),
    ({"repetition_penalty": 1.2}, {"params.repetition_penalty": 1.2, "order": None}),
    # Logits: the chain
    ({"top_h": 0.4}, {"order.top_h": 0.4, "order.do_sample": True}),
    ({"typical_p": 0.9}, {"order.typical_p": 0.9, "order.temperature": 1.0}),
    ({"epsilon_cutoff": 0.01}, {"order.epsilon_cutoff": 0.01}),
    ({"eta_cutoff": 0.01}, {"order.eta_cutoff": 0.01}),
    ({"encoder_repetition_penalty": 2}, {"order.encoder_repetition_penalty": 2.0}),
    ({"no_repeat_ngram_size": 3}, {"order.no_repeat_ngram_size": 3}),
    ({"bad_words_ids": [[1], [2, 3]]}, {"order.bad_words_ids": [[1], [2, 3]]}),
    ({"bad_words_ids": [[1], [1]]}, {"order.bad_words_ids": [[1]]}),
    ({"sequence_bias": [[[7], 2], [[7], 3]]}, {"order.sequence_bias": [[[7], 3.0]]}),
    ({"renormalize_logits": True}, {"order.renormalize_logits": True}),
    ({"forced_bos_token_id": 5}, {"order.forced_bos_token_id": 5}),
    ({"forced_eos_token_id": 5}, {"order.forced_eos_token_id": [5]}),
    ({"forced_eos_token_id": [5, 6]}, {"order.forced_eos_token_id": [5, 6]}),
    ({"remove_invalid_values": True}, {"order.remove_invalid_values": True}),
    (
        {"exponential_decay_length_penalty": [3, 1]},
        {"order.exponential_decay_length_penalty": [3, 1.0]},
    ),
    ({"suppress_tokens": [7, 7]}, {"order.suppress_tokens": [7]}),
    ({"begin_suppress_tokens": [7]}, {"order.begin_suppress_tokens": [7]}),
    ({"sequence_bias": [[[7], 2]]}, {"order.sequence_bias": [[[7], 2.0]]}),
    ({"sequence_bias": [[[7], -INFINITY]]}, {"order.sequence_bias": [[[7], -INFINITY]]}),
    ({"encoder_no_repeat_ngram_size": 2}, {"order.encoder_no_repeat_ngram_size": 2}),
    ({"watermarking_config": {}}, {"order.watermarking_config": {}, "is_costly": False}),
    (
        {"watermarking_config": {"bias": 2, "seeding_scheme": "selfhash"}},
        {
            "order.watermarking_config": {"bias": 2.0, "seeding_scheme": "selfhash"},
            "is_costly": True,
        },
    ),
    (
        {"watermarking_config": {"keys": [5, 6], "ngram_len": 3}},
        {"order.watermarking_config": {"keys": [5, 6], "ngram_len": 3}, "is_costly": True},
    ),
    # Routines
    ({"token_healing": True}, {"heal": True, "order": None}),
    ({"guidance_scale": 1.5}, {"guidance": Guidance(1.5, None), "order.do_sample": True}),
    ({"guidance_scale": 1}, {"guidance": None, "order": None}),
    (
        {"guidance_scale": 0, "negative_prompt": "Sad:"},
        {"guidance": Guidance(0.0, "Sad:")},
    ),
    (
        {"guidance_scale": -2, "negative_prompt_ids": [5, 5]},
        {"guidance": Guidance(-2.0, [5, 5])},
    ),
    # Outputs
    ({"num_return_sequences": 3}, {"params.n": 3, "sequences": 3}),
    ({"output_scores": 5}, {"scores": 5, "logits": 0, "order.do_sample": True}),
    ({"output_scores": True}, {"scores": 20}),
    ({"output_scores": False}, {"scores": 0, "order": None}),
    ({"output_logits": 3}, {"logits": 3, "scores": 0}),
    ({"return_dict_in_generate": True}, {"order": None, "warnings": ()}),
    ({"return_token_ids": True}, {"token_ids": True}),
    # Special tokens
    (
        {"eos_token_id": 5},
        {"params.ignore_eos": True, "params.stop_token_ids": [5], "eos": (5,), "order": None},
    ),
    (
        {"eos_token_id": [5, 6], "stop_token_ids": [9], "min_new_tokens": 1},
        {"params.stop_token_ids": [5, 6, 9], "eos": (5, 6), "order.eos": (5, 6)},
    ),
    ({"min_new_tokens": 1}, {"order.eos": (2,)}),
    ({"min_new_tokens": 1, "ignore_eos": True}, {"order.eos": ()}),
    ({"bos_token_id": 1}, {"bos": 1}),
    ({"pad_token_id": 0}, {"order": None, "warnings": ()}),
    # Refused ones that ask for what is anyway
    ({"output_attentions": False}, {"order": None}),
    ({"output_hidden_states": False}, {"order": None}),
    ({"num_beam_groups": 1}, {"order": None}),
    ({"diversity_penalty": 0.0}, {"order": None}),
    # vLLM's older ones
    ({"best_of": 3}, {"params.n": 3, "params.logprobs": 0, "ranked": 1, "sequences": 1}),
    ({"best_of": 4, "n": 2, "logprobs": 2}, {"params.n": 4, "params.logprobs": 2, "ranked": 2}),
    ({"use_beam_search": True, "best_of": 4, "n": 2}, {"beams": Beams(4, 2, 1.0, False, False)}),
    ({"use_beam_search": True, "n": 3}, {"beams": Beams(3, 3, 1.0, False, False)}),
    ({"use_beam_search": True, "num_beams": 3}, {"beams": Beams(3, 1, 1.0, False, False)}),
    ({"use_beam_search": False}, {"beams": None, "order": None}),
    ({"guided_regex": "a+"}, {"params.structured_outputs": {"regex": "a+"}}),
    ({"guided_choice": ["a", "b"]}, {"params.structured_outputs": {"choice": ["a", "b"]}}),
    (
        {"guided_grammar": 'root ::= "a"'},
        {"params.structured_outputs": {"grammar": 'root ::= "a"'}},
    ),
    (
        {"guided_json": {"type": "object"}, "guided_whitespace_pattern": " ?"},
        {"params.structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": " ?"}},
    ),
    ({"guided_json_object": True}, {"params.structured_outputs": {"json_object": True}}),
    ({"guided_json_object": False}, {"params.structured_outputs": None}),
]


@pytest.mark.parametrize(("given", "expected"), EFFECTS)
def test_effects(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each parameter does what the table says; and vLLM's fields are neutral beside the chain."""
    made = plan(given)

    assert expected == {path: found(made, path) for path in expected}


DEPLOYMENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"use_mtp": False}, {}),
    ({"use_mtp": True}, MTP),
    ({"use_cache": True}, {}),
    ({"use_cache": False}, {}),
    ({"cache_implementation": "dynamic"}, {}),
    ({"cache_implementation": "static"}, {}),
    ({"max_cache_len": 256}, {}),
    ({"prompt_lookup_num_tokens": 4}, NGRAM),
    ({"max_matching_ngram_size": 3}, NGRAM),
    ({"num_assistant_tokens": 3}, MTP),
    ({"num_assistant_tokens_schedule": "constant"}, {}),
    ({"is_assistant": False}, {}),
    ({"speculation_type": "mtp"}, MTP),
    ({"disable_compile": False}, {}),
    ({"disable_compile": True}, {"enforce_eager": True}),
]


@pytest.mark.parametrize(("given", "options"), DEPLOYMENT)
def test_what_the_deployment_does_anyway_is_accepted(
    given: dict[str, Any], options: dict[str, Any]
) -> None:
    """A parameter that asks for what this worker does changes nothing of the plan."""
    made = plan(given, engine_options=options)

    assert plan({}, engine_options=options) == replace(made, warnings=())


DIFFERENT = "this is fixed when the worker starts, and here it is different ("
WRONG_DEPLOYMENT = [
    ({"use_mtp": True}, f"use_mtp=true: {DIFFERENT}speculative_config=null). The variable SPECUL"),
    ({"cache_implementation": "quantized"}, f'"quantized": {DIFFERENT}kv_cache_dtype="auto"). The'),
    ({"cache_config": {"nbits": 4}}, f'{{"nbits": 4}}: {DIFFERENT}kv_cache_dtype="auto"). The var'),
    ({"max_cache_len": 257}, f"{DIFFERENT}max_model_len=256). The variable MAX_MODEL_LEN sets it."),
    ({"prompt_lookup_num_tokens": 3}, "The variable SPECULATIVE_CONFIG sets it."),
    ({"max_matching_ngram_size": 2}, "The variable SPECULATIVE_CONFIG sets it."),
    ({"num_assistant_tokens": 5}, "The variable SPECULATIVE_CONFIG sets it."),
    ({"num_assistant_tokens_schedule": "heuristic"}, "The variable SPECULATIVE_CONFIG sets it."),
    ({"is_assistant": True}, "The variable SPECULATIVE_CONFIG sets it."),
    ({"speculation_type": "dflash"}, "The variable SPECULATIVE_CONFIG sets it."),
    ({"compile_config": {}}, "fixed when the worker starts. The variable COMPILATION_CONFIG sets"),
    ({"disable_compile": True}, f"{DIFFERENT}enforce_eager=false). The variable ENFORCE_EAGER set"),
    ({"guided_decoding_backend": "xgrammar"}, "The variable STRUCTURED_OUTPUTS_CONFIG sets it."),
]


@pytest.mark.parametrize(("given", "fragment"), WRONG_DEPLOYMENT)
def test_what_the_deployment_does_otherwise_is_refused(
    given: dict[str, Any], fragment: str
) -> None:
    """A parameter that a request cannot change says what holds here, and which variable sets it."""
    options = {"speculative_config": None, "kv_cache_dtype": "auto", "enforce_eager": False}
    error = refusal(given, engine_options=options)

    assert fragment in error.message
    assert ("deployment_parameter", next(iter(given))) == (error.type, error.param)


REFUSED = {
    "output_attentions": "vLLM's attention kernels do not produce attention matrices.",
    "output_hidden_states": "a reply cannot hold them.",
    "decoder_start_token_id": "this worker serves a decoder-only model.",
    "assistant_confidence_threshold": "vLLM's speculation has no such threshold.",
    "assistant_lookbehind": "vLLM aligns vocabularies in another way.",
    "target_lookbehind": "vLLM aligns vocabularies in another way.",
    "assistant_early_exit": "no drafting with a part of the model's own layers.",
    "assistant_ensemble_weight": "It would change the output's distribution",
    "num_beam_groups": "transformers 5 no longer has it.",
    "diversity_penalty": "transformers 5 no longer has it.",
    "penalty_alpha": "transformers 5 no longer has it.",
    "dola_layers": "transformers 5 no longer has it.",
    "constraints": "structured_outputs constrains an answer.",
    "force_words_ids": "structured_outputs constrains an answer.",
    "low_memory": "transformers 5 no longer has it.",
    "prefill_chunk_size": "The variable MAX_NUM_BATCHED_TOKENS sets it for all requests.",
    "continuous_batching_config": "vLLM batches by itself",
    "assistant_model": "The variable SPECULATIVE_CONFIG names one for all requests.",
    "assistant_tokenizer": "See assistant_model.",
    "prefix_allowed_tokens_fn": "A job cannot carry a function",
    "logits_processor": "A job cannot carry code",
    "stopping_criteria": "stop_strings and eos_token_id end an answer.",
    "streamer": 'Give "stream": true beside sampling_params.',
    "synced_gpus": "vLLM does that by itself.",
    "custom_generate": "A job cannot carry code.",
    "generation_config": "Give its fields one by one.",
    "inputs": "Give prompt or messages beside sampling_params.",
    "negative_prompt_attention_mask": "All of them do",
    "return_full_text": "A reply holds the new text only.",
    "watermark": "Give watermarking_config: {}.",
    "details": "Give return_token_ids or logprobs.",
    "decoder_input_details": "Give prompt_logprobs.",
    "top_n_tokens": "Give logprobs.",
    "truncate": "Give truncate_prompt_tokens.",
    "grammar": "Give structured_outputs.",
    "adapter_id": 'Give "model" beside sampling_params.',
    "prompt_logprob_token_ids": "Give prompt_logprobs.",
    "prompt_logprob_start": "Give prompt_logprobs.",
}


def test_every_refused_name_is_listed_here() -> None:
    """No name is refused without a sentence that somebody has read."""
    refused = {one.name for one in table.PARAMETERS if one.kind == "refused"}

    assert set(REFUSED) == refused


@pytest.mark.parametrize("name", REFUSED)
def test_refused_names(name: str) -> None:
    """A parameter that makes no sense here is refused with the reason, or with what to do."""
    error = refusal({name: 2 if table.BY_NAME[name].check is None else True})

    assert error.message.startswith(f"{name} is not supported. ")
    assert REFUSED[name] in error.message
    assert ("unsupported_parameter", name) == (error.type, error.param)


WRONG_KINDS: list[Any] = [
    *([], {}, [[]], {"a": 1}, "many", "", NAN, INFINITY, -INFINITY, HUGE, -HUGE),
    *("nan", "1e999", "1_000", "١", [{}], [True], [None], [1.5], [-1], [VOCAB]),
    *([HUGE], [[[[1]]]]),
]
# What of these a parameter takes, beside the ordinary.
TAKES: dict[str, list[Any]] = {
    "watermarking_config": [{}],
    "repetition_detection": [{}],
    "logit_bias": [{}],
    "guided_json": [{}, {"a": 1}, "many", "nan", "1e999", "1_000", "١"],
    "structured_outputs": [],
    "bad_words": [[]],
    "stop": [[]],
    "stop_strings": [[]],
    "stop_token_ids": [[]],
    "pad_token_id": [HUGE, -HUGE],
    "guided_regex": [""],
    "guided_whitespace_pattern": [],
}
TEXT_TAKERS = {"negative_prompt", "stop", "stop_strings", "bad_words", "guided_regex"}
TEXT_TAKERS |= {"guided_grammar", "guided_json"}


def _takes(name: str, value: Any) -> bool:
    if name in TEXT_TAKERS and isinstance(value, str) and value:
        return True
    return any(type(one) is type(value) and one == value for one in TAKES.get(name, []))


@pytest.mark.parametrize("name", [n for n in table.BY_NAME if n not in REFUSED])
def test_wrong_kinds(name: str) -> None:
    """No parameter takes a value of another kind, an id outside the vocabulary, or no number."""
    beside = {"guidance_scale": 2} if name.startswith("negative_prompt") else {}
    for value in WRONG_KINDS:
        if not _takes(name, value):
            error = refusal(beside | {name: value})
            assert name in error.message or error.param in (name, "structured_outputs"), value


WRONG = [
    ({"max_tokens": 0}, "max_tokens=0: it must be a whole number of at least 1."),
    ({"max_tokens": -1}, "max_tokens=-1: it must be a whole number of at least 1."),
    ({"max_tokens": True}, "max_tokens=true: it must be a whole number of at least 1."),
    ({"max_tokens": 5.5}, "max_tokens=5.5: it must be a whole number"),
    ({"max_tokens": "many"}, 'max_tokens="many": it must be a whole number'),
    ({"max_tokens": 2**62 + 1}, "it must be at most 4,611,686,018,427,387,904."),
    ({"max_new_tokens": 0}, "max_new_tokens=0: it must be a whole number of at least 1."),
    ({"max_new_tokens": False}, "max_new_tokens=false: it must be a whole number"),
    ({"max_length": 0}, "max_length=0: it must be a whole number of at least 1."),
    ({"min_new_tokens": -1}, "min_new_tokens=-1: it must be a whole number of at least 0."),
    ({"min_length": -1}, "min_length=-1: it must be a whole number of at least 0."),
    ({"early_stopping": "always"}, 'must be true, false or "never".'),
    ({"early_stopping": 1}, 'early_stopping=1: it must be true, false or "never".'),
    ({"max_time": 0}, "max_time=0: it must be a number above 0 and at most 86,400."),
    ({"max_time": -1}, "max_time=-1: it must be a number above 0"),
    ({"max_time": 90_000}, "max_time=90000: it must be a number above 0 and at most 86,400."),
    ({"max_time": True}, "max_time=true: it must be a number above 0"),
    ({"stop_strings": ""}, 'stop_strings="": it must be a text or a list of texts'),
    ({"stop_strings": ["a", ""]}, "none of them empty."),
    ({"stop_strings": ["a"] * 257}, "at most 256 texts, and has 257 (MAX_STOP_STRINGS)"),
    ({"do_sample": "maybe"}, 'do_sample="maybe": it must be true or false.'),
    ({"do_sample": 2}, "do_sample=2: it must be true or false."),
    ({"num_beams": 0}, "num_beams=0: it must be a whole number of at least 1."),
    ({"beam_width": 0}, "beam_width=0: it must be a whole number of at least 1."),
    ({"num_beams": True}, "num_beams=true: it must be a whole number"),
    ({"temperature": -1}, "temperature=-1: it must be 0, or a number from 0.000001 to 1,000,000."),
    ({"temperature": 1e-7}, "temperature=1e-07: it must be 0, or a number from 0.000001"),
    ({"temperature": 1e7}, "it must be 0, or a number from 0.000001 to 1,000,000."),
    ({"temperature": NAN}, "temperature=NaN: it must be 0, or a number"),
    ({"temperature": "hot"}, 'temperature="hot": it must be 0, or a number'),
    ({"temperature": True}, "temperature=true: it must be 0, or a number"),
    ({"top_k": -2}, "top_k=-2: it must be a whole number of at least -1."),
    ({"top_k": 0.5}, "top_k=0.5: it must be a whole number of at least -1."),
    ({"top_p": -0.1}, "top_p=-0.1: it must be a number of at least 0 and at most 1."),
    ({"top_p": 1.1}, "top_p=1.1: it must be a number of at least 0 and at most 1."),
    ({"min_p": 1.5}, "min_p=1.5: it must be a number of at least 0 and at most 1."),
    ({"top_h": 0}, "top_h=0: it must be a number above 0 and at most 1."),
    ({"top_h": 1.1}, "top_h=1.1: it must be a number above 0 and at most 1."),
    ({"typical_p": 0}, "typical_p=0: it must be a number above 0 and at most 1."),
    ({"typical_p": 1.5}, "typical_p=1.5: it must be a number above 0 and at most 1."),
    ({"epsilon_cutoff": 1}, "epsilon_cutoff=1: it must be a number of at least 0 and below 1."),
    ({"epsilon_cutoff": -0.1}, "it must be a number of at least 0 and below 1."),
    ({"eta_cutoff": 1.5}, "eta_cutoff=1.5: it must be a number of at least 0 and below 1."),
    ({"repetition_penalty": 0}, "it must be a number of at least 0.000001 and at most 1,000,000."),
    ({"repetition_penalty": -1}, "it must be a number of at least 0.000001"),
    ({"encoder_repetition_penalty": 0}, "it must be a number of at least 0.000001"),
    ({"length_penalty": 101}, "it must be a number of at least -100 and at most 100."),
    ({"no_repeat_ngram_size": -1}, "it must be a whole number from 0 to 1,000,000."),
    ({"encoder_no_repeat_ngram_size": -1}, "it must be a whole number from 0 to 1,000,000."),
    ({"bad_words_ids": []}, "it must be a list of lists of token ids, none of them empty."),
    ({"bad_words_ids": [[]]}, "it must be a list of lists of token ids, none of them empty."),
    ({"bad_words_ids": [5]}, "it must be a list of lists of token ids"),
    (
        {"bad_words_ids": [[-1]]},
        "it must hold token ids of this model, whole numbers from 0 to 999.",
    ),
    ({"bad_words_ids": [[VOCAB]]}, "it must hold token ids of this model"),
    ({"bad_words_ids": [["5"]]}, "it must hold token ids of this model"),
    ({"bad_words_ids": [[[5]]]}, "it must hold token ids of this model"),
    ({"renormalize_logits": "x"}, "it must be true or false."),
    ({"forced_bos_token_id": VOCAB}, "it must hold token ids of this model"),
    ({"forced_bos_token_id": [5]}, "it must hold token ids of this model"),
    (
        {"forced_eos_token_id": []},
        "forced_eos_token_id=[]: it must be a token id or a list of them.",
    ),
    ({"forced_eos_token_id": [2, -1]}, "it must hold token ids of this model"),
    ({"remove_invalid_values": "x"}, "it must be true or false."),
    ({"exponential_decay_length_penalty": [1]}, "it must be [start, factor]: a whole number of"),
    ({"exponential_decay_length_penalty": [1, 2, 3]}, "it must be [start, factor]"),
    ({"exponential_decay_length_penalty": [-1, 2]}, "it must be [start, factor]"),
    ({"exponential_decay_length_penalty": [1.5, 2]}, "it must be [start, factor]"),
    ({"exponential_decay_length_penalty": [1, 0]}, "and a number above 0 and at most 100."),
    ({"exponential_decay_length_penalty": [1, 1e300]}, "and a number above 0 and at most 100."),
    ({"exponential_decay_length_penalty": [1, HUGE]}, "it must be [start, factor]"),
    ({"exponential_decay_length_penalty": {"start": 1}}, "it must be [start, factor]"),
    ({"suppress_tokens": []}, "it must be a list of token ids, not empty."),
    ({"suppress_tokens": 5}, "it must be a list of token ids, not empty."),
    ({"suppress_tokens": [[5]]}, "it must hold token ids of this model"),
    ({"begin_suppress_tokens": [True]}, "it must hold token ids of this model"),
    ({"sequence_bias": {"5": 1}}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[5, 1]]}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[[5]]]}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[[], 1]]}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[[5], "1"]]}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[[5], True]]}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[[5], NAN]]}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[[5], INFINITY]]}, "it must hold biases of at most 1,000,000."),
    ({"sequence_bias": [[[5], HUGE]]}, "it must be a list of pairs [[token ids], bias]."),
    ({"sequence_bias": [[[VOCAB], 1]]}, "it must hold token ids of this model"),
    ({"token_healing": "x"}, "it must be true or false."),
    ({"guidance_scale": 1001}, "it must be a number of at least -1,000 and at most 1,000."),
    ({"guidance_scale": 2, "negative_prompt": ""}, 'negative_prompt="": it must be a text, not'),
    ({"guidance_scale": 2, "negative_prompt": [5]}, "negative_prompt=[5]: it must be a text"),
    (
        {"guidance_scale": 2, "negative_prompt_ids": []},
        "it must be a list of token ids, not empty.",
    ),
    ({"guidance_scale": 2, "negative_prompt_ids": [VOCAB]}, "it must hold token ids of this model"),
    ({"negative_prompt": "x"}, "negative_prompt needs a guidance_scale other than 1 beside it."),
    (
        {"negative_prompt_ids": [5], "guidance_scale": 1},
        "negative_prompt_ids needs a guidance_scale",
    ),
    ({"watermarking_config": True}, "it must be an object of transformers' WatermarkingConfig."),
    ({"watermarking_config": {"x": 1}}, 'hashing_key, seeding_scheme, context_width; not "x".'),
    ({"watermarking_config": {"x\ny": 1}}, 'context_width; not "x\\ny".'),
    (
        {"watermarking_config": {"greenlist_ratio": 1}},
        "have as greenlist_ratio a number above 0 and",
    ),
    (
        {"watermarking_config": {"bias": INFINITY}},
        "have as bias a number of at least -1,000 and at",
    ),
    ({"watermarking_config": {"hashing_key": -1}}, "have as hashing_key a whole number from 0 to"),
    (
        {"watermarking_config": {"seeding_scheme": "x"}},
        'as seeding_scheme "lefthash" or "selfhash"',
    ),
    (
        {"watermarking_config": {"context_width": 0}},
        "have as context_width a whole number from 1 to",
    ),
    (
        {"watermarking_config": {"keys": [1]}},
        "have both keys and ngram_len, which make it SynthID.",
    ),
    (
        {"watermarking_config": {"keys": [], "ngram_len": 3}},
        "as keys a list of 1 to 64 whole numbe",
    ),
    ({"watermarking_config": {"keys": [1] * 65, "ngram_len": 3}}, "as keys a list of 1 to 64"),
    ({"watermarking_config": {"keys": [1], "ngram_len": 1}}, "as ngram_len a whole number from 2"),
    ({"watermarking_config": {"keys": [1], "ngram_len": 3, "bias": 1}}, 'debug_mode; not "bias".'),
    ({"num_return_sequences": 0}, "it must be a whole number of at least 1."),
    ({"output_scores": -1}, "it must be true, false or the number of values for each token."),
    ({"output_scores": 21}, "output_scores=21 is more than the 20 values for each token that this"),
    ({"output_logits": 21}, "(MAX_SCORES)."),
    ({"return_dict_in_generate": "x"}, "it must be true or false."),
    ({"eos_token_id": []}, "eos_token_id=[]: it must be a token id or a list of them."),
    ({"eos_token_id": -1}, "eos_token_id=-1: it must hold token ids of this model"),
    ({"eos_token_id": [VOCAB]}, "eos_token_id=[1000]: it must hold token ids of this model"),
    ({"bos_token_id": VOCAB}, "bos_token_id=1000: it must hold token ids of this model"),
    ({"bos_token_id": "1"}, 'bos_token_id="1": it must hold token ids of this model'),
    ({"pad_token_id": "x"}, 'pad_token_id="x": it must be a whole number.'),
    ({"use_cache": "x"}, 'use_cache="x": it must be true or false.'),
    ({"max_cache_len": 0}, "max_cache_len=0: it must be a whole number of at least 1."),
    ({"cache_implementation": 5}, "cache_implementation=5: it must be a text, not empty."),
    # vLLM's own
    ({"n": 0}, "n=0: it must be a whole number of at least 1."),
    ({"presence_penalty": 3}, "it must be a number of at least -2 and at most 2."),
    ({"frequency_penalty": -3}, "it must be a number of at least -2 and at most 2."),
    ({"seed": 2**63}, "it must be a whole number from -4,611,686,018,427,387,904 to 4,611,686,018"),
    ({"min_tokens": -1}, "min_tokens=-1: it must be a whole number from 0 to 1,000,000,000."),
    ({"min_tokens": 2**31}, "it must be a whole number from 0 to 1,000,000,000."),
    ({"logprobs": -2}, "it must be a whole number of at least -1, true for 1, or false."),
    ({"prompt_logprobs": 0.5}, "it must be a whole number of at least -1, true for 1, or false."),
    (
        {"stop": ""},
        'stop="": it must be a text or a list of texts, none of them empty.',
    ),
    ({"stop": [1]}, "stop=[1]: it must be a text or a list"),
    ({"stop": "a", "detokenize": False}, "stop strings are only supported when detokenize"),
    ({"stop_token_ids": "7"}, 'stop_token_ids="7": it must be a list of token ids.'),
    ({"stop_token_ids": [-1]}, "it must hold token ids of this model"),
    ({"allowed_token_ids": []}, "it must be a list of token ids, not empty."),
    ({"allowed_token_ids": [VOCAB]}, "it must hold token ids of this model"),
    ({"bad_words": ["", "a"]}, "none of them empty."),
    ({"bad_words": {"a": 1}}, "it must be a text or a list of texts"),
    ({"logit_bias": {"x": 1}}, 'logit_bias={"x": 1}: it must hold token ids of this model'),
    ({"logit_bias": {"-1": 1}}, "it must hold token ids of this model"),
    ({"logit_bias": {"1000": 1}}, "it must hold token ids of this model"),
    ({"logit_bias": {"5": "much"}}, "it must be an object of token ids and finite numbers."),
    ({"logit_bias": {"5": NAN}}, "it must be an object of token ids and finite numbers."),
    ({"logit_bias": [1]}, "it must be an object of token ids and finite numbers."),
    ({"ignore_eos": "maybe"}, 'ignore_eos="maybe": it must be true or false.'),
    ({"stream_interval": 0}, "stream_interval=0: it must be a whole number of at least 1."),
    ({"thinking_token_budget": -5}, "it must be a whole number from -1 to 1,000,000,000."),
    ({"thinking_token_budget": True}, "it must be a whole number from -1"),
    ({"logprob_token_ids": [-1]}, "it must hold token ids of this model"),
    ({"structured_outputs": "x"}, 'it must be an object, such as {"choice": ["yes", "no"]}.'),
    ({"structured_outputs": {}}, "constraint but none are specified."),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "but multiple are specified."),
    ({"structured_outputs": {"regexp": "a"}}, "no field \"regexp\". Did you mean 'regex'?"),
    ({"structured_outputs": {"_backend": "x"}}, 'has no field "_backend". Known: json, regex'),
    ({"structured_outputs": {"regex": "a", "x": 1}}, 'structured_outputs has no field "x".'),
    ({"structured_outputs": {"choice": []}}, "have as choice a list of texts, not empty."),
    ({"structured_outputs": {"choice": [1]}}, "have as choice a list of texts, not empty."),
    ({"structured_outputs": {"grammar": ""}}, "have as grammar a text, not empty."),
    ({"structured_outputs": {"json": 5}}, "have as json a JSON schema, as an object or as a text."),
    ({"structured_outputs": {"json_object": False}}, "have as json_object true."),
    ({"structured_outputs": {"json": {"maximum": 10**30}}}, "that does not fit into 64 bits."),
    ({"structured_outputs": {"regex": "a", "disable_any_whitespace": 5}}, "should be a valid bool"),
    ({"guided_regex": 5}, "guided_regex=5: it must be a text."),
    ({"guided_choice": "yes"}, 'guided_choice="yes": it must be a list of texts, not empty.'),
    ({"guided_choice": []}, "guided_choice=[]: it must be a list of texts, not empty."),
    ({"guided_grammar": ""}, 'guided_grammar="": it must be a text, not empty.'),
    ({"guided_json": 5}, "guided_json=5: it must be a JSON schema, as an object or as a text."),
    ({"guided_json_object": "x"}, 'guided_json_object="x": it must be true or false.'),
    ({"guided_whitespace_pattern": " "}, "constraint but none are specified."),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "but multiple are specified."),
    ({"repetition_detection": []}, "repetition_detection=[]: it must be an object."),
    ({"repetition_detection": {"max_pattern_size": 3}}, "min_count must be >= 2"),
    ({"repetition_detection": {"max_pattern_size": "x"}}, "Input should be a valid integer"),
    ({"repetition_detection": {"count": 3}}, 'repetition_detection has no field "count".'),
    ({"best_of": 0}, "best_of=0: it must be a whole number of at least 1."),
    ({"best_of": 2, "n": 3}, "best_of=2 is less than the n=3 answers to choose from it."),
    (
        {"use_beam_search": True},
        "use_beam_search needs the number of beams: best_of (or n) of at l",
    ),
    # n without anything that makes the answers differ
    (
        {"n": 2, "temperature": 0},
        "n=2: without sampling all answers would be the same. Give a temp",
    ),
    ({"num_return_sequences": 2, "do_sample": False}, "num_return_sequences=2: without sampling"),
    ({"best_of": 3, "temperature": 0}, "best_of=3: without sampling all answers would be the same"),
    ({"num_return_sequences": 3, "do_sample": False, "guidance_scale": 2}, "without sampling all"),
    # Routines
    (
        {"num_beams": 2, "num_return_sequences": 3},
        "num_return_sequences=3 is more than num_beams=2",
    ),
    ({"num_beams": 2, "n": 3}, "n=3 is more than num_beams=2."),
    ({"num_beams": 2, "guidance_scale": 2}, "guidance_scale cannot be combined with num_beams."),
    ({"num_beams": 2, "logprobs": 0}, "logprobs cannot be combined with num_beams."),
    ({"num_beams": 2, "prompt_logprobs": 1}, "prompt_logprobs cannot be combined with num_beams."),
    ({"num_beams": 2, "logprob_token_ids": [1]}, "logprob_token_ids cannot be combined with num_b"),
    ({"num_beams": 2, "min_tokens": 1}, "min_tokens cannot be combined with num_beams."),
    (
        {"num_beams": 2, "presence_penalty": 1},
        "presence_penalty cannot be combined with num_beams.",
    ),
    (
        {"num_beams": 2, "guided_regex": "a"},
        "structured_outputs cannot be combined with num_beams.",
    ),
    ({"num_beams": 2, "bad_words": ["a"]}, "bad_words cannot be combined with num_beams."),
    ({"num_beams": 2, "output_scores": 3}, "output_scores cannot be combined with num_beams."),
    ({"num_beams": 2, "output_logits": 3}, "output_logits cannot be combined with num_beams."),
    ({"guidance_scale": 2, "logprobs": 3}, "logprobs cannot be combined with guidance_scale."),
    ({"guidance_scale": 2, "best_of": 3}, "best_of cannot be combined with guidance_scale."),
    (
        {"guidance_scale": 2, "frequency_penalty": 1},
        "frequency_penalty cannot be combined with gui",
    ),
    ({"best_of": 3, "max_time": 1}, "max_time cannot be combined with best_of."),
    ({"best_of": 3, "output_scores": 1}, "output_scores cannot be combined with best_of."),
    # Unknown names
    ({"temprature": 1}, "no parameter \"temprature\". Did you mean 'temperature'?"),
    ({"Temperature": 1}, "no parameter \"Temperature\". Did you mean 'temperature'?"),
    ({"temprature": None}, "no parameter \"temprature\". Did you mean 'temperature'?"),
    ({"max_new_token": 5}, "no parameter \"max_new_token\". Did you mean 'max_new_tokens'?"),
    ({"num_beam": 5}, "no parameter \"num_beam\". Did you mean 'num_beams'?"),
    ({"foo": 1}, 'sampling_params has no parameter "foo". The page docs/parameters.md lists them'),
    ({"": 1}, 'sampling_params has no parameter "". The page'),
    ({"a\nb": 1}, 'sampling_params has no parameter "a\\nb". The page'),
    ({"extra_args": {"kv_transfer_params": {}}}, 'no parameter "extra_args".'),
    ({"vllm_xargs": {"worker_chain": "x"}}, 'no parameter "vllm_xargs".'),
    ({"output_kind": 1}, 'no parameter "output_kind".'),
    ({"skip_clone": True}, 'no parameter "skip_clone".'),
    ({"trace_decode_token_ids": [1]}, 'no parameter "trace_decode_token_ids".'),
    ({"_eos_token_id": 3}, 'no parameter "_eos_token_id".'),
]


@pytest.mark.parametrize(("given", "fragment"), WRONG)
def test_wrong_parameters(given: dict[str, Any], fragment: str) -> None:
    """A wrong parameter is refused with one sentence that quotes it, and is named as `param`."""
    assert fragment in refusal(given).message


@pytest.mark.parametrize(
    ("given", "param", "kind"),
    [
        ({"temperature": -3}, "temperature", "invalid_parameter"),
        ({"n": 0}, "n", "invalid_parameter"),
        ({"beam_width": 0}, "beam_width", "invalid_parameter"),
        ({"temprature": 1}, "temprature", "unsupported_parameter"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", "invalid_parameter"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_parameter"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection", None),
        ({"guided_choice": []}, "guided_choice", "invalid_parameter"),
        ({"streamer": 1}, "streamer", "unsupported_parameter"),
        ({"max_cache_len": 300}, "max_cache_len", "deployment_parameter"),
        ({"num_beams": 2, "logprobs": 2}, "logprobs", "unsupported_parameter"),
        ({"num_return_sequences": 3000}, "num_return_sequences", "invalid_parameter"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "max_new_tokens", "invalid_parameter"),
    ],
)
def test_param_and_type(given: dict[str, Any], param: str, kind: str | None) -> None:
    """`param` is the parameter that is wrong, and `type` says in which way it is."""
    error = refusal(given)

    assert (param, kind or "invalid_parameter") == (error.param, error.type)


@pytest.mark.parametrize(
    "given",
    [
        {"bad_words": [1, "x" * 1_000_000]},
        {"x" * 1_000_000: 1},
        {"watermarking_config": {"x" * 1_000_000: 1}},
        {"structured_outputs": {"x" * 1_000_000: 1}},
        {"max_tokens": 5, "max_new_tokens": "9" * 4000},
        {"stop": ["x" * 1_000_000], "stop_strings": ["y" * 1_000_000]},
    ],
)
def test_a_long_value_is_quoted_short(given: dict[str, Any]) -> None:
    """A value of a megabyte does not make an error of a megabyte."""
    assert len(refusal(given).message) < 400


CONTRADICTIONS = [
    ({"max_tokens": 5, "max_new_tokens": 6}, "max_tokens=5 and max_new_tokens=6 contradict each"),
    ({"max_tokens": 5, "max_length": 9}, "max_tokens=5 and max_length=9 contradict each other"),
    ({"max_tokens": 5, "max_length": 5}, "max_tokens=5 and max_length=5 contradict each other"),
    ({"min_tokens": 5, "min_new_tokens": 6}, "min_tokens=5 and min_new_tokens=6 contradict each"),
    ({"min_tokens": 5, "min_length": 5}, "min_tokens=5 and min_length=5 contradict each other"),
    ({"n": 2, "num_return_sequences": 3}, "n=2 and num_return_sequences=3 contradict each other"),
    ({"stop": "a", "stop_strings": "b"}, 'stop=["a"] and stop_strings=["b"] contradict each'),
    ({"num_beams": 2, "beam_width": 3}, "num_beams=2 and beam_width=3 contradict each other"),
    ({"ignore_eos": True, "eos_token_id": 5}, "ignore_eos=true and eos_token_id=[5] contradict"),
    (
        {"ignore_eos": True, "exponential_decay_length_penalty": [1, 2]},
        "ignore_eos=true and exponential_decay_length_penalty=[1, 2.0] contradict",
    ),
    (
        {"stop_strings": "a", "include_stop_str_in_output": False},
        'include_stop_str_in_output=false and stop_strings=["a"] contradict each other',
    ),
    ({"stop_strings": "a", "detokenize": False}, 'detokenize=false and stop_strings=["a"] contrad'),
    ({"do_sample": True, "temperature": 0}, "do_sample=true and temperature=0.0 contradict each"),
    ({"use_beam_search": True, "num_beams": 1}, "use_beam_search=true and num_beams=1 contradict"),
    ({"use_beam_search": False, "num_beams": 2}, "use_beam_search=false and num_beams=2 contrad"),
    (
        {"use_beam_search": True, "best_of": 4, "num_beams": 3},
        "num_beams=3 and best_of=4 contradict each other",
    ),
    ({"num_beams": 4, "best_of": 2}, "num_beams=4 and best_of=2 contradict each other"),
    (
        {"guidance_scale": 2, "negative_prompt": "a", "negative_prompt_ids": [5]},
        'negative_prompt="a" and negative_prompt_ids=[5] contradict each other',
    ),
    (
        {"structured_outputs": {"regex": "a"}, "guided_regex": "a"},
        'structured_outputs={"regex": "a"} and guided_regex="a" contradict each other',
    ),
    ({"min_new_tokens": 9, "max_new_tokens": 5}, "min_new_tokens=9 and max_new_tokens=5 contrad"),
    ({"min_new_tokens": 9, "max_tokens": 5}, "min_new_tokens=9 and max_tokens=5 contradict"),
    ({"min_new_tokens": 9, "max_length": 5}, "min_new_tokens=9 and max_length=5 contradict"),
    ({"min_length": 9, "max_length": 5}, "min_length=9 and max_length=5 contradict each other"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens=9 and max_tokens=5 contradict each other"),
    ({"min_tokens": 9, "max_new_tokens": 5}, "min_tokens=9 and max_new_tokens=5 contradict"),
    ({"min_tokens": 9, "max_length": 5}, "min_tokens=9 and max_length=5 contradict each other"),
]


@pytest.mark.parametrize(("given", "fragment"), CONTRADICTIONS)
def test_contradictions(given: dict[str, Any], fragment: str) -> None:
    """Two parameters that cannot both hold are refused, and the sentence names both."""
    error = refusal(given)

    assert fragment in error.message
    assert "invalid_parameter" == error.type


@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": 5, "max_new_tokens": 5},
        {"max_tokens": 5, "max_new_tokens": "5"},
        {"min_tokens": 5, "min_new_tokens": 5},
        {"n": 2, "num_return_sequences": 2},
        {"stop": "a", "stop_strings": ["a"]},
        {"num_beams": 2, "beam_width": 2},
        {"ignore_eos": False, "eos_token_id": 5},
        {"do_sample": False, "temperature": 0},
        {"use_beam_search": True, "num_beams": 3, "best_of": 3},
        {"num_beams": 4, "num_return_sequences": 2, "best_of": 2},
        {"min_new_tokens": 9, "max_new_tokens": 9},
        {"min_new_tokens": 9, "max_new_tokens": 20, "max_length": 5},
        {"min_new_tokens": 2, "min_length": 9, "max_length": 5},
        {"stop_strings": "a", "include_stop_str_in_output": True},
    ],
)
def test_both_dialects_may_say_the_same(given: dict[str, Any]) -> None:
    """Both dialects in one request are fine where they do not contradict each other."""
    assert plan(given).params.max_tokens is not None


@pytest.mark.parametrize(
    ("given", "expected", "warning"),
    [
        (
            {"max_new_tokens": 5, "max_length": 50},
            {"params.max_tokens": 5, "max_length": None},
            "max_length: max_new_tokens wins over it.",
        ),
        (
            {"min_new_tokens": 5, "min_length": 50, "max_new_tokens": 60},
            {"order.min_new_tokens": 5},
            "min_length: min_new_tokens wins over it.",
        ),
    ],
)
def test_winners(given: dict[str, Any], expected: dict[str, Any], warning: str) -> None:
    """Between two of Hugging Face's own, the one wins that its documentation says, and it warns."""
    made = plan(given)

    assert expected == {path: found(made, path) for path in expected}
    assert (warning,) == made.warnings


@pytest.mark.parametrize(
    ("given", "warnings"),
    [
        ({"do_sample": False, "typical_p": 0.9}, ("typical_p: no effect without sampling.",)),
        (
            {"do_sample": False, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "top_h": 0.5},
            ("top_h, top_k, top_p, min_p: no effect without sampling.",),
        ),
        (
            {"temperature": 0, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1},
            ("epsilon_cutoff, eta_cutoff: no effect without sampling.",),
        ),
        ({"do_sample": False, "temperature": 0.7}, ("temperature: no effect without sampling.",)),
        ({"do_sample": False, "temperature": 1}, ()),
        ({"num_beams": 2, "top_p": 0.5}, ("top_p: no effect without sampling.",)),
        ({"num_beams": 2, "top_p": 0.5, "do_sample": True}, ()),
        ({"length_penalty": 2}, ("length_penalty: no effect without num_beams.",)),
        (
            {"length_penalty": 2, "early_stopping": True},
            ("length_penalty, early_stopping: no effect without num_beams.",),
        ),
        ({"use_cache": False}, ("use_cache=false has no effect: vLLM always caches.",)),
        ({"temperature": 0, "repetition_penalty": 1.2}, ()),
        ({}, ()),
    ],
)
def test_warnings(given: dict[str, Any], warnings: tuple[str, ...]) -> None:
    """What has no effect is said, and is no error, as in transformers."""
    assert warnings == plan(given).warnings


@pytest.mark.parametrize(
    ("given", "defaults", "samples", "temperature"),
    [
        ({}, {}, True, 1.0),
        ({"temperature": 0}, {}, False, 0.0),
        ({"do_sample": False}, {}, False, 0.0),
        ({"do_sample": "false", "temperature": 0.7}, {}, False, 0.0),
        ({"do_sample": True}, {"temperature": 0.0}, True, 1.0),
        ({"do_sample": True}, {"temperature": 0.6}, True, 0.6),
        ({}, {"temperature": 0.0}, False, 0.0),
        ({"temperature": 0.5}, {"temperature": 0.0}, True, 0.5),
        ({"top_k": 5}, {"temperature": 0.0}, False, 0.0),
        # Names that mean nothing without sampling ask for it.
        ({"typical_p": 0.9}, {"temperature": 0.0}, True, 1.0),
        ({"top_h": 0.9}, {"temperature": 0.0}, True, 1.0),
        ({"epsilon_cutoff": 0.1}, {"temperature": 0.0}, True, 1.0),
        ({"eta_cutoff": 0.1}, {"temperature": 0.0}, True, 1.0),
        ({"typical_p": 0.9, "temperature": 0}, {}, False, 0.0),
    ],
)
def test_whether_tokens_are_drawn(
    given: dict[str, Any], defaults: dict[str, Any], samples: bool, temperature: float
) -> None:
    """`do_sample` decides; without it vLLM's rule, or a parameter that asks for sampling."""
    made = plan(given, defaults=defaults)
    drawn = made.params.temperature > 0 if made.order is None else made.order.fields["do_sample"]
    is_chain = made.order is not None and samples

    assert samples == drawn
    assert (1.0 if is_chain else temperature) == made.params.temperature


NEUTRAL = {
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
}
NEEDS_CHAIN: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 3.0}, {}, {"temperature": 3.0}),
    ({"temperature": 0.005}, {}, {"temperature": 0.005}),
    ({"top_p": 0}, {}, {"top_p": 0.0, "temperature": 1.0}),
    ({"top_p": 0.5, "min_p": 0.1}, {}, {"top_p": 0.5, "min_p": 0.1}),
    ({"min_p": 0.1}, {"top_p": 0.5}, {"top_p": 0.5, "min_p": 0.1}),
    ({"top_p": 0.5}, {"min_p": 0.1}, {"top_p": 0.5, "min_p": 0.1}),
    (
        {"no_repeat_ngram_size": 2, "temperature": 0.7, "top_k": 9, "top_p": 0.5, "min_p": 0.1},
        {},
        {"temperature": 0.7, "top_k": 9, "top_p": 0.5, "min_p": 0.1},
    ),
    (
        {"no_repeat_ngram_size": 2, "repetition_penalty": 2},
        {},
        {"repetition_penalty": 2.0, "temperature": 1.0, "top_k": 0},
    ),
    (
        {"no_repeat_ngram_size": 2},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1},
    ),
    ({"no_repeat_ngram_size": 2, "top_k": -1}, {"top_k": 20}, {"top_k": 0}),
    (
        {"no_repeat_ngram_size": 2, "temperature": 0, "top_k": 5, "top_h": 0.5},
        {},
        {"do_sample": False, "top_k": None, "top_h": None, "temperature": None},
    ),
    ({"output_scores": 3, "top_k": 7}, {}, {"top_k": 7}),
    ({"num_beams": 3, "repetition_penalty": 1.5}, {}, {"repetition_penalty": 1.5}),
    ({"guidance_scale": 3, "top_k": 7}, {}, {"top_k": 7, "do_sample": True}),
]


@pytest.mark.parametrize(("given", "defaults", "expected"), NEEDS_CHAIN)
def test_in_the_chain_is_everything_that_transformers_orders(
    given: dict[str, Any], defaults: dict[str, Any], expected: dict[str, Any]
) -> None:
    """As soon as a request needs the chain it does it all, and vLLM's own fields are neutral."""
    made = plan(given, defaults=defaults)
    assert made.order is not None
    temperature = 1.0 if made.order.fields["do_sample"] else 0.0

    assert expected == {name: made.order.fields.get(name) for name in expected}
    assert NEUTRAL | {"temperature": temperature} == {
        name: getattr(made.params, name) for name in (*NEUTRAL, "temperature")
    }


@pytest.mark.parametrize(
    ("given", "defaults"),
    [
        ({}, {}),
        ({"temperature": 2.0}, {}),
        ({"temperature": 0.01}, {}),
        ({"temperature": 0}, {}),
        ({"temperature": 0, "top_p": 0.5, "min_p": 0.1}, {}),
        ({"do_sample": False, "top_p": 0}, {}),
        ({"top_p": 1, "min_p": 0.1}, {}),
        ({"top_p": 0.5, "min_p": 0}, {}),
        ({"top_k": 5}, {"top_p": 0.5, "min_p": 0.1}),  # the model's own, as vLLM reads it
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.5, "repetition_penalty": 1.2}, {}),
        # Values with which a parameter of the chain does nothing.
        ({"min_new_tokens": 0, "min_length": 0, "no_repeat_ngram_size": 0}, {}),
        ({"encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0}, {}),
        ({"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0}, {}),
        ({"renormalize_logits": False, "remove_invalid_values": False}, {}),
        ({"output_scores": 0, "output_logits": False, "num_beams": 1, "guidance_scale": 1}, {}),
        ({"temperature": 0, "typical_p": 0.9}, {}),
        ({"best_of": 3}, {}),
        ({"presence_penalty": 1, "logit_bias": {"5": 1}, "min_tokens": 4}, {}),
    ],
)
def test_no_chain_where_vllm_can(given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """A request that vLLM's own fields answer as transformers would pays for no chain."""
    assert plan(given, defaults=defaults).order is None


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"typical_p": 0.9}, "typical_p"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
        ({"max_time": 5, "return_token_ids": True, "typical_p": 0.9}, "typical_p"),
        ({"temperature": 3.0}, "temperature"),
        ({"temperature": 0.001}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 0.5, "min_p": 0.1}, "min_p"),
        ({"num_beams": 4}, "num_beams"),
        ({"num_beams": 1, "guidance_scale": 2}, "guidance_scale"),
        ({"token_healing": True}, "token_healing"),
        ({"output_scores": True}, "output_scores"),
        ({"output_scores": 0, "output_logits": 3}, "output_logits"),
        ({"min_new_tokens": 0, "min_length": 4}, "min_length"),
    ],
)
def test_without_the_chain(given: dict[str, Any], param: str) -> None:
    """Where the chain does not run, what needs it is refused by its name and with the reason."""
    error = refusal(given, why_no_chain="it serves a pooling model.")

    assert (param, "deployment_parameter") == (error.param, error.type)
    assert (
        f"{param} needs the logits processor, which this worker runs without: it serves a pooling "
        "model." == error.message
    )


def test_without_the_chain_the_models_defaults_are_left_out() -> None:
    """A job that names nothing special is answered, and told what of the model's is missing."""
    made = plan({}, why_no_chain="so it is.", inherited={"suppress_tokens": [3], "num_beams": 4})

    assert (None, None) == (made.order, made.beams)
    assert (
        "suppress_tokens, num_beams of the model's generation_config.json: no effect, since the "
        "logits processor does not run here.",
    ) == made.warnings


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"stop": "a"}, "stop"),
        ({"stop_strings": "a"}, "stop_strings"),
        ({"bad_words": ["a"]}, "bad_words"),
        ({"token_healing": True}, "token_healing"),
        ({"guidance_scale": 2, "negative_prompt": "a"}, "negative_prompt"),
    ],
)
def test_without_a_tokenizer(given: dict[str, Any], param: str) -> None:
    """Without a tokenizer what needs one is refused; vLLM would ignore it without a word."""
    error = refusal(given, has_tokenizer=False)

    assert (param, "deployment_parameter") == (error.param, error.type)
    assert (
        f"{param} needs a tokenizer, and this worker runs without one (SKIP_TOKENIZER_INIT)."
        == error.message
    )


def test_without_a_tokenizer_no_text_is_made() -> None:
    """Everything else works without a tokenizer."""
    made = plan({"stop": [], "guidance_scale": 2, "negative_prompt_ids": [5]}, has_tokenizer=False)

    assert made.params.detokenize is False


SMALL = Limits(max_num_beams=4, max_sequences=6, max_scores=3, max_word_sequences=2)


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        (
            {"num_beams": 5},
            "num_beams=5 is more than the 4 that this worker allows (MAX_NUM_BEAMS).",
        ),
        ({"use_beam_search": True, "best_of": 5}, "num_beams=5 is more than the 4"),
        ({"n": 7}, "n=7 is more than the 6 answers that one job may have (MAX_SEQUENCES)."),
        ({"num_return_sequences": 7}, "num_return_sequences=7 is more than the 6 answers"),
        ({"best_of": 7}, "best_of=7 is more than the 6 answers"),
        ({"output_scores": 4}, "output_scores=4 is more than the 3 values for each token"),
        ({"output_logits": 4}, "output_logits=4 is more than the 3 values for each token"),
        (
            {"bad_words_ids": [[1, 2], [2, 1], [3, 3]]},
            "have 3 sequences of several tokens, and this worker all",
        ),
        (
            {"sequence_bias": [[[1, 2], 1], [[2, 1], 1], [[3, 3], 1]]},
            "allows 2 (MAX_WORD_SEQUENCES)",
        ),
        (
            {"bad_words_ids": [[1, 2], [2, 1]], "sequence_bias": [[[1, 2], 1]]},
            "bad_words_ids and sequence_bias have 3 sequences of several tokens",
        ),
    ],
)
def test_limits(given: dict[str, Any], fragment: str) -> None:
    """What one job may cost is limited, and the sentence names the variable."""
    assert fragment in refusal(given, limits=SMALL).message


@pytest.mark.parametrize(
    "given",
    [
        {"num_beams": 4},
        {"n": 6},
        {"output_scores": 3, "output_logits": True},
        {"bad_words_ids": [[i] for i in range(50)], "sequence_bias": [[[1, 2], 1]] * 3},
    ],
)
def test_within_the_limits(given: dict[str, Any]) -> None:
    """What reaches a limit exactly is allowed, and single tokens count for nothing."""
    assert plan(given, limits=SMALL).warnings == ()


@pytest.mark.parametrize(
    "given", [{"best_of": 1}, {"best_of": None}, {"best_of": 1, "n": None}, {"best_of": 1, "n": 1}]
)
def test_best_of_that_ranks_nothing(given: dict[str, Any]) -> None:
    """`best_of` asks for nothing beyond `n` in what many old clients send."""
    assert plan({}) == plan(given)


def test_best_of_equal_to_n() -> None:
    """As many as are asked for is no choice among more."""
    assert plan({"n": 3}) == plan({"n": 3, "best_of": 3})


@pytest.mark.parametrize(
    ("given", "defaults", "max_tokens"),
    [
        ({}, {}, 100),
        ({"max_tokens": None}, {}, 100),
        ({"max_tokens": 5}, {}, 5),
        ({"max_new_tokens": 5}, {}, 5),
        ({}, {"max_tokens": 7}, 7),
        ({"max_tokens": None}, {"max_tokens": 7}, 7),
        ({"max_tokens": 5}, {"max_tokens": 7}, 5),
        ({"max_new_tokens": 5}, {"max_tokens": 7}, 5),
        ({"max_tokens": 5000}, {"max_tokens": 7}, 5000),
        ({"min_tokens": 200}, {}, 200),
        ({"min_tokens": "200"}, {}, 200),
        ({"min_tokens": 20}, {}, 100),
        ({"min_tokens": 20}, {"max_tokens": 7}, 20),
    ],
)
def test_length(given: dict[str, Any], defaults: dict[str, Any], max_tokens: int) -> None:
    """The length is the job's, else the model's, else ours, and no default below min_tokens."""
    assert max_tokens == plan(given, defaults=defaults).params.max_tokens


@pytest.mark.parametrize(
    ("given", "inherited", "prompt_tokens", "max_tokens"),
    [
        ({}, {}, 10, 100),
        ({}, {}, 200, 56),
        ({"max_new_tokens": 1000}, {}, 10, 246),
        ({"max_length": 30}, {}, 10, 20),
        ({"max_length": 1000}, {}, 10, 246),
        ({"max_length": 30, "max_new_tokens": 5}, {}, 40, 5),
        ({"min_new_tokens": 150}, {}, 10, 150),
        ({"min_length": 150}, {}, 10, 140),
        ({"min_length": 30}, {}, 40, 100),
        # The model's least length gives way to the job's length.
        ({"max_new_tokens": 5}, {"min_new_tokens": 20}, 10, 5),
        ({"max_length": 15}, {"min_length": 20}, 10, 5),
        ({}, {"min_length": 150}, 10, 140),
    ],
)
def test_length_with_a_prompt(
    given: dict[str, Any], inherited: dict[str, Any], prompt_tokens: int, max_tokens: int
) -> None:
    """max_length and min_length count the prompt, and nothing goes beyond the context."""
    assert max_tokens == plan(given, inherited=inherited).max_tokens(prompt_tokens)


@pytest.mark.parametrize(
    ("given", "prompt_tokens", "param", "fragment"),
    [
        ({"max_length": 10}, 10, "max_length", "max_length=10 counts the prompt, which has 10 to"),
        ({"max_length": 10}, 50, "max_length", "max_new_tokens counts the answer alone."),
        (
            {"max_length": 20, "min_new_tokens": 15},
            10,
            "min_new_tokens",
            "min_new_tokens=15 asks for more tokens than the 10 that the answer may have.",
        ),
        (
            {"max_new_tokens": 5, "min_length": 20},
            10,
            "min_length",
            "min_length=20 asks for more tokens than the 5 that the answer may have.",
        ),
    ],
)
def test_no_room_beside_the_prompt(
    given: dict[str, Any], prompt_tokens: int, param: str, fragment: str
) -> None:
    """A length that the prompt leaves no room for is refused with both numbers."""
    made = plan(given)
    with pytest.raises(RequestError) as refused:
        made.max_tokens(prompt_tokens)

    judge(refused.value)
    assert fragment in refused.value.message
    assert param == refused.value.param


@pytest.mark.parametrize(
    ("given", "defaults", "expected"),
    [
        ({}, {}, (1.0, 0, 1.0)),
        ({}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}, (0.6, 20, 0.95)),
        ({"temperature": 0.2}, {"temperature": 0.6, "top_k": 20}, (0.2, 20, 1.0)),
        ({"temperature": None, "top_k": 0}, {"temperature": 0.6, "top_k": 20}, (0.6, 0, 1.0)),
    ],
)
def test_defaults(
    given: dict[str, Any], defaults: dict[str, Any], expected: tuple[float, int, float]
) -> None:
    """What the job leaves out comes from the model's generation config, then from vLLM."""
    params = plan(given, defaults=defaults).params

    assert expected == (params.temperature, params.top_k, params.top_p)


@pytest.mark.parametrize(
    ("inherited", "given", "expected"),
    [
        ({"suppress_tokens": [7]}, {}, {"order.suppress_tokens": [7]}),
        ({"suppress_tokens": [7]}, {"suppress_tokens": [8]}, {"order.suppress_tokens": [8]}),
        ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 0}, {"order": None}),
        ({"typical_p": 0.9}, {}, {"order.typical_p": 0.9}),
        ({"typical_p": 0.9}, {"temperature": 0}, {"order": None, "warnings": ()}),
        ({"num_beams": 3, "length_penalty": 2.0}, {}, {"beams": Beams(3, 1, 2.0, False, False)}),
        ({"num_beams": 3}, {"num_beams": 1}, {"beams": None}),
        ({"length_penalty": 2.0}, {}, {"warnings": ()}),
        ({"guidance_scale": 3.0}, {}, {"guidance": Guidance(3.0, None)}),
        ({"min_length": 9}, {"min_new_tokens": 4}, {"order.min_length": None}),
        ({"min_length": 9, "min_new_tokens": 9}, {"min_tokens": 4}, {"order": None}),
        ({"min_new_tokens": 9}, {"min_length": 4}, {"order.min_new_tokens": 9}),
        (
            {"exponential_decay_length_penalty": [1, 2.0]},
            {"ignore_eos": True},
            {"order.exponential_decay_length_penalty": None},
        ),
    ],
)
def test_what_the_model_itself_asks_for(
    inherited: dict[str, Any], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    """What vLLM drops of generation_config.json holds too, unless the job says otherwise."""
    made = plan(given, inherited=inherited)

    assert expected == {path: found(made, path) for path in expected}


def test_a_bad_value_of_the_model_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A generation_config.json cannot spoil every job: its bad value is ignored with a warning."""
    given = {
        "suppress_tokens": [1, VOCAB],
        "no_repeat_ngram_size": 3,
        "typical_p": 1.0,
        "bad_words_ids": None,
        "max_length": 20,
        "do_sample": True,
    }
    kept = inherited.read(given, HERE)

    assert {"no_repeat_ngram_size": 3} == kept
    assert [
        "generation_config.json is not followed: suppress_tokens=[1, 1000]: it must hold token "
        "ids of this model, whole numbers from 0 to 999."
    ] == [record.message for record in caplog.records]


def test_a_model_without_an_end() -> None:
    """What makes the end likelier needs one."""
    error = refusal({"exponential_decay_length_penalty": [1, 1.1]}, eos=())

    assert "this model has no end: give eos_token_id." in error.message


@pytest.mark.parametrize(
    ("stream", "kind"), [(True, RequestOutputKind.DELTA), (False, RequestOutputKind.FINAL_ONLY)]
)
def test_output_kind(stream: bool, kind: RequestOutputKind) -> None:
    """A stream asks vLLM for what is new, anything else for the whole, once."""
    assert kind == plan({}, stream=stream).params.output_kind


@pytest.mark.parametrize(
    "given",
    [
        TOGETHER,
        {"best_of": 1},
        {"foo": 1},
        {},
        {"sequence_bias": [[[5], 1]], "suppress_tokens": [7], "guided_regex": "a", "stop": ["b"]},
        {"watermarking_config": {"keys": [1], "ngram_len": 3}, "eos_token_id": [5]},
    ],
)
def test_nothing_given_is_changed(given: dict[str, Any]) -> None:
    """Neither the job's parameters nor the model's defaults are ever written to."""
    defaults = {"temperature": 0.6, "structured_outputs": {"regex": "a"}, "stop": ["x"]}
    before = copy.deepcopy((given, defaults))
    try:
        params = plan(given, defaults=defaults).params
        params.stop.append("later")  # as vLLM does with what it was given
        params.stop_token_ids.append(9)
    except RequestError:
        pass

    assert before == (given, defaults)


def test_values_arrive_from_json() -> None:
    """All parameters together survive the way a job travels, as JSON."""
    given = json.loads(json.dumps(TOGETHER))

    params = plan(given).params

    assert given == {name: plain(getattr(params, name)) for name in VALUES}


def test_the_order_travels_as_json() -> None:
    """What the chain has to do reaches the engine's process unchanged."""
    made = plan({"sequence_bias": [[[5], -INFINITY]], "bad_words_ids": [[1, 2]], "typical_p": 0.9})
    assert made.order is not None
    params = made.params.clone()
    params.extra_args = made.order.extra_args(None)

    assert made.order == type(made.order).of(params)


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def body(
    given: Any, path: str = COMPLETIONS, deployment: Facts = HERE, **fields: Any
) -> tuple[dict[str, Any], Plan]:
    return bodies.read_body(
        {"prompt": "x", **fields, "generation_parameters": given}, path, deployment
    )


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_chain_on_an_openai_route(path: str) -> None:
    """The chain's parameters become an order, and the body what vLLM's route knows."""
    made, planned = body(
        {"typical_p": 0.9, "max_new_tokens": 5}, path, temperature=0.7, top_p=0.5, stream=True
    )
    expected = NEUTRAL | {"prompt": "x", "temperature": 1.0, "max_tokens": 5, "stream": True}

    assert planned.order is not None
    assert {"typical_p": 0.9, "temperature": 0.7, "top_p": 0.5, "top_k": 0, "do_sample": True} == (
        planned.order.fields
    )
    assert expected == {name: made[name] for name in expected}
    assert not {"generation_parameters", "vllm_xargs", "max_completion_tokens"} & set(made)


@pytest.mark.parametrize(
    ("given", "fields", "expected"),
    [
        ({}, {}, {"temperature": 1.0}),
        (None, {}, {"temperature": 1.0}),
        ({"typical_p": None}, {"temperature": 0.5}, {"temperature": 0.5}),
        ({"max_new_tokens": 5}, {"max_tokens": 5}, {"max_tokens": 5}),
        ({"min_new_tokens": 5}, {"max_completion_tokens": 9}, {"max_tokens": 9}),
        ({}, {"max_completion_tokens": None, "max_tokens": 9}, {"max_tokens": 9}),
        ({"do_sample": False}, {}, {"temperature": 0.0}),
        (
            {"stop_strings": "a"},
            {},
            {"stop": ["a"], "include_stop_str_in_output": True},
        ),
        ({"eos_token_id": 5}, {}, {"ignore_eos": True, "stop_token_ids": [5]}),
        ({"num_return_sequences": 2}, {}, {"n": 2}),
        ({"temperature": 0.5}, {"temperature": 0.5}, {"temperature": 0.5}),
        ({"seed": "7", "bad_words": "a"}, {}, {"seed": 7, "bad_words": ["a"]}),
        ({"logit_bias": {"5": 1}}, {}, {"logit_bias": {5: 1.0}}),
        ({"guided_regex": "a"}, {}, {"structured_outputs": {"regex": "a"}}),
        (
            {"structured_outputs": {"regex": "a"}},
            {},
            {"structured_outputs": {"regex": "a"}},
        ),
        ({"presence_penalty": 1}, {"presence_penalty": 1}, {"presence_penalty": 1.0}),
    ],
)
def test_what_becomes_of_a_body(
    given: Any, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """What vLLM's own fields can say is said in the body."""
    made, _ = body(given, **fields)

    assert expected == {name: made[name] for name in expected}


def test_a_length_is_only_set_where_somebody_says_one() -> None:
    """Without a length the route's own default holds, not the native path's."""
    made, _ = body({"typical_p": 0.9})

    assert "max_tokens" not in made


def test_a_body_is_not_changed() -> None:
    """The caller's body is read and never written to."""
    given = {"prompt": "x", "generation_parameters": {"stop_strings": "a", "typical_p": 0.9}}
    before = copy.deepcopy(given)
    bodies.read_body(given, COMPLETIONS, HERE)

    assert before == given


def test_a_routine_that_the_model_asks_for_is_left_out_of_a_body() -> None:
    """A model's own num_beams counts on the native path; an OpenAI route has no such thing."""
    deployment = replace(HERE, inherited={"num_beams": 4, "suppress_tokens": [7]})
    _, planned = body({"typical_p": 0.9}, deployment=deployment)

    assert planned.beams is None
    assert planned.order is not None
    assert [7] == planned.order.fields["suppress_tokens"]


BODY_WRONG: list[tuple[Any, dict[str, Any], str, str]] = [
    ([], {}, "generation_parameters", "generation_parameters=[] must be an object."),
    ("x", {}, "generation_parameters", 'generation_parameters="x" must be an object.'),
    ({"typcal_p": 1}, {}, "typcal_p", 'generation_parameters has no parameter "typcal_p". Did yo'),
    ({"foo": None}, {}, "foo", 'generation_parameters has no parameter "foo". The page docs/param'),
    ({"extra_args": {}}, {}, "extra_args", "has no parameter"),
    ({"vllm_xargs": {}}, {}, "vllm_xargs", "has no parameter"),
    ({"typical_p": 2}, {}, "typical_p", "typical_p=2: it must be a number above 0 and at most 1."),
    ({"streamer": 1}, {}, "streamer", "streamer is not supported."),
    ({"max_cache_len": 999}, {}, "max_cache_len", "The variable MAX_MODEL_LEN sets it."),
    (
        {"typical_p": 0.9},
        {"use_beam_search": True},
        "generation_parameters",
        "which takes no chain",
    ),
    (
        {"typical_p": 0.9},
        {"vllm_xargs": {"a": 1}},
        "generation_parameters",
        "vllm_xargs cannot be combined with these generation_parameters.",
    ),
    (
        {"temperature": 0.5},
        {"temperature": 0.7},
        "generation_parameters.temperature",
        "temperature=0.7 and generation_parameters.temperature=0.5 contradict each other",
    ),
    (
        {"seed": 3},
        {"seed": 4},
        "generation_parameters.seed",
        "seed=4 and generation_parameters.seed=3 contradict each other",
    ),
    (
        {"guided_regex": "a"},
        {"structured_outputs": {"regex": "b"}},
        "generation_parameters.guided_regex",
        'structured_outputs={"regex": "b"} and generation_parameters.guided_regex="a" contradict',
    ),
    (
        {"max_new_tokens": 5},
        {"max_completion_tokens": 6},
        "max_new_tokens",
        "max_tokens=6 and max_new_tokens=5 contradict each other",
    ),
    (
        {"num_return_sequences": 2},
        {"n": 3},
        "num_return_sequences",
        "n=3 and num_return_sequences=2 contradict each other",
    ),
    ({"stop_strings": "a"}, {"stop": ["b"]}, "stop_strings", "contradict each other"),
    ({"do_sample": True}, {"temperature": 0}, "temperature", "contradict each other"),
    ({"do_sample": False}, {"n": 2}, "n", "n=2: without sampling all answers would be the same."),
    ({"min_new_tokens": 9}, {"max_tokens": 5}, "max_tokens", "contradict each other"),
]


@pytest.mark.parametrize(("given", "fields", "param", "fragment"), BODY_WRONG)
def test_wrong_bodies(given: Any, fields: dict[str, Any], param: str, fragment: str) -> None:
    """A wrong name, a wrong value and two ways to say different things are refused."""
    with pytest.raises(RequestError) as refused:
        body(given, **fields)

    judge(refused.value)
    assert fragment in refused.value.message
    assert param == refused.value.param


ELSEWHERE = [
    *("num_beams", "beam_width", "early_stopping", "length_penalty", "max_time", "token_healing"),
    *("guidance_scale", "negative_prompt", "negative_prompt_ids", "best_of", "use_beam_search"),
    *("output_scores", "output_logits", "return_dict_in_generate", "return_token_ids"),
    *("max_length", "bos_token_id", "logprobs", "prompt_logprobs", "detokenize", "stream_interval"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_a_body_cannot_say(name: str, path: str) -> None:
    """What needs a routine, or a place in the reply, is refused on these routes by its name."""
    with pytest.raises(RequestError) as refused:
        body({name: 1}, path)

    judge(refused.value)
    assert f"{name} cannot be one of the generation_parameters of {path}." == refused.value.message
    assert (name, "unsupported_parameter") == (refused.value.param, refused.value.type)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/tokenize"])
def test_other_routes_take_none(path: str) -> None:
    """Routes that the chain does not reach say so, rather than ignore the field."""
    with pytest.raises(RequestError) as refused:
        body({"typical_p": 0.9}, path)

    judge(refused.value)
    assert (
        f"{path} takes no generation_parameters; /v1/chat/completions and /v1/completions do."
        == refused.value.message
    )


@pytest.mark.parametrize("name", table.BY_NAME)
def test_every_name_has_its_place_in_a_body(name: str) -> None:
    """Each name is known there, taken or refused: none is dropped without a word."""
    example = table.BY_NAME[name].example
    message = ""
    try:
        body({name: VALUES.get(name, 1) if example is None else example})
    except RequestError as error:
        judge(error)
        message = error.message

    assert "has no parameter" not in message
