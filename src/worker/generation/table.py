"""The table of generation parameters: what a job may ask for, and what becomes of it.

One row a parameter. The reading, the error sentences and the documentation page come from here.
Hugging Face's names are those of transformers 5.19's GenerationConfig, vLLM's those of vLLM 0.32's
SamplingParams.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from worker.generation.checks import (
    DECAY,
    FLAG,
    ID_OR_IDS,
    ID_ROWS,
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
from worker.generation.parameter import Parameter

if TYPE_CHECKING:
    from worker.facts import Deployment


def _speculative(facts: "Deployment", key: str) -> Any:
    return (facts.engine_options.get("speculative_config") or {}).get(key)


def _is_method(name: str) -> Callable[[Any, "Deployment"], bool]:
    return lambda value, facts: value is False or _speculative(facts, "method") == name


_CHAIN = "the chain"
_WHERE_GREEDY = "Without sampling it has no effect, as in transformers, and the reply warns."
_SPECULATION = "SPECULATIVE_CONFIG"
PARAMETERS: tuple[Parameter, ...] = (
    # Length
    Parameter(
        "max_new_tokens",
        "native",
        "How many tokens the answer may have.",
        whole(1),
        becomes="`max_tokens`",
        differs="Without it DEFAULT_MAX_TOKENS holds, not transformers' 20.",
        example=32,
    ),
    Parameter(
        "max_length",
        "native",
        "How many tokens prompt and answer may have together.",
        whole(1),
        becomes="`max_tokens`, less the prompt",
        differs="`max_new_tokens` wins over it. A prompt that fills it is refused.",
        example=64,
    ),
    Parameter(
        "min_new_tokens",
        "chain",
        "The answer's end is out of reach for so many tokens.",
        whole(0),
        becomes=_CHAIN,
        differs="vLLM's `min_tokens` also hides other stop ids and switches stop strings off.",
        example=8,
    ),
    Parameter(
        "min_length",
        "chain",
        "The same, counted from the start of the prompt.",
        whole(0),
        becomes=_CHAIN,
        differs="`min_new_tokens` wins over it.",
        example=20,
    ),
    Parameter(
        "early_stopping",
        "routine",
        "When a beam search ends: true as soon as there are enough beams, false by a heuristic, "
        '"never" when no better one is possible.',
        choice(True, False, "never"),
        becomes="beam search",
        differs="Without beams it has no effect, and the reply warns.",
        example=True,
    ),
    Parameter(
        "max_time",
        "routine",
        "After how many seconds the answer ends with what there is.",
        number(0, 86_400, above=True),
        becomes="a deadline for the engine's request",
        differs='At least one token comes. `finish_reason` is then "max_time".',
        example=5.0,
    ),
    Parameter(
        "stop_strings",
        "native",
        "The answer ends with the first of these texts.",
        TEXTS,
        becomes="`stop` with `include_stop_str_in_output`",
        differs="The token ids are transformers'; the text ends with the stop string, where "
        "transformers keeps the rest of its token. A match that begins in the prompt does not "
        "count, except in beam search and guidance.",
        example=["\n\n"],
    ),
    # Strategy
    Parameter(
        "do_sample",
        "native",
        "Whether tokens are drawn; otherwise the likeliest is taken.",
        FLAG,
        becomes="`temperature`, which false sets to 0",
        differs="Without it vLLM's rule holds: a temperature above 0 (and 1 is the default) "
        "samples, and so do `typical_p`, `top_h`, `epsilon_cutoff` and `eta_cutoff`. "
        "transformers' default is false.",
        example=False,
    ),
    Parameter(
        "num_beams",
        "routine",
        "The width of a beam search; 1 is none.",
        whole(1),
        becomes="beam search",
        differs="The answer comes in one piece, streamed or not. MAX_NUM_BEAMS limits it.",
        example=4,
        aliases=("beam_width",),
    ),
    Parameter(
        "use_mtp",
        "deployment",
        "Speculation with the model's own prediction heads.",
        FLAG,
        option=_SPECULATION,
        fits=_is_method("mtp"),
    ),
    # Cache
    Parameter(
        "use_cache",
        "deployment",
        "Whether keys and values are kept.",
        FLAG,
        differs="They always are. false changes no token in transformers either, and the reply "
        "warns.",
        fits=lambda _value, _facts: True,
    ),
    Parameter(
        "cache_implementation",
        "deployment",
        "The kind of cache.",
        TEXT,
        option="KV_CACHE_DTYPE",
        differs='vLLM\'s paged cache is allocated once: "dynamic" and "static" are accepted.',
        fits=lambda value, _facts: value in ("dynamic", "static"),
    ),
    Parameter("cache_config", "deployment", "Options of the cache.", option="KV_CACHE_DTYPE"),
    Parameter(
        "max_cache_len",
        "deployment",
        "How many tokens the cache holds.",
        whole(1),
        option="MAX_MODEL_LEN",
        differs="Accepted up to MAX_MODEL_LEN.",
        fits=lambda value, facts: value <= facts.max_model_len,
    ),
    # What becomes of the logits
    Parameter(
        "temperature",
        "native",
        "Flattens (above 1) or sharpens (below 1) the distribution; 0 is greedy.",
        TEMPERATURE,
        becomes="`temperature`, or the chain",
        differs="Above 2 and between 0 and 0.01 vLLM would refuse or raise it: the chain takes it.",
        example=0.7,
        reference="both",
    ),
    Parameter(
        "top_k",
        "native",
        "Only so many of the likeliest tokens may be drawn; 0 or -1 is all.",
        whole(-1),
        becomes="`top_k`, or the chain",
        differs="transformers' default of 50 is not inherited.",
        example=50,
        reference="both",
    ),
    Parameter(
        "top_p",
        "native",
        "Only the likeliest tokens that make up this probability may be drawn.",
        number(0, 1),
        becomes="`top_p`, or the chain",
        differs="0, which vLLM refuses, keeps one token, as in transformers.",
        example=0.9,
        reference="both",
    ),
    Parameter(
        "min_p",
        "native",
        "Only tokens with this share of the likeliest one's probability may be drawn.",
        number(0, 1),
        becomes="`min_p`, or the chain",
        differs="Together with `top_p` the order matters, and transformers' holds.",
        example=0.05,
        reference="both",
    ),
    Parameter(
        "top_h",
        "chain",
        "Keeps the tokens that hold this share of the distribution's entropy.",
        number(0, 1, above=True),
        becomes=_CHAIN,
        differs=_WHERE_GREEDY,
        example=0.4,
    ),
    Parameter(
        "typical_p",
        "chain",
        "Keeps the most typical tokens that make up this probability.",
        number(0, 1, above=True),
        becomes=_CHAIN,
        differs=_WHERE_GREEDY,
        example=0.9,
    ),
    Parameter(
        "epsilon_cutoff",
        "chain",
        "Drops tokens below this probability.",
        number(0, 1, below=True),
        becomes=_CHAIN,
        differs=_WHERE_GREEDY,
        example=0.0005,
    ),
    Parameter(
        "eta_cutoff",
        "chain",
        "Drops tokens below a bound that follows the entropy.",
        number(0, 1, below=True),
        becomes=_CHAIN,
        differs=_WHERE_GREEDY,
        example=0.0005,
    ),
    Parameter(
        "repetition_penalty",
        "native",
        "Above 1 makes tokens of prompt and answer less likely, below 1 more.",
        PENALTY,
        becomes="`repetition_penalty`, or the chain",
        example=1.2,
        reference="both",
    ),
    Parameter(
        "encoder_repetition_penalty",
        "chain",
        "Above 1 makes the prompt's tokens more likely.",
        PENALTY,
        becomes=_CHAIN,
        example=1.3,
    ),
    Parameter(
        "length_penalty",
        "routine",
        "The exponent over a beam's length, which divides its score.",
        number(-100, 100),
        becomes="beam search",
        differs="Without beams it has no effect, and the reply warns.",
        example=1.0,
    ),
    Parameter(
        "no_repeat_ngram_size",
        "chain",
        "No sequence of so many tokens may come twice, the prompt's included; 0 is off.",
        whole(0, 1_000_000),
        becomes=_CHAIN,
        example=3,
    ),
    Parameter(
        "bad_words_ids",
        "chain",
        "Sequences of token ids that may not come.",
        SEQUENCES,
        becomes=_CHAIN,
        differs="vLLM's `bad_words` takes texts, and not quite the same sequences.",
        example=[[1170], [338, 29]],
    ),
    Parameter(
        "renormalize_logits",
        "chain",
        "Normalises what is left after all other parameters.",
        FLAG,
        becomes=_CHAIN,
        differs="Seen in `scores` and in beam search only.",
        example=True,
    ),
    Parameter(
        "forced_bos_token_id",
        "chain",
        "The answer's first token, if the prompt is one token long.",
        ONE_ID,
        becomes=_CHAIN,
        differs="With a longer prompt it has no effect, as in transformers.",
        example=42,
    ),
    Parameter(
        "forced_eos_token_id",
        "chain",
        "The last token where the answer reaches its full length.",
        ID_OR_IDS,
        becomes=_CHAIN,
        example=2,
    ),
    Parameter(
        "remove_invalid_values",
        "chain",
        "Replaces NaN and infinite logits by finite ones.",
        FLAG,
        becomes=_CHAIN,
        example=True,
    ),
    Parameter(
        "exponential_decay_length_penalty",
        "chain",
        "[start, factor]: makes the end likelier with each token after the start.",
        DECAY,
        becomes=_CHAIN,
        example=[10, 1.1],
    ),
    Parameter(
        "suppress_tokens",
        "chain",
        "Token ids that may not come.",
        IDS,
        becomes=_CHAIN,
        example=[198],
    ),
    Parameter(
        "begin_suppress_tokens",
        "chain",
        "Token ids that may not come first.",
        IDS,
        becomes=_CHAIN,
        example=[198],
    ),
    Parameter(
        "sequence_bias",
        "chain",
        "Pairs [[token ids], bias]: added to the logit of the token that completes the sequence.",
        SEQUENCE_BIAS,
        becomes=_CHAIN,
        example=[[[504], -2.0]],
    ),
    Parameter(
        "token_healing",
        "routine",
        "Takes the prompt's last token back and lets the model complete it.",
        FLAG,
        becomes="one more token asked of the engine first",
        differs="The reply holds the healed prompt as `prompt_token_ids`. It needs a tokenizer.",
        example=True,
    ),
    Parameter(
        "guidance_scale",
        "routine",
        "How far to move away from what the negative prompt would give; 1 is not at all.",
        number(-1000, 1000),
        becomes="two requests in lock step",
        differs="The negative prompt is the prompt's last token where none is given. The answer "
        "comes in one piece, streamed or not.",
        example=1.5,
    ),
    Parameter(
        "negative_prompt",
        "routine",
        "The text that guidance moves away from.",
        TEXT,
        becomes="the second request of `guidance_scale`",
        example="Sad news:",
    ),
    Parameter(
        "negative_prompt_ids",
        "routine",
        "The same as token ids.",
        Check("a list of token ids, not empty", lambda v, f: read_sequences([v], f)[0]),
        becomes="the second request of `guidance_scale`",
        example=[504, 253],
    ),
    Parameter(
        "watermarking_config",
        "chain",
        "Hides a watermark in the choice of tokens: transformers' WatermarkingConfig, or with "
        "`keys` and `ngram_len` SynthID.",
        WATERMARK,
        becomes=_CHAIN,
        differs="SynthID and selfhash are dear; MAX_DEAR_CHAINS limits how many run at once. "
        "Detect it on the same kind of device.",
        example={"bias": 2.5, "seeding_scheme": "lefthash"},
    ),
    # Outputs
    Parameter(
        "num_return_sequences",
        "native",
        "How many answers to return.",
        whole(1),
        becomes="`n`, or the best beams",
        differs="More than one needs sampling or as many beams.",
        example=2,
    ),
    Parameter(
        "output_scores",
        "output",
        "Returns each token's best scores, after all parameters.",
        VALUES,
        becomes="`scores` in the reply",
        differs="true is MAX_SCORES values for each token, which is also the most.",
        example=5,
    ),
    Parameter(
        "output_logits",
        "output",
        "Returns each token's best logits, before all parameters.",
        VALUES,
        becomes="`logits` in the reply",
        differs="As `output_scores`.",
        example=5,
    ),
    Parameter(
        "output_hidden_states",
        "refused",
        "Returns the layers' hidden states.",
        FLAG,
        differs="vLLM writes them to files, in a deployment made for it; a reply cannot hold them.",
        fits=lambda value, _facts: value is False,
    ),
    Parameter(
        "output_attentions",
        "refused",
        "Returns the attention matrices.",
        FLAG,
        differs="vLLM's attention kernels do not produce attention matrices.",
        fits=lambda value, _facts: value is False,
    ),
    Parameter(
        "return_dict_in_generate",
        "output",
        "The shape of generate()'s result.",
        FLAG,
        becomes="nothing",
        differs="A reply is always an object.",
        example=True,
    ),
    # Special tokens, encoder-decoder
    Parameter(
        "eos_token_id",
        "native",
        "The token ids that end the answer, in place of the model's.",
        ID_OR_IDS,
        becomes="`ignore_eos` and `stop_token_ids`",
        differs="vLLM's `stop_token_ids` adds to the model's.",
        example=[2, 198],
    ),
    Parameter(
        "bos_token_id",
        "native",
        "The token that an empty prompt starts with.",
        ONE_ID,
        becomes="the prompt, where it is empty",
        example=1,
    ),
    Parameter(
        "pad_token_id",
        "native",
        "The token that fills up shorter rows of a batch.",
        Check("a whole number", lambda v, _: v if type(v) is int else fail(ValueError())),
        becomes="nothing",
        differs="vLLM pads nothing.",
        example=0,
    ),
    Parameter(
        "encoder_no_repeat_ngram_size",
        "chain",
        "No sequence of so many tokens of the prompt may come in the answer; 0 is off.",
        whole(0, 1_000_000),
        becomes=_CHAIN,
        example=3,
    ),
    Parameter(
        "decoder_start_token_id",
        "refused",
        "The first token of an encoder-decoder model.",
        differs="It is for encoder-decoder models, and this worker serves a decoder-only model.",
    ),
    # Assisted generation, compilation
    Parameter(
        "prompt_lookup_num_tokens",
        "deployment",
        "Speculation with sequences found in the prompt.",
        whole(1),
        option=_SPECULATION,
        fits=lambda v, f: (
            _speculative(f, "method") == "ngram" and _speculative(f, "num_speculative_tokens") == v
        ),
    ),
    Parameter(
        "max_matching_ngram_size",
        "deployment",
        "The longest sequence that is looked up.",
        whole(1),
        option=_SPECULATION,
        fits=lambda v, f: _speculative(f, "prompt_lookup_max") == v,
    ),
    Parameter(
        "num_assistant_tokens",
        "deployment",
        "How many tokens are speculated at a time.",
        whole(1),
        option=_SPECULATION,
        fits=lambda v, f: _speculative(f, "num_speculative_tokens") == v,
    ),
    Parameter(
        "num_assistant_tokens_schedule",
        "deployment",
        "How that number changes.",
        TEXT,
        option=_SPECULATION,
        differs='"constant" is what vLLM does.',
        fits=lambda value, _facts: value == "constant",
    ),
    Parameter(
        "assistant_confidence_threshold",
        "refused",
        "Ends speculation early where the draft is unsure.",
        differs="vLLM's speculation has no such threshold.",
    ),
    Parameter(
        "is_assistant",
        "deployment",
        "Marks a draft model.",
        FLAG,
        option=_SPECULATION,
        fits=lambda value, _facts: value is False,
    ),
    Parameter(
        "assistant_lookbehind",
        "refused",
        "How far two tokenizers are aligned.",
        differs="vLLM aligns vocabularies in another way.",
    ),
    Parameter(
        "target_lookbehind",
        "refused",
        "How far two tokenizers are aligned.",
        differs="vLLM aligns vocabularies in another way.",
    ),
    Parameter(
        "assistant_early_exit",
        "refused",
        "Uses the model's first layers as the draft.",
        differs="vLLM has no drafting with a part of the model's own layers.",
    ),
    Parameter(
        "assistant_ensemble_weight",
        "refused",
        "Mixes the draft's distribution into the model's.",
        differs="It would change the output's distribution, and vLLM's verifier has no such mode.",
    ),
    Parameter(
        "speculation_type",
        "deployment",
        "The method of speculation.",
        TEXT,
        option=_SPECULATION,
        fits=lambda v, f: _speculative(f, "method") == v,
    ),
    Parameter(
        "compile_config", "deployment", "Options of compilation.", option="COMPILATION_CONFIG"
    ),
    Parameter(
        "disable_compile",
        "deployment",
        "Switches compilation off.",
        FLAG,
        option="ENFORCE_EAGER",
        fits=lambda v, f: v == bool(f.engine_options.get("enforce_eager")),
    ),
    # Around the reference: gone from transformers, generate()'s own arguments, other servers
    *(
        Parameter(name, "refused", meaning, differs=reason, fits=fits)
        for name, meaning, reason, fits in (
            (
                "num_beam_groups",
                "Diverse beam search.",
                "transformers 5 has it no more.",
                lambda v, _f: v == 1,
            ),
            (
                "diversity_penalty",
                "Diverse beam search.",
                "transformers 5 has it no more.",
                lambda v, _f: v == 0,
            ),
            *(
                (name, meaning, reason, lambda _v, _f: False)
                for name, meaning, reason in (
                    ("penalty_alpha", "Contrastive search.", "transformers 5 has it no more."),
                    ("dola_layers", "DoLa decoding.", "transformers 5 has it no more."),
                    (
                        "constraints",
                        "Constrained beam search.",
                        "transformers 5 has it no more. structured_outputs constrains an answer.",
                    ),
                    (
                        "force_words_ids",
                        "Constrained beam search.",
                        "transformers 5 has it no more. structured_outputs constrains an answer.",
                    ),
                    ("low_memory", "Contrastive search.", "transformers 5 has it no more."),
                    (
                        "prefill_chunk_size",
                        "The size of a part of a prefill.",
                        "The variable MAX_NUM_BATCHED_TOKENS sets it for all requests.",
                    ),
                    (
                        "continuous_batching_config",
                        "Batching.",
                        "vLLM batches by itself; MAX_NUM_SEQS and MAX_NUM_BATCHED_TOKENS bound it.",
                    ),
                    (
                        "assistant_model",
                        "A draft model.",
                        "The variable SPECULATIVE_CONFIG names one for all requests.",
                    ),
                    ("assistant_tokenizer", "A draft model's tokenizer.", "See assistant_model."),
                    (
                        "prefix_allowed_tokens_fn",
                        "A function that constrains the answer.",
                        "A job cannot carry a function; structured_outputs constrains an answer.",
                    ),
                    (
                        "logits_processor",
                        "Logits processors of one's own.",
                        "A job cannot carry code; the variable LOGITS_PROCESSORS names classes.",
                    ),
                    (
                        "stopping_criteria",
                        "Stopping criteria of one's own.",
                        "A job cannot carry code; stop_strings and eos_token_id end an answer.",
                    ),
                    ("streamer", "A streamer.", 'Give "stream": true beside sampling_params.'),
                    ("synced_gpus", "Keeps GPUs in step.", "vLLM does that by itself."),
                    ("custom_generate", "Code for generate().", "A job cannot carry code."),
                    ("generation_config", "A set of parameters.", "Give its fields one by one."),
                    # text-generation-inference's
                    (
                        "return_full_text",
                        "The prompt before the answer.",
                        "A reply holds the new text only.",
                    ),
                    ("watermark", "A watermark.", "Give watermarking_config: {}."),
                    ("details", "Tokens and scores.", "Give return_token_ids or logprobs."),
                    ("decoder_input_details", "The prompt's scores.", "Give prompt_logprobs."),
                    ("top_n_tokens", "The likeliest tokens.", "Give logprobs."),
                    (
                        "truncate",
                        "Cuts the prompt.",
                        "Cut it before sending; a part of a prompt is another prompt.",
                    ),
                    ("grammar", "Constrains the answer.", "Give structured_outputs."),
                    ("adapter_id", "An adapter.", 'Give "model" beside sampling_params.'),
                )
            ),
        )
    ),
    # vLLM's own
    Parameter(
        "max_tokens",
        "native",
        "How many tokens the answer may have.",
        whole(1),
        differs="Without it and without the model's own, DEFAULT_MAX_TOKENS holds.",
        example=100,
        reference="vLLM",
    ),
    Parameter(
        "min_tokens",
        "native",
        "Neither the end, nor stop ids, nor stop strings count for so many tokens.",
        whole(0, MOST_TOKENS),
        example=8,
        reference="vLLM",
    ),
    Parameter("n", "native", "How many answers to return.", whole(1), example=2, reference="vLLM"),
    Parameter(
        "presence_penalty",
        "native",
        "Above 0 makes every token of the answer less likely once it has come.",
        number(-2, 2),
        example=0.5,
        reference="vLLM",
    ),
    Parameter(
        "frequency_penalty",
        "native",
        "The same, times how often it has come.",
        number(-2, 2),
        example=0.5,
        reference="vLLM",
    ),
    Parameter(
        "seed",
        "native",
        "Makes draws repeatable on one worker.",
        whole(-MOST, MOST),
        differs="transformers draws other numbers from the same seed.",
        example=7,
        reference="vLLM",
    ),
    Parameter(
        "stop",
        "native",
        "The answer ends before the first of these texts.",
        TEXTS_OR_NONE,
        example=["User:"],
        reference="vLLM",
    ),
    Parameter(
        "stop_token_ids",
        "native",
        "Token ids that end the answer beside the model's own.",
        Check(
            "a list of token ids",
            lambda v, f: [] if v == [] else read_ids(v, f),
        ),
        example=[198],
        reference="vLLM",
    ),
    Parameter(
        "ignore_eos", "native", "Go on after the model's end.", FLAG, example=True, reference="vLLM"
    ),
    Parameter(
        "include_stop_str_in_output",
        "native",
        "Keep the stop text in the answer.",
        FLAG,
        example=True,
        reference="vLLM",
    ),
    Parameter(
        "logprobs",
        "native",
        "Returns so many log-probabilities for each token; MAX_LOGPROBS is the most.",
        LOGPROBS,
        example=3,
        reference="vLLM",
    ),
    Parameter(
        "prompt_logprobs",
        "native",
        "The same for the prompt's tokens.",
        LOGPROBS,
        example=1,
        reference="vLLM",
    ),
    *(
        Parameter(name, "native", meaning, check, example=example, reference="vLLM")
        for name, meaning, check, example in (
            (
                "logit_bias",
                "Token ids and what is added to their logits, from -100 to 100.",
                LOGIT_BIAS,
                {"198": -5.0},
            ),
            ("allowed_token_ids", "The only token ids that may come.", IDS, [504, 198]),
            ("bad_words", "Texts that may not come.", TEXTS_OR_NONE, ["never"]),
            (
                "structured_outputs",
                "Constrains the answer: an object with `json`, `regex`, `choice` or `grammar`.",
                STRUCTURED,
                {"choice": ["yes", "no"]},
            ),
            ("skip_special_tokens", "Leave special tokens out of the text.", FLAG, True),
            ("spaces_between_special_tokens", "Put spaces between special tokens.", FLAG, True),
            ("detokenize", "Make text of the tokens.", FLAG, True),
            ("flat_logprobs", "How vLLM keeps log-probabilities.", FLAG, None),
            ("logprob_token_ids", "The token ids whose log-probabilities are returned.", IDS, None),
            ("prompt_logprob_token_ids", "The same for the prompt.", ID_ROWS, None),
            ("prompt_logprob_start", "Where they begin.", whole(0), None),
            ("repetition_detection", "Ends an answer that repeats itself.", OBJECT, None),
            ("skip_reading_prefix_cache", "Compute the prompt anew.", FLAG, None),
            ("stream_interval", "How many tokens one engine output has.", whole(1), None),
            (
                "thinking_token_budget",
                "How many tokens of thinking there may be; -1 is no limit.",
                whole(-1, MOST_TOKENS),
                None,
            ),
            ("watermarking", "Whether vLLM's own, engine-wide watermark applies.", FLAG, None),
        )
    ),
    # vLLM's older ones, and this worker's
    Parameter(
        "best_of",
        "routine",
        "Writes so many answers and returns the `n` best; with `use_beam_search` the beams.",
        whole(1),
        becomes="sampling and ranking by log-probability, or `num_beams`",
        differs="vLLM has dropped it.",
        example=3,
        reference="vLLM",
    ),
    Parameter(
        "use_beam_search",
        "routine",
        "Beam search with `best_of` (or `n`) beams, of which the `n` best return.",
        FLAG,
        becomes="`num_beams` and `num_return_sequences`",
        differs="vLLM has dropped it. The search is Hugging Face's.",
        example=True,
        reference="vLLM",
    ),
    *(
        Parameter(
            f"guided_{name}",
            "native",
            f"The older name of `structured_outputs` with `{field_name}`.",
            FLAG if field_name == "json_object" else STRUCTURED_FIELDS[field_name],
            becomes="`structured_outputs`",
            example=example,
            reference="vLLM",
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
    Parameter(
        "guided_decoding_backend",
        "deployment",
        "What compiles grammars.",
        TEXT,
        option="STRUCTURED_OUTPUTS_CONFIG",
        reference="vLLM",
    ),
    Parameter(
        "return_token_ids",
        "output",
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


# Of the model's generation_config.json, beside what vLLM reads.
INHERITED = (
    *(p.name for p in PARAMETERS if p.kind == "chain"),
    "num_beams",
    "length_penalty",
    "early_stopping",
    "guidance_scale",
)
# With these values a parameter of the chain does nothing.
NEUTRAL: Mapping[str, Any] = {
    "min_new_tokens": 0,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "renormalize_logits": False,
    "remove_invalid_values": False,
}
