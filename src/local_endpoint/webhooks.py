"""Webhooks: the result of a job is posted to the address that came with it."""

import asyncio

import aiohttp

from local_endpoint import wire
from local_endpoint.job import Job
from local_endpoint.views import status_view

TRIES = 3


class Webhooks:
    """Posts under way; each is tried three times, `retry_s` apart, until it is answered 200."""

    def __init__(self, retry_s: float) -> None:
        self.retry_s = retry_s
        self._posts: set[asyncio.Task[None]] = set()

    def send(self, job: Job) -> None:
        """Post a finished job to its webhook, if it has one, in the background."""
        url = job.extras.get("webhook")
        if url:
            body = wire.dump({**status_view(job), "input": job.input, "webhook": url})
            post = asyncio.get_running_loop().create_task(self._post(url, body))
            self._posts.add(post)
            post.add_done_callback(self._posts.discard)

    async def close(self) -> None:
        for post in self._posts:
            post.cancel()
        await asyncio.gather(*self._posts, return_exceptions=True)

    async def _post(self, url: str, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            for attempt in range(TRIES):
                if attempt:
                    await asyncio.sleep(self.retry_s)
                try:
                    async with session.post(url, data=body) as response:
                        if response.status == 200:
                            return
                except (aiohttp.ClientError, ValueError, TimeoutError):
                    continue
