"""What can go wrong, and what the caller sees of it.

WorkerError
├── SettingsError     the configuration is wrong: the start stops, exit code 1
├── StartError        the engine did not come up: the start stops, exit code 1
└── RequestError      one job is wrong or was refused; its neighbours go on
    └── EngineDied    the engine is gone: every running job fails, the process ends
"""

import json
import logging
from typing import Any

log = logging.getLogger("worker")

TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "PayloadTooLargeError",
    422: "UnprocessableEntityError",
    503: "ServiceUnavailableError",
}


class WorkerError(Exception):
    """The root of what this worker raises."""


class SettingsError(WorkerError):
    """The configuration is wrong. One sentence for each problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StartError(WorkerError):
    """The engine did not come up. The message is one sentence for the log."""


class RequestError(WorkerError):
    """A job cannot be answered.

    `code` is the HTTP status that vLLM's server would have answered with, `type` and `param`
    are those of OpenAI's error object.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int = 400,
        type: str | None = None,  # noqa: A002 - OpenAI's name for it
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        message = message or "The request failed, and nothing says why."
        # Some of vLLM's sentences repeat the whole value.
        self.message = message if len(message) <= 2000 else f"{message[:1999]}…"
        self.code = code
        self.type = type or TYPES.get(code, "InternalServerError")
        self.param = param

    def body(self) -> dict[str, dict[str, Any]]:
        """Return the one shape every error has, here as in vLLM 0.32."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def told(self, *, as_output: bool = False) -> Any:
        """Return the yield that ends a job: FAILED, or COMPLETED with the error as output.

        The SDK calls str() on the error, so it is text already. A dict would become Python's.
        """
        return self.text() if as_output else {"error": self.text()}

    def text(self) -> str:
        """Return the error as JSON text: the SDK calls `str()` on what it reports."""
        text = json.dumps(self.body(), ensure_ascii=False)
        return text.encode("utf-8", errors="replace").decode()


class EngineDied(RequestError):  # noqa: N818 - it says what happened
    """The engine stopped while the job ran."""

    def __init__(self) -> None:
        super().__init__(
            "The model's engine stopped unexpectedly, and the worker is being replaced. "
            "Send the request again.",
            code=500,
        )


def unforeseen(error: BaseException) -> RequestError:
    """Log an error that is no word for a caller, and return what he is told instead."""
    log.error("An answer failed unexpectedly", exc_info=error)
    return RequestError("The worker failed to answer this job.", code=500)


def too_large(size_bytes: int, most_bytes: int) -> RequestError:
    return RequestError(
        f"The result has {size_bytes:,} bytes so far, and RunPod takes {most_bytes:,} "
        "(MAX_RESULT_MB). Ask for fewer tokens, choices or logprobs.",
        code=413,
    )


def no_tokenizer(name: str) -> RequestError:
    return deployment_parameter(
        name, f"{name} needs a tokenizer, and this worker runs without one (SKIP_TOKENIZER_INIT)."
    )


def invalid_parameter(param: str | None, sentence: str) -> RequestError:
    return RequestError(sentence, param=param, type="invalid_parameter")


def unsupported_parameter(param: str, sentence: str) -> RequestError:
    return RequestError(sentence, param=param, type="unsupported_parameter")


def deployment_parameter(param: str, sentence: str) -> RequestError:
    return RequestError(sentence, param=param, type="deployment_parameter")
