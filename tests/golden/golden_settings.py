"""The settings whose golden outputs `make.py` records, as a user would send them.

Token ids are those of SmolLM2-135M-Instruct. They were chosen by reading what the model says
without any setting, so that every parameter has something to act on.
"""

from dataclasses import dataclass
from typing import Any

TEXTS = (
    "The capital of France is",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "The cat sat on the mat. The cat sat on the",
    "def fibonacci(n):\n    ",
    "Shopping list:\n- milk\n- bread\n-",
    "Water",
    "",
    'The link is <a href="http:',
    "She is the most beauti",
    "My email is bob@exam",
    "I would like to eat ",
    "The sky is bl",
    "My favourite animal is the",
)
ORDINARY = (0, 1, 2, 3, 4)
ONE_TOKEN = 5
EMPTY = 6
UNFINISHED = (7, 8, 9, 10, 11)
FIRST_STEP = (12, 0, 1)
SHORT = (0, 2, 3, 4)

EOS, NEWLINE, FULL_STOP, DASH, COLON, THE, A, IS = 2, 198, 30, 29, 42, 260, 253, 314
PARIS, MAT, CAT, CANDY, SPACE, CAPITAL_THE = 7042, 1171, 2644, 17924, 216, 504
FIRST_TOKENS = [PARIS, CAPITAL_THE, MAT, 753, 10421]
ENDS_SOON = [[[EOS], 40.0]]
SYNTHID = {"keys": [654, 400, 836, 123, 340, 443], "ngram_len": 5}


@dataclass(frozen=True)
class Setting:
    """One set of parameters.

    `idle` names the parameters that change nothing here, and `why` says why that is so; `make.py`
    refuses any other parameter without an effect. `tie` allows scores that are equal by design.
    """

    name: str
    parameters: dict[str, Any]
    prompts: tuple[int, ...]
    why: str | None = None
    idle: tuple[str, ...] = ()
    tie: bool = False


def greedy(
    name: str,
    /,
    prompts: tuple[int, ...] = ORDINARY,
    why: str | None = None,
    idle: tuple[str, ...] = (),
    tie: bool = False,
    **parameters: Any,
) -> Setting:
    length = {} if {"max_length", "max_new_tokens"} & set(parameters) else {"max_new_tokens": 32}
    return Setting(name, {"do_sample": False} | length | parameters, prompts, why, idle, tie)


def sampling(
    name: str, /, why: str | None = None, idle: tuple[str, ...] = (), **parameters: Any
) -> Setting:
    fixed = {"do_sample": True, "max_new_tokens": 1}
    return Setting(name, fixed | {"top_k": 0} | parameters, FIRST_STEP, why, idle)


def beams(
    name: str,
    num_beams: int,
    /,
    why: str | None = None,
    idle: tuple[str, ...] = (),
    **parameters: Any,
) -> Setting:
    fixed = {"do_sample": False, "max_new_tokens": 14, "num_beams": num_beams}
    returned = {"num_return_sequences": num_beams}
    return Setting(name, fixed | returned | parameters, SHORT, why, idle)


GREEDY = (
    greedy(
        "plain",
        prompts=tuple(i for i in range(len(TEXTS) - 1) if i != EMPTY),
        why="This is what every other setting is compared with.",
    ),
    greedy("repetition_penalty", repetition_penalty=1.4),
    greedy("repetition_penalty_below_1", repetition_penalty=0.8),
    greedy("encoder_repetition_penalty", encoder_repetition_penalty=1.5),
    greedy("encoder_repetition_penalty_below_1", encoder_repetition_penalty=0.7),
    greedy("no_repeat_ngram_size_2", no_repeat_ngram_size=2),
    greedy("no_repeat_ngram_size_3", no_repeat_ngram_size=3),
    greedy("encoder_no_repeat_ngram_size_1", encoder_no_repeat_ngram_size=1),
    greedy("encoder_no_repeat_ngram_size_2", encoder_no_repeat_ngram_size=2),
    greedy("bad_words_ids_one_token", bad_words_ids=[[PARIS], [THE], [NEWLINE]]),
    greedy(
        "bad_words_ids_two_tokens",
        bad_words_ids=[
            [FULL_STOP, NEWLINE],
            [THE, MAT],
            [DASH, CANDY],
            [1003, SPACE],
            [6376, 4461],
        ],
    ),
    greedy(
        "bad_words_ids_of_all_lengths",
        bad_words_ids=[[EOS], [CAPITAL_THE], [IS, PARIS], [335, THE, MAT], [198, DASH, 8289]],
    ),
    greedy("sequence_bias_one_token", sequence_bias=[[[NEWLINE], -6.0], [[THE], 3.5]]),
    greedy(
        "sequence_bias_two_tokens",
        sequence_bias=[[[THE, CAT], 4.0], [[IS, PARIS], -20.0], [[DASH, 5246], -5.0]],
    ),
    greedy(
        "sequence_bias_of_all_lengths",
        sequence_bias=[[[IS, 441], 9.0], [[A], -3.0], [[335, THE, MAT], -8.0], [[CANDY], -9.5]],
    ),
    greedy("suppress_tokens", suppress_tokens=[NEWLINE, FULL_STOP, MAT, 24484, EOS]),
    greedy("begin_suppress_tokens", begin_suppress_tokens=FIRST_TOKENS),
    greedy("forced_eos_token_id", forced_eos_token_id=EOS, max_new_tokens=12),
    greedy(
        "forced_eos_token_id_list",
        forced_eos_token_id=[FULL_STOP, NEWLINE],
        max_new_tokens=12,
        tie=True,
    ),
    greedy("forced_eos_token_id_at_max_length", forced_eos_token_id=NEWLINE, max_length=24),
    greedy(
        "forced_bos_token_id", prompts=(ONE_TOKEN, 0), forced_bos_token_id=6403, max_new_tokens=16
    ),
    greedy(
        "forced_bos_and_begin_suppress",
        prompts=(ONE_TOKEN, 0),
        forced_bos_token_id=6403,
        begin_suppress_tokens=[DASH, PARIS],
        max_new_tokens=16,
    ),
    greedy("end_of_text_bias", sequence_bias=ENDS_SOON),
    greedy("min_new_tokens", min_new_tokens=10, sequence_bias=ENDS_SOON),
    greedy("min_length", min_length=20, sequence_bias=ENDS_SOON),
    greedy(
        "min_new_tokens_before_min_length",
        min_new_tokens=6,
        min_length=40,
        sequence_bias=ENDS_SOON,
        why="min_new_tokens replaces min_length.",
        idle=("min_length",),
    ),
    greedy("exponential_decay_length_penalty", exponential_decay_length_penalty=[6, 1.15]),
    greedy(
        "exponential_decay_with_list",
        exponential_decay_length_penalty=[3, 1.05],
        eos_token_id=[EOS, FULL_STOP],
    ),
    greedy("eos_token_id", eos_token_id=NEWLINE),
    greedy("eos_token_id_list", eos_token_id=[FULL_STOP, 46477, 8289]),
    greedy("eos_token_id_replaces_the_models", eos_token_id=0),
    greedy("eos_token_id_and_min_new_tokens", eos_token_id=[FULL_STOP, NEWLINE], min_new_tokens=9),
    greedy(
        "remove_invalid_values",
        remove_invalid_values=True,
        why="The model computes no invalid value.",
        idle=("remove_invalid_values",),
    ),
    greedy(
        "remove_invalid_values_of_bad_words",
        remove_invalid_values=True,
        bad_words_ids=[[PARIS], [THE], [CANDY]],
        suppress_tokens=[NEWLINE],
        why="The banned tokens get the lowest finite score, which is not chosen either.",
        idle=("remove_invalid_values",),
    ),
    greedy(
        "renormalize_logits",
        renormalize_logits=True,
        why="Normalizing keeps the order of the scores.",
        idle=("renormalize_logits",),
    ),
    greedy("watermark_lefthash", watermarking_config={"bias": 2.5, "seeding_scheme": "lefthash"}),
    greedy(
        "watermark_selfhash",
        watermarking_config={"bias": 3.0, "seeding_scheme": "selfhash", "context_width": 3},
    ),
    greedy(
        "watermark_lefthash_all_keys",
        watermarking_config={
            "greenlist_ratio": 0.4,
            "bias": 4.0,
            "hashing_key": 1234577,
            "seeding_scheme": "lefthash",
            "context_width": 2,
        },
    ),
    greedy("watermark_synthid", watermarking_config=SYNTHID),
    greedy(
        "watermark_synthid_all_keys",
        watermarking_config={
            "keys": [5, 17, 91, 2],
            "ngram_len": 3,
            "context_history_size": 4,
            "sampling_table_seed": 7,
            "sampling_table_size": 4096,
            "skip_first_ngram_calls": True,
        },
    ),
    greedy("max_new_tokens", max_new_tokens=7),
    greedy("max_length", max_length=21),
    greedy(
        "max_new_tokens_before_max_length",
        max_new_tokens=9,
        max_length=24,
        why="max_new_tokens replaces max_length.",
        idle=("max_length",),
    ),
    greedy("guidance_scale", guidance_scale=1.8),
    greedy("guidance_scale_below_1", guidance_scale=0.6),
    greedy(
        "guidance_and_penalties",
        guidance_scale=1.5,
        repetition_penalty=1.2,
        no_repeat_ngram_size=2,
    ),
    greedy(
        "guidance_and_negative_prompt_ids",
        guidance_scale=2.0,
        negative_prompt_ids=[378, 4649, 314, 253, 1379, 338],
    ),
    greedy(
        "guidance_negative_bias_and_length",
        guidance_scale=1.6,
        negative_prompt_ids=[1, 9690, 198],
        sequence_bias=[[[EOS], 12.0], [[NEWLINE], -4.0]],
        min_new_tokens=8,
        suppress_tokens=[PARIS, CANDY],
    ),
    greedy("stop_strings", stop_strings="is"),
    greedy("stop_strings_several", stop_strings=["Paris", "sunlight", "if n", "egg", "example"]),
    greedy(
        "stop_strings_over_tokens", stop_strings=["is: 2018", "The cat", "n == 0", "a specific"]
    ),
    greedy(
        "stop_strings_that_begin_in_the_prompt",
        stop_strings=["is Paris", "the mat.", "assistant\nThe sky", "bread\n- cheese"],
    ),
    greedy(
        "stop_strings_before_min_new_tokens",
        stop_strings=[" answer", "mat.", " return"],
        min_new_tokens=20,
        eos_token_id=[EOS, 10421, 6376],
    ),
    greedy(
        "token_healing",
        prompts=UNFINISHED,
        token_healing=True,
    ),
    greedy(
        "token_healing_and_penalties",
        prompts=UNFINISHED,
        token_healing=True,
        encoder_repetition_penalty=1.4,
        no_repeat_ngram_size=2,
        max_new_tokens=20,
    ),
    greedy("bos_token_id", prompts=(EMPTY,), bos_token_id=CAPITAL_THE),
    greedy(
        "five_penalties",
        repetition_penalty=1.15,
        encoder_repetition_penalty=1.2,
        no_repeat_ngram_size=3,
        bad_words_ids=[[PARIS], [A, 966]],
        sequence_bias=[[[NEWLINE], -2.5]],
    ),
    greedy(
        "six_of_all_kinds",
        repetition_penalty=1.1,
        encoder_no_repeat_ngram_size=2,
        suppress_tokens=[NEWLINE, 564],
        min_new_tokens=12,
        exponential_decay_length_penalty=[4, 1.12],
        watermarking_config={"bias": 2.0},
    ),
    greedy(
        "five_about_the_end",
        eos_token_id=[EOS, FULL_STOP],
        min_length=18,
        forced_eos_token_id=FULL_STOP,
        begin_suppress_tokens=FIRST_TOKENS,
        stop_strings=["visible", "tea"],
        max_new_tokens=24,
    ),
    greedy(
        "sampling_names_without_sampling",
        temperature=0.3,
        top_k=3,
        top_p=0.5,
        typical_p=0.5,
        length_penalty=2.0,
        early_stopping=True,
        why="Greedy search without beams reads none of them.",
        idle=("temperature", "top_k", "top_p", "typical_p", "length_penalty", "early_stopping"),
    ),
)

SAMPLING = (
    sampling("plain", why="This is what every other setting is compared with."),
    sampling("temperature", temperature=0.7),
    sampling("temperature_high", temperature=3.0),
    sampling("temperature_tiny", temperature=0.005),
    sampling("top_k", top_k=5),
    sampling("top_p", top_p=0.8),
    sampling("top_p_zero", top_p=0.0),
    sampling("min_p", min_p=0.05),
    sampling("top_h", top_h=0.5),
    sampling("top_h_high", top_h=0.95),
    sampling("typical_p", typical_p=0.6),
    sampling("typical_p_high", typical_p=0.95),
    sampling("epsilon_cutoff", epsilon_cutoff=0.004),
    sampling("eta_cutoff", eta_cutoff=0.002),
    sampling("temperature_top_k_top_p", temperature=0.8, top_k=20, top_p=0.7),
    sampling("top_p_min_p", top_p=0.82, min_p=0.01),
    sampling(
        "top_p_before_min_p",
        top_p=0.95,
        min_p=0.01,
        why="top_p reads the whole distribution, of which min_p then keeps less.",
        idle=("top_p",),
    ),
    sampling("top_k_min_p", top_k=12, min_p=0.06),
    sampling(
        "temperature_top_p_min_p_typical_p",
        temperature=1.3,
        top_p=0.5,
        min_p=0.03,
        typical_p=0.8,
    ),
    sampling(
        "temperature_top_h_top_k_eta_cutoff",
        temperature=0.8,
        top_h=0.6,
        top_k=20,
        eta_cutoff=0.002,
    ),
    sampling(
        "repetition_penalty_temperature_top_p",
        repetition_penalty=1.3,
        temperature=0.9,
        top_p=0.85,
    ),
    sampling(
        "repetition_penalty_bias_temperature_top_p",
        repetition_penalty=1.3,
        sequence_bias=[[[IS, PARIS], -4.0], [[THE, CAT], -2.0], [[23390], 3.0]],
        temperature=0.9,
        top_p=0.85,
    ),
    sampling(
        "all_warpers",
        temperature=2.0,
        top_h=0.8,
        top_k=40,
        top_p=0.8,
        min_p=0.2,
        typical_p=0.8,
        epsilon_cutoff=0.03,
        eta_cutoff=0.6,
        why="top_h keeps more tokens than the seven others leave.",
        idle=("top_h",),
    ),
    sampling("typical_p_epsilon_cutoff", typical_p=0.9, epsilon_cutoff=0.003),
    sampling(
        "watermark_lefthash_after_warpers",
        temperature=0.9,
        top_k=40,
        top_p=0.9,
        watermarking_config={"bias": 2.0, "seeding_scheme": "lefthash"},
    ),
    sampling(
        "watermark_selfhash_after_min_p",
        min_p=0.01,
        watermarking_config={"bias": 1.5, "seeding_scheme": "selfhash"},
    ),
    sampling("watermark_synthid_after_top_k", top_k=30, watermarking_config=SYNTHID),
    sampling(
        "renormalize_logits",
        top_p=0.9,
        temperature=1.5,
        renormalize_logits=True,
        why="Normalizing changes the scores and not the distribution.",
        idle=("renormalize_logits",),
    ),
    sampling(
        "bans_and_top_p",
        bad_words_ids=[[IS, PARIS], [2767]],
        suppress_tokens=[CAPITAL_THE, 17032],
        begin_suppress_tokens=[CAT, THE],
        encoder_no_repeat_ngram_size=1,
        top_p=0.8,
    ),
    sampling("end_of_text_bias_and_min_p", sequence_bias=[[[EOS], 24.0]], min_p=0.02),
    sampling(
        "eos_token_id_min_new_tokens_min_p",
        sequence_bias=[[[PARIS], -3.0]],
        eos_token_id=[EOS, THE],
        min_new_tokens=1,
        min_p=0.02,
    ),
    sampling(
        "min_new_tokens_and_top_k",
        sequence_bias=[[[EOS], 30.0], [[THE], 2.0]],
        min_new_tokens=1,
        top_k=8,
    ),
    sampling(
        "encoder_repetition_penalty_and_typical_p",
        encoder_repetition_penalty=1.6,
        temperature=0.8,
        typical_p=0.7,
    ),
    sampling("guidance_scale_and_top_p", guidance_scale=1.4, top_p=0.9),
    sampling("forced_eos_token_id", forced_eos_token_id=[EOS, FULL_STOP]),
    sampling(
        "forced_eos_before_suppress", forced_eos_token_id=[EOS, FULL_STOP], suppress_tokens=[EOS]
    ),
)

BEAMS = (
    beams("plain_2", 2),
    beams("plain_3", 3),
    beams("plain_4", 4),
    beams("plain_8", 8, num_return_sequences=3),
    beams("one_of_4", 4, num_return_sequences=1),
    beams("length_penalty_minus_1", 3, length_penalty=-1.0, eos_token_id=[NEWLINE]),
    beams("length_penalty_0", 3, length_penalty=0.0, eos_token_id=FULL_STOP),
    beams("length_penalty_half", 4, length_penalty=0.5, eos_token_id=NEWLINE),
    beams("length_penalty_2", 4, length_penalty=2.0, eos_token_id=NEWLINE),
    beams(
        "early_stopping_false",
        3,
        early_stopping=False,
        eos_token_id=NEWLINE,
        why="False is the default of early_stopping.",
        idle=("early_stopping",),
    ),
    beams("early_stopping_true", 3, early_stopping=True, eos_token_id=NEWLINE),
    beams("early_stopping_never", 3, early_stopping="never", eos_token_id=NEWLINE),
    beams(
        "early_stopping_never_length_penalty",
        4,
        early_stopping="never",
        length_penalty=2.0,
        eos_token_id=[NEWLINE, FULL_STOP],
    ),
    beams("no_repeat_ngram_size", 3, no_repeat_ngram_size=2),
    beams("repetition_penalty", 4, repetition_penalty=1.4),
    beams(
        "bad_words_ids_min_new_tokens",
        4,
        bad_words_ids=[[PARIS], [THE, MAT], [DASH]],
        min_new_tokens=6,
        eos_token_id=NEWLINE,
    ),
    beams("two_eos_token_ids", 3, eos_token_id=[NEWLINE, FULL_STOP]),
    beams("stop_strings", 3, stop_strings=["is", "n == ", "egg", "mat.\n", "cat"]),
    beams(
        "sequence_bias_renormalize_logits",
        3,
        sequence_bias=[[[IS, THE], 3.0], [[THE, CAT], -3.0], [[NEWLINE], 2.0]],
        renormalize_logits=True,
    ),
    beams(
        "exponential_decay_length_penalty",
        3,
        exponential_decay_length_penalty=[2, 0.8],
        eos_token_id=FULL_STOP,
    ),
    beams("forced_eos_token_id", 2, forced_eos_token_id=EOS, max_new_tokens=9),
    beams("watermark_lefthash", 3, watermarking_config={"bias": 2.0}),
    beams(
        "six_together",
        4,
        length_penalty=1.5,
        early_stopping=True,
        repetition_penalty=1.2,
        encoder_no_repeat_ngram_size=2,
        suppress_tokens=[PARIS],
        eos_token_id=[EOS, FULL_STOP, NEWLINE],
    ),
)
