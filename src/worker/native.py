"""RunPod's own dialect: a prompt or a conversation in, `choices[].tokens` and `usage` out."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from worker import sampling
from worker.batching import Outbox
from worker.engine import Engine
from worker.errors import RequestError
from worker.request import NativeRequest

# JSON has no infinity; vLLM's own server writes this number for an impossible token.
IMPOSSIBLE_LOGPROB = -9999.0


@dataclass(frozen=True)
class Piece:
    """What one engine output adds to one sequence: `choice` is prompt index times n plus index."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    extra: dict[str, Any] = field(default_factory=dict)


class Call:
    """One native job: `answer` runs it into an outbox, `join` makes a yield of its pieces."""

    def __init__(self, request: NativeRequest, engine: Engine, *, default_max_tokens: int) -> None:
        self._request = request
        self._engine = engine
        self._default_max_tokens = default_max_tokens
        self._choices = 0
        self._input_tokens = 0
        self._output_tokens = 0

    async def answer(self, outbox: Outbox[Piece]) -> None:
        """Generate for every prompt and put the pieces into the outbox as they come.

        Raises RequestError before anything runs when one prompt is wrong. Cancelling it aborts
        the engine's requests.
        """
        try:
            lora = self._lora()
            inputs = await self._render()
            params = [self._params(len(item["prompt_token_ids"])) for item in inputs]
            self._choices = sum(p.n for p in params)
            self._input_tokens = sum(len(item["prompt_token_ids"]) for item in inputs)
            async with asyncio.TaskGroup() as group:
                for index, (item, chosen) in enumerate(zip(inputs, params, strict=True)):
                    group.create_task(self._generate(index, item, chosen, lora, outbox))
        except Exception as error:
            raise self._engine.translate(_first(error)) from error

    def join(self, pieces: list[Piece]) -> dict[str, Any]:
        """Make one yield of a batch: every choice in it, empty where nothing is new."""
        choices: list[dict[str, Any]] = [{"tokens": []} for _ in range(self._choices)]
        for piece in pieces:
            choice = choices[piece.choice]
            choice["tokens"].append(piece.text)
            self._output_tokens += len(piece.token_ids)
            for key, value in piece.extra.items():
                if key == "logprobs":
                    choice.setdefault(key, []).extend(value)
                else:
                    choice[key] = value
        usage = {"input": self._input_tokens, "output": self._output_tokens}
        return {"choices": choices, "usage": usage}

    def frame(self, error: RequestError) -> None:  # noqa: ARG002 - the other dialects have one
        """Return nothing: in this dialect an error is the job's, and its stream just ends."""
        return

    def _lora(self) -> Any:
        """Return the adapter that the job's `model` names, None for the base model."""
        models = self._engine.app.state.openai_serving_models
        name = self._request.model
        if not self._engine.generates:
            raise RequestError(
                "This worker serves a pooling model, which writes no text and has no native path. "
                'Use a route of its own, such as {"openai_route": "/v1/embeddings", …}.'
            )
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

    async def _render(self) -> list[Any]:
        """Let vLLM's own renderer make token ids of the prompts or the conversation."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        renderer = self._engine.app.state.online_renderer
        max_tokens = self._request.sampling_params.get("max_tokens")
        limit = {"max_tokens": max_tokens} if type(max_tokens) is int and max_tokens > 0 else {}
        if self._request.messages is not None:
            chat = ChatCompletionRequest.model_validate(
                {
                    "messages": self._request.messages,
                    "chat_template_kwargs": self._request.chat_template_kwargs,
                }
                | limit
            )
            rendered = await renderer.render_chat(chat)
            if isinstance(rendered, ErrorResponse):
                raise RequestError(rendered.error.message, code=rendered.error.code)
            return list(rendered[1])
        inputs: list[Any] = []
        for prompt in self._request.prompts:
            completion = CompletionRequest.model_validate({"prompt": prompt} | limit)
            inputs += await renderer.render_completion(completion)
        return inputs

    def _params(self, prompt_tokens: int) -> Any:
        config = self._engine.client.model_config
        params = sampling.read(
            self._request.sampling_params,
            defaults=self._engine.sampling_defaults,
            default_max_tokens=self._default_max_tokens,
            stream=self._request.stream,
        )
        params.max_tokens = min(params.max_tokens, config.max_model_len - prompt_tokens)
        return params

    async def _generate(
        self, index: int, item: Any, params: Any, lora: Any, outbox: Outbox[Piece]
    ) -> None:
        request_id = self._request.job_id
        if len(self._request.prompts) > 1:
            request_id += f"-{index}"
        outputs = self._engine.client.generate(item, params, request_id, lora_request=lora)
        async for output in outputs:
            prompt_logprobs = output.prompt_logprobs
            for one in output.outputs:
                if one.finish_reason == "error":
                    raise RequestError(
                        "The engine could not go on with this request; its structured output may "
                        "be one that nothing can match.",
                        code=500,
                    )
                extra: dict[str, Any] = {}
                if prompt_logprobs is not None:
                    extra["prompt_logprobs"] = _logprobs(output.prompt_token_ids, prompt_logprobs)
                if one.logprobs is not None:
                    extra["logprobs"] = _logprobs(one.token_ids, one.logprobs)
                if one.finish_reason is not None:
                    extra["finish_reason"] = one.finish_reason
                    if one.stop_reason is not None:
                        extra["stop_reason"] = one.stop_reason
                piece = Piece(index * params.n + one.index, one.text, tuple(one.token_ids), extra)
                outbox.put(piece, len(piece.token_ids), len(piece.text))


def _logprobs(token_ids: Iterable[int], positions: Any) -> list[Any]:
    """Return for each token its own log-probability and the likeliest ones beside it."""
    listed: list[dict[str, Any] | None] = []
    for token_id, position in zip(token_ids, positions, strict=False):
        if not position:  # the first token of a prompt has none
            listed.append(None)
            continue
        ranked = sorted(position.items(), key=lambda entry: entry[1].rank or 0)
        entries = [
            {
                "token_id": other,
                "token": entry.decoded_token,
                "logprob": max(entry.logprob, IMPOSSIBLE_LOGPROB),
            }
            for other, entry in ranked
        ]
        own = next(entry for entry in entries if entry["token_id"] == token_id)
        listed.append(own | {"top": entries})
    return listed


def _first(error: Exception) -> Exception:
    """Return what went wrong first in a group of tasks."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
