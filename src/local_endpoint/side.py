"""What the sides of the endpoint have in common: each answers some of its routes."""

from aiohttp import web

from local_endpoint.endpoint import Endpoint
from local_endpoint.knobs import Knobs


class Side:
    """Answers the requests of one kind of client, in the shapes that it expects."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._jobs = endpoint.jobs
        self._base = f"/v2/{endpoint.id}"

    @property
    def _knobs(self) -> Knobs:
        return self._endpoint.knobs  # they may change at any time

    def routes(self) -> list[web.RouteDef]:
        """Return the routes that this side answers."""
        raise NotImplementedError
