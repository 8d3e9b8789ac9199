"""LiteLLM: a chat, the same chat as a stream, and errors, which are OpenAI's classes."""

import json
import os

import litellm
import openai

litellm.suppress_debug_info = True
chat = {
    "model": f"openai/{os.environ['MODEL']}",
    "api_base": os.environ["BASE_URL"],
    "api_key": os.environ["API_KEY"],
    "messages": [{"role": "user", "content": os.environ["PROMPT"]}],
    "temperature": 0,
    "max_tokens": 30,
}
with_usage = {"stream": True, "stream_options": {"include_usage": True}}
wrong = chat | {"model": "openai/nope", "max_retries": 0}
said = {}

reply = litellm.completion(**chat)
said["whole"] = reply.choices[0].message.content
said["whole_tokens"] = reply.usage.completion_tokens

said["pieces"] = []
for chunk in litellm.completion(**chat, **with_usage):
    if chunk.choices and chunk.choices[0].delta.content:
        said["pieces"].append(chunk.choices[0].delta.content)
    if usage := getattr(chunk, "usage", None):
        said["stream_tokens"] = usage.completion_tokens

try:
    litellm.completion(**wrong)
except openai.APIError as error:
    said["error"] = error.message

try:
    for _chunk in litellm.completion(**wrong, stream=True):
        pass
except openai.APIError as error:
    said["stream_error"] = error.message

try:
    litellm.completion(**chat | {"api_key": "wrong"})
except openai.AuthenticationError as error:
    said["unauthorized"] = error.status_code

print(json.dumps(said))
