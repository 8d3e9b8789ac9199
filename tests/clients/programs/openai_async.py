"""OpenAI's Python client under asyncio: the same as without."""

import asyncio
import json
import os

import openai


async def main() -> None:
    client = openai.AsyncOpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"])
    chat = {
        "model": os.environ["MODEL"],
        "messages": [{"role": "user", "content": os.environ["PROMPT"]}],
        "temperature": 0,
        "max_tokens": 30,
    }
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    said = {}

    reply = await client.chat.completions.create(**chat)
    said["whole"] = reply.choices[0].message.content
    said["whole_tokens"] = reply.usage.completion_tokens

    said["pieces"] = []
    async for chunk in await client.chat.completions.create(**chat, **with_usage):
        if chunk.choices and chunk.choices[0].delta.content:
            said["pieces"].append(chunk.choices[0].delta.content)
        if chunk.usage:
            said["stream_tokens"] = chunk.usage.completion_tokens

    once = client.with_options(max_retries=0)
    try:
        await once.chat.completions.create(**chat | {"model": "nope"})
    except openai.APIStatusError as error:
        said["error"] = error.message

    try:
        async for _chunk in await once.chat.completions.create(
            **chat | {"model": "nope"}, stream=True
        ):
            pass
    except openai.APIError as error:
        said["stream_error"] = error.message

    try:
        await client.with_options(api_key="wrong").models.list()
    except openai.AuthenticationError as error:
        said["unauthorized"] = error.status_code

    print(json.dumps(said))


asyncio.run(main())
