"""Record what `transformers.generate` makes of every generation parameter.

    python tests/golden/make.py

rewrites `greedy.json`, `sampling.json` and `beams.json` beside this file, from the settings in
`golden_settings.py`, with SmolLM2-135M-Instruct in float32 on one thread, in about eleven
minutes. Run it after an upgrade of transformers. `python tests/golden/make.py beams` rewrites
that file alone.

Each file is one object:

- `transformers`: the version that made it
- `model`: its name for `models.path`
- `texts`: the prompts as text
- `prompts`: the prompts as token ids; the empty one starts from `bos_token_id`
- `cases`: a list of objects with
  - `name`
  - `parameters`: Hugging Face's names and values, in JSON as a user sends them
  - `why`: null, or why a parameter of this case changes nothing
  - `prompts`: positions in the file's `prompts`
  - `outputs`: one for each of them

An output of `greedy.json` is the list of generated token ids, with the end-of-text token if it
came. A case with `token_healing` also has `healed`, the token ids of its prompts after healing.

An output of `sampling.json` is the distribution of the first token after all processors and
warpers: `support` counts the tokens with a probability above 1e-30, `ids` and `probabilities`
are the most likely of them, at most 300, and `rest` is the sum of all other probabilities.

An output of `beams.json` has `sequences`, the generated token ids of each returned sequence
without padding, best first, and `scores`, their `sequences_scores`.

Nothing is written unless the data is sound. Every case must differ from the plain run, and every
parameter of a case must change one of its outputs, except where the setting says why not.
No output may hang on the last digits of a logit: greedy search must choose each token by more
than 1e-3, and the other outputs must stay as they are under noise of 1e-4 on every logit.
"""

import itertools
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import golden_settings
import torch
import transformers
from golden_settings import Setting
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation import (
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
import models

MODEL = "smollm2-135m-instruct"
NOISE = 1e-4
NOISE_SEEDS = (1, 2)
GREEDY_MARGIN = 1e-3
BEAM_MARGIN = 1e-4
PROBABILITY_DRIFT = 5e-4
PROBABILITY_CHANGE = 1e-3
SCORE_CHANGE = 1e-2
SUPPORT = 1e-30
LISTED = 300

# These say how much is generated and how; a case is not a case without them.
FRAME = {"do_sample", "max_new_tokens", "max_length", "num_return_sequences"}

Parameters = dict[str, Any]


class UnsoundError(Exception):
    """A case that would make a bad test, and why."""


class UntilDifferent(StoppingCriteria):
    """End a generation as soon as its tokens are not those of another one."""

    def __init__(self, other: list[int]) -> None:
        self.other = other
        self.prompt_length: int | None = None

    def __call__(self, input_ids: torch.LongTensor, *_: Any, **__: Any) -> torch.Tensor:
        if self.prompt_length is None:
            self.prompt_length = input_ids.shape[1] - 1
        made = input_ids[0, self.prompt_length :].tolist()
        return torch.tensor([made != self.other[: len(made)]])


class Reference:
    """The model, as `transformers` runs it on one prompt at a time."""

    def __init__(self) -> None:
        folder = models.path(MODEL)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.prompts = [self.tokenizer(text).input_ids for text in golden_settings.TEXTS]
        # Nothing but the special tokens may come from the model's own generation defaults.
        own = self.model.generation_config
        self.model.generation_config = GenerationConfig(
            bos_token_id=own.bos_token_id,
            eos_token_id=own.eos_token_id,
            pad_token_id=own.pad_token_id,
        )

    def generate(self, parameters: Parameters, prompt: int, **more: Any) -> Any:
        arguments = parameters | more
        if "keys" in (watermark := parameters.get("watermarking_config", {})):
            arguments["watermarking_config"] = SynthIDTextWatermarkingConfig(**watermark)
        if negative := parameters.get("negative_prompt_ids"):
            arguments["negative_prompt_ids"] = torch.tensor([negative])
        if {"stop_strings", "token_healing"} & set(parameters):
            arguments["tokenizer"] = self.tokenizer
        if ids := self.prompts[prompt]:
            arguments["inputs"] = torch.tensor([ids])
            # Without a mask transformers takes a padding token inside the prompt for padding
            # as soon as `eos_token_id` names another token.
            arguments["attention_mask"] = torch.ones_like(arguments["inputs"])
        return self.model.generate(output_scores=True, return_dict_in_generate=True, **arguments)

    @contextmanager
    def noise(self, seed: int) -> Iterator[None]:
        """Disturb every logit by at most `NOISE`."""
        generator = torch.Generator().manual_seed(seed)

        def disturb(_module: Any, _inputs: Any, logits: torch.Tensor) -> torch.Tensor:
            return logits + NOISE * (2 * torch.rand(logits.shape, generator=generator) - 1)

        hook = self.model.lm_head.register_forward_hook(disturb)
        try:
            yield
        finally:
            hook.remove()


class Kind:
    """One kind of output: how it is made, checked, compared and written."""

    settings: tuple[Setting, ...]

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.known: dict[str, Any] = {}

    def output(self, parameters: Parameters, prompt: int) -> Any:
        """Make an output, once."""
        key = json.dumps([parameters, prompt], sort_keys=True)
        if key not in self.known:
            self.known[key] = self.fresh_output(parameters, prompt)
        return self.known[key]

    def fresh_output(self, parameters: Parameters, prompt: int) -> Any:
        raise NotImplementedError

    def check(self, setting: Setting, prompt: int, output: Any) -> None:
        """Raise `UnsoundError` if the output hangs on the last digits of a logit."""
        raise NotImplementedError

    def differs(self, parameters: Parameters, prompt: int, output: Any) -> bool:
        """Return whether these parameters make another output."""
        raise NotImplementedError

    def written(self, outputs: list[Any]) -> dict[str, Any]:
        """Return the outputs' fields in the file."""
        raise NotImplementedError


class Greedy(Kind):
    """Whole answers of greedy search: generated token ids."""

    settings = golden_settings.GREEDY

    def fresh_output(self, parameters: Parameters, prompt: int, **more: Any) -> dict[str, Any]:
        made = self.reference.generate(parameters, prompt, **more)
        start = made.sequences.shape[1] - len(made.scores)
        ids = made.sequences[0].tolist()
        best = torch.cat(made.scores).topk(2).values
        healed = {"healed": ids[:start]} if parameters.get("token_healing") else {}
        return {"ids": ids[start:], "margins": best[:, 0] - best[:, 1]} | healed

    def differs(self, parameters: Parameters, prompt: int, output: dict[str, Any]) -> bool:
        if parameters == self.settings[0].parameters:
            other = self.output(parameters, prompt)
        else:
            until = StoppingCriteriaList([UntilDifferent(output["ids"])])
            other = self.fresh_output(parameters, prompt, stopping_criteria=until)
        return bool(other["ids"] != output["ids"])

    def check(self, setting: Setting, prompt: int, output: dict[str, Any]) -> None:
        margins = output["margins"]
        if setting.tie:
            margins = margins[margins > 0]
        if (smallest := margins.min().item()) < GREEDY_MARGIN:
            raise UnsoundError(f"prompt {prompt}: a token is chosen by {smallest:.1e} only")
        if "healed" in output:
            inputs = torch.tensor([self.reference.prompts[prompt]])
            for seed in NOISE_SEEDS:
                with self.reference.noise(seed):
                    healed = self.reference.model.heal_tokens(inputs, self.reference.tokenizer)
                if healed[0].tolist() != output["healed"]:
                    raise UnsoundError(f"prompt {prompt}: noise changes how it is healed")

    def written(self, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        healed = [output["healed"] for output in outputs if "healed" in output]
        return ({"healed": healed} if healed else {}) | {
            "outputs": [output["ids"] for output in outputs]
        }


class Sampling(Kind):
    """First steps of sampling: the probabilities of all tokens."""

    settings = golden_settings.SAMPLING

    def fresh_output(self, parameters: Parameters, prompt: int) -> torch.Tensor:
        return self.reference.generate(parameters, prompt).scores[0][0].softmax(-1)

    def differs(self, parameters: Parameters, prompt: int, output: torch.Tensor) -> bool:
        other = self.output(parameters, prompt)
        return not same_support(other, output) or drift(other, output) > PROBABILITY_CHANGE

    def check(self, setting: Setting, prompt: int, output: torch.Tensor) -> None:
        for seed in NOISE_SEEDS:
            with self.reference.noise(seed):
                noisy = self.fresh_output(setting.parameters, prompt)
            if not same_support(noisy, output):
                raise UnsoundError(f"prompt {prompt}: noise changes the support")
            if (change := drift(noisy, output)) > PROBABILITY_DRIFT:
                raise UnsoundError(f"prompt {prompt}: noise changes a probability by {change:.1e}")

    def written(self, outputs: list[torch.Tensor]) -> dict[str, Any]:
        return {"outputs": [distribution(output) for output in outputs]}


def same_support(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one > SUPPORT) == (other > SUPPORT)).all())


def drift(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def distribution(probabilities: torch.Tensor) -> dict[str, Any]:
    support = int((probabilities > SUPPORT).sum())
    order = probabilities.argsort(descending=True, stable=True)
    listed, others = order[: min(support, LISTED)], order[LISTED:]
    return {
        "support": support,
        "ids": listed.tolist(),
        "probabilities": digits(probabilities[listed].tolist()),
        "rest": digits([probabilities[others].double().sum().item()])[0],
    }


def digits(numbers: list[float]) -> list[float]:
    return [float(f"{number:.9g}") for number in numbers]


class Beams(Kind):
    """Beam search: sequences of token ids and their scores, best first."""

    settings = golden_settings.BEAMS

    def fresh_output(self, parameters: Parameters, prompt: int) -> dict[str, Any]:
        made = self.reference.generate(parameters, prompt)
        start = len(self.reference.prompts[prompt])
        lengths = (made.beam_indices >= 0).sum(dim=1).tolist()
        sequences = [
            row[start : start + length]
            for row, length in zip(made.sequences.tolist(), lengths, strict=True)
        ]
        return {"sequences": sequences, "scores": made.sequences_scores.tolist()}

    def differs(self, parameters: Parameters, prompt: int, output: dict[str, Any]) -> bool:
        if "num_beams" not in parameters:
            alone = parameters | {"num_return_sequences": 1}
            greedy = Greedy(self.reference).fresh_output(alone, prompt)
            return bool(greedy["ids"] != output["sequences"][0])
        other = self.output(parameters, prompt)
        return other["sequences"] != output["sequences"] or any(
            abs(one - two) > SCORE_CHANGE
            for one, two in zip(other["scores"], output["scores"], strict=True)
        )

    def check(self, setting: Setting, prompt: int, output: dict[str, Any]) -> None:
        gaps = [one - two for one, two in itertools.pairwise(output["scores"])]
        if min(gaps, default=1) < BEAM_MARGIN:
            raise UnsoundError(f"prompt {prompt}: two scores are {min(gaps):.1e} apart")
        with self.reference.noise(NOISE_SEEDS[0]):
            noisy = self.fresh_output(setting.parameters, prompt)
        if noisy["sequences"] != output["sequences"]:
            raise UnsoundError(f"prompt {prompt}: noise changes the sequences")

    def written(self, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"outputs": [o | {"scores": digits(o["scores"])} for o in outputs]}


KINDS: dict[str, type[Kind]] = {"greedy": Greedy, "sampling": Sampling, "beams": Beams}


def reduced(plain: Parameters, setting: Setting) -> dict[str, Parameters]:
    """Return what a setting must differ from: the plain run, and itself without a parameter."""
    full = setting.parameters
    beams = {"num_beams", "num_return_sequences"} & set(full)
    plain = plain | {name: full[name] for name in beams}
    changed = {name for name, value in full.items() if plain.get(name) != value}
    active = changed - set(setting.idle)
    others = {"the whole setting": plain} if active else {}
    for name in sorted((active | beams) - FRAME):
        neutral = {name: plain[name]} if name in changed & set(plain) else {}
        rest = {key: value for key, value in full.items() if key != name} | neutral
        if rest != plain:
            others[name] = rest
    return others


def case(kind: Kind, setting: Setting) -> dict[str, Any]:
    """Run a setting on its prompts; raise `UnsoundError` if the outputs would prove little."""
    outputs = [kind.output(setting.parameters, prompt) for prompt in setting.prompts]
    pairs = list(zip(setting.prompts, outputs, strict=True))
    for prompt, output in pairs:
        kind.check(setting, prompt, output)
    for name, parameters in reduced(kind.settings[0].parameters, setting).items():
        if not any(kind.differs(parameters, prompt, output) for prompt, output in pairs):
            raise UnsoundError(f"{name} changes nothing")
    return {
        "name": setting.name,
        "parameters": setting.parameters,
        "why": setting.why,
        "prompts": setting.prompts,
    } | kind.written(outputs)


def text(reference: Reference, cases: list[dict[str, Any]]) -> str:
    """Write a file's JSON with one prompt and one case a line, so that a change shows where."""

    def lines(items: Iterable[Any]) -> str:
        return "[\n" + ",\n".join(json.dumps(i, separators=(",", ":")) for i in items) + "\n]"

    fields = {
        "transformers": json.dumps(transformers.__version__),
        "model": json.dumps(MODEL),
        "texts": lines(golden_settings.TEXTS),
        "prompts": lines(reference.prompts),
        "cases": lines(cases),
    }
    return "{\n" + ",\n".join(f'"{name}": {value}' for name, value in fields.items()) + "\n}\n"


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    reference = Reference()
    unsound = 0
    for name in names or KINDS:
        kind, cases = KINDS[name](reference), []
        for setting in kind.settings:
            started = time.monotonic()
            try:
                cases.append(case(kind, setting))
                verdict = "sound"
            except UnsoundError as error:
                unsound += 1
                verdict = f"UNSOUND: {error}"
            took_s = time.monotonic() - started
            print(f"{name} {setting.name}: {verdict} ({took_s:.1f} s)", file=sys.stderr, flush=True)
        if len(cases) == len(kind.settings):
            Path(__file__).with_name(f"{name}.json").write_text(text(reference, cases))
    if unsound:
        sys.exit(f"{unsound} unsound cases; their files were not written")


if __name__ == "__main__":
    main(sys.argv[1:])
