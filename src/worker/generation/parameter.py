"""One row of the table of parameters, and how it judges a value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from worker.errors import RequestError
from worker.facts import Facts
from worker.generation.checks import Check
from worker.sentences import shown

Kind = Literal["native", "chain", "routine", "output", "deployment", "refused"]
KINDS: Mapping[Kind, str] = {
    "native": "a field of vLLM's own",
    "chain": "transformers' own processor, run inside the engine",
    "routine": "several engine requests for one answer",
    "output": "what the reply holds",
    "deployment": "fixed when the worker starts",
    "refused": "refused with a sentence",
}


@dataclass(frozen=True)
class Parameter:
    """One row. `check` is None where no value is accepted, or `fits` alone judges it.

    `becomes` says what it turns into here, `differs` what a user of the reference will notice. For
    a deployment parameter `option` names the variable that sets it, and `fits` says whether the
    value is what this worker does anyway. For a refused one `differs` is the sentence's end.
    With `neutral` it does nothing. `inherited`: the model's generation_config.json may set it,
    beside what vLLM reads of that file.
    """

    name: str
    kind: Kind
    meaning: str
    check: Check | None = None
    becomes: str = ""
    differs: str = ""
    example: Any = None
    aliases: tuple[str, ...] = ()
    reference: Literal["Hugging Face", "vLLM", "both"] = "Hugging Face"
    option: str = ""
    neutral: Any = None
    inherited: bool = False
    fits: Callable[[Any, Facts], bool] = field(default=lambda _value, _facts: False)

    def read(self, name: str, value: Any, facts: Facts) -> Any:
        """Return a job's value as the engine wants it; `name` is what the job calls the parameter.

        Raises RequestError.
        """
        if self.check is not None:
            try:
                value = self.check.read(value, facts)
            except ValueError as error:
                reason = str(error) or f"be {self.check.allowed}"
                raise RequestError(
                    f"{name}={shown(value)}: it must {reason}.",
                    param=name,
                    type="invalid_parameter",
                ) from None
        if self.kind == "refused" and not self.fits(value, facts):
            raise RequestError(
                f"{name} is not supported. {self.differs}",
                param=name,
                type="unsupported_parameter",
            )
        if self.kind == "deployment" and not self.fits(value, facts):
            raise RequestError(
                f"{name}={shown(value)}: this is fixed when the worker starts"
                f"{_current(self.option, facts)}. The variable {self.option} sets it.",
                param=name,
                type="deployment_parameter",
            )
        return value


def _current(option: str, facts: Facts) -> str:
    name = option.lower()
    options = {"max_model_len": facts.max_model_len, **facts.engine_options}
    if name not in options:
        return ""
    return f", and here it is different ({name}={shown(options[name])})"


def native(name: str, meaning: str, check: Check, **more: Any) -> Parameter:
    """Return a row that becomes a field of vLLM's own."""
    return Parameter(name, "native", meaning, check, **more)


def vllm(name: str, meaning: str, check: Check, example: Any = None, **more: Any) -> Parameter:
    """Return a row that is a field of vLLM's own, under vLLM's name."""
    return Parameter(name, "native", meaning, check, example=example, reference="vLLM", **more)


def chain(name: str, meaning: str, check: Check, **more: Any) -> Parameter:
    """Return a row that one of transformers' processors answers for."""
    return Parameter(name, "chain", meaning, check, becomes="the chain", inherited=True, **more)


def routine(name: str, meaning: str, check: Check, **more: Any) -> Parameter:
    """Return a row that several engine requests answer for."""
    return Parameter(name, "routine", meaning, check, **more)


def output(name: str, meaning: str, check: Check, **more: Any) -> Parameter:
    """Return a row that says what the reply holds."""
    return Parameter(name, "output", meaning, check, **more)


def fixed(
    name: str, meaning: str, option: str, check: Check | None = None, **more: Any
) -> Parameter:
    """Return a row that is fixed when the worker starts, by the variable `option`."""
    return Parameter(name, "deployment", meaning, check, option=option, **more)


def refused(name: str, meaning: str, why: str, **more: Any) -> Parameter:
    """Return a row that is refused; `why` ends the sentence."""
    return Parameter(name, "refused", meaning, differs=why, **more)
