"""Media that jobs name by address are fetched from public addresses only.

vLLM fetches whatever an `image_url` names. This connector of its registry goes by the rules of
`storage/addresses.py`.
"""

import os
import socket
from typing import Any

import aiohttp
import requests
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector

from worker.storage import addresses

NAME = "public"


def use_public_addresses() -> None:
    """Let vLLM fetch media through the connector of this room, unless another one is chosen."""
    os.environ.setdefault("VLLM_MEDIA_CONNECTOR", NAME)


def _refusal() -> Exception:
    error: Exception = VLLMValidationError(
        "The address of the media leads into a private network, which this worker does not "
        "reach into. Send the content itself as a data URL. (ALLOW_PRIVATE_MEDIA)"
    )
    return error


def _public_socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, address = info
    if not addresses.is_public(str(address[0])):
        raise _refusal()
    return socket.socket(family, kind, protocol)


class _PublicConnection(HTTPConnection):  # type: ignore[misc]  # vLLM's has no types here
    """vLLM's HTTP client, which connects to public addresses alone and through no proxy.

    A generating model's routes fetch with the one client, a pooling model's with the other.
    """

    _async_client: aiohttp.ClientSession | None
    _sync_client: requests.Session | None

    async def get_async_client(self) -> aiohttp.ClientSession:
        if self._async_client is None:
            # Without the race of several addresses, in which a refusal would be lost.
            connector = aiohttp.TCPConnector(
                socket_factory=_public_socket, happy_eyeballs_delay=None
            )
            self._async_client = aiohttp.ClientSession(connector=connector)
        return self._async_client

    def get_sync_client(self) -> requests.Session:
        if self._sync_client is None:
            self._sync_client = addresses.session(_refusal)
        return self._sync_client


_connection = _PublicConnection()


@MEDIA_CONNECTOR_REGISTRY.register(NAME)
class PublicMediaConnector(MediaConnector):  # type: ignore[misc]
    """vLLM's media connector on that client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"connection": _connection, **kwargs})
