"""The table of generation parameters: what a job may ask for, and what becomes of it.

One row a parameter. The reading, the error sentences and the documentation page come from here.
Hugging Face's names are those of transformers 5.19's GenerationConfig, vLLM's those of vLLM 0.32's
SamplingParams.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from worker.facts import Facts
from worker.generation.checks import (
    DECAY,
    FLAG,
    ID_OR_IDS,
    IDS,
    LOGIT_BIAS,
    LOGPROBS,
    MOST,
    MOST_TOKENS,
    OBJECT,
    ONE_ID,
    PENALTY,
    SEQUENCE_BIAS,
    SEQUENCES,
    STRUCTURED,
    STRUCTURED_FIELDS,
    TEMPERATURE,
    TEXT,
    TEXTS,
    TEXTS_OR_NONE,
    VALUES,
    WATERMARK,
    Check,
    choice,
    fail,
    number,
    read_ids,
    read_sequences,
    whole,
)
from worker.generation.parameter import (
    Parameter,
    chain,
    fixed,
    native,
    output,
    refused,
    routine,
    vllm,
)


def _speculative(facts: Facts, key: str) -> Any:
    return (facts.engine_options.get("speculative_config") or {}).get(key)


def _is_method(name: str) -> Callable[[Any, Facts], bool]:
    return lambda value, facts: value is False or _speculative(facts, "method") == name


_GONE = "transformers 5 no longer has it."
_WHERE_GREEDY = "Without sampling it has no effect, as in transformers, and the reply warns."
_SPECULATION = "SPECULATIVE_CONFIG"
PARAMETERS: tuple[Parameter, ...] = (
    # Length
    native(
        "max_new_tokens",
        "How many tokens the answer may have.",
        whole(1),
        becomes="`max_tokens`",
        differs="Without it DEFAULT_MAX_TOKENS holds, not transformers' 20.",
        example=32,
    ),
    native(
        "max_length",
        "How many tokens prompt and answer may have together.",
        whole(1),
        becomes="`max_tokens`, less the prompt",
        differs="`max_new_tokens` wins over it. A prompt that fills it is refused.",
        example=64,
    ),
    chain(
        "min_new_tokens",
        "The answer's end is out of reach for so many tokens.",
        whole(0),
        differs="vLLM's `min_tokens` also hides other stop ids and switches stop strings off.",
        example=8,
        neutral=0,
    ),
    chain(
        "min_length",
        "The same, counted from the start of the prompt.",
        whole(0),
        differs="`min_new_tokens` wins over it.",
        example=20,
        neutral=0,
    ),
    routine(
        "early_stopping",
        "When a beam search ends: true as soon as there are enough beams, false by a heuristic, "
        '"never" when no better one is possible.',
        choice(True, False, "never"),
        becomes="beam search",
        differs="Without beams it has no effect, and the reply warns.",
        example=True,
        inherited=True,
    ),
    routine(
        "max_time",
        "After how many seconds the answer ends with what there is.",
        number(0, 86_400, above=True),
        becomes="a deadline for the engine's request",
        differs='At least one token comes. `finish_reason` is then "max_time".',
        example=5.0,
    ),
    native(
        "stop_strings",
        "The answer ends with the first of these texts.",
        TEXTS,
        becomes="`stop` with `include_stop_str_in_output`",
        differs="The token ids are transformers'; the text ends with the stop string, where "
        "transformers keeps the rest of its token. A match that begins in the prompt does not "
        "count, except in beam search and guidance.",
        example=["\n\n"],
    ),
    # Strategy
    native(
        "do_sample",
        "Whether tokens are drawn; otherwise the likeliest is taken.",
        FLAG,
        becomes="`temperature`, which false sets to 0",
        differs="Without it vLLM's rule holds: a temperature above 0 (and 1 is the default) "
        "samples, and so do `typical_p`, `top_h`, `epsilon_cutoff` and `eta_cutoff`. "
        "transformers' default is false.",
        example=False,
    ),
    routine(
        "num_beams",
        "The width of a beam search; 1 is none.",
        whole(1),
        becomes="beam search",
        differs="The answer comes in one piece, streamed or not. MAX_NUM_BEAMS limits it.",
        example=4,
        aliases=("beam_width",),
        inherited=True,
    ),
    fixed(
        "use_mtp",
        "Speculation with the model's own prediction heads.",
        _SPECULATION,
        FLAG,
        fits=_is_method("mtp"),
    ),
    # Cache
    fixed(
        "use_cache",
        "Whether keys and values are kept.",
        "",
        FLAG,
        differs="They always are. false changes no token in transformers either, and the reply "
        "warns.",
        fits=lambda _value, _facts: True,
    ),
    fixed(
        "cache_implementation",
        "The kind of cache.",
        "KV_CACHE_DTYPE",
        TEXT,
        differs='vLLM\'s paged cache is allocated once: "dynamic" and "static" are accepted.',
        fits=lambda value, _facts: value in ("dynamic", "static"),
    ),
    fixed("cache_config", "Options of the cache.", "KV_CACHE_DTYPE"),
    fixed(
        "max_cache_len",
        "How many tokens the cache holds.",
        "MAX_MODEL_LEN",
        whole(1),
        differs="Accepted up to MAX_MODEL_LEN.",
        fits=lambda value, facts: value <= facts.max_model_len,
    ),
    # What becomes of the logits
    native(
        "temperature",
        "Flattens (above 1) or sharpens (below 1) the distribution; 0 is greedy.",
        TEMPERATURE,
        becomes="`temperature`, or the chain",
        differs="Above 2 and between 0 and 0.01 vLLM would refuse or raise it: the chain takes it.",
        example=0.7,
        reference="both",
    ),
    native(
        "top_k",
        "Only so many of the likeliest tokens may be drawn; 0 or -1 is all.",
        whole(-1),
        becomes="`top_k`, or the chain",
        differs="transformers' default of 50 is not inherited.",
        example=50,
        reference="both",
    ),
    native(
        "top_p",
        "Only the likeliest tokens that make up this probability may be drawn.",
        number(0, 1),
        becomes="`top_p`, or the chain",
        differs="0, which vLLM refuses, keeps one token, as in transformers.",
        example=0.9,
        reference="both",
    ),
    native(
        "min_p",
        "Only tokens with this share of the likeliest one's probability may be drawn.",
        number(0, 1),
        becomes="`min_p`, or the chain",
        differs="Together with `top_p` the order matters, and transformers' holds.",
        example=0.05,
        reference="both",
    ),
    chain(
        "top_h",
        "Keeps the tokens that hold this share of the distribution's entropy.",
        number(0, 1, above=True),
        differs=_WHERE_GREEDY,
        example=0.4,
    ),
    chain(
        "typical_p",
        "Keeps the most typical tokens that make up this probability.",
        number(0, 1, above=True),
        differs=_WHERE_GREEDY,
        example=0.9,
        neutral=1.0,
    ),
    chain(
        "epsilon_cutoff",
        "Drops tokens below this probability.",
        number(0, 1, below=True),
        differs=_WHERE_GREEDY,
        example=0.0005,
        neutral=0.0,
    ),
    chain(
        "eta_cutoff",
        "Drops tokens below a bound that follows the entropy.",
        number(0, 1, below=True),
        differs=_WHERE_GREEDY,
        example=0.0005,
        neutral=0.0,
    ),
    native(
        "repetition_penalty",
        "Above 1 makes tokens of prompt and answer less likely, below 1 more.",
        PENALTY,
        becomes="`repetition_penalty`, or the chain",
        example=1.2,
        reference="both",
    ),
    chain(
        "encoder_repetition_penalty",
        "Above 1 makes the prompt's tokens more likely.",
        PENALTY,
        example=1.3,
        neutral=1.0,
    ),
    routine(
        "length_penalty",
        "The exponent over a beam's length, which divides its score.",
        number(-100, 100),
        becomes="beam search",
        differs="Without beams it has no effect, and the reply warns.",
        example=1.0,
        inherited=True,
    ),
    chain(
        "no_repeat_ngram_size",
        "No sequence of so many tokens may come twice, the prompt's included; 0 is off.",
        whole(0, 1_000_000),
        example=3,
        neutral=0,
    ),
    chain(
        "bad_words_ids",
        "Sequences of token ids that may not come.",
        SEQUENCES,
        differs="vLLM's `bad_words` takes texts, and not quite the same sequences.",
        example=[[1170], [338, 29]],
    ),
    chain(
        "renormalize_logits",
        "Normalises what is left after all other parameters.",
        FLAG,
        differs="Seen in `scores` and in beam search only.",
        example=True,
        neutral=False,
    ),
    chain(
        "forced_bos_token_id",
        "The answer's first token, if the prompt is one token long.",
        ONE_ID,
        differs="With a longer prompt it has no effect, as in transformers.",
        example=42,
    ),
    chain(
        "forced_eos_token_id",
        "The last token where the answer reaches its full length.",
        ID_OR_IDS,
        example=2,
    ),
    chain(
        "remove_invalid_values",
        "Replaces NaN and infinite logits by finite ones.",
        FLAG,
        example=True,
        neutral=False,
    ),
    chain(
        "exponential_decay_length_penalty",
        "[start, factor]: makes the end likelier with each token after the start.",
        DECAY,
        example=[10, 1.1],
    ),
    chain("suppress_tokens", "Token ids that may not come.", IDS, example=[198]),
    chain("begin_suppress_tokens", "Token ids that may not come first.", IDS, example=[198]),
    chain(
        "sequence_bias",
        "Pairs [[token ids], bias]: added to the logit of the token that completes the sequence.",
        SEQUENCE_BIAS,
        example=[[[504], -2.0]],
    ),
    routine(
        "token_healing",
        "Takes the prompt's last token back and lets the model complete it.",
        FLAG,
        becomes="one more token asked of the engine first",
        differs="The reply holds the healed prompt as `prompt_token_ids`. It needs a tokenizer. "
        "Where generate() raises, because it does not find the last token in the vocabulary or the "
        "tokenizer has no bos or pad token, the prompt stays as it is and the reply warns.",
        example=True,
    ),
    routine(
        "guidance_scale",
        "How far to move away from what the negative prompt would give; 1 is not at all.",
        number(-1000, 1000),
        becomes="two requests in lock step",
        differs="The negative prompt is the prompt's last token where none is given. The answer "
        "comes in one piece, streamed or not. Beside `num_beams` it is refused, where generate() "
        "takes both.",
        example=1.5,
        inherited=True,
    ),
    routine(
        "negative_prompt",
        "The text that guidance moves away from.",
        TEXT,
        becomes="the second request of `guidance_scale`",
        example="Sad news:",
    ),
    routine(
        "negative_prompt_ids",
        "The same as token ids.",
        Check("a list of token ids, not empty", lambda v, f: read_sequences([v], f)[0]),
        becomes="the second request of `guidance_scale`",
        example=[504, 253],
    ),
    chain(
        "watermarking_config",
        "Hides a watermark in the choice of tokens: transformers' WatermarkingConfig, or with "
        "`keys` and `ngram_len` SynthID.",
        WATERMARK,
        differs="SynthID and selfhash are costly; MAX_COSTLY_CHAINS limits how many run at once. "
        "Detect it on the same kind of device. With `num_beams` SynthID follows the tokens of each "
        "beam, where generate() goes on with those of the beam that had its place before.",
        example={"bias": 2.5, "seeding_scheme": "lefthash"},
    ),
    # Outputs
    native(
        "num_return_sequences",
        "How many answers to return.",
        whole(1),
        becomes="`n`, or the best beams",
        differs="More than one needs sampling or as many beams.",
        example=2,
    ),
    output(
        "output_scores",
        "Returns each token's best scores, after all parameters.",
        VALUES,
        becomes="`scores` in the reply",
        differs="true is MAX_SCORES values for each token, which is also the most.",
        example=5,
    ),
    output(
        "output_logits",
        "Returns each token's best logits, before all parameters.",
        VALUES,
        becomes="`logits` in the reply",
        differs="As `output_scores`.",
        example=5,
    ),
    refused(
        "output_hidden_states",
        "Returns the layers' hidden states.",
        "vLLM writes them to files, in a deployment made for it; a reply cannot hold them.",
        check=FLAG,
        fits=lambda value, _facts: value is False,
    ),
    refused(
        "output_attentions",
        "Returns the attention matrices.",
        "vLLM's attention kernels do not produce attention matrices.",
        check=FLAG,
        fits=lambda value, _facts: value is False,
    ),
    output(
        "return_dict_in_generate",
        "The shape of generate()'s result.",
        FLAG,
        becomes="nothing",
        differs="A reply is always an object.",
        example=True,
    ),
    # Special tokens, encoder-decoder
    native(
        "eos_token_id",
        "The token ids that end the answer, in place of the model's.",
        ID_OR_IDS,
        becomes="`ignore_eos` and `stop_token_ids`",
        differs="vLLM's `stop_token_ids` adds to the model's.",
        example=[2, 198],
    ),
    native(
        "bos_token_id",
        "The token that an empty prompt starts with.",
        ONE_ID,
        becomes="the prompt, where it is empty",
        example=1,
    ),
    native(
        "pad_token_id",
        "The token that fills up shorter rows of a batch.",
        Check("a whole number", lambda v, _: v if type(v) is int else fail(ValueError())),
        becomes="nothing",
        differs="vLLM pads nothing.",
        example=0,
    ),
    chain(
        "encoder_no_repeat_ngram_size",
        "No sequence of so many tokens of the prompt may come in the answer; 0 is off.",
        whole(0, 1_000_000),
        example=3,
        neutral=0,
    ),
    refused(
        "decoder_start_token_id",
        "The first token of an encoder-decoder model.",
        "It is for encoder-decoder models, and this worker serves a decoder-only model.",
    ),
    # Assisted generation, compilation
    fixed(
        "prompt_lookup_num_tokens",
        "Speculation with sequences found in the prompt.",
        _SPECULATION,
        whole(1),
        fits=lambda v, f: (
            _speculative(f, "method") == "ngram" and _speculative(f, "num_speculative_tokens") == v
        ),
    ),
    fixed(
        "max_matching_ngram_size",
        "The longest sequence that is looked up.",
        _SPECULATION,
        whole(1),
        fits=lambda v, f: _speculative(f, "prompt_lookup_max") == v,
    ),
    fixed(
        "num_assistant_tokens",
        "How many tokens are speculated at a time.",
        _SPECULATION,
        whole(1),
        fits=lambda v, f: _speculative(f, "num_speculative_tokens") == v,
    ),
    fixed(
        "num_assistant_tokens_schedule",
        "How that number changes.",
        _SPECULATION,
        TEXT,
        differs='"constant" is what vLLM does.',
        fits=lambda value, _facts: value == "constant",
    ),
    refused(
        "assistant_confidence_threshold",
        "Ends speculation early where the draft is unsure.",
        "vLLM's speculation has no such threshold.",
    ),
    fixed(
        "is_assistant",
        "Marks a draft model.",
        _SPECULATION,
        FLAG,
        fits=lambda value, _facts: value is False,
    ),
    refused(
        "assistant_lookbehind",
        "How far two tokenizers are aligned.",
        "vLLM aligns vocabularies in another way.",
    ),
    refused(
        "target_lookbehind",
        "How far two tokenizers are aligned.",
        "vLLM aligns vocabularies in another way.",
    ),
    refused(
        "assistant_early_exit",
        "Uses the model's first layers as the draft.",
        "vLLM has no drafting with a part of the model's own layers.",
    ),
    refused(
        "assistant_ensemble_weight",
        "Mixes the draft's distribution into the model's.",
        "It would change the output's distribution, and vLLM's verifier has no such mode.",
    ),
    fixed(
        "speculation_type",
        "The method of speculation.",
        _SPECULATION,
        TEXT,
        fits=lambda v, f: _speculative(f, "method") == v,
    ),
    fixed("compile_config", "Options of compilation.", "COMPILATION_CONFIG"),
    fixed(
        "disable_compile",
        "Switches compilation off.",
        "ENFORCE_EAGER",
        FLAG,
        fits=lambda v, f: v == bool(f.engine_options.get("enforce_eager")),
    ),
    # Around the reference: gone from transformers, generate()'s own arguments, other servers
    refused("num_beam_groups", "Diverse beam search.", _GONE, fits=lambda v, _f: v == 1),
    refused("diversity_penalty", "Diverse beam search.", _GONE, fits=lambda v, _f: v == 0),
    refused("penalty_alpha", "Contrastive search.", _GONE),
    refused("dola_layers", "DoLa decoding.", _GONE),
    refused(
        "constraints",
        "Constrained beam search.",
        f"{_GONE} structured_outputs constrains an answer.",
    ),
    refused(
        "force_words_ids",
        "Constrained beam search.",
        f"{_GONE} structured_outputs constrains an answer.",
    ),
    refused("low_memory", "Contrastive search.", _GONE),
    refused(
        "prefill_chunk_size",
        "The size of a part of a prefill.",
        "The variable MAX_NUM_BATCHED_TOKENS sets it for all requests.",
    ),
    refused(
        "continuous_batching_config",
        "Batching.",
        "vLLM batches by itself; MAX_NUM_SEQS and MAX_NUM_BATCHED_TOKENS bound it.",
    ),
    refused(
        "assistant_model",
        "A draft model.",
        "The variable SPECULATIVE_CONFIG names one for all requests.",
    ),
    refused("assistant_tokenizer", "A draft model's tokenizer.", "See assistant_model."),
    refused(
        "prefix_allowed_tokens_fn",
        "A function that constrains the answer.",
        "A job cannot carry a function; structured_outputs constrains an answer.",
    ),
    refused(
        "logits_processor",
        "Logits processors of one's own.",
        "A job cannot carry code; the variable LOGITS_PROCESSORS names classes.",
    ),
    refused(
        "stopping_criteria",
        "Stopping criteria of one's own.",
        "A job cannot carry code; stop_strings and eos_token_id end an answer.",
    ),
    refused("streamer", "A streamer.", 'Give "stream": true beside sampling_params.'),
    refused("synced_gpus", "Keeps GPUs in step.", "vLLM does that by itself."),
    refused("custom_generate", "Code for generate().", "A job cannot carry code."),
    refused("generation_config", "A set of parameters.", "Give its fields one by one."),
    refused("inputs", "The prompt.", "Give prompt or messages beside sampling_params."),
    refused(
        "negative_prompt_attention_mask",
        "Which tokens of the negative prompt count.",
        "All of them do; leave out those that should not.",
    ),
    # text-generation-inference's
    refused(
        "return_full_text", "The prompt before the answer.", "A reply holds the new text only."
    ),
    refused("watermark", "A watermark.", "Give watermarking_config: {}."),
    refused("details", "Tokens and scores.", "Give return_token_ids or logprobs."),
    refused("decoder_input_details", "The prompt's scores.", "Give prompt_logprobs."),
    refused("top_n_tokens", "The likeliest tokens.", "Give logprobs."),
    refused(
        "truncate",
        "Cuts the prompt.",
        "Give truncate_prompt_tokens.",
    ),
    refused("grammar", "Constrains the answer.", "Give structured_outputs."),
    refused("adapter_id", "An adapter.", 'Give "model" beside sampling_params.'),
    # vLLM's own, whose results no reply holds
    refused("prompt_logprob_token_ids", "Scores of the prompt.", "Give prompt_logprobs."),
    refused("prompt_logprob_start", "Where they begin.", "Give prompt_logprobs."),
    # vLLM's own
    vllm(
        "max_tokens",
        "How many tokens the answer may have.",
        whole(1),
        100,
        differs="Without it and without the model's own, DEFAULT_MAX_TOKENS holds.",
    ),
    vllm(
        "min_tokens",
        "Neither the end, nor stop ids, nor stop strings count for so many tokens.",
        whole(0, MOST_TOKENS),
        8,
    ),
    vllm("n", "How many answers to return.", whole(1), 2),
    vllm(
        "presence_penalty",
        "Above 0 makes every token of the answer less likely once it has come.",
        number(-2, 2),
        0.5,
    ),
    vllm("frequency_penalty", "The same, times how often it has come.", number(-2, 2), 0.5),
    vllm(
        "seed",
        "Makes draws repeatable on one worker.",
        whole(-MOST, MOST),
        7,
        differs="transformers draws other numbers from the same seed.",
    ),
    vllm(
        "truncate_prompt_tokens",
        "Keeps so many of the prompt's tokens; -1 fills the context but for one, the answer's.",
        whole(-1),
        64,
        becomes="the prompt",
    ),
    vllm(
        "truncation_side",
        "Which end of the prompt `truncate_prompt_tokens` cuts off.",
        choice("left", "right"),
        "left",
        becomes="the prompt",
    ),
    vllm("stop", "The answer ends before the first of these texts.", TEXTS_OR_NONE, ["User:"]),
    vllm(
        "stop_token_ids",
        "Token ids that end the answer beside the model's own.",
        Check(
            "a list of token ids",
            lambda v, f: [] if v == [] else read_ids(v, f),
        ),
        [198],
    ),
    vllm("ignore_eos", "Go on after the model's end.", FLAG, True),
    vllm("include_stop_str_in_output", "Keep the stop text in the answer.", FLAG, True),
    vllm(
        "logprobs",
        "Returns so many log-probabilities for each token; MAX_LOGPROBS is the most.",
        LOGPROBS,
        3,
    ),
    vllm("prompt_logprobs", "The same for the prompt's tokens.", LOGPROBS, 1),
    vllm(
        "logit_bias",
        "Token ids and what is added to their logits, from -100 to 100.",
        LOGIT_BIAS,
        {"198": -5.0},
    ),
    vllm("allowed_token_ids", "The only token ids that may come.", IDS, [504, 198]),
    vllm("bad_words", "Texts that may not come.", TEXTS_OR_NONE, ["never"]),
    vllm(
        "structured_outputs",
        "Constrains the answer: an object with `json`, `regex`, `choice` or `grammar`.",
        STRUCTURED,
        {"choice": ["yes", "no"]},
    ),
    vllm("skip_special_tokens", "Leave special tokens out of the text.", FLAG, True),
    vllm("spaces_between_special_tokens", "Put spaces between special tokens.", FLAG, True),
    vllm("detokenize", "Make text of the tokens.", FLAG, True),
    vllm("flat_logprobs", "How vLLM keeps log-probabilities.", FLAG),
    vllm("logprob_token_ids", "The token ids whose log-probabilities are returned.", IDS),
    vllm("repetition_detection", "Ends an answer that repeats itself.", OBJECT),
    vllm("skip_reading_prefix_cache", "Compute the prompt anew.", FLAG),
    vllm("stream_interval", "How many tokens one engine output has.", whole(1)),
    vllm(
        "thinking_token_budget",
        "How many tokens of thinking there may be; -1 is no limit.",
        whole(-1, MOST_TOKENS),
    ),
    vllm("watermarking", "Whether vLLM's own, engine-wide watermark applies.", FLAG),
    # vLLM's older ones, and this worker's
    routine(
        "best_of",
        "Writes so many answers and returns the `n` best; with `use_beam_search` the beams.",
        whole(1),
        becomes="sampling and ranking by log-probability, or `num_beams`",
        differs="vLLM has dropped it.",
        example=3,
        reference="vLLM",
    ),
    routine(
        "use_beam_search",
        "Beam search with `best_of` (or `n`) beams, of which the `n` best return.",
        FLAG,
        becomes="`num_beams` and `num_return_sequences`",
        differs="vLLM has dropped it. The search is Hugging Face's.",
        example=True,
        reference="vLLM",
    ),
    *(
        vllm(
            f"guided_{name}",
            f"The older name of `structured_outputs` with `{field_name}`.",
            FLAG if field_name == "json_object" else STRUCTURED_FIELDS[field_name],
            example,
            becomes="`structured_outputs`",
        )
        for name, field_name, example in (
            ("json", "json", {"type": "object"}),
            ("regex", "regex", "[0-9]+"),
            ("choice", "choice", ["yes", "no"]),
            ("grammar", "grammar", 'root ::= "yes" | "no"'),
            ("json_object", "json_object", True),
            ("whitespace_pattern", "whitespace_pattern", " ?"),
        )
    ),
    fixed("guided_decoding_backend", "What compiles grammars.", "STRUCTURED_OUTPUTS_CONFIG", TEXT),
    output(
        "return_token_ids",
        "Returns the answer's token ids, and the prompt's.",
        FLAG,
        becomes="`token_ids` and `prompt_token_ids` in the reply",
        example=True,
        reference="vLLM",
    ),
)
BY_NAME: Mapping[str, Parameter] = {
    name: parameter for parameter in PARAMETERS for name in (parameter.name, *parameter.aliases)
}


def names() -> Iterator[str]:
    """Return every name that `sampling_params` understands, refused ones left out."""
    return (name for name, parameter in BY_NAME.items() if parameter.kind != "refused")
