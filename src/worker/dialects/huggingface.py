"""Hugging Face's dialect: inputs, parameters and options in; generated_text and token events out.

It is what text-generation-inference and Inference Endpoints speak, and what huggingface_hub's
InferenceClient and text-generation send. Its parameters are the native path's, and some that have
other names there.
"""

from itertools import islice
from typing import Any

from worker import request
from worker.batching import WHOLE
from worker.call import Frames
from worker.errors import RequestError, invalid_parameter
from worker.facts import Limits
from worker.request import NativeRequest, Request, RouteRequest
from worker.sentences import nearest, shown

KEYS = ("inputs", "parameters", "options", "stream", "model", *request.BATCH_KEYS)
RENAMED = {
    "stop": "stop_strings",
    "stop_sequences": "stop_strings",
    "truncate": "truncate_prompt_tokens",
}
# What of the reply a request asks for.
OF_THE_REPLY = ("details", "decoder_input_details", "return_full_text", "top_n_tokens")
GRAMMARS = {"json": "guided_json", "json_schema": "guided_json", "regex": "guided_regex"}
# With a value other than this, tokens are drawn, whatever do_sample says.
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "typical_p": 1.0}
ROUTINES = ("num_beams", "use_beam_search", "guidance_scale")
KINDS = {400: "validation", 413: "validation", 422: "validation", 503: "overloaded"}


class HuggingFaceError(RequestError):
    """An error as text-generation-inference tells it."""

    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.code, "generation" if self.code >= 500 else None)
        return {"error": self.message} | ({"error_type": kind} if kind else {})


class HuggingFace:
    """The dialect: `/`, `/generate`, `/generate_stream`, and a bare job."""

    frames = Frames(b"text/event-stream; charset=utf-8", b"data:", b"\n\n")

    def read(self, asked: RouteRequest, limits: Limits) -> "Generation":
        return Generation(asked, limits)

    def error(self, error: RequestError) -> RequestError:
        return HuggingFaceError(error.message, code=error.code, type=error.type, param=error.param)


class Generation:
    """One request for text."""

    asked: Request

    def __init__(self, asked: RouteRequest, limits: Limits) -> None:
        if asked.method not in (None, "POST"):
            raise RequestError(f"{asked.path} takes POST, not {asked.method}.", code=405)
        body = _object(asked.body, "The body")
        for key in body:
            if key not in KEYS:
                raise RequestError(
                    f"The input has an unknown key {shown(key)}.{nearest(key, KEYS)} "
                    f"Known: {', '.join(KEYS)}."
                )
        self._inputs: Any = body.get("inputs")
        self._is_chat = _is_chat(self._inputs)
        self._is_list = isinstance(self._inputs, list) and not self._is_chat
        self._is_bare = asked.path.startswith("/generate")  # where it is no list of one
        parameters = _object(body.get("parameters") or {}, "parameters")
        given = {name: value for name, value in parameters.items() if value is not None}
        self._details = bool(given.get("details"))
        self._prefill = self._details and bool(given.get("decoder_input_details"))
        self._top = given.get("top_n_tokens", 0)
        # A pipeline gives the whole conversation back, and the program for texts the answer.
        self._is_full = bool(given.get("return_full_text", self._is_chat))
        self._seed = given.get("seed")
        model = given.pop("adapter_id", None) or body.get("model")
        params = _params(given)
        # The others are told too: all are asked for, and ranked here.
        self._ranks = self._details and not asked.stream and _is_ranked(params)
        if self._ranks:
            params["n"] = params.pop("best_of")
        if asked.stream or self._details:
            params["return_token_ids"] = True
            if not any(name in params for name in ROUTINES):
                params["logprobs"] = self._top
        if self._prefill:
            params["prompt_logprobs"] = 0
        what = {"messages" if self._is_chat else "prompt": self._inputs}
        if not self._inputs or not isinstance(self._inputs, str | list):
            raise RequestError(
                'inputs must be a text, a list of texts, or a conversation: [{"role": "user", '
                '"content": "…"}].',
                param="inputs",
            )
        native = {**what, "model": model, "stream": asked.stream, "sampling_params": params}
        self.asked = request.read({"id": asked.job_id, "input": native}, WHOLE, limits)
        assert isinstance(self.asked, NativeRequest)
        if asked.stream and len(self.asked.prompts) > 1:
            raise RequestError("A stream has one text for its inputs.", param="inputs")
        self._text = ""
        self._tokens = 0

    def events(self, said: Any) -> list[Any]:
        first, *others = said["choices"]
        if others:
            raise RequestError("A stream has one answer.", param="best_of")
        tokens = _tokens(first)
        reason = _reason(first)
        text = "".join(first["tokens"])
        self._text += text
        if len(tokens) == 1 and not tokens[0]["special"]:
            tokens[0]["text"] = text
        elif "".join(one["text"] for one in tokens if not one["special"]) != text:
            for one in tokens:  # a character of several tokens comes with the last of them
                one["text"] = ""
            tokens[-1]["text"] = text
        events: list[Any] = []
        for token, top in zip(tokens, self._tops(first, len(tokens)), strict=True):
            self._tokens += 1
            events.append({"index": self._tokens, "token": token, **top})
            events[-1] |= {"generated_text": None, "details": None}
        if events and reason:
            details = {"finish_reason": reason, "generated_tokens": self._tokens}
            events[-1]["generated_text"] = self._full(self._text)
            events[-1]["details"] = details | {
                "seed": self._seed,
                "input_length": said["usage"]["input"],
            }
        return events

    def whole(self, said: Any) -> Any:
        prompts = said.get("prompt_token_ids", [])
        prompts = prompts if prompts and isinstance(prompts[0], list) else [prompts]
        answers = [self._answer(choice) for choice in said["choices"]]
        each = len(answers) // (len(self._inputs) if self._is_list else 1)
        for at, answer in enumerate(answers):
            if self._prefill:
                scores = said["choices"][at].get("prompt_logprobs") or ()
                answer["details"]["prefill"] = _prefill(prompts[at // each], scores)
            answer["generated_text"] = self._full(answer["generated_text"], at // each)
        if self._ranks:
            answers = [_best(answers[at : at + each]) for at in range(0, len(answers), each)]
            each = 1
        if self._is_list:
            left = iter(answers)
            return [list(islice(left, each)) for _ in self._inputs]
        return answers[0] if self._is_bare else answers

    def _answer(self, choice: dict[str, Any]) -> dict[str, Any]:
        text = "".join(choice["tokens"])
        if not self._details:
            return {"generated_text": text}
        tokens = _tokens(choice)
        details = {
            "finish_reason": _reason(choice),
            "generated_tokens": len(tokens),
            "seed": self._seed,
            "prefill": [],
            "tokens": tokens,
        }
        if self._top:
            details["top_tokens"] = [one["top_tokens"] for one in self._tops(choice, len(tokens))]
        return {"generated_text": text, "details": details}

    def _tops(self, choice: dict[str, Any], tokens: int) -> list[dict[str, Any]]:
        if not self._top:
            return [{}] * tokens
        return [
            {"top_tokens": [_token(top, top["token_id"]) for top in one["top"][: self._top]]}
            for one in choice["logprobs"]
        ]

    def _full(self, text: str, at: int = 0) -> Any:
        if not self._is_full:
            return text
        if self._is_chat:
            return [*self._inputs, {"role": "assistant", "content": text}]
        return (self._inputs[at] if self._is_list else self._inputs) + text


def _params(given: dict[str, Any]) -> dict[str, Any]:
    """Return generation parameters under the names of the native path."""
    params: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "grammar":
                params |= _grammar(value)
            case "watermark":
                params |= {"watermarking_config": {}} if value else {}
            case _ if name in OF_THE_REPLY or (name in RENAMED and value == []):
                pass
            case _:
                params[RENAMED.get(name, name)] = value
    if "truncate_prompt_tokens" in params:
        params.setdefault("truncation_side", "left")
    drawn = any(params.get(name, neutral) != neutral for name, neutral in NEUTRAL.items())
    params["do_sample"] = bool(params.get("do_sample")) or drawn
    return params


def _is_ranked(params: dict[str, Any]) -> bool:
    """Say whether best_of asks for the likeliest of several answers that are drawn."""
    best_of, others = params.get("best_of"), ("n", "num_return_sequences", *ROUTINES)
    drawn = params["do_sample"] and not any(name in params for name in others)
    return drawn and type(best_of) is int and best_of > 1


def _best(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the likeliest of some answers, with the others in its details."""

    def likelihood(answer: dict[str, Any]) -> float:
        return sum(token["logprob"] or 0.0 for token in answer["details"]["tokens"])

    best, *others = sorted(answers, key=likelihood, reverse=True)
    best["details"]["best_of_sequences"] = [
        {"generated_text": one["generated_text"], **one["details"]} for one in others
    ]
    return best


def _grammar(value: Any) -> dict[str, Any]:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in GRAMMARS or "value" not in value:
        raise invalid_parameter(
            "grammar", 'grammar must be {"type": "json" or "regex", "value": …}.'
        )
    grammar = value["value"]
    if kind == "json_schema" and isinstance(grammar, dict):
        grammar = grammar.get("schema", grammar)
    return {GRAMMARS[kind]: grammar}


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be an object.")
    return value


def _is_chat(inputs: Any) -> bool:
    return isinstance(inputs, list) and bool(inputs) and isinstance(inputs[0], dict)


def _reason(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if reason != "stop":
        return reason and "length"
    return "stop_sequence" if "stop_reason" in choice else "eos_token"


def _tokens(choice: dict[str, Any]) -> list[dict[str, Any]]:
    ids = choice.get("token_ids", [])
    scores = choice.get("logprobs") or [{}] * len(ids)
    tokens = [_token(score, one) for score, one in zip(scores, ids, strict=True)]
    if tokens and _reason(choice) == "eos_token":
        tokens[-1]["special"] = True
    return tokens


def _token(score: dict[str, Any], token_id: int) -> dict[str, Any]:
    text, logprob = score.get("token") or "", score.get("logprob")
    return {"id": token_id, "text": text, "logprob": logprob, "special": False}


def _prefill(ids: list[int], scores: Any) -> list[dict[str, Any]]:
    told = [one or {} for one in scores] or [{}] * len(ids)
    return [
        {"id": one, "text": score.get("token") or "", "logprob": score.get("logprob")}
        for one, score in zip(ids, told, strict=False)
    ]
