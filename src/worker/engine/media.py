"""Media that jobs name by address are fetched from public addresses only.

vLLM fetches whatever an `image_url` names. This connector of its registry judges the address at
the moment of each connection, so neither a redirect nor a name that changes its address gets past.
"""

import ipaddress
import os
import socket
from typing import Any

import aiohttp
import requests
import urllib3
from requests.adapters import HTTPAdapter
from vllm.connections import HTTPConnection
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector

NAME = "public"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def use_public_addresses() -> None:
    """Let vLLM fetch media through the connector of this room, unless another one is chosen."""
    os.environ.setdefault("VLLM_MEDIA_CONNECTOR", NAME)


def is_public(address: str) -> bool:
    """Say whether an IP address is one of the internet's, also where it holds another one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        ip = inner or ip
    return ip.is_global and not ip.is_multicast


def _judge(address: Any) -> None:
    if not is_public(str(address[0])):
        raise VLLMValidationError(
            "The address of the media leads into a private network, which this worker does not "
            "reach into. Send the content itself as a data URL. (ALLOW_PRIVATE_MEDIA)"
        )


def _public_socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, address = info
    _judge(address)
    return socket.socket(family, kind, protocol)


class _Judged:
    """A connection of urllib3 that is judged when it stands, before anything is sent."""

    def _new_conn(self) -> Any:
        connected = super()._new_conn()  # type: ignore[misc]
        try:
            _judge(connected.getpeername())
        except VLLMValidationError:
            connected.close()
            raise
        return connected


class _HTTP(_Judged, urllib3.connection.HTTPConnection):
    pass


class _HTTPS(_Judged, urllib3.connection.HTTPSConnection):
    pass


class _HTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HTTP


class _HTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HTTPS


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}


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
            self._sync_client = requests.Session()
            self._sync_client.trust_env = False
            for scheme in ("http://", "https://"):
                self._sync_client.mount(scheme, _Adapter())
        return self._sync_client


_connection = _PublicConnection()


@MEDIA_CONNECTOR_REGISTRY.register(NAME)
class PublicMediaConnector(MediaConnector):  # type: ignore[misc]
    """vLLM's media connector on that client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"connection": _connection, **kwargs})
