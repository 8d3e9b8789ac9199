"""Ollama's dialect: chat, generate, embed, embeddings, tags, ps, show and version under /api.

Each is one of OpenAI's routes in other words; a stream is one JSON object a line.
"""

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from worker.call import Frames
from worker.errors import RequestError, unsupported_parameter
from worker.facts import Limits
from worker.request import Request, RouteRequest
from worker.sentences import nearest, shown

OPTIONS = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
    "typical_p": "typical_p",
}
# How Ollama loads a model, which is done here, and what it has dropped itself.
IDLE = (
    *("numa", "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all"),
    *("vocab_only", "use_mmap", "use_mlock", "embedding_only", "num_thread", "num_keep"),
    *("repeat_last_n", "tfs_z", "mirostat", "mirostat_tau", "mirostat_eta", "penalize_newline"),
    "draft_num_predict",
)
LATEST = ":latest"
FOREVER = "9999-12-31T00:00:00+00:00"
NO_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": None,
    "parameter_size": "",
    "quantization_level": "",
}


class OllamaError(RequestError):
    """An error as Ollama tells it."""

    def body(self) -> dict[str, Any]:
        return {"error": self.message}


class Ollama:
    """The dialect; `can` is what the served model can do, in Ollama's words."""

    frames = Frames(b"application/x-ndjson", b"", b"\n")

    def __init__(self, can: Sequence[str] = ("completion",)) -> None:
        self._can = can

    def read(self, asked: RouteRequest, limits: Limits) -> "Talk":  # noqa: ARG002 - judged later
        path = asked.path.partition("?")[0].rstrip("/")
        if path not in ROUTES:
            raise RequestError(
                f"There is no route {shown(path)}. Routes: {', '.join(ROUTES)}.", code=404
            )
        method, make = ROUTES[path]
        if asked.method not in (None, method):
            raise RequestError(f"{path} takes {method}, not {asked.method}.", code=405)
        if method == "POST" and not isinstance(asked.body, dict):
            raise RequestError("The body must be an object.")
        return make(asked, self._can)

    def error(self, error: RequestError) -> RequestError:
        return OllamaError(error.message, code=error.code, type=error.type, param=error.param)


class Talk:
    """One request: `asked` is OpenAI's route for it."""

    asked: Request

    def __init__(self, asked: RouteRequest, can: Sequence[str]) -> None:
        self._can = can
        self._given = asked.body if isinstance(asked.body, dict) else {}
        self._began_ns = time.monotonic_ns()
        model = self._given.get("model") or self._given.get("name")  # show's older name for it
        if not isinstance(model, str | None):
            raise RequestError("model must be the name of a served model.", param="model")
        self._model = model
        path, body = self.route()
        self.asked = RouteRequest(asked.job_id, asked.sizes, path, None, body)

    @property
    def model(self) -> str | None:
        return self._model.removesuffix(LATEST) if self._model else None

    def route(self) -> tuple[str, Any]:
        """Return OpenAI's route and its body."""
        raise NotImplementedError

    def events(self, said: Any) -> list[Any]:
        return [self.whole(said)]

    def whole(self, said: Any) -> Any:
        raise NotImplementedError

    def _took_ns(self) -> int:
        return time.monotonic_ns() - self._began_ns


class Version(Talk):
    """Which version: vLLM's."""

    def route(self) -> tuple[str, Any]:
        return "/version", None

    def whole(self, said: Any) -> Any:
        return {"version": said["version"]}


class Tags(Talk):
    """What is served."""

    def route(self) -> tuple[str, Any]:
        return "/v1/models", None

    def whole(self, said: Any) -> Any:
        return {"models": [_card(card) for card in said["data"]]}


class Ps(Tags):
    """What is loaded: all that is served."""

    def whole(self, said: Any) -> Any:
        forever = {"expires_at": FOREVER, "size_vram": 0}
        return {
            "models": [
                _card(card) | forever | {"context_length": card.get("max_model_len")}
                for card in said["data"]
            ]
        }


class Show(Talk):
    """One of what is served."""

    def route(self) -> tuple[str, Any]:
        if not self.model:
            raise RequestError("model must be the name of a served model.", param="model")
        return f"/v1/models/{quote(self.model, safe='/:')}", None

    def whole(self, said: Any) -> Any:
        length = said.get("max_model_len")
        return {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": NO_DETAILS,
            "model_info": {
                "general.architecture": "vllm",
                "general.basename": said["id"],
                **({"vllm.context_length": length} if length else {}),
            },
            "capabilities": self._can,
            "modified_at": _time(said["created"]),
        }


class Embed(Talk):
    """The vectors of texts."""

    def route(self) -> tuple[str, Any]:
        return self._asked(self._given.get("input"))

    def _asked(self, texts: Any) -> tuple[str, Any]:
        given = self._given
        body = {"model": self.model, "input": texts}
        if given.get("dimensions") is not None:
            body["dimensions"] = given["dimensions"]
        if given.get("truncate") is not False:
            body["truncate_prompt_tokens"] = -1  # to what the model takes
        return "/v1/embeddings", body

    def whole(self, said: Any) -> Any:
        return {
            "model": self._model or said["model"],
            "embeddings": [one["embedding"] for one in said["data"]],
            "total_duration": self._took_ns(),
            "load_duration": 0,
            "prompt_eval_count": said["usage"]["prompt_tokens"],
        }


class Embeddings(Embed):
    """The vector of one text, as Ollama had it first."""

    def route(self) -> tuple[str, Any]:
        prompt = self._given.get("prompt")
        if not isinstance(prompt, str):
            raise RequestError("prompt must be a text.", param="prompt")
        return self._asked(prompt)

    def whole(self, said: Any) -> Any:
        return {"embedding": said["data"][0]["embedding"]}


class Chat(Talk):
    """An answer to a conversation."""

    def __init__(self, asked: RouteRequest, can: Sequence[str]) -> None:
        self._streams = asked.stream
        self._first_ns: int | None = None
        self._reason = "stop"
        self._calls: dict[int, dict[str, Any]] = {}
        super().__init__(asked, can)

    def route(self) -> tuple[str, Any]:
        if not self._given.get("messages"):
            return "/v1/models", None  # Ollama loads the model then
        body = self._fields() | {"messages": _messages(self._given["messages"])}
        if self._given.get("tools"):
            body["tools"] = self._given["tools"]
        return "/v1/chat/completions", body

    def _fields(self) -> dict[str, Any]:
        """Return what a chat and a completion share."""
        given = self._given
        body: dict[str, Any] = {"model": self.model, **_options(given.get("options"))}
        if self._streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        match given.get("format"):
            case None | "":
                pass
            case "json":
                body["response_format"] = {"type": "json_object"}
            case dict() as schema:
                wanted = {"name": "format", "schema": schema}
                body["response_format"] = {"type": "json_schema", "json_schema": wanted}
            case other:
                raise RequestError(
                    f'format={shown(other)} must be "json" or a JSON schema.', param="format"
                )
        match given.get("think"):
            case bool() as thinks:
                body["chat_template_kwargs"] = {"enable_thinking": thinks}
            case str() as effort:
                body["reasoning_effort"] = effort
        if given.get("logprobs"):
            body |= {"logprobs": True, "top_logprobs": given.get("top_logprobs") or 0}
        return body

    def events(self, said: Any) -> list[Any]:
        if "choices" not in said:
            return [self._loaded()]
        if self._first_ns is None:
            self._first_ns = self._took_ns()
        events = []
        for choice in said["choices"]:
            delta = choice.get("delta") or {"content": choice.get("text")}
            for call in delta.get("tool_calls") or ():
                _add(self._calls.setdefault(call.get("index", 0), {}), call["function"])
            message = self._message(delta.get("content"), delta.get("reasoning"), ())
            if choice.get("finish_reason"):
                self._reason = choice["finish_reason"]
                calls, self._calls = self._calls.values(), {}
                if calls:
                    message = self._message(delta.get("content"), delta.get("reasoning"), calls)
            if any(value for name, value in self._parts(message).items() if name != "role"):
                events.append(self._head() | message | {"done": False} | _logprobs(choice))
        if said.get("usage") and not said["choices"]:  # the last
            events.append(self._head() | self._message("", None, ()) | self._end(said["usage"]))
        return events

    def whole(self, said: Any) -> Any:
        if "choices" not in said:
            return self._loaded()
        (choice,) = said["choices"]
        self._reason = choice["finish_reason"]
        message = choice.get("message") or {"content": choice.get("text")}
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        told = self._message(message.get("content"), message.get("reasoning"), calls)
        return self._head() | told | self._end(said["usage"]) | _logprobs(choice)

    def _message(self, content: Any, thinking: Any, calls: Any) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": content or ""}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = [
                {"function": {"name": call["name"], "arguments": _object(call["arguments"])}}
                for call in calls
            ]
        return {"message": message}

    def _parts(self, told: dict[str, Any]) -> dict[str, Any]:
        return told["message"]  # type: ignore[no-any-return]

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": _time(time.time())}

    def _end(self, usage: dict[str, Any]) -> dict[str, Any]:
        took_ns = self._took_ns()
        first_ns = self._first_ns or 0  # known of a stream alone; clients divide by the rest
        return {
            "done": True,
            "done_reason": "length" if self._reason == "length" else "stop",
            "total_duration": took_ns,
            "load_duration": 0,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": first_ns,
            "eval_count": usage["completion_tokens"],
            "eval_duration": took_ns - first_ns,
        }

    def _loaded(self) -> dict[str, Any]:
        end = {"done": True, "done_reason": "load"}
        return self._head() | self._message("", None, ()) | end


class Generate(Chat):
    """An answer to a prompt, which is a user's message unless it is raw."""

    def route(self) -> tuple[str, Any]:
        given = self._given
        for name in ("suffix", "context", "template"):
            if given.get(name):
                raise unsupported_parameter(
                    name, f"{name} is not to be had here. /api/chat takes a whole conversation."
                )
        prompt, images = given.get("prompt"), given.get("images")
        if not prompt and not images:
            return "/v1/models", None
        if given.get("raw"):
            body = self._fields() | {"prompt": prompt}
            if body.pop("logprobs", False):
                body["logprobs"] = body.pop("top_logprobs")
            body.setdefault("max_tokens", None)  # else vLLM's 16
            return "/v1/completions", body
        system = [{"role": "system", "content": given["system"]}] if given.get("system") else []
        message = {"role": "user", "content": prompt or "", "images": images}
        return "/v1/chat/completions", self._fields() | {"messages": _messages([*system, message])}

    def _message(self, content: Any, thinking: Any, calls: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"response": content or ""} | ({"thinking": thinking} if thinking else {})

    def _parts(self, told: dict[str, Any]) -> dict[str, Any]:
        return told


ROUTES: dict[str, tuple[str, Callable[[RouteRequest, Sequence[str]], Talk]]] = {
    "/api/chat": ("POST", Chat),
    "/api/generate": ("POST", Generate),
    "/api/embed": ("POST", Embed),
    "/api/embeddings": ("POST", Embeddings),
    "/api/tags": ("GET", Tags),
    "/api/ps": ("GET", Ps),
    "/api/show": ("POST", Show),
    "/api/version": ("GET", Version),
}


def _options(given: Any) -> dict[str, Any]:
    """Return Ollama's options as fields of OpenAI's bodies."""
    if not isinstance(given, dict | None):
        raise RequestError("options must be an object.", param="options")
    body = {}
    for name, value in (given or {}).items():
        if name not in OPTIONS and name not in IDLE:
            raise unsupported_parameter(
                name, f"options has no {shown(name)}.{nearest(name, [*OPTIONS, *IDLE])}"
            )
        if name in OPTIONS and value is not None:
            body[OPTIONS[name]] = value
    if isinstance(most := body.get("max_tokens"), int) and most <= 0:
        del body["max_tokens"]  # as long as the context allows
    if (typical := body.pop("typical_p", 1)) != 1:
        body["generation_parameters"] = {"typical_p": typical}
    return body


def _messages(given: Any) -> list[Any]:
    """Return a conversation in OpenAI's words."""
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise RequestError("messages must be a list of messages.", param="messages")
    ids: dict[Any, str] = {}  # of each tool's latest call
    told = []
    for at, message in enumerate(given):
        one: dict[str, Any] = {"role": message.get("role"), "content": message.get("content", "")}
        if message.get("thinking"):
            one["reasoning"] = message["thinking"]
        if images := message.get("images"):
            text = [{"type": "text", "text": one["content"]}] if one["content"] else []
            one["content"] = [*text, *map(_image, images)]
        if calls := message.get("tool_calls"):
            one["tool_calls"] = []
            for number, call in enumerate(calls):
                function = call.get("function") or {}
                name, arguments = function.get("name"), function.get("arguments") or {}
                ids[name] = f"call_{at}_{number}"
                function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
                one["tool_calls"].append(
                    {"id": ids[name], "type": "function", "function": function}
                )
        if one["role"] == "tool":
            name = message.get("tool_name")
            known = next(reversed(ids.values()), "call") if name is None else f"call_{name}"
            one["tool_call_id"] = ids.get(name, known)
        told.append(one)
    return told


def _image(image: Any) -> dict[str, Any]:
    # The type is not told; whoever decodes it looks at the bytes.
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}


def _add(call: dict[str, Any], part: dict[str, Any]) -> None:
    """Join what the deltas of a stream tell of one call."""
    call["name"] = part.get("name") or call.get("name")
    call["arguments"] = call.get("arguments", "") + (part.get("arguments") or "")


def _object(arguments: str) -> Any:
    try:
        told = json.loads(arguments or "{}")
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {"": arguments}  # cut off, or none of Ollama's


def _logprobs(choice: dict[str, Any]) -> dict[str, Any]:
    told = choice.get("logprobs") or {}
    if "token_logprobs" in told:  # of a raw prompt
        pairs = zip(told["tokens"], told["token_logprobs"], strict=True)
        return {"logprobs": [{"token": token, "logprob": score} for token, score in pairs]}
    return {"logprobs": told["content"]} if told.get("content") else {}


def _card(card: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": card["id"],
        "model": card["id"],
        "modified_at": _time(card["created"]),
        "size": 0,
        "digest": "",
        "details": NO_DETAILS,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
