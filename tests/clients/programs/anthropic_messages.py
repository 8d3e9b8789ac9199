"""Anthropic's Python client: a message, the same message as a stream, and errors.

The client adds `/v1/messages` itself, so its base URL ends with `/openai`.
"""

import json
import os

import anthropic

base_url = os.environ["BASE_URL"].removesuffix("/v1")
client = anthropic.Anthropic(base_url=base_url, auth_token=os.environ["API_KEY"])
chat = {
    "model": os.environ["MODEL"],
    "messages": [{"role": "user", "content": os.environ["PROMPT"]}],
    "max_tokens": 30,
    "extra_body": {"temperature": 0},  # which is none of the client's own parameters any more
}
said = {}

reply = client.messages.create(**chat)
said["whole"] = reply.content[0].text
said["whole_tokens"] = reply.usage.output_tokens

with client.messages.stream(**chat) as stream:
    said["pieces"] = list(stream.text_stream)
    said["stream_tokens"] = stream.get_final_message().usage.output_tokens

once = client.with_options(max_retries=0)
try:
    once.messages.create(**chat | {"model": "nope"})
except anthropic.APIStatusError as error:
    said["error"] = error.message

try:
    with once.messages.stream(**chat | {"model": "nope"}) as stream:
        stream.until_done()
except anthropic.APIStatusError as error:
    said["stream_error"] = error.message

try:
    anthropic.Anthropic(base_url=base_url, auth_token="wrong").messages.create(**chat)
except anthropic.AuthenticationError as error:
    said["unauthorized"] = error.status_code

print(json.dumps(said))
