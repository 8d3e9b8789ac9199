"""Deployments that TensorRT-LLM's users know: token ids alone, load-time quantisation, limits."""

import concurrent.futures
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import models
from local_endpoint import Record, Status
from served import Served, serve, text
from worker.configuration.settings import Settings
from worker.engine import probe
from worker.errors import StartError

pytestmark = pytest.mark.timeout(300)

IDS = [10, 11, 12]
MESSAGES = [{"role": "user", "content": "Hello"}]
SHORT: dict[str, Any] = {"max_tokens": 5, "return_token_ids": True}


def native(prompt: Any, stream: bool = False, **given: Any) -> dict[str, Any]:
    return {"prompt": prompt, "stream": stream, "sampling_params": SHORT | given}


def route(path: str, **body: Any) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": {"max_tokens": 5} | body}


def completion(**body: Any) -> dict[str, Any]:
    return route("/v1/completions", **{"prompt": IDS} | body)


def message(record: Record) -> str:
    return str(json.loads(record.done[-1].value["error"])["error"]["message"])


def choices(record: Record) -> list[dict[str, Any]]:
    assert Status.COMPLETED == record.status, record.done[-1].value
    (reply,) = record.done[-1].value["output"]
    return list(reply["choices"])


# No tokenizer


@pytest.fixture(scope="module")
def no_tokenizer() -> Iterator[Served]:
    """The tiny model without a tokenizer, and with every limit of the cost set low."""
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "SERVED_MODEL_NAME": "tiny",
        "SKIP_TOKENIZER_INIT": "1",
        "MAX_CHAINS": "3",
        "MAX_COSTLY_CHAINS": "1",
        "MAX_NUM_BEAMS": "3",
        "MAX_SEQUENCES": "5",
        "OVERRIDE_GENERATION_CONFIG": '{"max_new_tokens": 6}',
        "MAX_SCORES": "2",
        "MAX_WORD_SEQUENCES": "2",
    }
    with serve(environ) as served:
        yield served


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0},
        {"n": 2, "logprobs": 1, "prompt_logprobs": 1},
        {"stop": [], "bad_words": [], "detokenize": True},
        {"typical_p": 0.9, "output_scores": 2},
        {"best_of": 3},
        {"num_beams": 3},
        {"guidance_scale": 1.5, "negative_prompt_ids": [4, 5]},
        {"stop_token_ids": [7], "eos_token_id": 8},
        {"max_time": 60.0},
    ],
    ids=lambda given: " ".join(given) or "plain",
)
def test_token_ids_need_no_tokenizer(
    no_tokenizer: Served, given: dict[str, Any], stream: bool
) -> None:
    """Without a tokenizer token ids are answered with token ids, and the text is empty."""
    record = no_tokenizer.run(native(IDS, stream, **given))
    yields = record.done[-1].value["output"]
    pieces = [one["choices"][0] for one in yields]

    assert Status.COMPLETED == record.status
    assert 5 == len([token for piece in pieces for token in piece.get("token_ids", [])])
    assert {""} == {token for piece in pieces for token in piece["tokens"]}
    assert IDS == yields[0]["prompt_token_ids"]


def test_other_spellings_of_token_ids(no_tokenizer: Served) -> None:
    """prompt_token_ids beside or inside prompt, lists of lists, and an empty prompt with a bos."""
    greedy = {"sampling_params": SHORT | {"temperature": 0}}
    same = [
        choices(no_tokenizer.run(greedy | given))[0]["token_ids"]
        for given in (
            {"prompt": IDS},
            {"prompt_token_ids": IDS},
            {"prompt": {"prompt_token_ids": IDS}},
            {"prompt": [IDS]},
        )
    ]
    several = choices(no_tokenizer.run(greedy | {"prompt": [IDS, [4, 5]]}))
    begun = choices(no_tokenizer.run(native("", bos_token_id=3, temperature=0)))
    from_bos = choices(no_tokenizer.run(native([3], temperature=0)))

    assert [same[0]] * 4 == same
    assert same[0] == several[0]["token_ids"]
    assert from_bos == begun


GRAMMAR = {"structured_outputs": {"choice": ["a", "b"]}}
NEED_TEXT: list[tuple[dict[str, Any], str]] = [
    (native("Hello"), "A text prompt needs a tokenizer"),
    (native([IDS[:1], IDS]) | {"prompt": ["Hello", IDS]}, "A text prompt needs a tokenizer"),
    ({"messages": MESSAGES}, "A conversation needs a tokenizer"),
    (native("Hello") | {"apply_chat_template": True}, "A conversation needs a tokenizer"),
    (native(IDS, stop="a"), "stop needs a tokenizer"),
    (native(IDS, stop=["a"], num_beams=2), "stop needs a tokenizer"),
    (native(IDS, stop_strings=["a"]), "stop_strings needs a tokenizer"),
    (native(IDS, bad_words=["a"]), "bad_words needs a tokenizer"),
    (native(IDS, token_healing=True), "token_healing needs a tokenizer"),
    (native(IDS, guidance_scale=2.0, negative_prompt="No"), "negative_prompt needs a tokenizer"),
    (native(IDS, **GRAMMAR), "requires a tokenizer"),
    (native(IDS, guided_regex="[ab]"), "requires a tokenizer"),
    (completion(stop="a"), "stop needs a tokenizer"),
    (completion(stop=["a"], stream=True), "stop needs a tokenizer"),
    (completion(bad_words=["a"]), "bad_words needs a tokenizer"),
    (completion(**GRAMMAR), "requires a tokenizer"),
    (completion(response_format={"type": "json_object"}), "requires a tokenizer"),
    (completion(prompt="Hello"), "SKIP_TOKENIZER_INIT"),
    (completion(generation_parameters={"stop_strings": "a"}), "stop_strings needs a tokenizer"),
    (completion(generation_parameters={"bad_words": ["a"]}), "bad_words needs a tokenizer"),
    (completion(generation_parameters=GRAMMAR), "requires a tokenizer"),
    (route("/v1/chat/completions", messages=MESSAGES), "needs a tokenizer"),
    (route("/v1/chat/completions", messages=MESSAGES, stream=True), "needs a tokenizer"),
    (route("/v1/messages", messages=MESSAGES), "needs a tokenizer"),
    ({"openai_route": "/v1/responses", "openai_input": {"input": "x"}}, "SKIP_TOKENIZER_INIT"),
    ({"route": "/tokenize", "body": {"prompt": "x"}}, "SKIP_TOKENIZER_INIT"),
    ({"route": "/detokenize", "body": {"tokens": [5]}}, "SKIP_TOKENIZER_INIT"),
]


def test_what_needs_text_is_refused(no_tokenizer: Served) -> None:
    """Each thing that a tokenizer does is refused with a sentence, where vLLM ignores some."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        records = list(pool.map(no_tokenizer.run, [given for given, _ in NEED_TEXT]))

    for (given, sentence), record in zip(NEED_TEXT, records, strict=True):
        assert Status.FAILED == record.status, given
        assert sentence in message(record), given


def test_the_routes_that_need_no_text(no_tokenizer: Served) -> None:
    """Completions of token ids, streamed and with a chain, are answered without a tokenizer."""
    for given in (
        completion(),
        completion(stream=True),
        completion(prompt=[IDS, IDS], return_token_ids=True),
        completion(generation_parameters={"typical_p": 0.9}),
        {"route": "/v1/models"},
        {"route": "/health"},
    ):
        assert Status.COMPLETED == no_tokenizer.run(given).status, given


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        (native(IDS, num_beams=4), "MAX_NUM_BEAMS"),
        (native([IDS] * 3, n=2), "MAX_SEQUENCES"),
        (native(IDS, n=6), "MAX_SEQUENCES"),
        (native([IDS] * 3, best_of=2), "MAX_SEQUENCES"),
        (completion(n=6), "MAX_SEQUENCES"),
        (completion(n="6"), "MAX_SEQUENCES"),
        (completion(prompt=[IDS] * 3, n=2), "MAX_SEQUENCES"),
        (completion(n=6, use_beam_search=True), "MAX_SEQUENCES"),
        (native(IDS, output_scores=3), "MAX_SCORES"),
        (native(IDS, output_logits=3), "MAX_SCORES"),
        (native(IDS, bad_words_ids=[[1, 2], [3, 4], [5, 6]]), "MAX_WORD_SEQUENCES"),
        (native(IDS, sequence_bias=[[[i, 9], 1.0] for i in range(3)]), "MAX_WORD_SEQUENCES"),
        (completion(generation_parameters={"bad_words_ids": [[1, 2], [3, 4], [5, 6]]}), "WORD"),
    ],
)
def test_limits(no_tokenizer: Served, given: dict[str, Any], variable: str) -> None:
    """What costs more than the deployment allows is refused naming the variable."""
    record = no_tokenizer.run(given)

    assert Status.FAILED == record.status
    assert variable in message(record)


@pytest.mark.parametrize(
    "given",
    [
        native([1, 4096]),
        native([[1, 2], [4096]]),
        {"prompt_token_ids": [4096]},
        native([10**12]),
        native(IDS, guidance_scale=2.0, negative_prompt_ids=[4096]),
        completion(prompt=[1, 4096]),
        completion(prompt=[[1], [4096]], stream=True),
        completion(prompt=[1, 2**40]),
        completion(prompt=[1, 4096], generation_parameters={"typical_p": 0.9}),
        completion(prompt=[1, 4096], n=2, use_beam_search=True),
        completion(prompt=[-1]),
        {"route": "/detokenize", "body": {"tokens": [4096, -1]}},
    ],
)
def test_ids_beyond_the_vocabulary_fail_alone(no_tokenizer: Served, given: dict[str, Any]) -> None:
    """The engine would die of them, and vLLM does not look without a tokenizer."""
    record = no_tokenizer.run(given)
    code = json.loads(record.done[-1].value["error"])["error"]["code"]

    assert Status.FAILED == record.status
    assert 400 == code
    assert Status.COMPLETED == no_tokenizer.run(native(IDS)).status


def test_the_deployments_own_length_is_the_most(no_tokenizer: Served) -> None:
    """max_new_tokens of OVERRIDE_GENERATION_CONFIG bounds native answers as it does vLLM's."""
    long = {"max_tokens": 20, "ignore_eos": True}
    for given in (native(IDS, **long), native(IDS, max_new_tokens=20, max_tokens=None)):
        (choice,) = choices(no_tokenizer.run(given))
        assert 6 >= len(choice["token_ids"])
    (choice,) = choices(no_tokenizer.run(native(IDS, **long)))
    reply = no_tokenizer.run(completion(**long)).done[-1].value["output"][0]

    assert 6 == len(choice["token_ids"]) == reply["usage"]["completion_tokens"]


def test_chains_wait_for_their_turn(no_tokenizer: Served) -> None:
    """With room for two chains, one of them costly, many are answered, beside a job without one."""
    costly = {"watermarking_config": {"keys": [1, 2, 3], "ngram_len": 3}, "do_sample": True}
    jobs = [native(IDS, typical_p=0.9) for _ in range(10)] + [native(IDS, **costly)] * 5
    jobs += [completion(generation_parameters={"typical_p": 0.9})] * 5 + [native(IDS)] * 5
    with concurrent.futures.ThreadPoolExecutor(25) as pool:
        records = list(pool.map(no_tokenizer.run, jobs))

    assert [Status.COMPLETED] * 25 == [record.status for record in records]


# Quantised while loading, with another tokenizer and a cache of another type and size


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tokenizer")
    for source in models.path("tiny").glob("*token*"):
        (folder / source.name).write_bytes(source.read_bytes())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    ids = vocabulary["model"]["vocab"]
    ids["A"], ids["B"] = ids["B"], ids["A"]
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "DTYPE": "bfloat16",
        "QUANTIZATION": "fp8_per_channel",
        "KV_CACHE_DTYPE": "fp8",
        "NUM_GPU_BLOCKS_OVERRIDE": "8",
        "MAX_NUM_SEQS": "4",
        "TOKENIZER": str(folder),
    }
    with serve(environ) as served:
        yield served


@pytest.mark.slow
def test_a_model_is_quantised_while_it_is_loaded(quantised: Served) -> None:
    """vLLM quantised every linear layer, and the model answers on both paths, with a chain too."""
    (layers,) = re.findall(r"Quantizing (\d+) layers", quantised.log()) or ["0"]
    prompt = native("Hello", temperature=0)
    records = [
        quantised.run(given)
        for given in (prompt, native("Hello", no_repeat_ngram_size=2), native("Hello", num_beams=2))
    ]

    assert int(layers) > 0
    assert all(text(record) for record in records)
    assert text(records[0]) == text(quantised.run(prompt | {"stream": True}))
    assert Status.COMPLETED == quantised.run(completion(prompt="Hello")).status


@pytest.mark.slow
def test_the_cache_has_the_wanted_size(quantised: Served) -> None:
    """Eight blocks of 128 tokens are what the engine has, and more jobs than fit are answered."""
    jobs = [native([9] * 300, max_tokens=8, ignore_eos=True, return_token_ids=False)] * 8
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda job: quantised.run(job, 240), jobs))

    assert "KV cache size: 1,024 tokens" in quantised.log()
    assert [8] * 8 == [record.done[-1].value["output"][0]["usage"]["output"] for record in records]


@pytest.mark.slow
def test_another_tokenizer(quantised: Served) -> None:
    """Prompts are read and answers written with the tokenizer that TOKENIZER names."""
    ids = json.loads((models.path("tiny") / "tokenizer.json").read_text())["model"]["vocab"]
    (reply,) = quantised.run(native("A", max_tokens=1)).done[-1].value["output"]
    written = quantised.run({"route": "/detokenize", "body": {"tokens": [ids["A"]]}})

    assert [ids["B"]] == reply["prompt_token_ids"]
    assert "B" == written.done[-1].value["output"][0]["prompt"]


# Refused before anything is loaded


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            {"QUANTIZATION": "int8_per_channel_weight_only"},
            "QUANTIZATION=int8_per_channel_weight_only quantises nothing",
        ),
        ({"QUANTIZATION": "nvfp4_per_token"}, "QUANTIZATION=nvfp4_per_token quantises nothing"),
        (
            {
                "QUANTIZATION": "online",
                "QUANTIZATION_CONFIG": '{"moe": "int8_per_channel_weight_only"}',
            },
            "QUANTIZATION=online quantises nothing",
        ),
        ({"QUANTIZATION": "fp8_per_channel", "DTYPE": "float32"}, "float32 is not supported"),
        ({"QUANTIZATION": "awq"}, "awq"),
        ({"QUANTIZATION": "fp8_per_channel"}, None),
        (
            {
                "QUANTIZATION": "online",
                "QUANTIZATION_CONFIG": '{"linear": "fp8_per_channel", "moe": "nvfp4_per_token"}',
            },
            None,
        ),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
@pytest.mark.filterwarnings("ignore")
def test_a_scheme_that_quantises_nothing_is_refused(
    environ: dict[str, str], sentence: str | None
) -> None:
    """vLLM would start, and only log that it quantised no layer; the worker says so and stops."""
    given = {"MODEL_NAME": str(models.path("tiny")), "DTYPE": "bfloat16"} | environ
    args = Settings.from_env(given, {}).args
    if sentence is None:
        probe.check(args)
        return
    with pytest.raises(StartError) as caught:
        probe.check(args)

    assert sentence in str(caught.value)


@pytest.mark.slow
def test_a_start_that_quantises_nothing_is_refused() -> None:
    """The same sentence ends a start, before any weight is read."""
    environ = {
        "MODEL_NAME": str(models.path("tiny")),
        "DTYPE": "bfloat16",
        "QUANTIZATION": "int8_per_channel_weight_only",
    }
    with pytest.raises(RuntimeError) as caught, serve(environ):
        pass

    assert "QUANTIZATION=int8_per_channel_weight_only quantises nothing" in str(caught.value)
    assert "Loading safetensors" not in str(caught.value)
