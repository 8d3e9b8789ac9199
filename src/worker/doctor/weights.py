"""How much a model's weights are, from the heads of their files; nothing else is fetched.

One path for a folder, a hub cache (which is a folder) and the hub: names and sizes of the files,
then the header of each safetensors file, which says the type and the bytes of every tensor.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from worker.model import files, locate
from worker.model.download import listing, translated

Tensor = tuple[str, int, Sequence[int]]  # its type, its bytes, its shape


@dataclass(frozen=True)
class Weights:
    """Sizes in bytes: of all files, of the largest, and of the tensors by type (`BF16`).

    A tensor counts once, whatever files hold it, and not where it is in a folder below, of which
    vLLM loads none as the model. Without `by_dtype` nothing says so (GGUF, pickles). `shapes` are
    those of the tensors of floats.
    """

    count: int
    stored: int
    largest: int
    by_dtype: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict, compare=False)

    @property
    def least(self) -> int:
        """What of them surely is in memory: vLLM makes 16-bit floats of longer ones."""
        halves = {"F32": 2, "F64": 4}
        tensors = sum(size // halves.get(dtype, 1) for dtype, size in self.by_dtype.items())
        return min(tensors, self.stored)  # the hub counts packed tensors unpacked


def read(
    name: str,
    revision: str | None,
    snapshot: str,
    *,
    load_format: str = "auto",
    token: str | Literal[False] | None = None,
    heads: bool = True,
) -> Weights | None:
    """Return the weights of a folder, or of a repository of the hub whose rest is in `snapshot`.

    Without `heads` the hub's own sum by type stands for those of its files, which costs nothing.
    None where this worker cannot read the files of, such as another store's.
    Raises StartError with a sentence, as a download does.
    """
    path, patterns = Path(name), files.formats(name, load_format)
    if path.is_file():
        return Weights(1, path.stat().st_size, path.stat().st_size)
    if path.is_dir():
        sizes = {
            str(file.relative_to(path)): file.stat().st_size
            for file in path.rglob("*")
            if file.is_file()
        }
        return _read(sizes, patterns, path, lambda file: _header(path / file))
    gguf = files.GGUF.fullmatch(name)
    if not patterns or not (gguf or files.REPOSITORY.fullmatch(name)):
        return None
    from huggingface_hub import HfApi, constants

    repository = gguf["repository"] if gguf else name
    with translated(repository, revision, Path(constants.HF_HUB_CACHE)):
        api = HfApi(token=token)
        info = listing(repository, revision, token)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}

        def header(file: str) -> Mapping[str, Tensor]:
            found = api.parse_safetensors_file_metadata(repository, file, revision=info.sha)
            return {
                tensor: (one.dtype, one.data_offsets[1] - one.data_offsets[0], one.shape)
                for tensor, one in found.tensors.items()
            }

        found = _read(sizes, patterns, Path(snapshot), header if heads else lambda _: {})
        if heads or not info.safetensors:
            return found
        return replace(
            found,
            by_dtype={
                name: count * _bits(name) // 8
                for name, count in info.safetensors.parameters.items()
            },
        )


def of_all(named: argparse.Namespace, args: argparse.Namespace) -> dict[str, Weights]:
    """Return the weights of the model, a draft model and adapters, by the folder of the rest.

    `named` are vLLM's arguments before that was fetched, `args` afterwards.
    """
    token = named.hf_token if isinstance(named.hf_token, str) else None
    found = {}
    pairs = zip(locate.named(named), locate.named(args), strict=True)
    for (name, revision, kind), (folder, *_) in pairs:
        if kind == "tokenizer":
            continue
        its = read(name, revision, folder, load_format=named.load_format, token=token)
        if its:
            found[folder] = its
    return found


def _read(
    sizes: Mapping[str, int],
    patterns: tuple[str, ...] | None,
    folder: Path,
    header: Callable[[str], Mapping[str, Tensor]],
) -> Weights:
    chosen = files.choose(sizes, patterns or files.FORMATS["auto"])
    for index in [file for file in chosen if file in files.ROOT_INDEXES]:
        if (folder / index).exists():
            chosen = files.only_indexed(chosen, index, folder / index)
    weights = [file for file in chosen if files.is_weight(file)]
    heads = [file for file in weights if file.endswith(".safetensors") and "/" not in file]
    tensors: dict[str, Tensor] = {}
    with ThreadPoolExecutor(8) as pool:
        for header_of in pool.map(header, heads):
            tensors |= header_of
    by_dtype: Counter[str] = Counter()
    for dtype, size, _ in tensors.values():
        by_dtype[dtype] += size
    stored = [sizes[file] for file in weights]
    shapes = {name: shape for name, (dtype, _, shape) in tensors.items() if "F" in dtype}
    return Weights(len(weights), sum(stored), max(stored, default=0), dict(by_dtype), shapes)


def _bits(dtype: str) -> int:
    """Return how long a type is, which its name says: `BF16`, `F8_E4M3`."""
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8


def _header(path: Path) -> Mapping[str, Tensor]:
    """Read the header of a safetensors file: 8 bytes of its length, then JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        found: dict[str, Any] = json.loads(file.read(length))
    found.pop("__metadata__", None)
    return {
        name: (one["dtype"], one["data_offsets"][1] - one["data_offsets"][0], one["shape"])
        for name, one in found.items()
    }
