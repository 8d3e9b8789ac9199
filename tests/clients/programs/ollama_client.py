"""Ollama's Python client: a chat, the same as a stream, a prompt, what is served, and errors."""

import json
import os

import ollama

url = os.environ["BASE_URL"].removesuffix("/v1")
client = ollama.Client(url, headers={"Authorization": f"Bearer {os.environ['API_KEY']}"})
model = os.environ["MODEL"]
chat = {
    "messages": [{"role": "user", "content": os.environ["PROMPT"]}],
    "options": {"temperature": 0, "num_predict": 30, "num_ctx": 4096},
}
said = {}

reply = client.chat(model=model, **chat)
said["whole"] = reply.message.content
said["whole_tokens"] = reply.eval_count
said["done_reason"] = reply.done_reason

parts = list(client.chat(model=model, stream=True, **chat))
said["pieces"] = [part.message.content for part in parts if not part.done]
said["stream_tokens"] = parts[-1].eval_count
said["took"] = parts[-1].total_duration >= parts[-1].eval_duration > 0

asked = {"prompt": os.environ["PROMPT"], "options": chat["options"]}
said["generated"] = client.generate(model=model, **asked).response
said["generated_pieces"] = [
    part.response for part in client.generate(model=f"{model}:latest", stream=True, **asked)
]
said["raw"] = client.generate(model=model, raw=True, **asked).response

said["formatted"] = client.chat(model=model, format={"enum": ["b"]}, **chat).message.content
said["loaded"] = client.generate(model=model).done_reason
said["served"] = [one.model for one in client.list().models]
said["running"] = [
    [one.model, one.expires_at.year, one.context_length] for one in client.ps().models
]
shown = client.show(model)
said["length"] = shown.modelinfo["vllm.context_length"]
said["can"] = shown.capabilities

for name, stream in (("error", False), ("stream_error", True)):
    try:
        list(client.chat(model="nope", stream=stream, **chat))
    except ollama.ResponseError as error:
        said[name] = [error.status_code, error.error]

try:
    ollama.Client(url, headers={"Authorization": "Bearer wrong"}).list()
except ollama.ResponseError as error:
    said["unauthorized"] = error.status_code

print(json.dumps(said))
