"""The shape "proxy in front of `vllm serve`", as thin as it can honestly be.

RunPod's SDK, aiohttp, and one post for what has arrived since the last. VLLM_URL is the server.
"""

import codecs
import os

import aiohttp
import runpod

_session: list[aiohttp.ClientSession] = []


async def handler(job):
    if not _session:
        _session.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    asked = job["input"]
    url = os.environ["VLLM_URL"] + asked["openai_route"]
    text = codecs.getincrementaldecoder("utf-8")()
    async with _session[0].post(url, json=asked["openai_input"]) as reply:
        reply.raise_for_status()
        async for chunk in reply.content.iter_any():
            yield text.decode(chunk)


if __name__ == "__main__":
    runpod.serverless.start(
        {
            "handler": handler,
            "return_aggregate_stream": True,
            "concurrency_modifier": lambda _current: int(os.environ["MAX_CONCURRENCY"]),
        }
    )
