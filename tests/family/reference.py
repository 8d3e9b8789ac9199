"""What transformers says, in the checkpoint's own dtype: the truth for a worker's answers."""

import functools
import io
import wave
from pathlib import Path
from typing import Any

import transformers

SEES = "AutoModelForImageTextToText"


@functools.lru_cache(maxsize=2)
def _loaded(folder: Path, kind: str) -> Any:
    auto = getattr(transformers, kind)
    return auto.from_pretrained(folder, dtype="auto", trust_remote_code=True).eval()


@functools.lru_cache(maxsize=2)
def _tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def token_ids(folder: Path, text: str) -> list[int]:
    return list(_tokenizer(folder)(text)["input_ids"])


def conversation_ids(folder: Path, messages: list[Any]) -> list[int]:
    return list(
        _tokenizer(folder).apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
    )


def continued(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    """Return the greedy tokens that follow a prompt."""
    import torch

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    (kind,) = config.architectures
    model = _loaded(folder, kind if hasattr(transformers, kind) else "AutoModelForCausalLM")
    given = torch.tensor([prompt])
    made = model.generate(
        given, attention_mask=given * 0 + 1, max_new_tokens=tokens, do_sample=False
    )
    return list(map(int, made[0][len(prompt) :]))


def written(folder: Path, tokens: list[int]) -> str:
    """Return the text of an answer's tokens, with the space that it may begin with.

    A character that is not whole at the end is never told.
    """
    before = token_ids(folder, "a")
    begun, whole = (
        str(_tokenizer(folder).decode(ids, skip_special_tokens=True))
        for ids in (before, [*before, *tokens])
    )
    return whole.removeprefix(begun).rstrip("\N{REPLACEMENT CHARACTER}")


def likeliest(folder: Path, prompt: list[int]) -> dict[int, float]:
    """Return the logarithms of the chances of the likeliest next tokens."""
    import torch

    with torch.no_grad():
        after = _loaded(folder, "AutoModelForCausalLM")(torch.tensor([prompt])).logits[0, -1]
    best = after.float().log_softmax(-1).topk(12)
    return dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def seen(folder: Path, text: str, images: list[Any], tokens: int, **given: Any) -> list[int]:
    """Return the greedy tokens that follow a prompt with images in their places.

    `given` is what the processor is told.
    """
    processor = transformers.AutoProcessor.from_pretrained(folder)
    given = processor(text=text, images=images, return_tensors="pt", **given)
    model = _loaded(folder, SEES)
    made = model.generate(**given, max_new_tokens=tokens, do_sample=False)
    return list(map(int, made[0][given["input_ids"].shape[1] :]))


def heard(folder: Path, sound: bytes, language: str, task: str, tokens: int) -> str:
    """Return what a Whisper writes of a WAV of 16 kHz."""
    import torch
    from transformers.generation import GenerationMixin

    samples = _samples(sound)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    features = processor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    words = ["<|startoftranscript|>", f"<|{language}|>", f"<|{task}|>", "<|notimestamps|>"]
    begun = torch.tensor([processor.tokenizer.convert_tokens_to_ids(words)])
    model = _loaded(folder, "AutoModelForSpeechSeq2Seq")
    # Whisper's own generate() adds rules of its own, such as which tokens may come first.
    made = GenerationMixin.generate(
        model,
        input_features=features.float(),
        decoder_input_ids=begun,
        max_new_tokens=tokens,
        do_sample=False,
    )
    return str(processor.decode(made[0][len(words) :], skip_special_tokens=True))


def _samples(sound: bytes) -> Any:
    import numpy as np

    with wave.open(io.BytesIO(sound)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16) / 32768


def listened(folder: Path, text: str, sound: bytes, tokens: int) -> list[int]:
    """Return the greedy tokens that follow a prompt with a recording in its place."""
    processor = transformers.AutoProcessor.from_pretrained(folder)
    given = processor(text=text, audio=_samples(sound), sampling_rate=16_000, return_tensors="pt")
    model = _loaded(folder, "Qwen2AudioForConditionalGeneration")
    made = model.generate(**given, max_new_tokens=tokens, do_sample=False)
    return list(map(int, made[0][given["input_ids"].shape[1] :]))


def embedded(folder: Path, text: str) -> list[float]:
    """Return the last token's state, of length 1."""
    import torch

    with torch.no_grad():
        states = _loaded(folder, "AutoModel")(torch.tensor([token_ids(folder, text)]))[0]
    return list(torch.nn.functional.normalize(states[0, -1], dim=-1).tolist())


def logits(folder: Path, *texts: str, kind: str = "AutoModelForSequenceClassification") -> Any:
    """Return what a classifier says of a text, a pair, or each token; a tensor of its classes."""
    import torch

    given = _tokenizer(folder)(*texts, return_tensors="pt")
    with torch.no_grad():
        return _loaded(folder, kind)(**given).logits[0]
