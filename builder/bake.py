"""Fetch a model into the image that is being built: `python builder/bake.py --root /baked`.

The build's arguments are environment variables; one that is empty is not set:

    MODEL_NAME          the repository, such as org/name; org/name:Q4_K_M for a GGUF file of it
    MODEL_REVISION      a branch, a tag or a commit of it
    TOKENIZER_NAME      another repository for the tokenizer
    TOKENIZER_REVISION  the tokenizer's revision, of the model's repository where none is named
    QUANTIZATION        what the weights are quantised with, where vLLM cannot tell
    LORA_MODULES        adapters, as the worker reads them: [{"name": …, "path": "org/adapter"}]
    BASE_PATH           where in the image the files are put (/models)
    QUANTIZE            what quantize.py does afterwards: fp8, int8 or w4a16

The Hugging Face token comes as a secret of the build, in a file, and goes nowhere else. Beside the
files, which lie in a hub cache, /etc/worker-vllm/baked.json is written: what the worker reads as
the lowest layer of its settings. Needs huggingface_hub and worker.model; no vLLM and no torch.
"""

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from worker.errors import SettingsError, StartError
from worker.model import download, files
from worker.sentences import hide, hide_in_logs

# Not /runpod-volume: at run time the network volume is mounted over whatever an image has there.
BASE_PATH = "/models"
VOLUME = "/runpod-volume"
SECRET = "/run/secrets/HF_TOKEN"
SCHEMES = ("fp8", "int8", "w4a16")
BAKED = "etc/worker-vllm/baked.json"
NAMES = (
    *("MODEL_NAME", "MODEL_REVISION", "TOKENIZER_NAME", "TOKENIZER_REVISION"),
    *("QUANTIZATION", "LORA_MODULES", "BASE_PATH"),
)


def arguments(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that are set. Raises SettingsError with a sentence for each problem."""
    given = {name: environ[name].strip() for name in NAMES if environ.get(name, "").strip()}
    given = {name: text for name, text in given.items() if text.lower() not in ("none", "null")}
    if "MODEL_NAME" not in given:
        others = [name for name in given if name != "BASE_PATH"]
        if others:
            raise SettingsError(f"{others[0]} is set and MODEL_NAME is not: there is no model")
        return {}
    scheme = environ.get("QUANTIZE", "").strip().lower().replace("none", "")
    problems = [
        f"{name}={text!r} {why}"
        for name, text in given.items()
        if (why := _CHECKS[name](text)) is not None
    ]
    if scheme not in ("", *SCHEMES):
        problems.append(f"QUANTIZE={scheme!r} must be one of {', '.join(SCHEMES)}")
    elif scheme and (":" in given["MODEL_NAME"] or "QUANTIZATION" in given):
        problems.append(f"QUANTIZE={scheme} needs a model that is not quantised")
    if environ.get("HF_TOKEN"):
        problems.append(
            "HF_TOKEN is in the environment, where an image's history keeps it: give it as a "
            "secret, with --secret id=HF_TOKEN"
        )
    if problems:
        raise SettingsError(*problems)
    return {"BASE_PATH": BASE_PATH, **given}


def _repository(text: str) -> str | None:
    if files.GGUF.fullmatch(text):
        return None
    if files.REPOSITORY.fullmatch(text) and not re.search(r"\.\.|--|^[-.]|[-.]$|\.git$", text):
        return None
    return "is no repository of the hub, which has the form org/name"


def _revision(text: str) -> str | None:
    fine = re.fullmatch(r"[\w./-]+", text) and ".." not in text
    return None if fine else "is no branch, tag or commit"


def _quantization(text: str) -> str | None:
    if text.lower() == "squeezellm":
        return "is gone from vLLM: take a model quantised with AWQ or GPTQ, or set QUANTIZE"
    return None if re.fullmatch(r"[\w-]+", text) else "is no name of a quantisation"


def _base_path(text: str) -> str | None:
    path = PurePosixPath(text)
    if not path.is_absolute() or path == PurePosixPath("/") or ".." in path.parts:
        return "must be a folder, from the root"
    if path.is_relative_to(VOLUME):
        return f"would be hidden by the network volume: use a folder such as {BASE_PATH}"
    return None


def _lora_modules(text: str) -> str | None:
    try:
        names = files.adapters({"LORA_MODULES": text})
    except (ValueError, KeyError, TypeError):
        return 'is no JSON such as [{"name": "a", "path": "org/adapter"}]'
    bad = next((name for name in names if not isinstance(name, str) or _repository(name)), None)
    return None if bad is None else f"names {bad!r}, which {_repository(str(bad))}"


_CHECKS = {
    "MODEL_NAME": _repository,
    "MODEL_REVISION": _revision,
    "TOKENIZER_NAME": _repository,
    "TOKENIZER_REVISION": _revision,
    "QUANTIZATION": _quantization,
    "LORA_MODULES": _lora_modules,
    "BASE_PATH": _base_path,
}


def bake(given: Mapping[str, str], root: Path, token: str | None) -> None:
    """Fetch everything into the hub cache below `root` and BASE_PATH, and write down what it is."""
    if given:
        cache = root / given["BASE_PATH"].lstrip("/") / "huggingface-cache" / "hub"
        cache.mkdir(parents=True, exist_ok=True)
        wanted: list[tuple[str, str | None, files.Kind]] = [
            (given["MODEL_NAME"], given.get("MODEL_REVISION"), "model"),
            *((path, None, "adapter") for path in files.adapters(given)),
        ]
        if tokenizer := files.baked_tokenizer(given):
            wanted.append((*tokenizer, "tokenizer"))
        for name, revision, kind in wanted:
            download.download(
                name, revision, cache=cache, kind=kind, token=token or False, say=_say
            )
        # By these lists of whole repositories the hub's client would later call ours incomplete.
        for leftover in (*cache.glob("*/trees"), cache / ".locks"):
            shutil.rmtree(leftover, ignore_errors=True)
    baked = root / BAKED
    baked.parent.mkdir(parents=True, exist_ok=True)
    baked.write_text(json.dumps(given, indent=2) + "\n")
    _say(f"{baked}: {json.dumps(given)}")


def _say(line: str) -> None:
    print(hide(line), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--check", action="store_true", help="only check the arguments")
    parser.add_argument(
        "--root", type=Path, default=Path("/"), help="the image's root, or a folder"
    )
    parser.add_argument("--secret", type=Path, default=Path(SECRET), help="the token's file")
    options = parser.parse_args()
    hide_in_logs()
    if not os.environ.get("HF_ENDPOINT"):
        os.environ.pop("HF_ENDPOINT", None)  # the hub's client would take the empty text
    # Blobs lie beside their snapshot, so that the folder can be copied from stage to stage.
    os.environ["HF_HUB_DISABLE_SHARED_BLOBS"] = "1"
    os.environ.setdefault("HF_XET_HIGH_PERFORMANCE", "1")
    try:
        given = arguments(os.environ)
        if not given:
            _say("MODEL_NAME is not set: no model is baked in.")
        if not options.check:
            token = options.secret.read_text().strip() if options.secret.is_file() else None
            bake(given, options.root, token)
    except SettingsError as error:
        for problem in error.problems:
            print(hide(f"error: {problem}"), file=sys.stderr)
        return 1
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
