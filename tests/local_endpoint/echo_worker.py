"""The smallest async-generator worker: it yields `input["yields"]`, one after the other.

Optional keys of the input: `pause_s` between two yields, `raise` a sentence, `openai_route`.
`ECHO_CONCURRENCY` is the number of jobs it takes at once. `ECHO_NO_START` is a sentence with which
its start fails, in a prestart hook of the SDK 2.0.
"""

import asyncio
import json
import os

import runpod


async def handler(job):
    order = job["input"]
    if "openai_route" in order:
        for value in openai(order["openai_route"], order.get("openai_input")):
            yield value
            await asyncio.sleep((order.get("openai_input") or {}).get("pause_s", 0))
        return
    for value in order.get("yields", []):
        yield value
        await asyncio.sleep(order.get("pause_s", 0))
    if "raise" in order:
        raise RuntimeError(order["raise"])


def openai(route, body):
    if route == "/v1/models":
        return [json.dumps({"object": "list", "data": [{"id": "echo", "object": "model"}]})]
    if body["messages"][-1]["content"] == "fail":
        return [{"error": json.dumps({"error": {"message": "as you wish", "type": "wish"}})}]
    words = body["messages"][-1]["content"].split(" ")
    if body.get("stream"):
        return [sse({"delta": {"content": word + " "}}) for word in words] + ["data: [DONE]\n\n"]
    return [
        completion(
            "chat.completion", {"message": {"role": "assistant", "content": " ".join(words)}}
        )
    ]


def sse(choice):
    return f"data: {json.dumps(completion('chat.completion.chunk', choice))}\n\n"


def completion(kind, choice):
    return {
        "id": "echo-1",
        "object": kind,
        "created": 0,
        "model": "echo",
        "choices": [{"index": 0, "finish_reason": None, **choice}],
    }


def fail_to_start():
    raise RuntimeError(os.environ["ECHO_NO_START"])


if __name__ == "__main__":
    if "ECHO_NO_START" in os.environ:
        runpod.serverless.register_prestart_hook(fail_to_start)
    runpod.serverless.start(
        {
            "handler": handler,
            "return_aggregate_stream": True,
            "concurrency_modifier": lambda _current: int(os.environ.get("ECHO_CONCURRENCY", "8")),
        }
    )
