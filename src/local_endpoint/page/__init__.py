"""The page at `/`: static files without a build step, for the public side and the control API.

`page.js` is the start: it asks for the state twice a second, and hands it to the panels.
"""

from pathlib import Path

from aiohttp import web

HERE = Path(__file__).parent
CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def is_page(path: str) -> bool:
    """Return whether a request is for the page, which needs no key."""
    return path == "/" or path.startswith("/page/")


def routes() -> list[web.RouteDef]:
    return [web.get("/", _file), web.get("/page/{file}", _file)]


async def _file(request: web.Request) -> web.Response:
    name = request.match_info.get("file", "index.html")
    files = {file.name: file for file in HERE.iterdir() if file.suffix in CONTENT_TYPES}
    if name not in files:
        return web.Response(text="no such file", status=404)
    return web.Response(
        body=files[name].read_bytes(),
        content_type=CONTENT_TYPES[files[name].suffix],
        charset="utf-8",
        headers=HEADERS,
    )
