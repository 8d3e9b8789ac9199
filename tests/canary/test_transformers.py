"""transformers' private names: the order of the processors, the beams, healing, watermarks."""

import inspect
from types import SimpleNamespace
from typing import Any

import torch

from canary.touch import Row, prove, rows, the

MIXIN = "transformers.generation.utils:GenerationMixin"
CONFIG = "transformers.generation.configuration_utils"
LOGITS = "transformers.generation.logits_process"
# The keyword arguments of the bookkeeping of beams; positional ones are called 1, 2, …
BEAMS = {
    "_gather_beams": "",
    "_flatten_beam_dim": "1",
    "_unflatten_beam_dim": "1 2 3",
    "_get_top_k_continuations": "accumulated_log_probs running_sequences running_beam_indices "
    "cur_len decoder_prompt_len do_sample beams_to_keep num_beams batch_size",
    "_get_running_beams_for_next_iteration": "topk_log_probs topk_running_sequences "
    "topk_running_beam_indices next_token_hits_stopping_criteria num_beams",
    "_update_finished_beams": "sequences topk_running_sequences beam_scores topk_log_probs "
    "beam_indices topk_running_beam_indices is_early_stop_heuristic_unsatisfied is_sent_finished "
    "next_token_hits_stopping_criteria top_num_beam_mask num_beams cur_len decoder_prompt_len "
    "length_penalty early_stopping",
    "_check_early_stop_heuristic": "is_early_stop_heuristic_unsatisfied running_beam_scores "
    "beam_scores is_sent_finished cur_len max_length decoder_prompt_len early_stopping "
    "length_penalty",
    "_beam_search_has_unfinished_sequences": "1 2 3 4",
}
FIELDS = (
    "max_length min_new_tokens min_length early_stopping do_sample num_beams temperature top_k "
    "top_p min_p top_h typical_p epsilon_cutoff eta_cutoff repetition_penalty "
    "encoder_repetition_penalty length_penalty no_repeat_ngram_size bad_words_ids "
    "renormalize_logits forced_bos_token_id forced_eos_token_id remove_invalid_values "
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens sequence_bias "
    "guidance_scale watermarking_config encoder_no_repeat_ngram_size"
)
ORDER = [
    "SequenceBiasLogitsProcessor", "RepetitionPenaltyLogitsProcessor",
    "NoRepeatNGramLogitsProcessor", "MinLengthLogitsProcessor", "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper", "TopPLogitsWarper", "LogitNormalization",
]  # fmt: skip


def beams(name: str) -> bool:
    """Whether a method takes what it is called with, on a stub that is no model."""
    stub = type("Stub", (), {name: the(MIXIN).__dict__[name]})()
    words = BEAMS[name].split()
    given = {word: 0 for word in words if not word.isdigit()}
    call = inspect.signature(getattr(stub, name))
    if words:
        call.bind(*(0 for word in words if word.isdigit()), **given)
    return True


def chain() -> list[str]:
    """Return the names of the processors that a stub's private method makes, in their order."""
    mixin = the(MIXIN)
    both = ("_get_logits_processor", "_merge_criteria_processor_list")
    stub = type("Stub", (), {name: getattr(mixin, name) for name in both})()
    text = SimpleNamespace(vocab_size=9)
    stub.config = SimpleNamespace(is_encoder_decoder=False, get_text_config=lambda: text)
    config = the("transformers:GenerationConfig")(
        do_sample=True, temperature=0.5, top_k=0, top_p=0.5, repetition_penalty=2.0, min_length=4,
        no_repeat_ngram_size=2, suppress_tokens=[3], sequence_bias=[[[1], 1.0]],
        renormalize_logits=True,
    )  # fmt: skip
    config._eos_token_tensor = torch.tensor([1])
    made = stub._get_logits_processor(
        config,
        input_ids_seq_length=2,
        encoder_input_ids=torch.tensor([[1, 2]]),
        device="cpu",
        model_kwargs={},
    )
    return [type(one).__name__ for one in made]


def synthid() -> Any:
    config = the(f"{CONFIG}:SynthIDTextWatermarkingConfig")(ngram_len=3, keys=[1, 2])
    kind = the(f"{LOGITS}:SynthIDTextWatermarkLogitsProcessor")
    return kind(**vars(config), device=torch.device("cpu"))


def synthid_state() -> list[Any]:
    made = synthid()
    before = made.state
    made._init_state(1)
    keys = made._compute_keys(made.state.context, torch.zeros((1, 1), dtype=torch.long))
    return [before, made.state.num_calls, len(keys), made.state.context_history.ndim]


# One row, one line where it fits.
# fmt: off
TOUCHES: dict[str, list[Row]] = {
    "routines/beams": [
        *(
            (f"`GenerationMixin.{one}` takes its arguments", lambda one=one: beams(one), True)
            for one in BEAMS
        ),
    ],
    "routines/guidance": [
        "transformers.generation.stopping_criteria:StopStringCriteria{maximum_token_len}",
    ],
    "routines/healing": [
        f"{MIXIN}.heal_tokens(self, ids, tokenizer)",
        r"transformers.generation.utils ~ vocab_trie = ExtensionsTrie\(tokenizer\.get_vocab\(\)\)",
        r"transformers.generation.utils ~ self\.generate\(\w+\.unsqueeze\(0\), generation_config=",
        r"transformers.generation.utils ~ generation_config\.update\(sequence_bias=seq_bias\)",
    ],
    "processor/chain": [
        ("transformers makes the processors in this order", chain, ORDER),
        f"{CONFIG}:WatermarkingConfig(greenlist_ratio=, bias=, hashing_key=, seeding_scheme=)",
        f"{CONFIG}:WatermarkingConfig(context_width=)",
        f"{CONFIG}:WatermarkingConfig.construct_processor(self, vocab_size, device)",
        f"{CONFIG}:WatermarkingConfig.validate(self)",
        f"{CONFIG}:SynthIDTextWatermarkingConfig.construct_processor(self, vocab_size, device)",
        f"{CONFIG}:SynthIDTextWatermarkingConfig.validate(self)",
        ("SynthID is made of its configuration's fields", lambda: bool(synthid()), True),
        ("SynthID begins without a state", synthid_state, [None, 0, 2, 2]),
        f"{LOGITS}:SynthIDTextWatermarkLogitsProcessor{{skip_first_ngram_calls ngram_len device}}",
        f"{LOGITS}:SuppressTokensLogitsProcessor{{suppress_tokens}}",
        f"{LOGITS}:SuppressTokensAtBeginLogitsProcessor{{begin_suppress_tokens begin_index}}",
        f"{LOGITS}:MinLengthLogitsProcessor{{eos_token_id min_length}}",
        f"{LOGITS}:MinNewTokensLengthLogitsProcessor{{prompt_length_to_skip min_new_tokens}}",
        f"{LOGITS}:MinNewTokensLengthLogitsProcessor{{eos_token_id}}",
    ],
    "generation/table": [
        ("GenerationConfig has these", lambda: set(FIELDS.split()) - fields(), set()),
        f"{CONFIG}:SynthIDTextWatermarkingConfig(ngram_len=, keys=, context_history_size=)",
        f"{CONFIG}:SynthIDTextWatermarkingConfig(ngram_len=, keys=, sampling_table_seed=)",
        f"{CONFIG}:SynthIDTextWatermarkingConfig(ngram_len=, keys=, sampling_table_size=)",
        f"{CONFIG}:SynthIDTextWatermarkingConfig(ngram_len=, keys=, skip_first_ngram_calls=)",
        f"{CONFIG}:SynthIDTextWatermarkingConfig(ngram_len=, keys=, debug_mode=)",
    ],
}
# fmt: on


def fields() -> set[str]:
    return set(vars(the("transformers:GenerationConfig")()))


@rows(TOUCHES)
def test_a_touch_of_transformers(room: str, row: Row) -> None:
    """What is called of transformers, on stubs instead of a model, is called as before."""
    prove(room, row)
