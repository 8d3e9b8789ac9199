"""Addresses that jobs name are public ones only.

Each is judged at the moment of the connection to it, so neither a redirect nor a name that changes
its address gets past; and no proxy is used, because it would choose the address.
"""

import ipaddress
from collections.abc import Callable
from threading import Event
from typing import Any, BinaryIO

import requests
import urllib3
from requests.adapters import HTTPAdapter

from worker.errors import RequestError

CHUNK = 1 << 20  # bytes
TIMEOUT_S = (10, 60)  # to connect, and between two pieces
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
Pools = tuple[type[urllib3.HTTPConnectionPool], type[urllib3.HTTPSConnectionPool]]


def is_public(address: str) -> bool:
    """Say whether an IP address is one of the internet's, also where it holds another one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        ip = inner or ip
    return ip.is_global and not ip.is_multicast


def judged(
    refusal: Callable[[], Exception],
    pools: Pools = (urllib3.HTTPConnectionPool, urllib3.HTTPSConnectionPool),
) -> dict[str, type[Any]]:
    """Return urllib3's pools by scheme, of connections that raise `refusal` where one leads to a
    private address: when it stands, before anything is sent."""

    class Judged:
        def _new_conn(self) -> Any:
            connected = super()._new_conn()  # type: ignore[misc]
            if not is_public(str(connected.getpeername()[0])):
                connected.close()
                raise refusal()
            return connected

    def of(pool: Any) -> type[Any]:
        connection = type("JudgedConnection", (Judged, pool.ConnectionCls), {})
        return type("JudgedPool", (pool,), {"ConnectionCls": connection})

    return {"http": of(pools[0]), "https": of(pools[1])}


def session(refusal: Callable[[], Exception] | None) -> requests.Session:
    """Return a client that raises `refusal` at private addresses; without one it goes anywhere."""
    session = requests.Session()
    session.auth = lambda prepared: prepared  # no login of the worker's own, from a .netrc
    if refusal is None:
        return session
    session.trust_env = False
    pools = judged(refusal)

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs)
            self.poolmanager.pool_classes_by_scheme = pools

    for scheme in ("http://", "https://"):
        session.mount(scheme, Adapter())
    return session


def private(what: str) -> RequestError:
    """Say that an address leads where jobs may not."""
    return RequestError(
        f"{what} leads into a private network, which this worker does not reach into "
        "(ALLOW_PRIVATE_MEDIA).",
    )


class Web:
    """Files at http addresses. Everything here blocks: call it off the event loop."""

    def __init__(self, *, may_be_private: bool) -> None:
        self._may_be_private = may_be_private

    def read(self, address: str, file: BinaryIO, param: str, over: Event) -> None:
        """Copy what is at an address into a file, until `over` is set. Raises RequestError."""
        headers = {"Accept-Encoding": "identity"}
        reply = self._asked("GET", address, param, headers=headers, stream=True)
        try:
            for piece in reply.iter_content(CHUNK):
                if over.is_set():
                    return
                file.write(piece)
        except requests.RequestException:
            raise RequestError(
                f"{param}: {_shown(address)} stopped after {file.tell():,} bytes, before its end. "
                "Nothing was computed: send the batch again.",
                code=502,
                param=param,
            ) from None
        finally:
            reply.close()

    def write(self, address: str, file: BinaryIO, param: str) -> None:
        """PUT a file to a signed address. Raises RequestError."""
        self._asked("PUT", address, param, data=file, allow_redirects=False).close()

    def _asked(self, method: str, address: str, param: str, **more: Any) -> requests.Response:
        what = f"{param}: {_shown(address)}"
        client = session(None if self._may_be_private else lambda: private(what))
        try:
            reply = client.request(method, address, timeout=TIMEOUT_S, **more)
        except requests.RequestException as error:
            raise RequestError(
                f"{what} was not reached: {type(error).__name__}.", code=502, param=param
            ) from None
        if reply.status_code >= 300:
            reply.close()
            raise RequestError(f"{what} answered {reply.status_code}.", code=502, param=param)
        return reply


def _shown(address: str) -> str:
    """Return an address without what signs it."""
    return address.partition("?")[0].rpartition("@")[2][:200]
