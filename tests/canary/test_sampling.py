"""vLLM's SamplingParams: its fields, what it refuses and takes, and how it words a refusal."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from canary.touch import Row, prove, rows, the

SAMPLING = "vllm.sampling_params:SamplingParams"
OUTPUTS = "vllm.sampling_params:StructuredOutputsParams"
REPETITION = "vllm.sampling_params:RepetitionDetectionParams"
# Beyond the table's ranges: the sentence must name the parameter.
REFUSED = {
    "temperature": 2.1, "top_p": 0.0, "top_k": -2, "min_p": 1.1, "repetition_penalty": 0.0,
    "presence_penalty": 2.1, "frequency_penalty": -2.1, "max_tokens": 0, "min_tokens": -1, "n": 0,
    "logprobs": -2, "prompt_logprobs": -2, "stream_interval": 0, "thinking_token_budget": -2,
    "stop": [""], "bad_words": [""],
}  # fmt: skip
# The table's own ends, which vLLM must take.
TAKEN = {
    "temperature": (0.01, 2.0), "top_p": (1e-6, 1.0), "top_k": (-1, 2**31 - 1), "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0), "logprobs": (-1, 0),
    "repetition_penalty": (1e-6, 1e6), "thinking_token_budget": (-1, 10**9), "min_tokens": (0, 16),
    "seed": (-(2**62), 2**62), "max_tokens": (1, 2**62), "logit_bias": ({0: -100.0}, {0: 100.0}),
}  # fmt: skip
XARGS = {"key": "value"}


def refusal(path: str, **fields: Any) -> str:
    """Return vLLM's sentence without what it appends."""
    try:
        the(path)(**fields)
    except (the("vllm.exceptions:VLLMValidationError"), ValueError) as error:
        return str(error.args[0])
    return "(nothing)"


def names(name: str) -> bool | str:
    """Whether a refusal names its parameter, as a word of its own; else the sentence."""
    sentence = refusal(SAMPLING, **{name: REFUSED[name]})
    return name in [word.strip("`.") for word in sentence.split()] or sentence


def takes(name: str) -> list[str]:
    found = [refusal(SAMPLING, **{name: value}) for value in TAKEN[name]]
    return [sentence for sentence in found if sentence != "(nothing)"]


def validated(fields: dict[str, Any]) -> Any:
    """Return what pydantic makes of the fields, or the fields that it calls wrong."""
    try:
        return TypeAdapter(the(SAMPLING)).validate_python(fields)
    except ValidationError as error:
        return {str(step) for detail in error.errors() for step in detail["loc"]} & fields.keys()


def extra_args(kind: str, **fields: Any) -> Any:
    request = the(f"vllm.entrypoints.openai.{kind}")(**fields, vllm_xargs=XARGS)
    return request.to_sampling_params(5, {}).extra_args


# One row, one line where it fits.
# fmt: off
TOUCHES: dict[str, list[Row]] = {
    "engine/sampling_params": [
        *(
            (f"vLLM names {one} where it refuses it", lambda one=one: names(one), True)
            for one in REFUSED
        ),
        ("a wrong type is pydantic's error, at its field", lambda: validated({"n": "x"}), {"n"}),
        ("an object becomes StructuredOutputsParams",
         lambda: validated({"structured_outputs": {"choice": ["a"]}}).structured_outputs.choice,
         ["a"]),
        ("pydantic drops unknown fields of a group, or the worker's own check is idle",
         lambda: validated({"structured_outputs": {"choice": ["a"], "no": 1}}).n, 1),
        ("a refusal of structured outputs has `structured outputs` before `: {`",
         lambda: "structured outputs" in refusal(OUTPUTS).split(": {")[0], True),
        ("a refusal of structured outputs ends in an object", lambda: ": {" in refusal(OUTPUTS),
         True),
        ("a refusal of repetition_detection has `repetitive pattern`",
         lambda: "repetitive pattern" in refusal(REPETITION, max_pattern_size=-1), True),
        f"{OUTPUTS}.__dataclass_fields__ has json regex choice grammar json_object",
        f"{OUTPUTS}.__dataclass_fields__ has whitespace_pattern structural_tag",
        f"{REPETITION}.__dataclass_fields__ has max_pattern_size min_pattern_size min_count",
    ],
    "generation/table": [
        *(
            (f"vLLM takes {one} at the ends of its range", lambda one=one: takes(one), [])
            for one in TAKEN
        ),
        f"{SAMPLING}.__struct_fields__ has max_tokens min_tokens n presence_penalty seed stop",
        f"{SAMPLING}.__struct_fields__ has frequency_penalty stop_token_ids ignore_eos logprobs",
        f"{SAMPLING}.__struct_fields__ has include_stop_str_in_output prompt_logprobs",
        f"{SAMPLING}.__struct_fields__ has allowed_token_ids bad_words structured_outputs",
        f"{SAMPLING}.__struct_fields__ has skip_special_tokens spaces_between_special_tokens",
        f"{SAMPLING}.__struct_fields__ has logprob_token_ids thinking_token_budget",
        f"{SAMPLING}.__struct_fields__ has repetition_detection stream_interval",
        f"{SAMPLING}.__struct_fields__ has watermarking temperature top_p top_k min_p",
        f"{SAMPLING}.__struct_fields__ has repetition_penalty logit_bias detokenize flat_logprobs",
        f"{SAMPLING}.__struct_fields__ has skip_reading_prefix_cache",
        f"{SAMPLING}.__struct_fields__ lacks best_of use_beam_search guided_decoding",
    ],
    "generation/ordering": [
        ("a temperature below 0.01 is raised to it",
         lambda: the(SAMPLING)(temperature=0.005).temperature, 0.01),
    ],
    "native/writing": [f"{SAMPLING}{{output_kind extra_args}}", f"{SAMPLING}.clone(self)"],
    "engine/admission": [f"{SAMPLING}{{all_stop_token_ids}}"],
    "processor/processor": [f"{SAMPLING}{{eos_token_id}}"],
    "openai/bodies": [
        ("the vllm_xargs of a chat become extra_args",
         lambda: extra_args("chat_completion.protocol:ChatCompletionRequest", messages=[]), XARGS),
        ("the vllm_xargs of a completion become extra_args",
         lambda: extra_args("completion.protocol:CompletionRequest", prompt="a"), XARGS),
    ],
}
# fmt: on


@rows(TOUCHES)
def test_a_touch_of_the_sampling_params(room: str, row: Row) -> None:
    """What the worker reads out of a job is still what vLLM's SamplingParams take."""
    prove(room, row)
