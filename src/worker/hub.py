"""What of a hub repository a model needs, and its download; shared with the image's build.

Beside Python it needs huggingface_hub alone, so a build stage without vLLM and torch can run it.
"""

import errno
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from worker.errors import StartError

Kind = Literal["model", "tokenizer", "adapter", "code"]
Say = Callable[[str], None]

PROGRESS_S = 10.0
REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
GGUF = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+):(?P<quant>[\w+-]+)")

# What no engine reads: other frameworks' weights, what training left, pictures, and copies of the
# weights for other programs, which lie in folders of well-known names.
UNNEEDED = [
    *(
        "*.h5",
        "*.msgpack",
        "*.onnx",
        "*.onnx_data",
        "*.ot",
        "*.tflite",
        "*.mlmodel",
        "*.mlpackage/*",
    ),
    *("*.pth", "*.ckpt", "*.ckpt.*", "*.nemo", "*.llamafile", "*.zip", "*.tar", "*.tar.*", "*.tgz"),
    *("*training_args.bin", "*optimizer.bin", "*optimizer.pt", "*scheduler.pt", "*scaler.pt"),
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.svg", "*.mp3", "*.mp4", "*.wav", "*.pdf"),
    *("*.parquet", "*.arrow", "*.ipynb", ".git*", "*/.git*", "README.md"),
    *("original/*", "metal/*", "onnx/*", "openvino/*", "coreml/*", "runs/*", "checkpoint-*/*"),
]
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
# Mistral's own layout beside Hugging Face's: LOAD_FORMAT=auto of vLLM 0.32 takes it where it is.
CONSOLIDATED = "consolidated*.safetensors"
FORMATS = {
    "auto": (CONSOLIDATED, "*.safetensors", "*.bin", "*.pt"),
    "bitsandbytes": ("*.safetensors", "*.bin", "*.pt"),
    "hf": ("*.safetensors", "*.bin", "*.pt"),
    "mistral": (CONSOLIDATED,),
    "npcache": ("*.bin",),
    "pt": ("*.pt",),
    **dict.fromkeys(
        ("safetensors", "fastsafetensors", "instanttensor", "runai_streamer"), ("*.safetensors",)
    ),
}


def formats(name: str, load_format: str = "auto") -> tuple[str, ...] | None:
    """Return the patterns of weights that LOAD_FORMAT reads, the best first; None if unknown."""
    if gguf := GGUF.fullmatch(name):
        quants = (gguf["quant"].upper(), gguf["quant"].lower())
        return tuple(f"*[-.]{quant}{end}.gguf" for quant in quants for end in ("", "-*"))
    return FORMATS.get(load_format)


def choose(files: Iterable[str], patterns: Iterable[str] = FORMATS["auto"]) -> list[str]:
    """Return the files of a repository that are needed: all but what is known not to be.

    Of the weights each folder keeps one format, the first of `patterns` that it really has
    weights in: a `.json` of that name is none.
    """
    kept = [file for file in files if not any(fnmatch(file, pattern) for pattern in UNNEEDED)]
    patterns = tuple(patterns)
    best = {
        folder: next((p for p in patterns if any(fnmatch(_name(file), p) for file in of)), None)
        for folder, of in _by_folder(filter(is_weight, kept)).items()
    }
    return [
        file
        for file in kept
        if not (weight := _weight(file)) or _matches(weight, best.get(_folder(file)))
    ]


def is_weight(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in WEIGHTS)


def _weight(file: str) -> str | None:
    """Return the weights that a file holds or is the index of, by name."""
    name = _name(file.removesuffix(".index.json"))
    return name if is_weight(name) else None


def _matches(weight: str, best: str | None) -> bool:
    # A folder's other safetensors are Hugging Face's copy of the consolidated ones, and vice versa.
    if best == "*.safetensors" and fnmatch(weight, CONSOLIDATED):
        return False
    return best is not None and fnmatch(weight, best)


def _by_folder(files: Iterable[str]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(_folder(file), []).append(file)
    return folders


def _folder(file: str) -> str:
    return str(PurePosixPath(file).parent)


def _name(file: str) -> str:
    return PurePosixPath(file).name


def download(
    name: str,
    revision: str | None = None,
    *,
    cache: str | Path | None = None,
    kind: Kind = "model",
    load_format: str = "auto",
    ignore: list[str] | None = None,
    token: str | Literal[False] | None = None,
    say: Say = print,
) -> Path:
    """Fetch what is needed of a repository into a hub cache, and return its snapshot.

    What is there already is not fetched again, a broken transfer goes on where it broke, and
    workers that share the cache wait for one another: these are huggingface_hub's doing.
    `name` may end in the quantisation of a GGUF file (`org/name:Q4_K_M`).
    Raises StartError with one sentence.
    """
    from huggingface_hub import HfApi, constants

    gguf = GGUF.fullmatch(name)
    repository = gguf["repository"] if gguf else name
    where = Path(cache or constants.HF_HUB_CACHE).expanduser()
    started_s = time.monotonic()
    with _translated(repository, revision, where):
        api = HfApi(token=token)
        info = api.repo_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        patterns = formats(name, load_format) or FORMATS["auto"]
        files = _of_kind(kind, sizes, patterns)
        if ignore:
            files = [file for file in files if not any(fnmatch(file, p) for p in ignore)]

        def fetch(wanted: list[str]) -> Path:
            return Path(
                api.snapshot_download(
                    repository,
                    revision=revision,
                    cache_dir=where,
                    allow_patterns=[re.sub(r"([*?[])", r"[\1]", file) for file in wanted],
                    tqdm_class=_silent(),
                )
            )

        if kind == "model":
            for index in [file for file in files if file in ROOT_INDEXES]:
                files = _only_indexed(files, index, fetch([index]) / index)
            _check_weights(repository, files, sizes, is_gguf=bool(gguf))
        folder = where / f"models--{repository.replace('/', '--')}"
        missing = sum(
            sizes[file] for file in files if not (folder / f"snapshots/{info.sha}/{file}").exists()
        )
        _check_space(repository, where, missing)
        say(f"{repository}: {len(files)} files, {_size(missing)} to fetch into {where}")
        with _progress(repository, folder / "blobs", missing, say):
            snapshot = fetch(files)
        say(f"{repository}: complete after {time.monotonic() - started_s:.0f} s")
    for other in sorted(_code_elsewhere(snapshot) - {repository}) if kind != "code" else ():
        download(other, cache=where, kind="code", token=token, say=say)
    return snapshot


def adapters(baked: Mapping[str, str]) -> list[str]:
    """Return the repositories of LORA_MODULES; raises ValueError where it is not understood."""
    value = json.loads(baked.get("LORA_MODULES", "[]"))
    return [adapter["path"] for adapter in (value if isinstance(value, list) else [value])]


ROOT_INDEXES = (
    "model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
)


def _of_kind(kind: Kind, files: Iterable[str], patterns: tuple[str, ...]) -> list[str]:
    match kind:
        case "code":
            return [file for file in files if file.endswith(".py")]
        case "tokenizer":
            return [file for file in choose(files, patterns) if not _weight(file)]
        case "model" | "adapter":
            return choose(files, patterns)


def _only_indexed(files: list[str], index: str, path: Path) -> list[str]:
    """Leave out weights beside the shards, such as the same ones in one piece."""
    try:
        shards = set(json.loads(path.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        raise StartError(f"{index} is no index of shards") from None
    if lost := sorted(shards - set(files)):
        raise StartError(f"{index} names {lost[0]}, which the repository does not have")
    ours = index.removesuffix(".index.json").rpartition(".")[2]
    return [
        file
        for file in files
        if file in shards or _folder(file) != "." or not file.endswith(f".{ours}")
    ]


def _check_weights(name: str, files: list[str], every: Iterable[str], *, is_gguf: bool) -> None:
    if any(is_weight(file) and _folder(file) == "." for file in files):
        return
    ggufs = sorted(file for file in every if file.endswith(".gguf"))
    if is_gguf or ggufs:
        has = f"It has {', '.join(ggufs[:8]) or 'none'}."
        example = (
            "MODEL_NAME=org/name:Q4_K_M names one, and TOKENIZER_NAME the model it was made of"
        )
        what = "has no GGUF file of that quantisation" if is_gguf else "holds GGUF files"
        raise StartError(f"{name} {what}: {example}. {has}")
    raise StartError(f"{name} holds no weights in a format that vLLM reads here")


def _check_space(name: str, where: Path, missing: int) -> None:
    there = next(path for path in (where, *where.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if missing > free:
        raise StartError(
            f"{name} needs {_size(missing)} more, and {where} has {_size(free)} free: "
            "make room there, or set BASE_PATH to a folder that has it"
        )


def _code_elsewhere(snapshot: Path) -> set[str]:
    """Return the repositories whose Python code this one's configuration names."""
    found = set()
    for file in snapshot.glob("*config.json"):
        try:
            auto_map = json.loads(file.read_text()).get("auto_map") or {}
        except (OSError, ValueError, AttributeError):
            continue
        for names in auto_map.values() if isinstance(auto_map, dict) else ():
            for name in names if isinstance(names, list) else [names]:
                if isinstance(name, str) and "--" in name:
                    found.add(name.partition("--")[0])
    return found


@contextmanager
def _translated(name: str, revision: str | None, where: Path) -> Iterator[None]:
    """Turn whatever goes wrong into one sentence that says what to do."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    try:
        yield
    except StartError:
        raise
    except errors.GatedRepoError:
        why = f"is gated: accept its terms at {hub}/{name}, and give HF_TOKEN a token that may read"
    except errors.RepositoryNotFoundError:
        why = f"is not on {hub}, or is private and HF_TOKEN may not read it"
    except errors.RevisionNotFoundError:
        why = f"has no revision {revision!r}"
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        if constants.HF_HUB_OFFLINE:
            why = "is not on this machine, and HF_HUB_OFFLINE forbids to fetch it"
        else:
            why = f"cannot be fetched from {hub}: {_reason(error)}"
    except Exception as error:
        why = _disk(error, where) or f"cannot be fetched from {hub}: {_reason(error)}"
    else:
        return
    raise StartError(f"{name} {why}") from None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _disk(error: BaseException, where: Path) -> str | None:
    """Say what is wrong with the disk, if that is what is wrong."""
    code = error.errno if isinstance(error, OSError) else None
    text = str(error)  # the Xet client's errors carry no number
    if code in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in text:
        return f"does not fit into {where}: the disk is full. Make room there, or set BASE_PATH"
    if code in (errno.EROFS, errno.EACCES, errno.EPERM) or os.strerror(errno.EROFS) in text:
        return f"cannot be stored in {where}, which cannot be written. BASE_PATH names another"
    return None


@contextmanager
def _progress(name: str, blobs: Path, missing: int, say: Say) -> Iterator[None]:
    """Say every few seconds how much is there, in lines, which a build's log can hold."""
    done, before = threading.Event(), _stored(blobs)

    def watch() -> None:
        last = 0
        while not done.wait(PROGRESS_S):
            now = min(_stored(blobs) - before, missing)
            rate = max(now - last, 0) / PROGRESS_S
            say(f"{name}: {_size(now)} of {_size(missing)}, {_size(rate)}/s")
            last = now

    watching = threading.Thread(target=watch, name="download progress", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


def _stored(blobs: Path) -> int:
    total = 0
    for blob in blobs.glob("*"):
        with suppress(OSError):  # a part of a download is renamed at its end
            total += blob.stat().st_size
    return total


def _silent() -> Any:
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):  # type: ignore[misc]
        """A bar that draws nothing: bars redraw one line, and a log has no such thing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
