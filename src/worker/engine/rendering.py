"""Prompts, conversations and adapter names become what vLLM's engine takes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from worker.errors import RequestError


def continue_messages() -> None:
    """Let Anthropic's routes go on with the assistant's words where a conversation ends with them.

    That dialect means it so; vLLM 0.32 answers such a conversation anew.
    """
    made = AnthropicServingMessages.to_chat_completion_request

    def continued(*args: Any, **options: Any) -> ChatCompletionRequest:
        chat = made(*args, **options)
        last = chat.messages[-1] if chat.messages else {}
        if last.get("role") == "assistant" and last.get("content") and not last.get("tool_calls"):
            chat.continue_final_message, chat.add_generation_prompt = True, False
        return chat

    AnthropicServingMessages.to_chat_completion_request = staticmethod(continued)


def adapter(app: Any, name: str | None) -> Any:
    """Return vLLM's request for the adapter of this name, None for the base model.

    Raises RequestError (404) naming what is served.
    """
    models = app.state.openai_serving_models
    if name is None or models.registry.is_base_model(name):
        return None
    if name in models.lora_requests:
        return models.lora_requests[name]
    known = [path.name for path in models.base_model_paths] + list(models.lora_requests)
    raise RequestError(
        f"The model {name!r} does not exist. Served here: {', '.join(known)}.",
        code=404,
        param="model",
    )


async def conversation(
    app: Any, given: dict[str, Any], max_tokens: int | None, truncate: Mapping[str, Any]
) -> Any:
    """Return the engine input of a conversation, which vLLM's own chat renderer makes.

    `given` are fields of vLLM's ChatCompletionRequest, and `truncate` those that cut the prompt.
    `max_tokens` is the room that the answer needs in the context; None where it needs none.
    """
    chat = ChatCompletionRequest.model_validate(given | _room(max_tokens) | dict(truncate))
    rendered = await app.state.online_renderer.render_chat(chat)
    if isinstance(rendered, ErrorResponse):
        raise RequestError(rendered.error.message, code=rendered.error.code)
    (item,) = rendered[1]
    return item


async def prompt(
    app: Any,
    given: str | list[int],
    max_tokens: int | None = None,
    truncate: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return the engine input of a text or of token ids."""
    fields = {"prompt": given} | _room(max_tokens) | dict(truncate)
    completion = CompletionRequest.model_validate(fields)
    rendered = await app.state.online_renderer.render_completion(completion)
    if isinstance(rendered, ErrorResponse):
        raise RequestError(rendered.error.message, code=rendered.error.code)
    (item,) = rendered
    return item


def _room(max_tokens: int | None) -> dict[str, int]:
    return {} if max_tokens is None else {"max_tokens": max_tokens}
