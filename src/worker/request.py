"""What a job asks for: `job["input"]` becomes one frozen request, or a sentence.

Each reader below returns a request, or nothing when the input is not of its shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from worker.batching import BatchSizes
from worker.errors import RequestError
from worker.facts import Limits
from worker.generation import table
from worker.generation.conflicts import contradiction
from worker.sentences import nearest, shown

SHAPES = (
    'The input must be an object of one of these shapes: {"prompt": "…"} or '
    '{"messages": [{"role": "user", "content": "…"}]} with "sampling_params" and "stream" beside '
    'it, {"inputs": "…", "parameters": {…}}, {"openai_route": "/v1/chat/completions", '
    '"openai_input": {…}}, {"route": "/tokenize", "body": {…}}, or '
    '{"batch": {"input": …, "output": …}}.'
)
BULK_KEYS = ("input", "output", "concurrency", "ordered")
BATCH_KEYS = ("min_batch_size", "max_batch_size", "batch_size_growth_factor")
NATIVE_KEYS = (
    "prompt",
    "prompt_token_ids",
    "messages",
    "model",
    "apply_chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "sampling_params",
    "stream",
    "receipt",
    *BATCH_KEYS,
)

# The routes of other dialects than OpenAI's, and whether one streams where its body is silent.
OTHER_ROUTES = {
    "/": ("huggingface", False),
    "/generate": ("huggingface", False),
    "/generate_stream": ("huggingface", True),
    "/api/chat": ("ollama", True),
    "/api/generate": ("ollama", True),
}

RENDERER_KEYS = frozenset(
    {"conversation", "messages", "tools", "add_generation_prompt", "continue_final_message"}
)
# Where a route's body names its prompts, each of which costs an engine request.
PROMPT_KEYS = (
    *("prompt", "input", "messages", "texts", "queries", "documents"),
    *("text_1", "text_2", "data_1", "data_2"),
)

Prompt = str | list[int]


@dataclass(frozen=True)
class Form:
    """An HTTP body of the type multipart/form-data, as it came."""

    content: bytes
    content_type: str


@dataclass(frozen=True)
class RouteRequest:
    """A call of one of vLLM's own HTTP routes.

    `method` is None where the job names none; `body` is what the client sent as JSON, or a `Form`.
    """

    job_id: str
    sizes: BatchSizes
    path: str
    method: str | None
    body: Any

    @property
    def dialect(self) -> str:
        return self._kind[0]

    @property
    def stream(self) -> bool:
        if not isinstance(self.body, dict):
            return False
        given = self.body.get("stream")
        return self._kind[1] if given is None else _truth(given) is True

    @property
    def _kind(self) -> tuple[str, bool]:
        path = self.path.partition("?")[0]
        path = path.rstrip("/") or path[:1]
        usual = "ollama" if path.startswith("/api/") else "openai"
        return OTHER_ROUTES.get(path, (usual, False))

    @property
    def sequences(self) -> int:
        """How many answers it asks for."""
        return _sequences(self.body) if isinstance(self.body, dict) else 1


@dataclass(frozen=True)
class NativeRequest:
    """A prompt, several prompts or a conversation in RunPod's own dialect."""

    dialect: ClassVar[str] = "native"
    job_id: str
    sizes: BatchSizes
    stream: bool
    model: str | None
    receipt: bool = False
    prompts: tuple[Prompt, ...] = ()
    messages: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continues: bool = False  # the conversation's last message, in place of an answer to it
    add_generation_prompt: bool = True
    sampling_params: dict[str, Any] = field(default_factory=dict)

    @property
    def sequences(self) -> int:
        """How many answers it asks for."""
        return max(len(self.prompts), 1) * _sequences(self.sampling_params)


@dataclass(frozen=True)
class BatchRequest:
    """Many requests in one job: lines in, and lines with their answers out.

    `source` is the lines, a path or an address; `target` a path or an address, None where the job's
    own output is to carry the results; `s3_config` the job's `s3Config`, as it came.
    """

    dialect: ClassVar[str] = "batch"
    job_id: str
    sizes: BatchSizes
    source: str | list[Any]
    target: str | None = None
    concurrency: int | None = None
    is_ordered: bool = False
    s3_config: Any = field(default=None, repr=False)

    @property
    def stream(self) -> bool:
        return self.target is None


Request = RouteRequest | NativeRequest | BatchRequest


def read(job: Mapping[str, Any], sizes: BatchSizes, limits: Limits | None = None) -> Request:
    """Read a job as RunPod's SDK hands it over (`id`, `input`); the job is not changed.

    `sizes` holds for jobs that name none. Raises RequestError with a sentence for an input that
    is of no known shape, holds a wrong value, or is larger than `limits` (the defaults) allow.
    """
    limits = limits or Limits()
    given, job_id = job.get("input"), str(job.get("id", ""))
    _limit_length(job_id, "The job's id", limits)
    if not isinstance(given, dict):
        raise RequestError(SHAPES)
    if "batch" in given:  # whose lines are judged one by one
        return _read_batch(job_id, job, given, sizes)
    _limit_values(given, limits)
    try:
        msgspec.json.encode(given)
    except UnicodeEncodeError:
        raise RequestError(
            "The input holds half of a surrogate pair, which no UTF-8 text can hold: a character "
            "outside the basic plane, such as an emoji, was cut in two.",
            param=_half_pair(given),
        ) from None
    for name in ("openai_route", "route", "model"):
        _limit_length(given.get(name), name, limits)
    for body in (given.get("openai_input"), given.get("body")):
        if isinstance(body, dict):
            for name in ("model", "request_id"):
                _limit_length(body.get(name), name, limits)
            _limit_sequences(body, limits)
    for reader in (_read_openai, _read_route, _read_inputs, _read_native):
        request = reader(job_id, given, sizes)
        if request is not None:
            return request
    known = ("openai_route", "openai_input", "route", "body", "inputs", "batch", *NATIVE_KEYS)
    strange = next((key for key in given if key not in known), None)
    raise RequestError(SHAPES + ("" if strange is None else _unknown(strange, known)))


def outline(job: Mapping[str, Any], sizes: BatchSizes) -> Request:
    """Return what can be said of a job that was refused: in which dialect it is told so."""
    job_id, given = str(job.get("id", "")), job.get("input")
    if isinstance(given, dict) and "batch" in given:
        return BatchRequest(job_id, sizes, [], "")
    for key, body in (("openai_route", "openai_input"), ("route", "body")):
        if isinstance(given, dict) and key in given:
            path = given[key] if isinstance(given[key], str) else ""
            return RouteRequest(job_id, sizes, path, None, given.get(body))
    if isinstance(given, dict) and "inputs" in given:
        return RouteRequest(job_id, sizes, "/", None, given)
    return NativeRequest(job_id, sizes, stream=False, model=None)


def _limit_values(given: Any, limits: Limits) -> None:
    """Refuse what nests too deep or holds too much, before anything walks it that is slow."""
    level, depth, values = [given], 1, 0
    while level:
        if depth > limits.max_input_depth:
            raise RequestError(
                f"The input nests objects and lists deeper than {limits.max_input_depth} levels, "
                "the most that this worker takes (MAX_INPUT_DEPTH)."
            )
        below: list[Any] = []
        for node in level:
            children = node.values() if isinstance(node, dict) else node
            values += len(node) if isinstance(node, dict) else 0
            if not {dict, list}.isdisjoint(map(type, children)):
                below += [child for child in children if isinstance(child, dict | list)]
        values += len(below)
        if values > limits.max_input_values:
            raise RequestError(
                f"The input holds {values:,} fields and lists or more, and this worker takes "
                f"{limits.max_input_values:,} (MAX_INPUT_VALUES)."
            )
        level, depth = below, depth + 1


def _limit_length(name: Any, what: str, limits: Limits) -> None:
    if isinstance(name, str) and len(name) > limits.max_name_length:
        raise RequestError(
            f"{what} has {len(name):,} characters, and this worker takes "
            f"{limits.max_name_length:,} (MAX_NAME_LENGTH).",
            param=None if " " in what else what,
        )


def _limit_sequences(body: dict[str, Any], limits: Limits) -> None:
    """Refuse a route's body that asks for too many answers, before vLLM works for it."""
    sequences = _sequences(body)
    if sequences > limits.max_sequences:
        raise RequestError(
            f"The job asks for {sequences:,} answers, and one job may have "
            f"{limits.max_sequences:,} (MAX_SEQUENCES).",
            param="n" if _each(body) > 1 else None,
        )


def _sequences(body: dict[str, Any]) -> int:
    return max(count_prompts(body.get(name)) for name in PROMPT_KEYS) * _each(body)


def _each(body: dict[str, Any]) -> int:
    """Return how many answers to each prompt a body asks for."""
    return max(_whole(body.get(name)) for name in ("n", "best_of"))


def count_prompts(given: Any) -> int:
    """Return how many prompts there are in a text, token ids, or a list of either."""
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        return len(given)
    return 1


def _whole(value: Any) -> int:
    """Return the number that vLLM's routes read of a field, 1 for what they refuse."""
    try:
        return max(int(float(value)), 1) if not isinstance(value, dict | list) else 1
    except (TypeError, ValueError, OverflowError):
        return 1


def _half_pair(value: Any) -> str | None:
    """Return where in an input the first half of a surrogate pair is, as vLLM names a field."""
    if isinstance(value, str):
        return None if value.isascii() or _is_text(value) else ""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        if isinstance(key, str) and not _is_text(key):
            return ""
        if isinstance(one, str | dict | list) and (found := _half_pair(one)) is not None:
            path = f"{key}.{found}".rstrip(".")
            return path.removeprefix("openai_input.").removeprefix("body.")
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_batch(
    job_id: str, job: Mapping[str, Any], given: dict[str, Any], sizes: BatchSizes
) -> BatchRequest:
    batch = given["batch"]
    if not isinstance(batch, dict):
        raise RequestError('batch must be an object: {"input": …, "output": …}.', param="batch")
    for key in given:
        if key != "batch" and key not in BATCH_KEYS:
            raise RequestError(f"A batch has nothing beside it.{_unknown(key, BATCH_KEYS)}")
    for key in batch:
        if key not in BULK_KEYS:
            raise RequestError(f"{_unknown(key, BULK_KEYS)} Known: {', '.join(BULK_KEYS)}.".strip())
    source, target, most = (batch.get(key) for key in BULK_KEYS[:3])
    if not isinstance(source, list) and not _is_name(source):
        raise RequestError(
            "input must be a list of lines, a path below the worker's BATCH_FOLDER, or an https or "
            "s3 address.",
            param="input",
        )
    if target is not None and not _is_name(target):
        raise RequestError(
            "output must be a path below the worker's BATCH_FOLDER, an s3 address, or an https "
            "address that takes a PUT; without one the results are the job's own output.",
            param="output",
        )
    if most is not None and not (type(most) is int and most >= 1):
        raise RequestError(
            f"concurrency={shown(most)} is not a whole number of at least 1.", param="concurrency"
        )
    return BatchRequest(
        job_id,
        _sizes(given, sizes),
        source or [],
        target,
        concurrency=most,
        is_ordered=_bool(batch, "ordered"),
        s3_config=job.get("s3Config"),
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _read_openai(job_id: str, given: dict[str, Any], sizes: BatchSizes) -> Request | None:
    if "openai_route" not in given:
        if given.get("openai_input") is not None:
            raise RequestError(
                'openai_input needs openai_route beside it, such as "/v1/chat/completions".',
                param="openai_route",
            )
        return None
    _only(given, ("openai_route", "openai_input", *BATCH_KEYS), body="openai_input")
    path = _path(given, "openai_route")
    body = given.get("openai_input")
    return RouteRequest(job_id, _sizes(given, sizes), path, None, body)


def _read_route(job_id: str, given: dict[str, Any], sizes: BatchSizes) -> Request | None:
    if "route" not in given:
        return None
    _only(given, ("route", "method", "body", *BATCH_KEYS), body="body")
    path = _path(given, "route")
    method = given.get("method")
    if method is not None and not (isinstance(method, str) and method.isalpha()):
        raise RequestError(
            f'method={shown(method)} is not an HTTP method, such as "POST".', param="method"
        )
    method = method and method.upper()
    return RouteRequest(job_id, _sizes(given, sizes), path, method, given.get("body"))


def _read_inputs(job_id: str, given: dict[str, Any], sizes: BatchSizes) -> Request | None:
    """Read what Hugging Face's clients post to the root."""
    if "inputs" not in given:
        return None
    return RouteRequest(job_id, _sizes(given, sizes), "/", None, given)


def _read_native(job_id: str, given: dict[str, Any], sizes: BatchSizes) -> Request | None:
    messages, prompt = given.get("messages"), _given_prompt(given)
    if messages is None and prompt is None:
        return None
    _only(given, (*NATIVE_KEYS, *table.BY_NAME))
    sampling_params = _sampling_params(given)
    request = NativeRequest(
        job_id,
        _sizes(given, sizes),
        stream=_bool(given, "stream"),
        model=_model(given),
        receipt=_bool(given, "receipt"),
        chat_template_kwargs=_template_kwargs(given),
        sampling_params=sampling_params,
    )
    if messages is not None:
        return _conversation(replace(request, messages=_messages(messages)), given)
    prompts = _prompts(prompt, may_be_empty="bos_token_id" in request.sampling_params)
    if not _bool(given, "apply_chat_template"):
        return replace(request, prompts=prompts)
    if len(prompts) != 1 or not isinstance(prompts[0], str):
        raise RequestError(
            "apply_chat_template makes one user message of the prompt, so the prompt must be one "
            "text.",
            param="apply_chat_template",
        )
    return replace(request, messages=[{"role": "user", "content": prompts[0]}])


def _sampling_params(given: dict[str, Any]) -> dict[str, Any]:
    """Return the generation parameters, which may stand beside the prompt too."""
    inner = given.get("sampling_params")
    if not isinstance(inner, dict | None):
        raise RequestError("sampling_params must be an object.", param="sampling_params")
    asked = dict(inner or {})
    for name in table.BY_NAME.keys() & given.keys():
        value = given[name]
        if value is None:
            continue
        if asked.get(name) not in (None, value):
            raise contradiction(f"sampling_params.{name}", asked[name], name, value)
        asked[name] = value
    return asked


def _conversation(request: NativeRequest, given: dict[str, Any]) -> NativeRequest:
    """Settle what becomes of a conversation that ends with the assistant's own words."""
    continues = _bool(given, "continue_final_message")
    adds = given.get("add_generation_prompt")
    adds = not continues if adds is None else _bool(given, "add_generation_prompt")
    assert request.messages is not None
    is_assistants = request.messages[-1]["role"] == "assistant"
    if continues and adds:
        raise RequestError(
            "continue_final_message and add_generation_prompt contradict each other: the first "
            "goes on with the last message, the second answers it.",
            param="continue_final_message",
        )
    if continues and not (is_assistants and request.messages[-1].get("content")):
        raise RequestError(
            "continue_final_message goes on with the assistant's words, and the last message has "
            "none.",
            param="continue_final_message",
        )
    if is_assistants and given.get("add_generation_prompt") is None and not continues:
        raise RequestError(
            "The last message is the assistant's. Give continue_final_message: true to go on with "
            "its words, or add_generation_prompt: true for another answer after it.",
            param="messages",
        )
    return replace(request, continues=continues, add_generation_prompt=adds)


def _given_prompt(given: dict[str, Any]) -> Any:
    """Return the prompt; `prompt_token_ids` is another name for token ids, and so is its object."""
    prompt, ids = given.get("prompt"), given.get("prompt_token_ids")
    if isinstance(prompt, dict) and prompt.keys() == {"prompt_token_ids"}:
        ids, prompt = prompt["prompt_token_ids"], None
    if ids is None:
        return prompt
    if prompt is not None:
        raise RequestError("Give prompt or prompt_token_ids, not both.", param="prompt_token_ids")
    if not (isinstance(ids, list) and ids and (_is_token_ids(ids) or all(map(_is_token_ids, ids)))):
        raise RequestError(
            "prompt_token_ids must be a list of token ids, or a list of such lists.",
            param="prompt_token_ids",
        )
    return ids


def _messages(value: Any) -> list[Any]:
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
        or not all(isinstance(m.get("content"), str | list | None) for m in value)
    ):
        raise RequestError(
            "messages must be one conversation: a list of at least one message, each an object "
            'with a role and a content: [{"role": "user", "content": "…"}].',
            param="messages",
        )
    return value


def _prompts(value: Any, *, may_be_empty: bool) -> tuple[Prompt, ...]:
    if value in ("", []) and may_be_empty:
        return ("",)
    # Every id is looked at once, below: there may be a million.
    is_one = not isinstance(value, list) or (value and isinstance(value[0], int))
    prompts = [value] if is_one else value
    if not prompts or not all(
        (isinstance(prompt, str) and prompt) or (prompt and _is_token_ids(prompt))
        for prompt in prompts
    ):
        raise RequestError(
            "prompt must be a text, a list of token ids, or a list of either, and none of them "
            "empty. (An empty one starts from the bos_token_id that sampling_params name.)",
            param="prompt",
        )
    return tuple(prompts)


def _is_token_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and set(map(type, value)) == {int}
        and min(value) >= 0
    )


def _model(given: dict[str, Any]) -> str | None:
    model = given.get("model")
    if not isinstance(model, str | None):
        raise RequestError("model must be the name of a served model.", param="model")
    return model or None


def _template_kwargs(given: dict[str, Any]) -> dict[str, Any] | None:
    value = given.get("chat_template_kwargs")
    if not isinstance(value, dict | None):
        raise RequestError("chat_template_kwargs must be an object.", param="chat_template_kwargs")
    if taken := sorted(RENDERER_KEYS & (value or {}).keys()):
        raise RequestError(
            f"chat_template_kwargs must not hold {shown(taken[0])}, which the worker gives the "
            "template itself.",
            param="chat_template_kwargs",
        )
    return value


def _path(given: dict[str, Any], key: str) -> str:
    path = given[key]
    plain = isinstance(path, str) and path and path.isprintable() and " " not in path
    if not plain or "://" in path or "\\" in path or path.startswith("//") or ".." in path:
        raise RequestError(
            f'{key}={shown(path)} is not a route: a route is a path, such as "/v1/models".',
            code=404,
            param=key,
        )
    return path if path.startswith("/") else f"/{path}"


def _sizes(given: dict[str, Any], default: BatchSizes) -> BatchSizes:
    low, high, growth = (given.get(key) for key in BATCH_KEYS)
    if low is None and high is None and growth is None:
        return default
    for key in BATCH_KEYS[:2]:
        if given.get(key) is not None and not (type(given[key]) is int and 1 <= given[key] <= 1e9):
            raise RequestError(
                f"{key}={shown(given[key])} is not a whole number from 1 to 1,000,000,000.",
                param=key,
            )
    if growth is not None and (type(growth) not in (int, float) or not 1 <= growth < 1e9):
        raise RequestError(
            f"batch_size_growth_factor={shown(growth)} is not a number of at least 1.",
            param="batch_size_growth_factor",
        )
    if low is not None and high is not None and low > high:
        raise RequestError(
            f"min_batch_size={low} is larger than max_batch_size={high}.", param="min_batch_size"
        )
    # Where the job names one bound, the deployment's other bound gives way to it.
    low, high = low or min(default.min, high or default.max), high or max(default.max, low or 1)
    return replace(default, min=low, max=high, growth=growth or default.growth)


def _bool(given: dict[str, Any], key: str) -> bool:
    truth = _truth(given.get(key))
    if truth is None:
        raise RequestError(f"{key}={shown(given[key])} is neither true nor false.", param=key)
    return truth


def _truth(value: Any) -> bool | None:
    # A form sends text, and "false" is true in Python.
    text = str(value).lower()
    if value in (None, False, 0) or text in ("false", "0", "no", "off", ""):
        return False
    if value in (True, 1) or text in ("true", "1", "yes", "on"):
        return True
    return None


def _only(given: dict[str, Any], known: tuple[str, ...], body: str = "sampling_params") -> None:
    """Refuse a key that is not known; `body` is where the fields of the request itself belong."""
    for key in given:
        if key in known:
            continue
        own = [name for name in known if name not in table.BY_NAME]
        raise RequestError(
            f"{_unknown(key, known).strip()} "
            f'Known: {", ".join(own)}; anything else belongs in "{body}".'
        )


def _unknown(key: str, known: tuple[str, ...]) -> str:
    return f" The input has an unknown key {shown(key)}.{nearest(key, known)}"
