"""What the doctor reaches of vLLM by name and past it: a card that is not here, and a plan."""

from collections.abc import Sequence

from canary.touch import Row, prove, rows

STATE = "vllm.distributed.parallel_state"
PLANNER = "vllm.v1.core.kv_cache_utils"
ROWS: dict[str, Sequence[Row]] = {
    "engine/card": [
        "vllm.platforms:_current_platform",
        r"vllm ~ class CudaPlatformBase\(Platform\)",
        r"vllm ~ import vllm\._C_stable_libtorch",
        r"vllm ~ from \. import _vllm_fa2_C",
        r"vllm ~ from \. import _vllm_fa3_C",
        "vllm.platforms.interface:DeviceCapability(_, _)",
        "vllm._custom_ops:cutlass_scaled_mm_supports_fp8(_)",
        "vllm._custom_ops:cutlass_scaled_mm_supports_block_fp8(_)",
        "vllm._custom_ops:cutlass_scaled_mm_supports_fp4(_)",
    ],
    "engine/probe": [r"vllm ~ class NonNvmlCudaPlatform\("],
    "engine/measured": [
        r"vllm ~ self\.model_memory_usage = m\.consumed_memory",
        r"vllm ~ self\.total_consumed = profile_result",
        r"vllm ~ self\.peak_activation_memory = \(",
        r"vllm ~ self\.cudagraph_memory_estimate = ",
        r"vllm ~ self\.available_kv_cache_memory_bytes = \(",
    ],
    "engine/planner": [
        "vllm.model_executor.models.registry:_run_in_subprocess(_)",
        *(f"{STATE}:{one}" for one in ("_WORLD", "_TP", "_ETP", "_PP", "_DP", "_EP", "_EPLB")),
        *(f"{STATE}:{one}" for one in ("_DCP", "_PCP")),
        f"{PLANNER}:get_kv_cache_configs(_, _, _)",
        f"{PLANNER}:generate_scheduler_kv_cache_config(_)",
        f"{PLANNER}:get_kv_cache_capacity(_, _)",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.get_kv_cache_spec(_)",
        "vllm.v1.worker.worker_base:WorkerBase.get_supported_kv_cache_layouts(_)",
        "vllm.platforms.interface:Platform.update_block_size_for_backend(_)",
        "vllm.config.compilation:CompilationConfig{static_forward_context mode}",
    ],
}


@rows(ROWS)
def test_a_piece_that_the_doctor_uses(room: str, row: Row) -> None:
    """A plan is vLLM's own as long as these are where they were."""
    prove(room, row)
