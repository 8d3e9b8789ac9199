"""A real Chromium without a window, driven by its own DevTools protocol: nothing to install."""

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

TIMEOUT_S = 20
FLAGS = [
    "--headless",
    "--no-sandbox",  # it refuses to start as root otherwise
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--remote-debugging-port=0",
]


def find() -> str | None:
    """Return the path of a Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Page:
    """One page of the browser. What it reports is read whenever something is asked of it."""

    def __init__(self, runner: asyncio.Runner, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._runner = runner
        self._socket = socket
        self._last_id = 0
        self.problems: list[str] = []  # errors in the console, exceptions, failed requests
        self.hosts: set[str] = set()  # whatever it sent a request to
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol, and wait for its result."""
        return self._runner.run(asyncio.wait_for(self._call(method, params), TIMEOUT_S))

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        await self._socket.send_json({"id": self._last_id, "method": method, "params": params})
        while (message := await self._socket.receive_json()).get("id") != self._last_id:
            self._hear(message["method"], message["params"])
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def _hear(self, event: str, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.hosts.add(urlsplit(about["request"]["url"]).netloc)
        elif event == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
            self.problems.append(json.dumps(about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{about['entry']['text']} ({about['entry'].get('url')})")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a piece of JavaScript, once its promise is resolved."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until an expression is true."""
        deadline_s = time.monotonic() + timeout_s
        while not self.evaluate(f"!!({expression})"):
            if time.monotonic() > deadline_s:
                text = self.evaluate("document.body.innerText")
                raise TimeoutError(f"{expression}\n{self.problems}\n{text}")
            time.sleep(0.02)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def text(self, selector: str) -> str:
        """Return the text of the first element, or "" if there is none."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector: str) -> None:
        """Press the mouse on an element, which must be there and not covered."""
        where = self.evaluate(f"""(() => {{
            const node = document.querySelector({json.dumps(selector)});
            node.scrollIntoView({{block: "nearest"}});
            const {{x, y, width, height}} = node.getBoundingClientRect();
            const [left, top] = [x + width / 2, y + height / 2];
            if (!node.contains(document.elementFromPoint(left, top))) throw Error("covered");
            return {{x: left, y: top}};
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def write(self, text: str) -> None:
        """Type into what has the focus, in place of what it holds."""
        self.evaluate("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Escape": 27, "ArrowRight": 39}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def opened(profile: Path) -> Iterator[Page]:
    """Run a browser with an empty profile: inside the block it has one empty page."""
    chromium = find()
    assert chromium, "no Chromium here"
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "--window-size=1400,900"]
    log = (profile.parent / f"{profile.name}.log").open("wb")
    with log, subprocess.Popen([*command, "about:blank"], stdout=log, stderr=log) as process:
        try:
            with asyncio.Runner() as runner:
                session, socket = runner.run(_connect(_port(profile)))
                try:
                    yield Page(runner, socket)
                finally:
                    runner.run(session.close())
        finally:
            process.kill()


def _port(profile: Path) -> int:
    file = profile / "DevToolsActivePort"
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline_s, "Chromium does not start"
        time.sleep(0.05)
    return int(file.read_text().split()[0])


async def _connect(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        page = next(target for target in await answer.json() if target["type"] == "page")
    return session, await session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
