"""The routes that jobs may use, made from the app's own table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from fastapi.params import Form

from worker.errors import RequestError
from worker.sentences import nearest, shown

# What answers a client and changes nothing in the server; a new route of vLLM's is none of them.
OPEN_ROUTES = frozenset(
    {
        "/classify",
        "/detokenize",
        "/health",
        "/metrics",
        "/pooling",
        "/rerank",
        "/score",
        "/tokenize",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/derender",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/completions/derender",
        "/v1/completions/render",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/models",
        "/v1/models/{name:path}",
        "/v1/rerank",
        "/v1/responses",
        "/v1/responses/render",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/score",
        "/v1/systemone",
        "/v2/embed",
        "/v2/rerank",
        "/version",
    }
)

# What a model must be so that its server has a route.
TAKES = {
    "a model that writes text": (
        *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
        *("/v1/chat/completions/batch", "/v1/messages/count_tokens"),
    ),
    "a model that embeds (RUNNER=pooling makes one of most that write text)": (
        *("/v1/embeddings", "/v2/embed"),
    ),
    "a model that ranks or embeds": (
        *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    ),
    "a classifier": ("/classify",),
    "a model that embeds, ranks or classifies": ("/pooling",),
    "a model of speech, such as Whisper": (
        *("/v1/audio/transcriptions", "/v1/audio/translations"),
    ),
}


@dataclass(frozen=True)
class Route:
    """One path of the app's own table and the methods it takes."""

    path: str
    methods: tuple[str, ...]
    takes_body: bool
    takes_form: bool
    matches: Callable[[str], bool]


class Routes:
    """The routes that jobs may use; `warnings` says which of the `extra` ones are nowhere."""

    def __init__(self, app: Any, extra: Iterable[str]) -> None:
        everything = [_route(route) for route in app.routes if getattr(route, "methods", None)]
        there, wanted = {route.path for route in everything}, set(extra)
        self._closed = [r for r in everything if r.path not in OPEN_ROUTES | wanted]
        self._open = _merged(r for r in everything if r not in self._closed)
        self.warnings = [
            f"EXTRA_ROUTES: this model's server has no route {path}.{nearest(path, there)}"
            for path in sorted(wanted - there)
        ]

    def find(self, path: str) -> tuple[str, Route]:
        """Return the path to call and its route: as written, else with `/v1`, else without.

        Raises RequestError (404) naming the routes there are.
        """
        path = path.rstrip("/") or "/"
        candidates = (path, f"/v1{path}", path.removeprefix("/v1"))
        for candidate in candidates:
            for route in self._open:
                if route.matches(candidate):
                    return candidate, route
        for candidate in candidates:
            for route in self._closed:
                if route.matches(candidate):
                    raise RequestError(
                        f"The route {route.path} is closed on this worker. "
                        f"The variable EXTRA_ROUTES={route.path} opens it.",
                        code=404,
                    )
        names = sorted({route.path for route in self._open})
        takes = (kind for kind, paths in TAKES.items() if not set(paths).isdisjoint(candidates))
        why = next((f" It takes {kind}, and this worker's is none." for kind in takes), "")
        raise RequestError(
            f"There is no route {shown(path)}.{why or nearest(path, names)} "
            f"Routes: {', '.join(names)}.",
            code=404,
        )


def _route(route: Any) -> Route:
    params = getattr(getattr(route, "dependant", None), "body_params", ())

    def matches(path: str) -> bool:
        return route.path_regex.match(path) is not None

    return Route(
        route.path,
        tuple(sorted(route.methods - {"HEAD"})),
        takes_body=bool(params),
        takes_form=any(isinstance(param.field_info, Form) for param in params),
        matches=matches,
    )


def _merged(routes: Iterable[Route]) -> list[Route]:
    """Join the entries of one path: FastAPI has one for each method."""
    merged: dict[str, Route] = {}
    for route in routes:
        known = merged.get(route.path, route)
        methods = tuple(sorted({*known.methods, *route.methods}))
        merged[route.path] = replace(
            known,
            methods=methods,
            takes_body=known.takes_body or route.takes_body,
            takes_form=known.takes_form or route.takes_form,
        )
    return list(merged.values())
