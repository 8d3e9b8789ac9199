"""LoRA adapters that are fetched, checked and loaded when a request first names them.

vLLM 0.32 has resolvers for this. They know no patterns and no revisions, take an adapter only if
the base it names is the path of the model's folder, and say in the log alone what was wrong.
Which adapters are in memory is vLLM's to decide: the least recently used ones leave it.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.lora.utils import get_supported_lora_modules, parse_fine_tuned_lora_name
from vllm.model_executor.utils import get_packed_modules_mapping

from worker.engine.causes import sentence
from worker.errors import RequestError, WorkerError
from worker.sentences import shown

Shapes = Mapping[str, Sequence[int]]

log = logging.getLogger("worker")


@dataclass(frozen=True)
class Store:
    """Where adapters come from: both block, and raise WorkerError with a sentence.

    `find` returns the folder of a name and a revision, one folder for each version, and whether it
    was fetched for this worker alone; `remove` deletes such a folder. `most_bytes` is LORA_DISK_GB.
    """

    find: Callable[[str, str | None], tuple[Path, bool]]
    remove: Callable[[Path], None]
    most_bytes: int


@dataclass(frozen=True)
class Adapters:
    """The adapters of one worker. `allowed` are the patterns of LORA_ALLOWED."""

    app: Any = None
    client: Any = None
    store: Store | None = None
    allowed: tuple[str, ...] = ()
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _held: Counter[str] = field(default_factory=Counter)
    _fetched: dict[str, tuple[Path, int]] = field(default_factory=dict)  # the oldest use first

    @asynccontextmanager
    async def held(self, name: Any) -> AsyncIterator[None]:
        """Have an adapter loaded while the block runs, if it is one that may be.

        A name that no pattern allows is left to vLLM. Raises RequestError.
        """
        if not self.allowed or not isinstance(name, str) or not self._may_be(name):
            yield
            return
        self._held[name] += 1
        try:
            if name not in self.app.state.openai_serving_models.lora_requests:
                await self._loaded(name)
            if name in self._fetched:
                self._fetched[name] = self._fetched.pop(name)
            yield
        finally:
            self._held[name] -= 1

    def _may_be(self, name: str) -> bool:
        repository = name.partition("@")[0]
        if self.app.state.openai_serving_models.is_base_model(name) or ".." in name.split("/"):
            return False
        return any(
            fnmatchcase(repository, pattern) and _place(pattern) == _place(name)
            for pattern in self.allowed
        )

    async def _loaded(self, name: str) -> None:
        loading = self._loading.get(name)
        if loading is None:  # whoever leaves does not stop it for the others
            loading = self._loading[name] = asyncio.create_task(self._load(name))
            loading.add_done_callback(lambda ended: self._loading.pop(name) and ended.exception())
        await asyncio.shield(loading)

    async def _load(self, name: str) -> None:
        assert self.store is not None
        models = self.app.state.openai_serving_models
        repository, _, revision = name.partition("@")
        try:
            folder, is_ours = await asyncio.to_thread(self.store.find, repository, revision or None)
        except RequestError:
            raise
        except WorkerError as error:
            raise RequestError(f"The adapter {error}.", code=404, param="model") from None
        if is_ours:
            self._fetched[name] = folder, await asyncio.to_thread(_size, folder)
            await self._make_room(name)
        base = Path(self.client.model_config.model)
        await asyncio.to_thread(_judge, name, folder, base)
        adapter = LoRARequest(name, models.lora_id_counter.inc(1), str(folder))
        try:
            await self.client.add_lora(adapter)
        except Exception as error:
            if self.client.errored:
                raise
            await self.client.remove_lora(adapter.lora_int_id)  # it may fill a slot half
            why = str(error).partition("failed: ")[2] or str(error)
            raise _unfit(name, " ".join(why.split())) from None
        models.lora_requests[name] = adapter
        log.info("The adapter %s is loaded from %s.", shown(name), folder)

    async def _make_room(self, new: str) -> None:
        """Delete what was used longest ago, but nothing that is answering or loading."""
        assert self.store is not None
        models = self.app.state.openai_serving_models
        for name in list(self._fetched):
            if name == new or self._held[name] or name in self._loading:
                continue
            if sum(size for _, size in self._fetched.values()) <= self.store.most_bytes:
                return
            folder, _ = self._fetched.pop(name)
            adapter = models.lora_requests.pop(name, None)
            if adapter is not None:
                await self.client.remove_lora(adapter.lora_int_id)
            if folder not in [other for other, _ in self._fetched.values()]:
                await asyncio.to_thread(self.store.remove, folder)
            log.info("The adapter %s has left the disk (LORA_DISK_GB).", shown(name))


def _place(name: str) -> str:
    """Return how the names of a kind of place begin."""
    return next(begin for begin in ("s3://", "/", "") if name.startswith(begin))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _judge(name: str, folder: Path, base: Path) -> None:
    """Raise RequestError where an adapter is none for this model."""
    if why := refusal(folder, _shapes(folder), _shapes(base)):
        raise _unfit(name, why)


def refusal(folder: Path, its: Shapes, models: Shapes) -> str:
    """Say why an adapter cannot be loaded beside a model, or nothing.

    vLLM 0.32 takes weights narrower than the model's for parts of them. What the model's files do
    not show, or show packed, is left to vLLM.
    """
    try:
        kind = json.loads((folder / "adapter_config.json").read_text()).get("peft_type")
    except (OSError, ValueError, AttributeError):
        return "it has no adapter_config.json to read"
    if kind != "LORA":
        return f"its peft_type is {shown(kind)} and not LORA"
    for key, shape in its.items():
        layer, _, side = key.removeprefix("base_model.model.").partition(".lora_")
        model = models.get(f"{layer}.weight", ())
        if len(model) != 2 or side not in ("A.weight", "B.weight"):
            continue
        has, wants = (shape[-1], model[1]) if side == "A.weight" else (shape[0], model[0])
        if has != wants:
            return f"its weights for {layer} are {has} wide, and the model's {wants}"
    return ""


def refusal_of_vllm(folder: Path, tensors: Iterable[str], model: Any, config: Any) -> str:
    """Say why vLLM would refuse an adapter of these tensors when it loads it, or nothing.

    `model` is vLLM's, which needs no memory, and `config` is its LoRAConfig.
    """
    packed, mapper = get_packed_modules_mapping(model), getattr(model, "hf_to_vllm_mapper", None)
    known = {
        part for name in get_supported_lora_modules(model) for part in packed.get(name, [name])
    }
    apart = ("base_layer", ".experts", *(getattr(model, "lora_skip_prefixes", None) or ()))
    try:
        PEFTHelper.from_local_dir(str(folder), None).validate_legal(config)
        for tensor in tensors:
            if ".lora_" not in tensor or any(part in tensor for part in apart):
                continue
            layer, _ = parse_fine_tuned_lora_name(tensor, mapper and mapper.get_rename_mapper())
            if layer.rpartition(".")[2] not in known:
                return f"it changes {layer}, and vLLM takes {', '.join(sorted(known))}"
    except (TypeError, ValueError) as error:
        return sentence(error).removesuffix(".")
    return ""


def _shapes(folder: Path) -> Shapes:
    """Return the shapes of the floating-point tensors in a folder's safetensors files."""
    shapes: dict[str, Sequence[int]] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - it is no mapping
                part = tensors.get_slice(key)
                if "F" in part.get_dtype():
                    shapes[key] = part.get_shape()
    return shapes


def _unfit(name: str, why: str) -> RequestError:
    return RequestError(
        f"The adapter {shown(name)} cannot be loaded beside this model: {why}.", param="model"
    )
