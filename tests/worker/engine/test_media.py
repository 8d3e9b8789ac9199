"""Where media are fetched from: vLLM's own connector, in front of real servers that redirect."""

import asyncio
import base64
import io
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest
from PIL import Image
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY

from worker.engine import media
from worker.storage import addresses

pytestmark = pytest.mark.timeout(60)


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (2, 3), "red").save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    """A server on every address of this machine, and what it was asked; /to/<url> redirects."""
    asked: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/to/"))
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(png())

        def log_message(self, *_: Any) -> None:
            pass

    pages = ThreadingHTTPServer(("0.0.0.0", 0), Pages)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    yield pages.server_port, asked
    pages.shutdown()
    pages.server_close()


async def fetch(url: str, name: str = media.NAME, *, sync: bool = False) -> Any:
    connector = MEDIA_CONNECTOR_REGISTRY.load(name)
    if sync:
        return await asyncio.to_thread(connector.fetch_image, url)
    try:
        return await connector.fetch_image_async(url)
    finally:
        client = await connector.connection.get_async_client()
        await client.close()
        connector.connection._async_client = None


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    """Private, loopback, link-local and shared addresses are not public, in whatever clothes."""
    assert public == addresses.is_public(address)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_an_address_of_this_machine(host: str, sync: bool, server: tuple[int, list[str]]) -> None:
    """However this machine is named, it is not connected to; vLLM's own connector would be."""
    port, asked = server
    url = f"http://{host}:{port}/image.png"
    with pytest.raises(VLLMValidationError, match="ALLOW_PRIVATE_MEDIA"):
        asyncio.run(fetch(url, sync=sync))

    assert [] == asked
    assert (2, 3) == asyncio.run(fetch(url, "http", sync=sync)).size
    assert ["/image.png"] == asked


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1"])
def test_odd_spellings_of_an_address(
    host: str, sync: bool, server: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that means this machine to the C library leads nowhere."""
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    port, asked = server
    with pytest.raises((VLLMClientError, OSError)):
        asyncio.run(fetch(f"http://{host}:{port}/image.png", sync=sync))

    assert [] == asked


@pytest.mark.parametrize("sync", [False, True])
def test_a_redirect(
    sync: bool, server: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public server that redirects to a private address is asked, and the address is not."""
    port, asked = server
    own = "127.0.0.2"
    judge = addresses.is_public
    # The one address that plays the public server; everything else is judged as it is.
    monkeypatch.setattr(addresses, "is_public", lambda ip: ip == own or judge(ip))

    assert (2, 3) == asyncio.run(fetch(f"http://{own}:{port}/image.png", sync=sync)).size
    for target in ("127.0.0.1", "localhost"):
        with pytest.raises(VLLMValidationError, match="private network"):
            asyncio.run(
                fetch(f"http://{own}:{port}/to/http://{target}:{port}/secret.png", sync=sync)
            )
    there = f"http://{own}:{port}/to/http://{own}:{port}/image.png"
    assert (2, 3) == asyncio.run(fetch(there, sync=sync)).size
    assert not [path for path in asked if path.startswith("/secret")]


def test_a_name_that_changes_its_address(
    server: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is the address that is connected to, and not one that was looked up before."""
    port, asked = server
    answers = iter(["93.184.216.34", "127.0.0.1"])
    looked_up: list[str] = []

    async def resolve(_: Any, host: str, port: int = 0, family: Any = 0) -> list[Any]:
        looked_up.append(next(answers))
        found = {"hostname": host, "host": looked_up[-1], "port": port, "proto": 0, "flags": 0}
        return [found | {"family": family or socket.AF_INET}]

    resolver = aiohttp.resolver.DefaultResolver
    monkeypatch.setattr(resolver, "resolve", resolve)
    asyncio.run(resolver.resolve(None, "changing.example"))
    with pytest.raises(VLLMValidationError, match="private network"):
        asyncio.run(fetch(f"http://changing.example:{port}/image.png"))

    assert ["93.184.216.34", "127.0.0.1"] == looked_up
    assert [] == asked


def test_content_needs_no_connection() -> None:
    """A data URL is read without one."""
    url = "data:image/png;base64," + base64.b64encode(png()).decode()

    assert (2, 3) == asyncio.run(fetch(url)).size
