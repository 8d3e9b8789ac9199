"""What each kind is asked, what it must answer, and what it refuses with which sentence."""

import base64
import functools
import io
import json
import math
import struct
import wave
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from family import making, reference

TOKENS = 10
GREEDY = {"max_tokens": TOKENS, "temperature": 0}
PROMPT = "The following list of statements holds a word that is used in the next two lines, twice"
NATIVE = "native"  # a job's own dialect, and POST /native


@dataclass(frozen=True)
class Ask:
    """One request: what is sent to `route`, and how its answer is compared.

    `says` returns transformers' answer, given the model's folder, and `read` takes the same out of
    a reply; without `says` any answer will do. `files` are sent as a form at the door, and in
    base64 in a job. An ask that `streams` is asked once more as a stream.
    """

    route: str
    body: Mapping[str, Any]
    says: Callable[[Path], Any] | None
    read: Callable[[Any], Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    streams: bool = False


@dataclass(frozen=True)
class Refusal:
    """A mistake, and a part of the sentence that answers it."""

    mistake: str
    route: str
    body: Mapping[str, Any]
    sentence: str
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A row of the page.

    `quant` is the quantisation that MODEL_NAME names, of a GGUF file. `truth` is the folder that
    transformers reads, where it is not the model's own. A kind that vLLM's CPU build `cannot` serve
    has the end of its last line there.
    """

    title: str
    model: str
    asks: tuple[Ask, ...] = ()
    mistakes: tuple[Refusal, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    quant: str = ""
    truth: str = ""
    cannot: str = ""
    note: str = ""

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Its users' mistakes, and every route that it does not have."""
        has = {ask.route for ask in self.asks}
        return (*(one for one in ROUTES if one.route not in has), *self.mistakes)

    @property
    def folder(self) -> Path:
        return making.path(self.model)

    @property
    def true_folder(self) -> Path:
        return making.path(self.truth or self.model)


# What writes text

MESSAGES = [{"role": "user", "content": "Which of the following lines is a list of statements?"}]


def first_tokens(reply: Any) -> list[int]:
    return list(reply["choices"][0]["token_ids"])


def after_prompt(folder: Path) -> list[int]:
    return reference.continued(folder, reference.token_ids(folder, PROMPT), TOKENS)


def after_messages(folder: Path) -> list[int]:
    ids = reference.conversation_ids(folder, MESSAGES)
    return reference.continued(folder, ids, TOKENS)


WITH_IDS = GREEDY | {"return_token_ids": True}
TEXT = (
    Ask(NATIVE, {"prompt": PROMPT, "sampling_params": WITH_IDS}, after_prompt, first_tokens),
    Ask(
        NATIVE,
        {"messages": MESSAGES, "sampling_params": WITH_IDS},
        after_messages,
        first_tokens,
        streams=True,
    ),
    Ask("/v1/completions", {"prompt": PROMPT} | WITH_IDS, after_prompt, first_tokens, streams=True),
    Ask(
        "/v1/chat/completions",
        {"messages": MESSAGES} | WITH_IDS,
        after_messages,
        first_tokens,
        streams=True,
    ),
)


def as_text(says: Callable[[Path], list[int]]) -> Callable[[Path], str]:
    return lambda folder: reference.written(folder, says(folder))


def of_responses(reply: Any) -> str:
    return str(reply["output"][-1]["content"][0]["text"])


def of_messages(reply: Any) -> str:
    return str(reply["content"][0]["text"])


RESPONSES, ANTHROPIC = "/v1/responses", "/v1/messages"
LIMITED = {"max_output_tokens": TOKENS, "temperature": 0}
TEXT += (
    Ask(RESPONSES, {"input": MESSAGES} | LIMITED, as_text(after_messages), of_responses),
    Ask(ANTHROPIC, {"messages": MESSAGES} | GREEDY, as_text(after_messages), of_messages),
)


# What sees


def picture(colour: str) -> Any:
    from PIL import Image

    image = Image.new("RGB", (64, 48), colour)
    image.paste("white", (8, 8, 30, 20))
    return image


@functools.cache
def png(colour: str) -> str:
    """Return a picture as base64."""
    file = io.BytesIO()
    picture(colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def url(colour: str) -> str:
    return f"data:image/png;base64,{png(colour)}"


def part(colour: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(colour)}}


def source(colour: str) -> dict[str, Any]:
    """Return a picture as Anthropic's clients send it."""
    kind = {"type": "base64", "media_type": "image/png", "data": png(colour)}
    return {"type": "image", "source": kind}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# What hears


@functools.cache
def sound(seconds: float = 2, rate: int = 16_000) -> bytes:
    """Return a WAV of a tone that rises."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        times = (index / rate for index in range(round(seconds * rate)))
        heights = (9000 * math.sin(2 * math.pi * (200 + 300 * t) * t) for t in times)
        out.writeframes(b"".join(struct.pack("<h", round(height)) for height in heights))
    return file.getvalue()


# What they refuse

WRITES = "It takes a model that writes text"
RANKS = "It takes a model that ranks or embeds"
HEARS_NOT = "It takes a model of speech, such as Whisper"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
LONG = "word " * 3000


def sent(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


AUDIO = base64.b64encode(sound()).decode()


def recording(file: bytes = b"") -> dict[str, Any]:
    data = base64.b64encode(file or sound()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


RECORDING = {"file": sound(0.1)}
# What each route of the page is asked of a kind that does not have it.
ROUTES = (
    Refusal("a prompt", NATIVE, {"prompt": "Hello"}, 'such as {"openai_route": "'),
    Refusal("a conversation", CHAT, {"messages": HELLO}, WRITES),
    Refusal("a prompt", "/v1/completions", {"prompt": "Hello"}, WRITES),
    Refusal("a prompt", RESPONSES, {"input": "Hello"}, WRITES),
    Refusal("a conversation", ANTHROPIC, {"messages": HELLO, "max_tokens": 5}, WRITES),
    Refusal("a text", "/v1/embeddings", {"input": "x"}, "It takes a model that embeds (RUNNER="),
    Refusal("documents", "/v1/rerank", {"query": "x", "documents": ["y"]}, RANKS),
    Refusal("texts", "/v1/score", {"text_1": "x", "text_2": "y"}, RANKS),
    Refusal("a text", "/classify", {"input": "x"}, "It takes a classifier"),
    Refusal("a text", "/pooling", {"input": "x"}, "a model that embeds, ranks or classifies"),
    Refusal("a recording", "/v1/audio/transcriptions", {}, HEARS_NOT, RECORDING),
    Refusal("a recording", "/v1/audio/translations", {}, HEARS_NOT, RECORDING),
)
TEXT_MISTAKES = (
    Refusal("an image", CHAT, sent(words("What?"), part("red")), "is not a multimodal model"),
    Refusal("a recording", CHAT, sent(words("What?"), recording()), "is not a multimodal model"),
    Refusal("too long a prompt", NATIVE, {"prompt": LONG}, "512"),
    Refusal("too long an answer", "/v1/completions", {"prompt": "x", "max_tokens": 600}, "512"),
    Refusal("a parameter's wrong value", CHAT, {"messages": HELLO, "top_p": 7}, "top_p"),
)


# The rows


def text(title: str, model: str, **more: Any) -> Kind:
    return Kind(title, model, TEXT, TEXT_MISTAKES, **more)


def half(title: str, model: str, **more: Any) -> Kind:
    return Kind(title, model, HALF_TEXT, TEXT_MISTAKES, HALF, **more)


PAIR = ("Which line?", "The following list of statements")
OTHER = "A word that is used twice"


def sigmoid_of_pairs(folder: Path) -> list[float]:
    query, *documents = (*PAIR, OTHER)
    return [float(reference.logits(folder, query, one).sigmoid()[0]) for one in documents]


def cosines(folder: Path) -> list[float]:
    query, *documents = (reference.embedded(folder, one) for one in (*PAIR, OTHER))
    return [sum(a * b for a, b in zip(query, one, strict=True)) for one in documents]


def ranked(reply: Any) -> list[float]:
    by_index = sorted(reply["results"], key=lambda one: one["index"])
    return [one["relevance_score"] for one in by_index]


def scored(reply: Any) -> list[float]:
    return [one["score"] for one in reply["data"]]


def embedding(reply: Any) -> list[float]:
    return list(reply["data"][0]["embedding"])


def classes(reply: Any) -> list[float]:
    return list(reply["data"][0]["probs"])


RANK = {"query": PAIR[0], "documents": [PAIR[1], OTHER]}
SCORE = {"text_1": PAIR[0], "text_2": [PAIR[1], OTHER]}


def ranks(says: Callable[[Path], Any]) -> tuple[Ask, ...]:
    return (Ask("/v1/rerank", RANK, says, ranked), Ask("/v1/score", SCORE, says, scored))


def pools(says: Callable[[Path], Any]) -> Ask:
    return Ask("/pooling", {"input": PROMPT}, says, pooled)


def vector(folder: Path) -> list[float]:
    return reference.embedded(folder, PROMPT)


def chances(folder: Path) -> list[float]:
    return list(reference.logits(folder, PROMPT).softmax(-1).tolist())


def chance(folder: Path) -> list[float]:
    return list(reference.logits(folder, PROMPT).sigmoid().tolist())


def tags(folder: Path) -> list[float]:
    kind = "AutoModelForTokenClassification"
    return list(reference.logits(folder, PROMPT, kind=kind).softmax(-1).flatten().tolist())


def pooled(reply: Any) -> list[float]:
    """Return the numbers of a text, or of all its tokens."""
    rows = reply["data"][0]["data"]
    return [x for row in rows for x in row] if isinstance(rows[0], list) else list(rows)


def reward(folder: Path) -> list[float]:
    return list(reference.logits(folder, PROMPT).tolist())


LOOK = sent(words("What is the same in "), part("red"), words(" and "), part("blue"), words("?"))
LOOK_TEXT = "<|user|>What is the same in <image> and <image>?<|end|><|assistant|>"


# Not the model's own, so that it is seen to count: a picture is cut into nine, not four.
SIZE = {"longest_edge": 168}


def after_pictures(folder: Path) -> list[int]:
    pictures = [picture("red"), picture("blue")]
    return reference.seen(folder, LOOK_TEXT, pictures, TOKENS, size=SIZE)


SEES = (
    Ask(NATIVE, {"prompt": PROMPT, "sampling_params": WITH_IDS}, after_prompt, first_tokens),
    Ask("/v1/completions", {"prompt": PROMPT} | WITH_IDS, after_prompt, first_tokens, streams=True),
    Ask(NATIVE, LOOK | {"sampling_params": WITH_IDS}, after_pictures, first_tokens, streams=True),
    Ask(CHAT, LOOK | WITH_IDS, after_pictures, first_tokens, streams=True),
    Ask(
        RESPONSES,
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is the same in "},
                        {"type": "input_image", "detail": "auto", "image_url": url("red")},
                        {"type": "input_text", "text": " and "},
                        {"type": "input_image", "detail": "auto", "image_url": url("blue")},
                        {"type": "input_text", "text": "?"},
                    ],
                }
            ]
        }
        | LIMITED,
        as_text(after_pictures),
        of_responses,
    ),
    Ask(
        ANTHROPIC,
        sent(
            words("What is the same in "),
            source("red"),
            words(" and "),
            source("blue"),
            words("?"),
        )
        | GREEDY,
        as_text(after_pictures),
        of_messages,
    ),
)


def image(url: str) -> dict[str, Any]:
    return sent({"type": "image_url", "image_url": {"url": url}})


THREE = sent(part("red"), part("blue"), part("green"))
SEES_MISTAKES = (
    Refusal("three images where two are allowed", CHAT, THREE, "At most 2 image(s)"),
    Refusal("the same in the native form", NATIVE, THREE, "At most 2 image(s)"),
    Refusal("base64 without what it is", CHAT, image(png("red")), "data:image/png;base64,"),
    Refusal("a file that is no image", CHAT, image("data:image/png;base64,AAAA"), "image"),
    Refusal("an address of a private network", CHAT, image("http://127.0.0.1:9/a.png"), "data URL"),
    Refusal("a recording", CHAT, sent(words("What?"), recording()), "audio"),
)
HEARD = {"language": "en", "temperature": 0}


def transcribed(folder: Path) -> str:
    return reference.heard(folder, sound(), "en", "transcribe", 444)


def translated(folder: Path) -> str:
    return reference.heard(folder, sound(), "en", "translate", 444)


def told(reply: Any) -> str:
    return str(reply["text"])


WAV = {"file": sound()}
HEARS = (
    Ask("/v1/audio/transcriptions", HEARD, transcribed, told, files=WAV, streams=True),
    Ask("/v1/audio/translations", HEARD, translated, told, files=WAV),
)
TRANSCRIBE = "/v1/audio/transcriptions"
KLINGON = {"language": "klingon"}
NOISE = {"file": b"no sound" * 100}
HEARS_MISTAKES = (
    Refusal("a file that is no recording", TRANSCRIBE, HEARD, "Invalid or corrupted audio", NOISE),
    Refusal("an unknown language", TRANSCRIBE, KLINGON, "Unsupported language: 'klingon'.", WAV),
    Refusal(
        "an unknown form of the answer",
        TRANSCRIBE,
        HEARD | {"response_format": "mp3"},
        "Input should be 'json'",
        WAV,
    ),
)


def too_long(route: str, **body: Any) -> Refusal:
    return Refusal("too long a text", route, body, "512")


LISTEN = sent(words("What is said in "), recording(), words("?"))
LISTEN_TEXT = "<|user|>What is said in <|audio_bos|><|AUDIO|><|audio_eos|>?<|end|><|assistant|>"


def after_recording(folder: Path) -> list[int]:
    return reference.listened(folder, LISTEN_TEXT, sound(), TOKENS)


LISTENS = (
    *TEXT,
    Ask(NATIVE, LISTEN | {"sampling_params": WITH_IDS}, after_recording, first_tokens),
    Ask(CHAT, LISTEN | WITH_IDS, after_recording, first_tokens, streams=True),
    Ask(
        CHAT,
        sent(
            words("What is said in "),
            {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{AUDIO}"}},
            words("?"),
        )
        | WITH_IDS,
        after_recording,
        first_tokens,
    ),
)
LISTENS_MISTAKES = (
    Refusal("an image", CHAT, sent(words("What?"), part("red")), "image"),
    Refusal("a file that is no recording", CHAT, sent(recording(b"no" * 99)), "Invalid"),
)


def best_of_prompt(folder: Path) -> dict[int, float]:
    return reference.likeliest(folder, reference.token_ids(folder, PROMPT))


def first_chances(reply: Any) -> dict[int, float]:
    (first,) = reply["choices"][0]["logprobs"]
    return {one["token_id"]: one["logprob"] for one in first["top"]}


# In bfloat16 greedy texts part soon: what is likeliest next is compared.
ONE_TOKEN = {"max_tokens": 1, "temperature": 0, "logprobs": 4}
HALF_TEXT = (
    Ask(NATIVE, {"prompt": PROMPT, "sampling_params": ONE_TOKEN}, best_of_prompt, first_chances),
    *(replace(ask, says=None) for ask in TEXT),
)
HALF = {"DTYPE": "bfloat16"}  # what these kernels want on a CPU

KINDS = (
    text("Dense, sliding window (Mistral)", "kind-sliding-window"),
    half("Latent attention, MLA (DeepSeek V3)", "kind-mla"),
    text("Mixture of experts (Qwen3 MoE)", "kind-moe"),
    Kind(
        "Hybrid of convolutions and attention (LFM2)",
        "kind-hybrid",
        HALF_TEXT,
        TEXT_MISTAKES,
        note="in float32 too its chances part from transformers' in hundredths, as in bfloat16",
    ),
    text("Hybrid of Mamba and attention (Granite 4)", "kind-hybrid-mamba"),
    half("Hybrid of linear and full attention (Qwen3-Next)", "kind-hybrid-linear"),
    text("Known to transformers alone (OLMo 2)", "kind-transformers-only"),
    text("Its own code in the repository", "kind-own-code", environ={"TRUST_REMOTE_CODE": "true"}),
    Kind(
        "Vision, several images (Idefics3)",
        "kind-sees",
        SEES,
        SEES_MISTAKES,
        {
            "LIMIT_MM_PER_PROMPT": "image=2",
            "MM_PROCESSOR_KWARGS": json.dumps({"size": SIZE}),
        },
    ),
    Kind("Speech (Whisper)", "kind-hears", HEARS, HEARS_MISTAKES, {"MAX_MODEL_LEN": "448"}),
    Kind(
        "Speech in a conversation (Qwen2-Audio)",
        "kind-listens",
        LISTENS,
        LISTENS_MISTAKES,
        {"MAX_MODEL_LEN": "1024"},
    ),
    Kind(
        "Embeddings of a decoder (Qwen3 Embedding)",
        "kind-decoder-embedding",
        (
            Ask("/v1/embeddings", {"input": PROMPT}, vector, embedding),
            pools(vector),
            *ranks(cosines),
        ),
        (too_long("/v1/embeddings", input=LONG),),
        {"RUNNER": "pooling", "CONVERT": "embed"},
    ),
    Kind(
        "Reranker, a cross-encoder (BERT)",
        "kind-cross-encoder",
        (
            *ranks(sigmoid_of_pairs),
            Ask("/classify", {"input": PROMPT}, chance, classes),
            pools(chance),
        ),
        (too_long("/v1/rerank", query="x", documents=[LONG]),),
    ),
    Kind(
        "Classifier (BERT)",
        "kind-classifier",
        (Ask("/classify", {"input": PROMPT}, chances, classes), pools(chances)),
        (too_long("/classify", input=LONG),),
    ),
    Kind(
        "Classifier of tokens (BERT)",
        "kind-token-classifier",
        (pools(tags),),
        (too_long("/pooling", input=LONG),),
    ),
    Kind(
        "Reward model, one score (Qwen2)",
        "kind-reward",
        (
            Ask("/classify", {"input": PROMPT, "use_activation": False}, reward, classes),
            pools(chance),
            *ranks(sigmoid_of_pairs),
        ),
        (too_long("/classify", input=LONG),),
    ),
    text("Tokenizer: sentencepiece", "kind-sentencepiece"),
    text("Tokenizer: tiktoken", "kind-tiktoken"),
    text("Tokenizer: tekken", "kind-tekken", environ={"TOKENIZER_MODE": "mistral"}),
    text("Format: safetensors in shards", "kind-sharded"),
    text("Format: PyTorch's .bin", "kind-pickled"),
    half("Format: GPTQ, 4 bits", "kind-gptq", truth="kind-four-bits-plain"),
    half("Format: AWQ, 4 bits", "kind-awq", truth="kind-four-bits-plain"),
    half("Format: compressed-tensors, int8", "kind-int8", truth="kind-int8-plain"),
    Kind(
        "Format: GGUF (vllm-gguf-plugin)",
        "kind-gguf",
        quant="Q8_0",
        environ={"PYTHONPATH": str(making.GGUF_PLUGIN), "TOKENIZER_NAME": "tiny/kind-gguf"},
        cannot="Triton dequant kernels require CUDA tensors",
    ),
    Kind(
        "Vision whose class imports torchvision (LLaVA)",
        "kind-needs-torchvision",
        cannot="No module named 'torchvision'",
    ),
)
BY_DAY = ("kind-sees",)


@dataclass(frozen=True)
class Start:
    """A start that fails: the model, a variable too many or too few, and the last line."""

    model: str
    environ: Mapping[str, str]
    sentence: str

    @property
    def key(self) -> str:
        return f"{self.model} {self.mistake}"

    @property
    def mistake(self) -> str:
        """The variables as they were, for the page."""
        return " ".join(f"{name}={value}" for name, value in self.environ.items()) or "none"


STARTS = (
    Start("kind-own-code", {"TRUST_REMOTE_CODE": ""}, "Set TRUST_REMOTE_CODE=true"),
    Start("kind-classifier", {"RUNNER": "generate"}, "RUNNER"),
    Start("kind-hears", {"MAX_MODEL_LEN": "512"}, "MAX_MODEL_LEN=512 must be at most 448"),
    Start("kind-awq", {"DTYPE": "float32"}, "Set QUANTIZATION (or DTYPE)"),
    Start("kind-moe", {"QUANTIZATION": "gptq"}, "unset QUANTIZATION"),
    Start("kind-sees", {"LIMIT_MM_PER_PROMPT": "image=many"}, "LIMIT_MM_PER_PROMPT"),
    Start("kind-gguf", {}, "vllm-gguf-plugin"),
)
