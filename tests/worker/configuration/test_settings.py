"""What the worker is told: every variable, from every place, in every spelling."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from worker import spelling
from worker.configuration import environ as environ_room
from worker.configuration.environ import process_environ
from worker.configuration.layers import known_variables
from worker.configuration.retired import RETIRED
from worker.configuration.settings import Settings, help_text
from worker.configuration.variables import ALIASES
from worker.engine import command_line
from worker.errors import SettingsError

MODEL = {"MODEL_NAME": "org/model"}
TRUE = ["true", "True", "TRUE", "1", "yes", "on", " on "]
FALSE = ["false", "False", "FALSE", "0", "no", "off"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, at vLLM's import
    OPTIONS = command_line.options()

SWITCHES = [o for o in OPTIONS.values() if o.kind == "switch" and not o.server]
ENVIRONMENT_OPTIONS = [
    o for o in OPTIONS.values() if not o.server and o.dest not in ("hf_token", "model")
]


def settings(baked: dict[str, str] | None = None, **environ: str) -> Settings:
    return Settings.from_env({**MODEL, **environ}, baked or {})


def problems(**environ: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, **environ})
    return caught.value.problems


def row(found: Settings, name: str) -> tuple[str, str]:
    return next((r.value, r.source) for r in found.rows if r.name == name)


def test_defaults() -> None:
    """With a model alone everything is the default, and the report says only the model."""
    found = settings()

    assert found.model == "org/model"
    assert found.served_model_names == ("org/model",)
    assert found.args.model == "org/model"
    assert found.args.gpu_memory_utilization == 0.92
    assert found.warnings == ()
    assert [(r.name, r.value, r.source) for r in found.rows] == [
        ("MODEL_NAME", "org/model", "environment")
    ]


@pytest.mark.parametrize(
    ("name", "text", "field", "expected"),
    [
        ("MAX_CONCURRENCY", "8", "max_concurrency", 8),
        ("MAX_CONCURRENCY", "Auto", "max_concurrency", "auto"),
        ("DEFAULT_MIN_BATCH_SIZE", "2", "default_min_batch_size", 2),
        ("MIN_BATCH_SIZE", "2", "default_min_batch_size", 2),
        ("DEFAULT_BATCH_SIZE", "10", "default_batch_size", 10),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "1.5", "default_batch_size_growth_factor", 1.5),
        ("BATCH_SIZE_GROWTH_FACTOR", "2", "default_batch_size_growth_factor", 2.0),
        ("MAX_BATCH_DELAY_MS", "0", "max_batch_delay_ms", 0),
        ("DEFAULT_MAX_TOKENS", "16", "default_max_tokens", 16),
        ("RAW_OPENAI_OUTPUT", "false", "raw_openai_output", False),
        ("OPENAI_ERRORS_AS_OUTPUT", "yes", "openai_errors_as_output", True),
        ("MAX_RESULT_MB", "20", "max_result_mb", 20),
        (
            "EXTRA_ROUTES",
            "/v1/load_lora_adapter, /x",
            "extra_routes",
            ("/v1/load_lora_adapter", "/x"),
        ),
        ("EXTRA_ROUTES", '["/x"]', "extra_routes", ("/x",)),
    ],
)
def test_own_variables(name, text, field, expected) -> None:
    """Each of the worker's own variables reaches its field, and is reported."""
    found = settings(**{name: text})

    assert getattr(found.own, field) == expected
    assert row(found, name)[1] == "environment"


def test_the_older_name_of_one_of_ours() -> None:
    """A retired name of the worker's own variables warns, names its successor, and still works."""
    found = settings(MAX_DEAR_CHAINS="2")

    assert found.own.max_costly_chains == 2
    (warning,) = found.warnings
    assert warning.startswith("MAX_DEAR_CHAINS is retired: MAX_COSTLY_CHAINS")


@pytest.mark.parametrize("option", ENVIRONMENT_OPTIONS, ids=lambda o: o.name)
@pytest.mark.filterwarnings("ignore:--log-config-file")
def test_every_option_of_vllm_has_its_variable(option) -> None:
    """Whatever vLLM's parser has, its variable sets it, and the report says so."""
    text = legal(option)

    values = command_line.read(option, text)
    environ = {option.name: text, **needs(option)}
    found = settings(**environ)

    assert getattr(found.args, option.dest) == values
    assert values != option.default
    assert row(found, option.name)[1] == "environment"


def legal(option: command_line.Option) -> str:
    """Return a value that the option takes and that is not its default."""
    known = {
        "chat_template": "{{ messages }}",
        "lora_modules": '[{"name": "a", "path": "org/adapter"}]',
        "served_model_name": "one two",
        "quantization": "fp8",
        "tool_call_parser": "hermes",
        "reasoning_parser": "qwen3",
        "kv_transfer_config": '{"kv_connector": "x", "kv_role": "kv_both", "engine_id": "1"}',
        "ec_transfer_config": '{"ec_connector": "x", "ec_role": "ec_both", "engine_id": "1"}',
        "quantization_config": '{"linear": "mxfp8"}',
        "pooler_config": '{"pooling_type": "MEAN"}',
        "kv_events_config": '{"enable_kv_cache_events": true}',
        "engram_config": '{"cpu_offload": false}',
        "logging_config": '{"log_level": "DEBUG"}',
        "log_level": "DEBUG",
        "data_parallel_rpc_port": "29600",
        "mm_processor_device": "cpu",
    }
    if option.dest in known:
        return known[option.dest]
    if option.kind == "switch":
        return "false" if option.default is True else "true"
    if option.choices:
        default = getattr(option.default, "value", option.default)
        return next(choice for choice in option.choices if choice != default)
    if "JSON object" in option.kind:
        return next(text for text in OBJECTS if accepts(option, text))
    if "number" in option.kind:
        return next(text for text in ("3", "2", "0.5", "0.3") if accepts(option, text))
    return "something"


OBJECTS = (
    '{"image": 3}',
    '{"enabled": true}',
    '{"backend": "xgrammar"}',
    '{"backend": "FLASH_ATTN"}',
    '{"mode": 0}',
    '{"window_size": 5}',
    '{"engine_recovery_timeout_sec": 7}',
    '{"rms_norm": ["native"]}',
    '{"enable_flashinfer_autotune": true}',
    '{"max_bytes": 5}',
    '{"profiler": "cuda"}',
    '{"reasoning_start_str": "<think>"}',
    '{"encoder_cache_manager_cls": "x.Y"}',
    "{}",
)


def accepts(option: command_line.Option, text: str) -> bool:
    try:
        return command_line.read(option, text) != option.default and not spelling.is_unset(
            text, option.choices
        )
    except ValueError:
        return False


def needs(option: command_line.Option) -> dict[str, str]:
    """Return what vLLM asks for beside an option."""
    return {
        "enable_auto_tool_choice": {"TOOL_CALL_PARSER": "hermes"},
        "enable_log_outputs": {"ENABLE_LOG_REQUESTS": "1"},
        "data_parallel_multi_port_external_lb": {
            "DATA_PARALLEL_SIZE": "2",
            "DATA_PARALLEL_SIZE_LOCAL": "2",
        },
    }.get(option.dest, {})


@pytest.mark.parametrize("option", SWITCHES, ids=lambda o: o.name)
def test_every_switch_understands_every_spelling(option) -> None:
    """True and false mean the same in every spelling, for every switch of vLLM."""
    assert [command_line.read(option, text) for text in TRUE] == [True] * len(TRUE)
    assert [command_line.read(option, text) for text in FALSE] == [False] * len(FALSE)


@pytest.mark.parametrize("name", ["RAW_OPENAI_OUTPUT", "OPENAI_ERRORS_AS_OUTPUT"])
@pytest.mark.parametrize("text", [*TRUE, *FALSE])
def test_own_switches_understand_every_spelling(name, text) -> None:
    """The worker's own switches read like vLLM's."""
    assert getattr(settings(**{name: text}).own, name.lower()) is (text in TRUE)


@pytest.mark.parametrize(
    ("environ", "dest", "expected"),
    [
        ({"HF_OVERRIDES": '{"a": {"b": 1}}'}, "hf_overrides", {"a": {"b": 1}}),
        (
            {"SPECULATIVE_CONFIG": '{"method": "ngram"}'},
            "speculative_config",
            {"method": "ngram"},
        ),
        ({"MM_PROCESSOR_KWARGS": '{"x": 1}'}, "mm_processor_kwargs", {"x": 1}),
        ({"LIMIT_MM_PER_PROMPT": '{"image": 2}'}, "limit_mm_per_prompt", {"image": 2}),
        (
            {"LIMIT_MM_PER_PROMPT": "image=1,video=0"},
            "limit_mm_per_prompt",
            {"image": 1, "video": 0},
        ),
        ({"MAX_MODEL_LEN": "8k"}, "max_model_len", 8000),
        ({"MAX_MODEL_LEN": "1K"}, "max_model_len", 1024),
        ({"MAX_MODEL_LEN": "auto"}, "max_model_len", -1),
        ({"MAX_MODEL_LENGTH": "512"}, "max_model_len", 512),
        ({"MAX_NUM_BATCHED_TOKENS": "2K"}, "max_num_batched_tokens", 2048),
        ({"CUDAGRAPH_CAPTURE_SIZES": "[1, 2]"}, "cudagraph_capture_sizes", [1, 2]),
        ({"CUDAGRAPH_CAPTURE_SIZES": "1,2 4"}, "cudagraph_capture_sizes", [1, 2, 4]),
        ({"MODEL_REVISION": "main"}, "revision", "main"),
        ({"TOKENIZER_NAME": "org/t"}, "tokenizer", "org/t"),
        ({"OPENAI_RESPONSE_ROLE": "bot"}, "response_role", "bot"),
        ({"DTYPE": "Float16"}, "dtype", "float16"),
        ({"SEED": "0"}, "seed", 0),
        ({"CPU_OFFLOAD_GB": "0"}, "cpu_offload_gb", 0),
        ({"DEVICE_MEMORY_UTILIZATION": "0.5"}, "gpu_memory_utilization", 0.5),
        ({"CONVERT": "none"}, "convert", "none"),
        ({"DISABLE_LOG_STATS": "0"}, "disable_log_stats", False),
        ({"DISABLE_LOG_STATS": "1"}, "disable_log_stats", True),
        ({"ENABLE_PREFIX_CACHING": "false"}, "enable_prefix_caching", False),
    ],
)
def test_values_are_read_as_vllm_reads_them(environ, dest, expected) -> None:
    """Objects, lists, short numbers, aliases: the value is what the command line would give."""
    assert getattr(settings(**environ).args, dest) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("COMPILATION_CONFIG", '{"cudagraph_capture_sizes": [1, 2]}'),
        ("ENGRAM_CONFIG", '{"cpu_offload": false}'),
        ("POOLER_CONFIG", '{"dimensions": 0}'),
    ],
)
def test_configuration_objects(name, text) -> None:
    """JSON for one of vLLM's configuration classes becomes that class; the report repeats it."""
    found = settings(**{name: text})
    ((key, value),) = json.loads(text).items()

    assert getattr(getattr(found.args, name.lower()), key) == value
    assert row(found, name)[0] == text


@pytest.mark.parametrize("text", ["", " ", "None", "none", "null", "NULL"])
@pytest.mark.parametrize(
    "name",
    [
        "QUANTIZATION",
        "MAX_MODEL_LEN",
        "TOOL_CALL_PARSER",
        "REASONING_PARSER",
        "MODEL_REVISION",
        "HF_OVERRIDES",
        "LORA_MODULES",
        "CUSTOM_CHAT_TEMPLATE",
        "MAX_CONCURRENCY",
        "ENABLE_LORA",
        "VLLM_EXTRA_ARGS",
        "VLLM_CONFIG_FILE",
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
    ],
)
def test_unset(name, text) -> None:
    """An empty value and the words for nothing are as good as no variable at all."""
    assert settings(**{name: text}) == settings()


@pytest.mark.parametrize(
    "name", ["HF_OVERRIDES", "COMPILATION_CONFIG", "MM_PROCESSOR_KWARGS", "LIMIT_MM_PER_PROMPT"]
)
def test_empty_object_is_unset(name) -> None:
    """An empty object, a form's idea of nothing, changes nothing."""
    assert settings(**{name: "{}"}) == settings()


@pytest.mark.parametrize(
    "name",
    [
        "MAX_MODEL_LEN",
        "MAX_MODEL_LENGTH",
        "MAX_NUM_BATCHED_TOKENS",
        "NUM_GPU_BLOCKS_OVERRIDE",
        "MAX_NUM_SEQS",
        "TENSOR_PARALLEL_SIZE",
        "GPU_MEMORY_UTILIZATION",
        "SPEC_TOKENS",
    ],
)
def test_zero_is_unset_where_it_can_mean_nothing(name) -> None:
    """A form's zero is taken as not set, with one line that says so."""
    found = settings(**{name: "0"})

    assert found.args == settings().args
    assert found.warnings == (f"{name}='0' is taken as not set: 0 is no value for it.",)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MAX_CONCURRENCY": "many"}, "MAX_CONCURRENCY='many' is not a whole number"),
        ({"MAX_CONCURRENCY": "0"}, "MAX_CONCURRENCY='0' must be at least 1"),
        ({"MAX_CONCURRENCY": "1.5"}, "MAX_CONCURRENCY='1.5' is not a whole number"),
        ({"DEFAULT_BATCH_SIZE": "-1"}, "DEFAULT_BATCH_SIZE='-1' must be at least 1"),
        ({"MAX_BATCH_DELAY_MS": "-1"}, "MAX_BATCH_DELAY_MS='-1' must be at least 0"),
        ({"DEFAULT_MAX_TOKENS": "0"}, "DEFAULT_MAX_TOKENS='0' must be at least 1"),
        (
            {"DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "0.5"},
            "DEFAULT_BATCH_SIZE_GROWTH_FACTOR='0.5' must be at least 1",
        ),
        ({"BATCH_SIZE_GROWTH_FACTOR": "nan"}, "BATCH_SIZE_GROWTH_FACTOR='nan' is not a number"),
        ({"BATCH_SIZE_GROWTH_FACTOR": "inf"}, "BATCH_SIZE_GROWTH_FACTOR='inf' is not a number"),
        (
            {"DEFAULT_MIN_BATCH_SIZE": "60"},
            "DEFAULT_MIN_BATCH_SIZE=60 is more than DEFAULT_BATCH_SIZE=50",
        ),
        (
            {"MIN_BATCH_SIZE": "9", "DEFAULT_BATCH_SIZE": "8"},
            "MIN_BATCH_SIZE=9 is more than DEFAULT_BATCH_SIZE=8",
        ),
        ({"EXTRA_ROUTES": "v1/x"}, "EXTRA_ROUTES='v1/x' must be paths that start with /"),
        (
            {"RAW_OPENAI_OUTPUT": "maybe"},
            "RAW_OPENAI_OUTPUT='maybe' must be true or false "
            "(1 and 0, yes and no, on and off are understood)",
        ),
        (
            {"ENFORCE_EAGER": "maybe"},
            "ENFORCE_EAGER='maybe' must be true or false "
            "(1 and 0, yes and no, on and off are understood)",
        ),
        (
            {"HF_OVERRIDES": "{bad"},
            "HF_OVERRIDES='{bad' is not valid JSON: "
            "Expecting property name enclosed in double quotes at character 2",
        ),
        (
            {"LIMIT_MM_PER_PROMPT": "{bad"},
            "LIMIT_MM_PER_PROMPT='{bad' is not valid JSON: "
            "Expecting property name enclosed in double quotes at character 2",
        ),
        (
            {"COMPILATION_CONFIG": "{bad"},
            "COMPILATION_CONFIG='{bad' is not valid JSON: "
            "Expecting property name enclosed in double quotes at character 2",
        ),
        ({"SPECULATIVE_CONFIG": "5"}, "SPECULATIVE_CONFIG='5' is not a JSON object"),
        ({"MAX_MODEL_LEN": "long"}, "MAX_MODEL_LEN='long' is not a whole number"),
        ({"MAX_MODEL_LEN": "-5"}, "MAX_MODEL_LEN='-5' must be at least -1"),
        ({"GPU_MEMORY_UTILIZATION": "98%"}, "GPU_MEMORY_UTILIZATION='98%' is not a number"),
        ({"GPU_MEMORY_UTILIZATION": "1.5"}, "GPU_MEMORY_UTILIZATION='1.5' must be at most 1"),
        ({"TENSOR_PARALLEL_SIZE": "-1"}, "TENSOR_PARALLEL_SIZE='-1' must be at least 1"),
        ({"CUDAGRAPH_CAPTURE_SIZES": "1,x"}, "CUDAGRAPH_CAPTURE_SIZES='1,x' is not a whole number"),
        ({"SERVED_MODEL_NAME": ","}, "SERVED_MODEL_NAME=',' is an empty list"),
        (
            {"DTYPE": "float8"},
            "DTYPE='float8' must be one of auto, bfloat16, float, float16, float32, half",
        ),
        ({"ENABLE_AUTO_TOOL_CHOICE": "1"}, "ENABLE_AUTO_TOOL_CHOICE requires TOOL_CALL_PARSER"),
        ({"ENABLE_LOG_OUTPUTS": "1"}, "ENABLE_LOG_OUTPUTS requires ENABLE_LOG_REQUESTS"),
        (
            {"CUSTOM_CHAT_TEMPLATE": "{{ broken"},
            "CUSTOM_CHAT_TEMPLATE='{{ broken' is not a valid Jinja template: line 1: "
            "unexpected end of template, expected 'end of print statement'",
        ),
        (
            {"CHAT_TEMPLATE": "/nowhere/x.jinja"},
            "CHAT_TEMPLATE='/nowhere/x.jinja' is neither a Jinja template "
            "nor a file that can be read",
        ),
        ({"VLLM_EXTRA_ARGS": '"'}, "VLLM_EXTRA_ARGS: No closing quotation"),
        (
            {"VLLM_EXTRA_ARGS": "--max-modl 3"},
            "VLLM_EXTRA_ARGS: vLLM has no option --max-modl. Did you mean 'MAX_MODEL_LEN'?",
        ),
        ({"VLLM_EXTRA_ARGS": "--help"}, "VLLM_EXTRA_ARGS: vLLM has no option --help"),
        (
            {"VLLM_EXTRA_ARGS": "--max-model-len x"},
            "VLLM_EXTRA_ARGS: --max-model-len 'x' is not a whole number",
        ),
        (
            {"VLLM_EXTRA_ARGS": "--max-model-len"},
            "VLLM_EXTRA_ARGS: --max-model-len: expected one argument",
        ),
        (
            {"VLLM_EXTRA_ARGS": "--gpu-memory-utilization 2"},
            "VLLM_EXTRA_ARGS: GPU_MEMORY_UTILIZATION=2.0 must be at most 1",
        ),
        (
            {"VLLM_CONFIG_FILE": "/nowhere/x.yaml"},
            "VLLM_CONFIG_FILE='/nowhere/x.yaml': "
            "[Errno 2] No such file or directory: '/nowhere/x.yaml'",
        ),
        (
            {"VLLM_CONFIG_FILE": "x.txt"},
            "VLLM_CONFIG_FILE='x.txt': Config file must be of a yaml/yml type. txt supplied",
        ),
        (
            {"LORA_MODULES": "[bad"},
            "LORA_MODULES='[bad' is not valid JSON: Expecting value at character 2",
        ),
        (
            {"LORA_MODULES": "a=org/x", "ENABLE_LORA": "false"},
            "LORA_MODULES needs ENABLE_LORA, which is off",
        ),
        ({"LORA_MODULES": "a=org/x,a=org/y"}, "LORA_MODULES names two adapters 'a'"),
        (
            {"LORA_MODULES": "a=/nowhere/a"},
            "LORA_MODULES: adapter 'a': /nowhere/a has no adapter_config.json to read",
        ),
        ({"ROPE_SCALING": "{bad"}, "ROPE_SCALING='{bad' is not valid JSON: "
         "Expecting property name enclosed in double quotes at character 2"),
    ],
)  # fmt: skip
def test_a_wrong_value_stops_the_start_and_names_itself(environ, expected) -> None:
    """The sentence has the variable, the value and what is allowed, and it is the only one."""
    assert problems(**environ) == (expected,)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TOOL_CALL_PARSER": "nonsense"}, ["TOOL_CALL_PARSER='nonsense'", "hermes", "mistral"]),
        ({"REASONING_PARSER": "nonsense"}, ["REASONING_PARSER='nonsense'", "deepseek_r1"]),
        ({"QUANTIZATION": "squeezellm"}, ["QUANTIZATION='squeezellm'", "awq", "gptq"]),
        ({"COMPILATION_CONFIG": '{"mode": "x"}'}, ["COMPILATION_CONFIG=", "mode", "VLLM_COMPILE"]),
        ({"COMPILATION_CONFIG": '{"x": 1}'}, ["COMPILATION_CONFIG=", "x"]),
        ({"LORA_MODULES": '[{"name": "a"}]'}, ["LORA_MODULES=", "path"]),
        ({"LORA_MODULES": "justaname"}, ["LORA_MODULES='justaname'"]),
    ],
)
def test_vllms_own_lists_and_words(environ, words) -> None:
    """Where vLLM knows what is allowed, its list or its sentence is repeated, on one line."""
    (problem,) = problems(**environ)

    assert [word for word in words if word not in problem] == []
    assert "\n" not in problem


def test_all_problems_are_said_at_once() -> None:
    """Whoever has made three mistakes reads three sentences, and not one at a time."""
    found = problems(MAX_CONCURRENCY="x", DTYPE="x", VLLM_EXTRA_ARGS="--x 1")

    assert [problem.split("=")[0].split(":")[0] for problem in found] == [
        "MAX_CONCURRENCY",
        "DTYPE",
        "VLLM_EXTRA_ARGS",
    ]


def test_argparse_is_silent(capfd) -> None:
    """No mistake makes vLLM's parser print its usage or end the process."""
    problems(VLLM_EXTRA_ARGS="--max-model-len x", MAX_MODEL_LEN="y", TOOL_CALL_PARSER="z")

    assert "usage" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("environ", [{}, {"MODEL_NAME": ""}, {"MODEL": "none", "DTYPE": "auto"}])
def test_no_model(environ) -> None:
    """Without a model anywhere there is nothing to serve, and vLLM's own default is no answer."""
    with pytest.raises(SettingsError, match=r"^No model: set MODEL_NAME") as caught:
        Settings.from_env(environ)

    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "environ",
    [
        {"MODEL": "org/model", "MODEL_NAME": "org/other"},
        {"MAX_MODEL_LEN": "1k", "MAX_MODEL_LENGTH": "1024"},
        {"TOKENIZER": "a", "TOKENIZER_NAME": "b"},
        {"REVISION": "a", "MODEL_REVISION": "b"},
        {"CHAT_TEMPLATE": "{{ a }}", "CUSTOM_CHAT_TEMPLATE": "{{ b }}"},
        {"SERVED_MODEL_NAME": "a", "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "b"},
        {"RESPONSE_ROLE": "a", "OPENAI_RESPONSE_ROLE": "b"},
        {"GPU_MEMORY_UTILIZATION": "0.5", "DEVICE_MEMORY_UTILIZATION": "0.6"},
        {"MIN_BATCH_SIZE": "2", "DEFAULT_MIN_BATCH_SIZE": "3"},
        {"BATCH_SIZE_GROWTH_FACTOR": "2", "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "3"},
    ],
)
def test_two_names_of_one_setting_must_agree(environ) -> None:
    """Two names with different values stop the start, and the sentence has both."""
    (problem,) = problems(**environ)

    assert [name for name in environ if name not in problem] == []
    assert "disagree" in problem


def test_two_names_may_say_the_same() -> None:
    """Two names that mean the same value are no mistake, however they spell it."""
    found = settings(
        MODEL="org/model",
        MAX_MODEL_LEN="1K",
        MAX_MODEL_LENGTH="1024",
        SERVED_MODEL_NAME="a,b",
        OPENAI_SERVED_MODEL_NAME_OVERRIDE='["a", "b"]',
    )

    assert (found.args.max_model_len, found.served_model_names) == (1024, ("a", "b"))


@pytest.mark.parametrize("name", ["SERVED_MODEL_NAME", "OPENAI_SERVED_MODEL_NAME_OVERRIDE"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one", ("one",)),
        ("one,two", ("one", "two")),
        ("one two", ("one", "two")),
        ('["one", "two"]', ("one", "two")),
    ],
)
def test_served_names(name, text, expected) -> None:
    """One or several served names, under both variables; vLLM gets them in this order."""
    found = settings(**{name: text})

    assert found.served_model_names == expected
    assert found.args.served_model_name == list(expected)


def test_precedence(tmp_path: Path) -> None:
    """Extra arguments, environment, file, image, default: the first that says it counts."""
    file = tmp_path / "vllm.yaml"
    file.write_text("max-model-len: 300\nmax_num_seqs: 30\ndtype: float16\n")
    environ = {
        "VLLM_EXTRA_ARGS": "--max-model-len 500",
        "MAX_MODEL_LENGTH": "400",
        "MAX_NUM_SEQS": "40",
        "VLLM_CONFIG_FILE": str(file),
        "MAX_CONCURRENCY": "7",
    }
    baked = {
        "MAX_MODEL_LEN": "200",
        "MAX_NUM_SEQS": "20",
        "DTYPE": "float32",
        "TOKENIZER_NAME": "org/baked",
        "MAX_CONCURRENCY": "6",
        "MAX_RESULT_MB": "5",
    }
    found = settings(baked, **environ)

    assert (found.args.max_model_len, found.args.max_num_seqs) == (500, 40)
    assert (found.args.dtype, found.args.tokenizer) == ("float16", "org/baked")
    assert (found.own.max_concurrency, found.own.max_result_mb) == (7, 5)
    assert row(found, "MAX_MODEL_LEN") == ("500", "VLLM_EXTRA_ARGS")
    assert row(found, "MAX_NUM_SEQS") == ("40", "environment")
    assert row(found, "DTYPE") == ("float16", "VLLM_CONFIG_FILE")
    assert row(found, "TOKENIZER_NAME") == ("org/baked", "image")


def test_a_default_set_above_hides_what_is_below() -> None:
    """Whoever sets an option back to its default means it."""
    found = settings({"DTYPE": "float32", "MODEL_NAME": "org/baked"}, DTYPE="auto")

    assert (found.args.dtype, found.model) == ("auto", "org/model")


def test_the_model_may_come_from_anywhere(tmp_path: Path) -> None:
    """The image, a file and the extra arguments name a model as well as the environment does."""
    file = tmp_path / "vllm.yaml"
    file.write_text("model: org/file\n")

    assert Settings.from_env({}, {"MODEL_NAME": "org/image"}).model == "org/image"
    assert Settings.from_env({"VLLM_CONFIG_FILE": str(file)}).model == "org/file"
    assert Settings.from_env({"VLLM_EXTRA_ARGS": "--model org/x"}).model == "org/x"
    assert Settings.from_env({"VLLM_EXTRA_ARGS": "org/x -tp 2"}).model == "org/x"


def test_the_file_reads_as_vllms(tmp_path: Path) -> None:
    """Nested objects, lists and switches of the YAML file reach their options."""
    file = tmp_path / "vllm.yaml"
    file.write_text(
        "compilation-config:\n  mode: 0\nserved-model-name: [a, b]\n"
        "enable-prefix-caching: false\nenforce-eager: true\nport: 9\n"
    )
    args = settings(VLLM_CONFIG_FILE=str(file)).args

    assert args.compilation_config.mode == 0
    assert args.served_model_name == ["a", "b"]
    assert (args.enable_prefix_caching, args.enforce_eager) == (False, True)


@pytest.mark.parametrize("text", ["", "just words", "- a list"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    """A file that holds no options is named, with the reason."""
    file = tmp_path / "vllm.yaml"
    file.write_text(text)

    assert problems(VLLM_CONFIG_FILE=str(file)) == (
        f"VLLM_CONFIG_FILE={str(file)!r}: is not a YAML mapping of options",
    )


def test_extra_arguments_are_vllms_command_line() -> None:
    """Short options, dotted keys, negations and the server's options are understood there."""
    args = settings(
        VLLM_EXTRA_ARGS="-tp 2 --compilation-config.mode 0 --no-enable-prefix-caching "
        "--root-path /x --hf-overrides '{\"a b\": 1}'"
    ).args

    assert (args.tensor_parallel_size, args.compilation_config.mode) == (2, 0)
    assert (args.enable_prefix_caching, args.root_path) == (False, "/x")
    assert args.hf_overrides == {"a b": 1}


@pytest.mark.parametrize("environ", [{"VLLM_EXTRA_ARGS": "--api-key sk-12345"}])
def test_an_api_key_is_ignored(environ) -> None:
    """A key in front of the in-process app would refuse every job."""
    found = settings(**environ)

    assert found.args.api_key is None
    assert "sk-12345" not in found.report()
    assert len(found.warnings) == 1


RETIRED_EXAMPLES = {
    "SWAP_SPACE": "4",
    "TASK": "embed",
    "ROPE_SCALING": "{}",
    "GUIDED_DECODING_BACKEND": "outlines",
    "NUM_LOOKAHEAD_SLOTS": "0",
    "WORKER_USE_RAY": "false",
    "DEVICE": "auto",
    "SCHEDULER_DELAY_FACTOR": "0",
    "MAX_CONTEXT_LEN_TO_CAPTURE": "8192",
    "DISABLE_LOG_REQUESTS": "true",
    "VLLM_CPU_FRACTION": "1",
    "TOKENIZER_POOL_SIZE": "0",
    "NGRAM_PROMPT_LOOKUP_MAX": "0",
}


def test_retired_names_warn_and_carry_on() -> None:
    """An old template starts: one warning for each name that has lost its meaning."""
    found = settings(MAX_PARALLEL_LOADING_WORKERS="1", **RETIRED_EXAMPLES)

    assert sorted(w.split()[0] for w in found.warnings) == sorted(RETIRED_EXAMPLES)
    assert (found.args.runner, found.args.convert) == ("pooling", "embed")
    assert found.args.hf_overrides == {}
    assert found.args.speculative_config is None
    assert found.args.distributed_executor_backend is None
    assert found.args.max_parallel_loading_workers == 1


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_name_is_no_option(name) -> None:
    """What is called retired is unknown to vLLM, and each successor it names is known."""
    named = {word.strip(",;.") for word in RETIRED[name].advice.replace("=", " ").split()}
    upper = {word for word in named if "_" in word and word.isupper()}

    assert name not in command_line.by_variable()
    assert upper - set(command_line.by_variable()) == set()


@pytest.mark.parametrize(
    ("environ", "dest", "expected"),
    [
        ({"DISABLE_LOG_REQUESTS": "false"}, "enable_log_requests", True),
        ({"DISABLE_LOG_REQUESTS": "1"}, "enable_log_requests", False),
        (
            {"DISABLE_LOG_REQUESTS": "1", "ENABLE_LOG_REQUESTS": "1"},
            "enable_log_requests",
            True,
        ),
        ({"WORKER_USE_RAY": "1"}, "distributed_executor_backend", "ray"),
        ({"TASK": "classify"}, "convert", "classify"),
        (
            {"ROPE_SCALING": '{"rope_type": "yarn"}', "ROPE_THETA": "5e5"},
            "hf_overrides",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500000.0}},
        ),
        (
            {"ROPE_SCALING": '{"rope_type": "yarn"}', "HF_OVERRIDES": '{"a": 1}'},
            "hf_overrides",
            {"rope_parameters": {"rope_type": "yarn"}, "a": 1},
        ),
        (
            {
                "SPECULATIVE_MODEL": "[ngram]",
                "NUM_SPECULATIVE_TOKENS": "4",
                "NGRAM_PROMPT_LOOKUP_MAX": "3",
                "NGRAM_PROMPT_LOOKUP_MIN": "0",
            },
            "speculative_config",
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
        ),
        (
            {"SPECULATIVE_MODEL": "org/draft", "NUM_SPECULATIVE_TOKENS": "2"},
            "speculative_config",
            {"model": "org/draft", "num_speculative_tokens": 2},
        ),
        ({"NUM_SPECULATIVE_TOKENS": "4"}, "speculative_config", None),
        (
            {"SPECULATIVE_MODEL": "org/draft", "SPECULATIVE_CONFIG": '{"method": "mtp"}'},
            "speculative_config",
            {"method": "mtp"},
        ),
    ],
)
def test_retired_names_become_their_successor(environ, dest, expected) -> None:
    """Where the meaning is plain, the old value is applied, and the new name wins over it."""
    assert getattr(settings(**environ).args, dest) == expected


def test_an_option_that_leaves_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of an option that the next vLLM lacks are dropped with a warning, as long as used."""
    known = {
        name: option
        for name, option in command_line.by_variable().items()
        if name not in ("RESPONSE_ROLE", "SPECULATIVE_CONFIG")
    }
    monkeypatch.setattr(command_line, "by_variable", lambda: known)

    assert () == settings().warnings
    found = settings(OPENAI_RESPONSE_ROLE="bot", NUM_SPECULATIVE_TOKENS="4")
    gone = [one for one in found.warnings if "no longer has" in one]

    assert ["OPENAI_RESPONSE_ROLE", "NUM_SPECULATIVE_TOKENS"] == [one.split()[0] for one in gone]


@pytest.mark.parametrize(
    ("environ", "count", "says"),
    [({}, 4, True), ({}, 1, False), ({}, 0, False), ({"TENSOR_PARALLEL_SIZE": "2"}, 4, False)],
)
def test_gpus_that_nobody_uses(environ: dict[str, str], count: int, says: bool) -> None:
    """One GPU is used where nobody asked for more, and the log says that more are there."""
    from worker.engine import probe

    assert says == ("4 GPUs" in probe.idle_gpus(settings(**environ).args, count))
    assert 0 == probe.gpus()


def test_the_servers_options_are_not_read() -> None:
    """What a platform sets for somebody else's server does nothing, and one line says so."""
    polluted = {"HOST": "x", "PORT": "no", "UDS": "x", "CONFIG": "x", "MIDDLEWARE": "x"}
    found = settings(**polluted, ROOT_PATH="/x", API_KEY="k", SSL_KEYFILE="x", HEADLESS="1")

    assert found.args == settings().args
    assert len(found.warnings) == 1
    assert [name for name in polluted if name not in found.warnings[0]] == []


def test_the_doors_own_variables() -> None:
    """Over HTTP the names of the server's options that the worker has are its own."""
    http = {"WORKER_MODE": "load_balancer", "PORT": "8080", "API_KEY": "k", "HOST": "x"}
    found = settings(**http)

    assert (8080, "k") == (found.own.port, found.own.api_key)
    assert "HOST" in found.warnings[0]
    assert "PORT" not in found.warnings[0]
    assert "'k'" not in found.report()
    for mode in ("http", "load-balancer"):
        with pytest.raises(SettingsError, match="must be queue or load_balancer or auto"):
            settings(WORKER_MODE=mode)
    with pytest.raises(SettingsError, match="PORT='no' is not a whole number"):
        settings(**http | {"PORT": "no"})


@pytest.mark.parametrize("text", ["https://a.b,https://c.d", '["https://a.b", "https://c.d"]'])
def test_origins(text: str) -> None:
    """What vLLM takes as a JSON list may be written as any other list."""
    assert ["https://a.b", "https://c.d"] == settings(ALLOWED_ORIGINS=text).args.allowed_origins


def test_a_polluted_environment_is_visible() -> None:
    """A variable that is an option by accident is in the report, with where it came from."""
    found = settings(SEED="7", DTYPE="half", REVISION="x", TOKENIZER="org/t", PATH="/bin", HOME="/")

    assert {r.name: r.source for r in found.rows} == dict.fromkeys(
        ["MODEL_NAME", "SEED", "DTYPE", "REVISION", "TOKENIZER"], "environment"
    )


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("MAX_MODEL_LENGHT", "MAX_MODEL_LENGTH"),
        ("MAX_CONCURENCY", "MAX_CONCURRENCY"),
        ("MODELNAME", "MODEL_NAME"),
        ("DEFAULT_BATCHSIZE", "DEFAULT_BATCH_SIZE"),
        ("GPU_MEMORY_UTILISATION", "GPU_MEMORY_UTILIZATION"),
        ("PIPELINE_PARALELL_SIZE", "PIPELINE_PARALLEL_SIZE"),
        ("TRUST_REMOTE_CODES", "TRUST_REMOTE_CODE"),
        ("VLLM_EXTRA_ARG", "VLLM_EXTRA_ARGS"),
        ("VLLM_CONFIGFILE", "VLLM_CONFIG_FILE"),
    ],
)
def test_misspellings(wrong, right) -> None:
    """A name that is nearly one of ours is a probable mistake, and the nearest is named."""
    assert settings(**{wrong: "1"}).warnings == (
        f"{wrong} is no setting. Did you mean {right}?",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("TOOL_PARSER", "Did you mean TOOL_CALL_PARSER?"),
        ("ENABLE_TOOL_CHOICE", "Did you mean ENABLE_AUTO_TOOL_CHOICE?"),
        ("MAX_TOKENS", "no setting"),
        ("GPU_MEMORY", "no setting"),
        ("VLLM_MAX_MODEL_LEN", "Did you mean MAX_MODEL_LEN?"),
        ("DTYPE.X", "DTYPE is no object"),
    ],
)
def test_an_invented_name_is_mentioned(name: str, word: str) -> None:
    """A name in our or vLLM's manner that nobody reads is said to have no effect."""
    (warning,) = settings(**{name: "x"}).warnings

    assert warning.startswith(name)
    assert word in warning


def test_dotted_names() -> None:
    """A dotted name sets one key of an object, beside those that the object's variable sets."""
    found = settings(
        **{
            "STRUCTURED_OUTPUTS_CONFIG": '{"disable_any_whitespace": true}',
            "STRUCTURED_OUTPUTS_CONFIG.BACKEND": "xgrammar",
            "HF_OVERRIDES.rope_parameters.rope_theta": "5.5",
        }
    )

    assert "xgrammar" == found.args.structured_outputs_config.backend
    assert found.args.structured_outputs_config.disable_any_whitespace
    assert {"rope_parameters": {"rope_theta": 5.5}} == found.args.hf_overrides
    assert () == found.warnings


@pytest.mark.parametrize(
    "environ",
    [
        {"STRUCTURED_OUTPUTS_CONFIG": '{"bakend": "xgrammar"}'},
        {"STRUCTURED_OUTPUTS_CONFIG.BAKEND": "xgrammar"},
    ],
)
def test_a_wrong_key_of_an_object_stops_the_start(environ: dict[str, str]) -> None:
    """A key that the object does not have is named with its variable."""
    (problem,) = problems(**environ)

    assert problem.startswith("STRUCTURED_OUTPUTS_CONFIG=")
    assert "bakend" in problem


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "HOSTNAME",
        "PWD",
        "LANG",
        "TERM",
        "SHLVL",
        "USER",
        "RUNPOD_POD_ID",
        "RUNPOD_ENDPOINT_ID",
        "RUNPOD_LOG_LEVEL",
        "VLLM_LOGGING_LEVEL",
        "VLLM_CACHE_ROOT",
        "HF_HOME",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_VERSION",
        "NVIDIA_VISIBLE_DEVICES",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "OMP_NUM_THREADS",
        "NCCL_DEBUG",
        "TOKENIZERS_PARALLELISM",
        "PUBLIC_KEY",
        "VLLM_CPU_KVCACHE_SPACE",
        "PYTORCH_CUDA_ALLOC_CONF",
        "VLLM_USE_MODELSCOPE",
        "MODELS",
    ],
)
def test_others_variables_are_no_misspellings(name) -> None:
    """What the system, the platform and vLLM itself set is nobody's mistake."""
    assert settings(**{name: "1"}).warnings == ()


SECRETS = [
    {"HF_TOKEN": "hf_sekrit123456"},
    {"HF_OVERRIDES": '{"x": {"access_token": "sekrit123456"}}'},
    {"HF_OVERRIDES": '{"apiKey": "sekrit123456"}'},
    {"MODEL_LOADER_EXTRA_CONFIG": '{"aws_secret_access_key": "sekrit123456", "password": 1}'},
    {"VLLM_EXTRA_ARGS": "--hf-token sekrit123456"},
    {"VLLM_EXTRA_ARGS": "--api-key=sekrit123456"},
    {"OTLP_TRACES_ENDPOINT": "https://me:sekrit123456@host/x"},
    {"TOKENIZER_NAME": "hf_sekrit123456"},
    {"HF_OVERRIDES": '{"token": "sekrit123456"'},
    {"KV_TRANSFER_CONFIG": '{"kv_connector": "x", "password": "sekrit123456"}'},
    {"VLLM_EXTRA_ARGS": "--nonsense sekrit123456"},
    {"VLLM_EXTRA_ARGS": '--hf-overrides \'{"token": "sekrit123456"\''},
    {"TOKENIZER": "a", "TOKENIZER_NAME": "hf_sekrit123456"},
]


@pytest.mark.parametrize("environ", SECRETS, ids=lambda e: next(iter(e)))
def test_secrets_are_never_shown(environ, capfd) -> None:
    """A secret is in no row, no warning, no error and no output, wherever it was written."""
    try:
        found = settings(**environ)
        said = found.report() + repr(found.rows) + repr(found.warnings)
    except SettingsError as error:
        said = str(error)

    assert "sekrit" not in said + "".join(capfd.readouterr())


def test_words_that_only_look_like_secrets_are_shown() -> None:
    """A token limit or a tokenizer is no secret."""
    found = settings(MAX_NUM_BATCHED_TOKENS="4096", TOKENIZER_MODE="slow", DEFAULT_MAX_TOKENS="9")

    assert {r.name: r.value for r in found.rows} == {
        "MODEL_NAME": "org/model",
        "MAX_NUM_BATCHED_TOKENS": "4096",
        "TOKENIZER_MODE": "slow",
        "DEFAULT_MAX_TOKENS": "9",
    }


@pytest.mark.parametrize("text", ["true", "1", "none", "False"])
def test_a_token_that_is_none(text) -> None:
    """A switch where a token belongs would be sent to the hub: it is dropped, and said."""
    found = settings(HF_TOKEN=text)

    assert found.args.hf_token is None
    assert "HF_TOKEN holds no token" in found.warnings[0]
    assert process_environ({"HF_TOKEN": text})["HF_TOKEN"] is None


def test_a_token_stays_out_of_the_arguments() -> None:
    """The token is read from the environment by huggingface_hub; vLLM's arguments never have it."""
    assert settings(HF_TOKEN="hf_dummy").args.hf_token is None
    assert "HF_TOKEN" not in process_environ({"HF_TOKEN": "hf_dummy"})


def test_chat_template_from_a_file(tmp_path: Path) -> None:
    """A template is a text or a file, and a broken one is found in both."""
    good, bad = tmp_path / "good.jinja", tmp_path / "bad.jinja"
    good.write_text("{% for m in messages %}{% if m %}{% continue %}{% endif %}é{% endfor %}")
    bad.write_text("\n{% for %}")

    assert settings(CUSTOM_CHAT_TEMPLATE=str(good)).args.chat_template == str(good)
    assert "line 2" in problems(CUSTOM_CHAT_TEMPLATE=str(bad))[0]
    text = "{% generation %}{{ messages }}{% endgeneration %} é\n"
    assert settings(CHAT_TEMPLATE=text).args.chat_template == text


def adapter(folder: Path, rank: int = 4) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return folder


def test_lora_adapters(tmp_path: Path) -> None:
    """A list of objects, one object, and name=path are the same, and switch LoRA on."""
    path = adapter(tmp_path / "a")
    entry = {"name": "a", "path": str(path)}
    spellings = [json.dumps([entry]), json.dumps(entry), f"a={path}", json.dumps([f"a={path}"])]
    for found in [settings(LORA_MODULES=text) for text in spellings]:
        assert [(m.name, m.path) for m in found.args.lora_modules] == [("a", str(path))]
        assert found.args.enable_lora is True
        assert row(found, "ENABLE_LORA") == ("true", "implied by LORA_MODULES")


def test_a_bad_adapter_stops_the_start(tmp_path: Path) -> None:
    """A rank above the limit is said before any weight is read; a larger limit allows it."""
    path = adapter(tmp_path / "a", rank=64)
    found = problems(LORA_MODULES=f"a={path}")

    assert found == ("LORA_MODULES: adapter 'a' has rank 64, more than MAX_LORA_RANK=16",)
    assert settings(LORA_MODULES=f"a={path}", MAX_LORA_RANK="64").args.max_lora_rank == 64


def test_adapters_of_a_bucket_need_its_keys() -> None:
    """Patterns of a bucket's adapters name what is missing of the BUCKET_ variables."""
    keys = dict.fromkeys(("BUCKET_ENDPOINT_URL", "BUCKET_ACCESS_KEY_ID", "BUCKET_NAME"), "x")
    allowed = {"LORA_ALLOWED": "org/*, s3://x/*"}

    assert problems(**allowed, **keys) == (
        "LORA_ALLOWED names a bucket, which needs BUCKET_SECRET_ACCESS_KEY",
    )
    assert settings(**allowed, **keys, BUCKET_SECRET_ACCESS_KEY="x").own.lora_allowed
    assert settings(LORA_ALLOWED="org/*").own.lora_allowed


def test_bitsandbytes_implies_its_quantization() -> None:
    """LOAD_FORMAT=bitsandbytes asks for the quantization too, where its plugin is installed."""
    assert problems(LOAD_FORMAT="bitsandbytes") == (
        "QUANTIZATION='bitsandbytes' (implied by LOAD_FORMAT) needs the package vllm-bnb-plugin, "
        "which is not installed here",
    )

    from vllm.model_executor.layers import quantization

    class Plugged(quantization.QuantizationConfig):
        """What a plugin registers."""

    quantization.register_quantization_config("bitsandbytes")(Plugged)
    try:
        implied = settings(LOAD_FORMAT="bitsandbytes").args.quantization
    finally:
        quantization.QUANTIZATION_METHODS.remove("bitsandbytes")

    assert "bitsandbytes" == implied


@pytest.mark.parametrize("name", ["/models/model-Q4_K_M.gguf", "org/model-GGUF:Q4_K_M"])
def test_gguf_implies_its_quantization(name) -> None:
    """A GGUF file, here or on the hub, needs its plugin, and the start says so."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"MODEL_NAME": name})

    assert caught.value.problems == (
        "QUANTIZATION='gguf' (implied by MODEL_NAME) needs the package vllm-gguf-plugin, "
        "which is not installed here",
    )


BAKED = {
    "MODEL_NAME": "org/baked",
    "MODEL_REVISION": "v1",
    "QUANTIZATION": "awq",
    "TOKENIZER_NAME": "org/tokenizer",
    "TOKENIZER_REVISION": "v2",
    "LORA_MODULES": '[{"name": "a", "path": "org/adapter"}]',
    "BASE_PATH": "/models",
}


@pytest.mark.parametrize("environ", [{}, {"MODEL_NAME": "org/baked"}, {"MODEL": "Org/Baked"}])
def test_what_was_baked_applies_to_the_baked_model(environ) -> None:
    """Without a word, or with the same name, everything that the build said applies."""
    args = Settings.from_env(environ, BAKED).args

    assert (args.model.lower(), args.revision, args.quantization) == ("org/baked", "v1", "awq")
    assert (args.tokenizer, args.tokenizer_revision) == ("org/tokenizer", "v2")
    assert [adapter.path for adapter in args.lora_modules] == ["org/adapter"]


def test_what_was_baked_does_not_apply_to_another_model() -> None:
    """A revision, a quantisation, a tokenizer and adapters belong to the model in the image."""
    found = Settings.from_env({"MODEL_NAME": "org/other"}, BAKED)
    args = found.args

    assert (args.model, args.revision, args.quantization) == ("org/other", None, None)
    assert (args.tokenizer, args.tokenizer_revision, args.lora_modules) == (None, None, None)
    assert found.warnings == (
        "MODEL_NAME='org/other' is not the model in this image, 'org/baked': what the image was "
        "built with does not apply.",
    )


def test_a_baked_tokenizers_revision_is_its_own() -> None:
    """Another tokenizer does not get the revision of the one in the image."""
    args = Settings.from_env({"TOKENIZER_NAME": "org/other"}, BAKED).args
    alone = {"MODEL_NAME": "org/baked", "TOKENIZER_REVISION": "v2"}
    other = Settings.from_env({"TOKENIZER_NAME": "org/other"}, alone).args
    same = Settings.from_env({"TOKENIZER_NAME": "org/baked"}, alone).args

    assert (other.tokenizer_revision, same.tokenizer_revision) == (None, "v2")

    assert (args.revision, args.tokenizer, args.tokenizer_revision) == ("v1", "org/other", None)


@pytest.mark.parametrize("environ", [{}, {"MODEL_NAME": "org/baked"}, {"MAX_MODEL_LEN": "9"}])
def test_a_baked_model_is_served_offline(environ) -> None:
    """With nothing asked for beside it, the hub is off and the image's cache is the hub's."""
    changes = process_environ(environ, BAKED)

    assert (changes["HF_HUB_OFFLINE"], changes["HF_HUB_CACHE"]) == (
        "1",
        "/models/huggingface-cache/hub",
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"MODEL_NAME": "org/other"},
        {"MODEL_REVISION": "v2"},
        {"LORA_MODULES": '[{"name": "b", "path": "org/new"}]'},
        {"SPECULATIVE_CONFIG": '{"model": "org/draft"}'},
        {"VLLM_EXTRA_ARGS": "--model org/other"},
    ],
)
def test_what_is_not_in_the_image_may_be_fetched(environ) -> None:
    """An adapter, a draft or another model beside a baked one still comes from the hub."""
    assert "HF_HUB_OFFLINE" not in process_environ(environ, BAKED)


def test_process_environ() -> None:
    """Names that would mislead vLLM go, and nothing else does."""
    taken = ["VLLM_API_KEY", "VLLM_CONFIG_FILE", "VLLM_EXTRA_ARGS", "VLLM_CPU_FRACTION"]
    environ = {**dict.fromkeys(taken, "x"), "VLLM_LOGGING_LEVEL": "INFO", "HF_HOME": "/h"}

    assert process_environ(environ) == {
        **dict.fromkeys(taken),
        "RUNPOD_LOG_LEVEL": "INFO",
        "HF_XET_HIGH_PERFORMANCE": "1",
    }


COMPILED = {
    "VLLM_CACHE_ROOT": "/models/compile-cache/vllm",
    "TORCHINDUCTOR_CACHE_DIR": "/models/compile-cache/inductor",
    "TRITON_CACHE_DIR": "/models/compile-cache/triton",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"BASE_PATH": "/models"}, {"HF_HOME": "/models/huggingface-cache", **COMPILED}),
        ({"BASE_PATH": "/models/"}, {"HF_HOME": "/models/huggingface-cache", **COMPILED}),
        ({"BASE_PATH": "/models", "HF_HOME": "/h"}, COMPILED),
        ({"BASE_PATH": "/models", "HF_HOME": "/h", **dict.fromkeys(COMPILED, "/mine")}, {}),
        ({"BASE_PATH": "", "HF_HOME": "/h"}, {}),
        ({"HF_HOME": "/h"}, {}),
    ],
)
def test_where_models_are_stored(environ, expected) -> None:
    """BASE_PATH moves the Hugging Face cache and compiled kernels, but for what the user moved."""
    given = {"RUNPOD_LOG_LEVEL": "DEBUG", "HF_XET_HIGH_PERFORMANCE": "0", **environ}

    assert process_environ(given) == expected


def test_what_the_build_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that was built with WARM=1 uses what is in it, also where there is a volume."""
    (tmp_path / "compile-cache").mkdir()
    monkeypatch.setattr(environ_room, "COMPILED", tmp_path / "compile-cache")
    changes = process_environ({"BASE_PATH": "/models"})

    assert "/models/huggingface-cache" == changes["HF_HOME"]
    assert f"{tmp_path}/compile-cache/vllm" == changes["VLLM_CACHE_ROOT"]


def test_a_volume_that_is_full(volume: Path) -> None:
    """Kernels are compiled elsewhere, where there is no room for them: that is no failure."""
    given = {"RUNPOD_LOG_LEVEL": "DEBUG", "HF_XET_HIGH_PERFORMANCE": "1", "BASE_PATH": str(volume)}

    assert process_environ(given) == {"HF_HOME": f"{volume}/huggingface-cache"}
    assert settings(**given).warnings == (
        f"{volume} is full: compiled kernels are not kept in it.",
    )


def test_a_volume_that_cannot_be_written(volume: Path) -> None:
    """It costs the caches and a warning, and does not stop the start."""
    subprocess.run(["mount", "-o", "remount,ro", volume], check=True)
    given = {"RUNPOD_LOG_LEVEL": "DEBUG", "HF_XET_HIGH_PERFORMANCE": "1", "BASE_PATH": str(volume)}

    assert process_environ(given) == {}
    assert settings(**given).warnings[0].startswith(f"{volume} cannot be written: models in it")


@pytest.mark.parametrize("name", ["RUNPOD_LOG_LEVEL", "RUNPOD_DEBUG_LEVEL"])
def test_the_users_log_level_stays(name) -> None:
    """The SDK's log level is set only where the user has not."""
    environ = {name: "WARN", "HF_HOME": "/h", "HF_XET_HIGH_PERFORMANCE": "0"}

    assert process_environ(environ) == {}


def test_report() -> None:
    """One block: aligned names, values and places, then the warnings."""
    assert settings(MAX_CONCURRENCY="8", DTYPE="half", SWAP_SPACE="4").report() == (
        "Settings that differ from the defaults:\n"
        "  MAX_CONCURRENCY  8          environment\n"
        "  MODEL_NAME       org/model  environment\n"
        "  DTYPE            half       environment\n"
        "WARNING: SWAP_SPACE is retired: vLLM swaps no more; KV_OFFLOADING_SIZE is the nearest."
    )


def test_help_names_every_variable() -> None:
    """Nobody has to read the code to find a variable."""
    words = set(help_text().replace(":", " ").split())

    assert [name for name in known_variables() if name not in words] == []
    assert [alias for alias in ALIASES if alias not in words] == []


def test_two_readings_share_nothing() -> None:
    """Settings are values: changing the arguments of one leaves the next as it was."""
    settings().args.hf_overrides["x"] = 1

    assert settings().args.hf_overrides == {}


def test_importing_is_cheap() -> None:
    """Reading the process's environment imports neither vLLM nor torch."""
    code = (
        "import sys; from worker.configuration.environ import process_environ; process_environ({});"
        "sys.exit(bool({'vllm', 'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys()))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
