"""vLLM's engine, its app, and what its routes answer."""

import asyncio
import re
from collections.abc import AsyncIterator
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import httpx

from canary.touch import Row, prove, rows, the

OUTPUT = "vllm.v1.engine.output_processor"
COLLECTOR = f"{OUTPUT}:RequestOutputCollector"
ASYNC_LLM = "vllm.v1.engine.async_llm:AsyncLLM"
CHAT = "vllm.entrypoints.openai.chat_completion.protocol"
TEXT = "vllm.entrypoints.openai.completion.protocol"
MODELS = "vllm.entrypoints.openai.models.serving"
PARSER = "vllm.utils.argparse_utils:FlexibleArgumentParser"
RENDERER = "vllm.renderers.online_renderer:OnlineRenderer"
BODY = (
    "temperature top_p top_k min_p repetition_penalty n min_tokens stop stop_token_ids ignore_eos "
    "include_stop_str_in_output presence_penalty frequency_penalty seed logit_bias max_tokens "
    "allowed_token_ids bad_words structured_outputs skip_special_tokens use_beam_search "
    "spaces_between_special_tokens stream vllm_xargs model"
)
# The open routes. All of 0.32's below /v1 are listed: whether a new one opens is to be decided.
KNOWN = """
/classify /detokenize /health /metrics /pooling /rerank /score /tokenize /v2/embed /v2/rerank
/version /v1/audio/transcriptions /v1/audio/translations /v1/chat/completions
/v1/chat/completions/batch /v1/chat/completions/derender /v1/chat/completions/render
/v1/completions /v1/completions/derender /v1/completions/render /v1/embeddings /v1/messages
/v1/messages/count_tokens /v1/messages/render /v1/models /v1/rerank /v1/responses
/v1/responses/render /v1/responses/{response_id} /v1/responses/{response_id}/cancel /v1/score
/v1/systemone"""


@cache
def app() -> Any:
    """Build vLLM's app, with all its routes and no engine."""
    parser = the("vllm.entrypoints.launchers.cli_args:make_arg_parser")(the(PARSER)(add_help=False))
    tasks = the("vllm.tasks:GENERATION_TASKS") + the("vllm.tasks:POOLING_TASKS")
    model = SimpleNamespace(get_pooling_task=lambda *_: "embed")
    return the("vllm.entrypoints.launchers.app:build_app")(parser.parse_args([]), tasks, model)


def routes() -> dict[str, Any]:
    return {route.path: route for route in app().routes if getattr(route, "methods", None)}


def call(path: str, body: Any, method: str = "POST") -> tuple[int, dict[str, Any]]:
    """Call the app in this process; return the status and the JSON of the reply."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app())
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            return await client.request(method, path, json=body)

    reply = asyncio.run(ask())
    return reply.status_code, reply.json()


def wrong_body() -> tuple[Any, ...]:
    status, reply = call("/v1/completions", {"prompt": {"a": 1}, "max_tokens": "x"})
    text = reply["error"]["message"]
    entries = re.findall(r"'loc': '(?:body\.)?([^']*)', 'msg': (?:'|\").*?(?:'|\")", text)
    return status, sorted(reply["error"]), bool(re.match(r"\d+ valid.* error", text)), set(entries)


def pydantic_text() -> bool:
    """Whether vLLM passes on pydantic's own text, in the shape that is taken apart."""
    try:
        the(f"{TEXT}:CompletionRequest").model_validate({"prompt": "a", "max_tokens": "x"})
    except ValueError as error:
        text = the("vllm.entrypoints.serve:create_error_response")(error).error.message
    entry = re.search(r"^max_tokens\n  .*? \[type=", text, re.MULTILINE)
    return bool(re.match(r"\d+ validation error", text) and entry)


def cleaned() -> str:
    module = "vllm.entrypoints.serve.exception_handling.handlers.validation"
    return str(the(f"{module}:clean_loc_for_param")(("body", "function-wrap[f()]", "prompt")))


def translated() -> tuple[Any, ...]:
    wrong = the("vllm.exceptions:VLLMValidationError")("It is so.", parameter="n", value=3)
    info = the("vllm.entrypoints.serve:create_error_response")(wrong).error
    return wrong.args[0], info.message, info.code, info.type, info.param


def hears_disconnect() -> bool:
    """Return once an endless answer ended; raises TimeoutError where it does not."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"data"
            await asyncio.sleep(0)

    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}
    receive = AsyncMock(return_value={"type": "http.disconnect"})
    answer = the("starlette.responses:StreamingResponse")(endless())
    asyncio.run(asyncio.wait_for(answer(scope, receive, AsyncMock()), 5))
    return True


def returns(method: str) -> str:
    """Return the head of a method's annotation: what it returns where nothing is wrong."""
    hint = str(the(f"{RENDERER}.{method}").__annotations__["return"])
    return re.sub(r"[\w.]+\.(?=\w)", "", hint)


def body_kinds(path: str) -> set[str]:
    form, params = the("fastapi.params:Form"), routes()[path].dependant.body_params
    return {"form" if isinstance(one.field_info, form) else "JSON" for one in params}


def renamed_model() -> str:
    path = the(f"{MODELS}:BaseModelPath")(name="a", model_path="b")
    path.model_path = "c"
    return str(path.model_path)


# One row, one line where it fits.
# fmt: off
TOUCHES: dict[str, list[Row]] = {
    "engine/server": [
        "vllm.v1.engine.core_client:AsyncMPClient._call_utility_async(self, method, engine=)",
        r"vllm.v1.engine.core_client ~ self\.resources\.engine_dead",
        f"{ASYNC_LLM}{{errored model_config vllm_config}}",
        f"{ASYNC_LLM}.get_supported_tasks(self)",
        f"{ASYNC_LLM}{{observability_config}}",
        r"vllm.v1.engine.async_llm ~ self\.add_request\([^)]*trace_headers=trace_headers",
        f"{MODELS}:OpenAIServingModels{{base_model_paths}}",
        "starlette.routing:Router{lifespan_context}",
        "vllm.entrypoints.serve.engine.protocol:ErrorResponse{error}",
        r"vllm.entrypoints ~ app\.state\.server,",
        r"vllm.entrypoints ~ server\.should_exit = True",
        r"vllm.entrypoints ~ state\.openai_serving_completion = ",
        r"vllm.entrypoints ~ state\.openai_serving_models = ",
        ("the path of a served model can be replaced", renamed_model, "c"),
        ("vLLM translates its errors, with `(parameter=` behind the sentence", translated,
         ("It is so.", "It is so. (parameter=n, value=3)", 400, "BadRequestError", "n")),
        ("clean_loc_for_param leaves pydantic's inner words out", cleaned, "body.prompt"),
    ],
    "engine/models": [
        f"{MODELS}:OpenAIServingModels{{lora_requests}}",
        f"{MODELS}:OpenAIServingModels.load_lora_adapter(self, request, base_model_name)",
        f"{MODELS}:OpenAIServingModels.show_available_models(self)",
        r"vllm.v1.core.kv_cache_utils ~ lora_request\.lora_name, lora_request\.lora_path",
    ],
    "engine/adapters": [
        f"{MODELS}:OpenAIServingModels{{lora_requests lora_id_counter}}",
        f"{ASYNC_LLM}.add_lora(self, lora_request)",
        f"{ASYNC_LLM}.remove_lora(self, lora_id)",
        "vllm.lora.request:LoRARequest(name, number, path)",
        "vllm.config:ModelConfig{model}",
        "vllm.lora.peft_helper:PEFTHelper.validate_legal(self, lora_config)",
        r"vllm.lora.worker_manager ~ hf_to_vllm_mapper\.get_rename_mapper\(\)",
        r"vllm.lora.worker_manager ~ getattr\(model, \"lora_skip_prefixes\", None\)",
        r"vllm.lora.worker_manager ~ packed_modules_mapping\[module\]",
    ],
    "engine/pacing": [
        r"vllm.v1.engine.async_llm ~ queue = RequestOutputCollector\(params\.output_kind, ",
        r"vllm.v1.engine.output_processor ~ req_state\.queue\.put\(",
        r"vllm.v1.engine.async_llm ~ self\.output_processor = OutputProcessor\(",
        f"{OUTPUT}:OutputProcessor.abort_requests(self, request_ids, internal)",
        f"{COLLECTOR}.put(self, output)",
        f"{COLLECTOR}.get_nowait(self)",
        r"vllm.v1.engine.output_processor ~ self\.aggregate = output_kind == ",
    ],
    "engine/receipts": [
        "vllm.outputs:RequestOutput{request_id metrics num_cached_tokens}",
        "vllm.v1.metrics.stats:RequestStateStats{first_token_ts last_token_ts scheduled_ts}",
        "vllm.v1.metrics.stats:RequestStateStats{num_generation_tokens}",
    ],
    "engine/places": [
        r"vllm.v1.engine.async_llm ~ self\.add_request\([^)]*priority=priority",
        "vllm.v1.engine.output_processor:OutputProcessor.get_num_unfinished_requests(self)",
        "vllm.v1.engine.output_processor:OutputProcessor.get_num_queued_tokens(self)",
        f"{ASYNC_LLM}{{output_processor vllm_config}}",
        "vllm.config:SchedulerConfig{max_num_seqs max_num_batched_tokens policy}",
        "vllm.config:ParallelConfig{data_parallel_size}",
    ],
    "engine/forked": [
        r"vllm.v1.engine.utils ~ context = get_mp_context\(\)",
        r"vllm.v1.engine.coordinator ~ context = get_mp_context\(\)",
        r"vllm.model_executor.models.registry ~ mi = _run_in_subprocess\(",
    ],
    "engine/refusals": [
        "vllm.v1.structured_output:StructuredOutputManager._create_grammar(self, request)",
        r"vllm.v1.structured_output ~ submit\(self\._create_grammar, request\)",
        "vllm.v1.structured_output.backend_types:StructuredOutputBackend.allocate_token_bitmask",
        "vllm.v1.structured_output.backend_types:StructuredOutputGrammar.fill_bitmask",
        r"vllm.v1.structured_output.backend_guidance ~ self\.ll_matcher\.get_error\(\)",
        r'vllm.v1.core.sched.scheduler ~ "Unexpected: grammar rejected',
        r'vllm.v1.structured_output.backend_xgrammar ~ "Invalid grammar specification\."',
        r"vllm.sampling_params ~ backend_xgrammar import validate_xgrammar_grammar",
        r'vllm.entrypoints ~ GenerationError\("Internal server error"\)',
    ],
    "engine/media": [
        "vllm.connections:HTTPConnection.get_sync_client(self)",
        "vllm.connections:HTTPConnection.get_async_client(self)",
        r"vllm.renderers ~ envs\.VLLM_MEDIA_CONNECTOR",
    ],
    "engine/probe": [
        "vllm.engine.arg_utils:AsyncEngineArgs.create_model_config(self)",
        "vllm.engine.arg_utils:AsyncEngineArgs.create_engine_config(self)",
        "vllm.config:VllmConfig{use_v2_model_runner device_config lora_config model_config}",
        "vllm.config:DeviceConfig{device_type}",
        "vllm.config:ModelConfig{runner_type is_moe quantization_config skip_tokenizer_init}",
        "vllm.config.model:RunnerType has pooling",
        "vllm.config.quantization:QuantizationConfigArgs{linear targets}",
    ],
    "engine/facts": [
        "vllm.config:VllmConfig{cache_config speculative_config}",
        "vllm.config:CacheConfig{cache_dtype num_gpu_blocks block_size}",
        "vllm.config:SchedulerConfig{max_num_seqs}",
        "vllm.config:StructuredOutputsConfig{reasoning_parser}",
        "vllm.config:SpeculativeConfig{method num_speculative_tokens prompt_lookup_max}",
        "vllm.config:ModelConfig{override_generation_config generation_config hf_text_config}",
        "vllm.config:ModelConfig{max_model_len skip_tokenizer_init enforce_eager}",
        "vllm.config:ModelConfig.try_get_generation_config(self)",
        "vllm.config:ModelConfig.get_vocab_size(self)",
        "vllm.config:ModelConfig.get_diff_sampling_param(self)",
    ],
    "engine/rendering": [
        f"{MODELS}:OpenAIServingModels{{registry lora_requests}}",
        f"{MODELS}:OpenAIModelRegistry.is_base_model(self, name)",
        f"{RENDERER}.render_chat(self, request)",
        f"{RENDERER}.render_completion(self, request)",
        ("render_chat returns the inputs as its second part", lambda: returns("render_chat")[:37],
         "tuple[list[ConversationMessage], list"),
        ("render_completion returns a list", lambda: returns("render_completion")[:5], "list["),
        f"{CHAT}:ChatCompletionRequest{{messages chat_template_kwargs max_tokens}}",
        f"{CHAT}:ChatCompletionRequest{{continue_final_message add_generation_prompt}}",
        r"vllm.entrypoints ~ = self\.to_chat_completion_request\(",
        r"vllm.entrypoints ~ = AnthropicServingMessages\.to_chat_completion_request\(",
        f"{TEXT}:CompletionRequest{{prompt max_tokens}}",
        "vllm.inputs.engine:TokensInput{prompt_token_ids}",
        r"vllm.entrypoints ~ state\.online_renderer = ",
    ],
    "native/writing": [
        f"{ASYNC_LLM}.generate(self, item, params, id, lora_request=)",
        "vllm.outputs:RequestOutput{prompt_token_ids prompt_logprobs outputs finished}",
        "vllm.outputs:CompletionOutput{index text token_ids logprobs cumulative_logprob}",
        "vllm.inputs.engine:MultiModalInput{prompt_token_ids type}",
        r'vllm.inputs.engine ~ type: Literal\["multimodal"\]',
    ],
    "native/reply": [
        "vllm.outputs:CompletionOutput{finish_reason stop_reason}",
        "vllm.logprobs:Logprob{rank decoded_token logprob}",
        "vllm.v1.engine:FINISH_REASON_STRINGS has error",
        r"vllm.entrypoints.openai ~ max\(\S+\.logprob, -9999\.0\)",
    ],
    "routines/asker": [
        f"{ASYNC_LLM}.get_tokenizer(self)",
        f"{ASYNC_LLM}.abort(self, ids)",
        f"{ASYNC_LLM}.generate(self, item, params, id, lora_request=, data_parallel_rank=)",
        "vllm.config:ParallelConfig{data_parallel_size_local}",
    ],
    "openai/routes": [
        *(
            (f"there is the route {one}", lambda one=one: one in routes(), True)
            for one in KNOWN.split()
        ),
        ("below /v1 is nothing new: it is closed to jobs until it is in OPEN_ROUTES",
         lambda: {one for one in routes() if one.startswith("/v1/")} - set(KNOWN.split()), set()),
        "vllm.entrypoints.serve.lora ~ /v1/load_lora_adapter",
        "vllm.entrypoints.serve.lora ~ /v1/unload_lora_adapter",
        ("an upload is a form", lambda: body_kinds("/v1/audio/transcriptions"), {"form"}),
        ("a conversation is JSON", lambda: body_kinds("/v1/chat/completions"), {"JSON"}),
        ("a route has `methods`", lambda: routes()["/health"].methods, {"GET"}),
        ("a route has a `path_regex`",
         lambda: bool(routes()["/health"].path_regex.match("/health")), True),
    ],
    "openai/bodies": [
        f"{CHAT}:ChatCompletionRequest{{{BODY} max_completion_tokens}}",
        f"{TEXT}:CompletionRequest{{{BODY} prompt}}",
        "vllm.entrypoints.openai.responses.protocol:ResponsesRequest{request_id}",
        r'vllm.entrypoints ~ headers\.get\("X-Request-Id"',
    ],
    "openai/exchange": [
        ("Starlette ends a stream at the disconnect, at ASGI 2.3", hears_disconnect, True),
        r"vllm.entrypoints ~ @with_cancellation\n(@.*\n)*async def create_chat_completion\(",
        r"vllm.entrypoints ~ @with_cancellation\n(@.*\n)*async def create_completion\(",
    ],
    "openai/events": [
        r'vllm.entrypoints ~ ": keep-alive',
        f"{CHAT}:ChatCompletionStreamResponse{{choices}}",
        f"{CHAT}:ChatCompletionResponseStreamChoice{{delta}}",
        ("a later chunk has no role", lambda: the(f"{CHAT}:DeltaMessage")(content="a").role, None),
        f"{TEXT}:CompletionStreamResponse{{choices}}",
        f"{TEXT}:CompletionResponseStreamChoice.model_fields lacks delta",
        'vllm.entrypoints.anthropic ~ "content_block_delta"',
        r"vllm.entrypoints.openai ~ data: \[DONE\]",
    ],
    "openai/replies": [
        "vllm.entrypoints.serve.engine.protocol:ErrorInfo{message type param code}",
        "vllm.entrypoints.anthropic.protocol:AnthropicErrorResponse{error}",
        "vllm.entrypoints.anthropic.protocol:AnthropicError{type message}",
        "vllm.renderers ~ you must provide a chat template if the tokenizer",
        "vllm.entrypoints ~ `skip_tokenizer_init=True`",
        ("a wrong method is answered with a `detail`", lambda: call("/v1/models", {}, "DELETE"),
         (405, {"detail": "Method Not Allowed"})),
        ("a wrong body is answered with pydantic's errors as Python writes them", wrong_body,
         (400, ["code", "message", "param", "type"], True, {"prompt", "max_tokens"})),
        ("vLLM passes on pydantic's own text", pydantic_text, True),
    ],
    "tests": ['vllm.v1.metrics ~ "vllm:generation_tokens"'],
}
# fmt: on


@rows(TOUCHES)
def test_a_touch_of_the_server(room: str, row: Row) -> None:
    """What the worker takes from vLLM's server and its engine's client is as it was."""
    prove(room, row)
