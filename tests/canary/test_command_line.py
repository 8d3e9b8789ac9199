"""vLLM's command line: its parser's inner parts, and the options that the worker names."""

import argparse
import tempfile
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from canary.touch import Row, prove, rows, the

CLI = "vllm.entrypoints.launchers.cli_args"
CHAT = "vllm.renderers.chat_utils"
LOADER = "vllm.model_executor.model_loader"
PARSER = "vllm.utils.argparse_utils:FlexibleArgumentParser"
# By their field in vLLM's arguments: read by it, named by an alias, by a successor or in advice.
OPTIONS = {
    "configuration": "model served_model_name revision tokenizer tokenizer_revision hf_token "
    "chat_template quantization load_format lora_modules enable_lora max_lora_rank "
    "reasoning_parser reasoning_parser_plugin tool_call_parser tool_parser_plugin response_role "
    "max_model_len model_tag api_key code_revision hf_config_path",
    "configuration/retired": "enable_log_requests distributed_executor_backend runner convert "
    "hf_overrides speculative_config structured_outputs_config kv_offloading_size "
    "gpu_memory_utilization tensor_parallel_size max_cudagraph_capture_size pooler_config "
    "max_num_batched_tokens renderer_num_workers cudagraph_capture_sizes mm_processor_cache_gb",
    "engine/server": "logits_processors",
    "generation/table": "kv_cache_dtype compilation_config enforce_eager max_num_seqs "
    "max_logprobs skip_tokenizer_init generation_config override_generation_config",
    "model/locate": "download_dir ignore_patterns",
    "engine/command_line": "kv_cache_memory_bytes max_cpu_loras num_gpu_blocks_override "
    "spec_tokens enable_flash_late_interaction api_server_count config grpc headless",
}


@cache
def parser() -> Any:
    class Parser(the(PARSER)):  # type: ignore[misc]
        def error(self, message: str) -> Any:
            raise ValueError(message)

    return the(f"{CLI}:make_arg_parser")(Parser(add_help=False))


@cache
def option(dest: str) -> Any:
    return next(action for action in parser()._actions if action.dest == dest)


def read(dest: str, text: str) -> Any:
    """Read a value by hand, as the variables are read."""
    action, space = option(dest), argparse.Namespace()
    value = action.type(text) if action.type else text
    action(parser(), space, [value] if action.nargs == "+" else value, action.option_strings[0])
    return getattr(space, action.dest)


def refused(*line: str) -> str:
    try:
        return str(parser().parse_args(line))
    except ValueError as error:
        return str(error).split(" value:")[0]


def judged(*line: str) -> str:
    try:
        the(f"{CLI}:validate_parsed_serve_args")(parser().parse_args(line))
    except Exception as error:
        return str(error)
    return ""


def wrong_object() -> set[str]:
    try:
        option("compilation_config").type('{"mode": "x"}')
    except Exception as error:
        return {"loc", "msg", "type"} & error.__cause__.errors()[0].keys()  # type: ignore
    return set()


def adapter() -> tuple[str, str]:
    (one,) = read("lora_modules", '{"name": "a", "path": "/b"}')
    return one.name, one.path


def open_to_any_text(dests: str) -> set[str]:
    return {dest for dest in dests.split() if not option(dest).choices}


def bounds() -> dict[str, float]:
    (group,) = (one for one in parser()._action_groups if one.title == "CacheConfig")
    (action,) = (one for one in group._group_actions if one.dest == "gpu_memory_utilization")
    config = {one.name: one for one in fields(the("vllm.config:CacheConfig"))}
    marks = config[action.dest].default.metadata
    return {n: getattr(m, n) for m in marks for n in ("ge", "gt", "le", "lt") if hasattr(m, n)}


def servers(names: str) -> set[bool]:
    """Say whether these are options of vLLM's HTTP server."""
    both = (the(f"{CLI}:FrontendArgs"), the(f"{CLI}:BaseFrontendArgs"))
    whole, base = ({one.name for one in fields(kind)} for kind in both)
    return {name in whole - base for name in names.split()}


def of_file(text: str) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        try:
            return parser().load_config_file(file.name)
        except AttributeError as error:
            return type(error)


def no_template() -> bool:
    try:
        the(f"{CHAT}:load_chat_template")("/nowhere/none.jinja")
    except (OSError, ValueError, the("vllm.exceptions:VLLMError")):
        return True
    return False


# One row, one line where it fits.
# fmt: off
TOUCHES: dict[str, list[Row]] = {
    room: [
        (f"vLLM has the option {one}", lambda one=one: one in vars(parser().parse_args([])), True)
        for one in names.split()
    ]
    for room, names in OPTIONS.items()
}
TOUCHES["engine/command_line"] += [
    f"{PARSER}(add_help=)",
    f"{PARSER}.load_config_file(self, path)",
    ("--max-model-len takes 8k", lambda: read("max_model_len", "8k"), 8000),
    ("--max-model-len takes auto", lambda: read("max_model_len", "auto"), -1),
    ("--lora-modules makes a list of name and path", adapter, ("a", "/b")),
    ("--served-model-name makes a list", lambda: read("served_model_name", "a"), ["a"]),
    ("--hf-overrides takes an object", lambda: read("hf_overrides", '{"a": 1}'), {"a": 1}),
    ("--hf-overrides takes a broken object for a text", lambda: read("hf_overrides", "{b"), "{b"),
    ("a configuration is a dataclass",
     lambda: is_dataclass(read("structured_outputs_config", '{"backend": "xgrammar"}')), True),
    ("these options refuse what is not on their list",
     lambda: open_to_any_text("dtype kv_cache_dtype runner convert"), set()),
    ("pydantic's error is the cause of a type's", wrong_object, {"loc", "msg", "type"}),
    ("a switch takes no value", lambda: option("enforce_eager").nargs, 0),
    ("a switch has an opposite", lambda: option("enforce_eager").option_strings[1],
     "--no-enforce-eager"),
    ("`model_tag` is a model without an option", lambda: parser().parse_args(["a/b"]).model_tag,
     "a/b"),
    ("argparse says so of options", lambda: refused("--zz"), "unrecognized arguments: --zz"),
    ("argparse says so of values", lambda: refused("--seed", "x"), "argument --seed: invalid int"),
    ("a group's title is the class that holds the bounds", bounds, {"gt": 0.0, "le": 1.0}),
    ("FrontendArgs beyond its base are the server's options",
     lambda: servers("host port api_key root_path middleware ssl_keyfile uds"), {True}),
    ("FrontendArgs' base is what the model answers with",
     lambda: servers("chat_template lora_modules response_role tool_call_parser"), {False}),
    ("a file becomes a line", lambda: of_file("max-model-len: 8k"), ["--max-model-len", "8k"]),
    ("a file without a mapping is an AttributeError", lambda: of_file("- a"), AttributeError),
    ("vLLM names options in what it says of its arguments",
     lambda: "--tool-call-parser" in judged("--enable-auto-tool-choice"), True),
    ("a template's text stays as it is", lambda: the(f"{CHAT}:load_chat_template")("{{ a }}"),
     "{{ a }}"),
    ("a template's path to nothing is refused", no_template, True),
    r"vllm.renderers ~ _compile_jinja_template\(",
    "vllm.tool_parsers:ToolParserManager.list_registered has hermes",
    "vllm.reasoning:ReasoningParserManager.list_registered has deepseek_r1",
]
TOUCHES["configuration/retired"] += [
    "vllm.config:SpeculativeConfig{model method num_speculative_tokens prompt_lookup_max}",
    "vllm.config:SpeculativeConfig{prompt_lookup_min draft_tensor_parallel_size max_model_len}",
    "vllm.config:SpeculativeConfig{quantization}",
    "vllm.config.model:RunnerOption has generate pooling",
    "vllm.config.model:ConvertOption has embed classify",
    "vllm.config.parallel:DistributedExecutorBackend has ray",
]
TOUCHES["generation/table"] += [
    'vllm.config.speculative ~ "ngram"',
    'vllm.config.speculative ~ "mtp"',
]
TOUCHES |= {
    "configuration/checks": [
        "vllm.model_executor.layers.quantization:QUANTIZATION_METHODS has fp8 awq gptq",
        "vllm.model_executor.layers.quantization:QUANTIZATION_METHODS lacks bitsandbytes gguf",
    ],
    "configuration/environ": [
        "vllm.envs:environment_variables has VLLM_API_KEY VLLM_CACHE_ROOT VLLM_USE_MODELSCOPE",
        "vllm.envs:environment_variables has VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "vllm.envs:environment_variables has VLLM_MAX_BAD_WORDS_TOTAL_TOKENS",
    ],
    "model/files": [
        f"{LOADER}:LoadFormats has auto hf mistral npcache pt safetensors fastsafetensors",
        f"{LOADER}:LoadFormats has instanttensor runai_streamer",
        rf"{LOADER} ~ consolidated\*\.safetensors",
    ],
    "docs/generate": [r'vllm.engine.arg_utils ~ "--help" in arg for arg in sys\.argv'],
}
# fmt: on


@rows(TOUCHES)
def test_a_touch_of_the_command_line(room: str, row: Row) -> None:
    """The parser is built as the worker takes it apart, and the options it names are there."""
    prove(room, row)
