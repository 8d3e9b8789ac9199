"""A job's body becomes the one that vLLM's route takes: JSON, or a form with a file."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from worker.engine import sampling_params
from worker.errors import RequestError, unsupported_parameter
from worker.facts import Facts
from worker.generation.conflicts import contradiction
from worker.generation.plan import Plan
from worker.generation.reading import read, unknown
from worker.generation.table import BY_NAME
from worker.sentences import shown

# What a body of these routes may say of the same things.
BODY_ROUTES = ("/v1/chat/completions", "/v1/completions")
SHARED = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n", "min_tokens"),
    *("stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
)
# Of vLLM's own, what these routes have as a field of the same meaning.
OF_THE_BODY = (
    *("presence_penalty", "frequency_penalty", "seed", "logit_bias", "allowed_token_ids"),
    *("bad_words", "structured_outputs", "skip_special_tokens", "spaces_between_special_tokens"),
)
MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


def read_body(body: Mapping[str, Any], path: str, facts: Facts) -> tuple[dict[str, Any], Plan]:
    """Turn `generation_parameters` in an OpenAI body into fields that vLLM's route knows.

    Returns the new body, without what carries the chain's order, and the plan. Raises RequestError
    for a route that has no such field, for a name that needs a routine, and for a contradiction
    between the two ways to say a thing.
    """
    given = body["generation_parameters"]
    given = {} if given is None else given
    if path not in BODY_ROUTES:
        raise _not_here(f"{path} takes no generation_parameters; {' and '.join(BODY_ROUTES)} do.")
    if not isinstance(given, dict):
        raise _not_here(f"generation_parameters={shown(given)} must be an object.")
    for name in given:
        parameter = BY_NAME.get(name)
        if parameter is None:
            raise unknown(name, "generation_parameters")
        if (
            parameter.kind in ("routine", "output")
            or name in ("max_length", "bos_token_id", "truncate_prompt_tokens", "truncation_side")
            or (
                name in sampling_params.names()
                and name not in (*SHARED, *OF_THE_BODY, "max_tokens")
            )
        ):
            raise _not_here(f"{name} cannot be one of the generation_parameters of {path}.", name)
    if body.get("use_beam_search"):
        raise _not_here("use_beam_search on this route is vLLM's own, which takes no chain.")
    said = {name: body[name] for name in SHARED if body.get(name) is not None}
    longest = [body.get(name) for name in ("max_completion_tokens", "max_tokens")]
    if longest != [None, None]:
        said["max_tokens"] = longest[1] if longest[0] is None else longest[0]
    given = {name: value for name, value in given.items() if value is not None}
    there = {name: body[name] for name in OF_THE_BODY if body.get(name) is not None} | said
    for name, value in given.items():
        known = "structured_outputs" if name.startswith("guided_") else name
        if there.get(known, value) != value:
            raise contradiction(known, there[known], f"generation_parameters.{name}", value)
    # A routine that the model's configuration names has no place on these routes.
    steered = {
        name: value for name, value in facts.inherited.items() if BY_NAME[name].kind == "chain"
    }
    plan = read(said | given, replace(facts, inherited=steered), stream=bool(body.get("stream")))
    if body.get("vllm_xargs") is not None and plan.order is not None:
        raise _not_here("vllm_xargs cannot be combined with these generation_parameters.")
    fields = {name: getattr(plan.params, name) for name in SHARED}
    if plan.has_length:
        fields["max_tokens"] = plan.params.max_tokens
    guided = {
        name.removeprefix("guided_"): value
        for name, value in given.items()
        if name.startswith("guided_") and value is not False
    }
    if guided:
        fields["structured_outputs"] = guided
    fields |= {
        name: value if name == "structured_outputs" else getattr(plan.params, name)
        for name, value in given.items()
        if name in OF_THE_BODY
    }
    gone = ("generation_parameters", "max_completion_tokens" if plan.has_length else "")
    return {name: value for name, value in body.items() if name not in gone} | fields, plan


def _not_here(sentence: str, name: str = "generation_parameters") -> RequestError:
    return unsupported_parameter(name, sentence)


def file_fields(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict) or not isinstance(body.get("file"), str):
        raise RequestError(
            'This route takes a file: {"file": "<base64 or data URL>", "filename": "speech.wav"} '
            "and its other fields beside it.",
            param="file",
        )
    return body


def form(fields: dict[str, Any]) -> tuple[bytes, str]:
    """Turn JSON fields with a base64 `file` into a multipart form and its content type."""
    text, kind = fields["file"], "application/octet-stream"
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        named = head.removeprefix("data:").split(";")[0]
        # Anything else could end the line of the form in which it stands.
        kind = named if MEDIA_TYPE.fullmatch(named) else kind
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(
            "file is neither base64 nor a data URL of base64.", param="file"
        ) from None
    name = fields.get("filename") or "file"
    plain: dict[str, Any] = {
        key: [_form_text(item) for item in value] if isinstance(value, list) else _form_text(value)
        for key, value in fields.items()
        if key not in ("file", "filename") and value is not None
    }
    form = httpx.Request(
        "POST", "http://worker/", data=plain, files={"file": (str(name), content, kind)}
    )
    return form.read(), form.headers["content-type"]


def _form_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
