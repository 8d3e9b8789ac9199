"""The served models: one by its name, and LoRA adapters that come and go while the engine runs."""

import asyncio
import os
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from fastapi.responses import JSONResponse
from vllm.entrypoints.serve import create_error_response
from vllm.lora.utils import get_adapter_absolute_path


def complete(app: Any) -> None:
    """Add to vLLM's app what it lacks: a model by its name, and versions that are kept apart."""
    models = app.state.openai_serving_models
    _keep_versions_apart(models)

    async def retrieve(name: str) -> JSONResponse:
        name = unquote(name)
        for card in (await models.show_available_models()).data:
            if card.id == name:
                return JSONResponse(card.model_dump())
        refusal = create_error_response(
            f"The model `{name}` does not exist.", "NotFoundError", HTTPStatus.NOT_FOUND, "model"
        )
        return JSONResponse(refusal.model_dump(), HTTPStatus.NOT_FOUND)

    app.add_api_route("/v1/models/{name:path}", retrieve, methods=["GET"])


def warning(config: Any) -> str:
    """Return what the deployer has to know of adapters on this machine, if anything."""
    if config.lora_config is None or config.device_config.device_type != "cpu":
        return ""
    return (
        "Adapters on a CPU: jobs for the base model that run beside jobs for an adapter get wrong "
        "text, because vLLM's CPU kernels apply the adapter to them too. GPUs do not have this "
        "fault."
    )


def _keep_versions_apart(models: Any) -> None:
    """Let no adapter be answered from blocks that an older version of its files has cached.

    vLLM 0.32 keys cached blocks by an adapter's name and path alone. `models` is its
    OpenAIServingModels; its `load_lora_adapter` is replaced.
    """
    load = models.load_lora_adapter
    loaded = {(one.lora_name, one.lora_path) for one in models.lora_requests.values()}

    async def load_apart(request: Any, base_model_name: str | None = None) -> Any:
        name, path = request.lora_name, request.lora_path
        if path:
            path = await asyncio.to_thread(_folder, path)
        now = models.lora_requests.get(name)
        if request.load_inplace and now is not None and _plain(now.lora_path) == _plain(path):
            return create_error_response(
                f"The adapter '{name}' is loaded from {path} already, and cannot be loaded again "
                "in place: vLLM keeps cached prefixes by name and path, so answers would mix both "
                "versions. Put the new version into another folder, or unload the adapter first.",
                param="load_inplace",
            )
        while (name, path) in loaded:
            path = os.path.join(path, ".")  # the same folder under a name that no block has
        request = request.model_copy(update={"lora_path": path})
        answer = await load(request, base_model_name)
        if isinstance(answer, str):
            loaded.add((name, path))
        return answer

    models.load_lora_adapter = load_apart


def _folder(path: str) -> str:
    """Return an adapter's folder; that of a repository has the commit in its name."""
    return path if os.path.isdir(path) else get_adapter_absolute_path(path)


def _plain(path: str) -> str:
    return os.path.normpath(path)
