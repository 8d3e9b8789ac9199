"""The interfaces of vLLM's two model runners to a logits processor."""

from typing import Any

from canary.touch import Row, prove, rows, the

V1 = "vllm.v1.sample.logits_processor"
V2 = "vllm.v1.worker.gpu.sample"
STATE = f"{V2}.logits_processor.interface:LogitsProcRequestState"
CONTEXT = f"{V2}.logits_processor.interface:LogitsContext"
PROCESSOR = f"{V2}.logits_processor.interface:LogitsProcessor"


def update() -> list[Any]:
    """Return what vLLM's own helper makes of a request that was added, and what it was asked."""
    asked: list[Any] = []
    kept: dict[int, str] = {}
    params = the("vllm:SamplingParams")()
    batch = the(f"{V1}.interface:BatchUpdate")(
        batch_size=1, removed=[], added=[(3, params, [1], [2])], moved=[]
    )
    the(f"{V1}.builtin:process_dict_updates")(
        kept, batch, lambda *given: asked.extend(given[1:]) or "it"
    )
    return [kept, asked]


# One row, one line where it fits.
# fmt: off
TOUCHES: dict[str, list[Row]] = {
    "processor/processor": [
        f"{V1}:LogitsProcessor.__init__(self, config, device, is_pinned)",
        f"{V1}:LogitsProcessor.apply(self, logits)",
        f"{V1}:LogitsProcessor.update_state(self, update)",
        ("V1 asks a processor for no more than these",
         lambda: the(f"{V1}:LogitsProcessor").__abstractmethods__,
         {"__init__", "apply", "is_argmax_invariant", "update_state"}),
        f"{V1}.interface:BatchUpdate(batch_size=, removed=, added=, moved=)",
        f"{V1}.interface:MoveDirectionality{{SWAP UNIDIRECTIONAL}}",
        ("process_dict_updates asks with (params, prompt, output)", update,
         [{3: "it"}, [[1], [2]]]),
        f"{PROCESSOR}.__init__(self, config, states)",
        f"{PROCESSOR}.add_request(self, slot, params)",
        f"{PROCESSOR}.apply(self, logits, context)",
        ("V2 asks a processor for no more than this", lambda: the(PROCESSOR).__abstractmethods__,
         {"apply"}),
        f"{STATE}{{device all_token_ids prompt_len prefill_len}}",
        f"{CONTEXT}{{idx_mapping_np expanded_idx_mapping expanded_local_pos input_ids pos}}",
        f"{CONTEXT}{{seq_lens_upper_bound_np}}",
        "vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor{gpu}",
        "vllm.v1.worker.gpu.buffer_utils:UvaBackedTensor{np}",
        f"{V2}.logits_processor.interface ~ all_token_ids: StagedWriteTensor",
        f"{V2}.logits_processor.interface ~ prefill_len: UvaBackedTensor",
        f"{V2}.logits_processor.interface ~ prompt_len: UvaBackedTensor",
        "vllm:SamplingParams{structured_outputs allowed_token_ids stop_token_ids max_tokens}",
    ],
    "engine/admission": [
        r"vllm.v1.engine.input_processor ~ self\._validate_params\(params, supported_tasks\)",
        r"vllm.v1.engine.input_processor ~ self\.renderer\.validate_token_ids\(prompt_ids\)",
        f"{V2}.logit_bias:MAX_NUM_ALLOWED_TOKEN_IDS == 1024",
        f"{V2}.logit_bias:MAX_NUM_LOGIT_BIAS_TOKENS == 1024",
        f"{V2}.logit_bias:MAX_NUM_STOP_TOKEN_IDS == 128",
        rf"{V2}.logit_bias ~ min_lens = UvaBackedTensor\(max_num_reqs, dtype=torch\.int32\)",
        rf"{V2}.thinking_budget ~ dtype=torch\.int32",
    ],
    "engine/probe": [
        f"{V1} ~ <module>:<type>",
        f"{V2}.logits_processor ~ <module>:<type>",
        f"{V1}:STR_POOLING_REJECTS_LOGITSPROCS",
        f"{V1}:STR_SPEC_DEC_REJECTS_LOGITSPROCS",
    ],
    "tests/v2_runner": ["vllm.platforms.cpu:CpuPlatform.check_and_update_config(config)"],
}
# fmt: on


@rows(TOUCHES)
def test_a_touch_of_the_processor(room: str, row: Row) -> None:
    """Both runners call a logits processor, and show it their state, as before."""
    prove(room, row)
