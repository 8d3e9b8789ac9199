"""What a request inherits of the model's generation_config.json."""

import logging
from collections.abc import Mapping
from typing import Any

from worker.errors import RequestError
from worker.facts import Facts
from worker.generation.table import PARAMETERS

log = logging.getLogger("worker")


def for_request(own: set[str], facts: Facts, warnings: list[str]) -> Mapping[str, Any]:
    """Return what the model's own configuration adds to what the job says itself."""
    inherited = dict(facts.inherited)
    if own & {"min_new_tokens", "min_tokens", "min_length"}:
        inherited.pop("min_length", None)
    if "min_tokens" in own:
        inherited.pop("min_new_tokens", None)
    if inherited and facts.why_no_chain:
        warnings.append(
            f"{', '.join(inherited)} of the model's generation_config.json: no effect, since the "
            "logits processor does not run here."
        )
        return {}
    return inherited


def read(given: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return what a request inherits of the model's generation_config.json beyond vLLM."""
    kept = {}
    for parameter in PARAMETERS:
        if not parameter.inherited:
            continue
        name = parameter.name
        value = given.get(name)
        if value is None or value == parameter.neutral:
            continue
        try:
            kept[name] = parameter.read(name, value, facts)
        except RequestError as error:
            log.warning("generation_config.json is not followed: %s", error.message)
    return kept
