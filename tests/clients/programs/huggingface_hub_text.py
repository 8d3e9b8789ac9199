"""huggingface_hub's InferenceClient: a text, the same as a stream, a chat, and errors.

The client is given the worker's address in place of a model.
"""

import json
import os

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError

url = os.environ["BASE_URL"].removesuffix("/v1")
client = InferenceClient(url, token=os.environ["API_KEY"])
prompt, length = os.environ["PROMPT"], {"max_new_tokens": 30}
said = {}

said["text"] = client.text_generation(prompt, **length)
whole = client.text_generation(prompt, details=True, decoder_input_details=True, **length)
said["whole"] = whole.generated_text
said["whole_tokens"] = whole.details.generated_tokens
said["finish_reason"] = whole.details.finish_reason
said["ids"] = [token.id for token in whole.details.tokens]
said["prefill"] = [token.id for token in whole.details.prefill]

said["pieces"] = list(client.text_generation(prompt, stream=True, **length))
events = list(client.text_generation(prompt, stream=True, details=True, **length))
said["stream_ids"] = [event.token.id for event in events]
said["stream_text"] = events[-1].generated_text
said["stream_tokens"] = events[-1].details.generated_tokens

drawn = {"do_sample": True, "seed": 1, "best_of": 3}
best = client.text_generation(prompt, details=True, **drawn, **length)
others = best.details.best_of_sequences
said["best_of"] = [one.generated_text for one in (best, *others)]

messages = [{"role": "user", "content": prompt}]
chat = client.chat_completion(messages, max_tokens=30, temperature=0, model=os.environ["MODEL"])
said["chat"] = chat.choices[0].message.content
schema = {"name": "b", "schema": {"enum": ["b"]}}
formatted = client.chat_completion(
    messages, max_tokens=30, response_format={"type": "json_schema", "json_schema": schema}
)
said["formatted"] = formatted.choices[0].message.content

for name, stream in (("error", False), ("stream_error", True)):
    try:
        list(client.text_generation(prompt, temperature=-1.0, stream=stream))
    except TextGenerationError as error:
        said[name] = [type(error).__name__, str(error)]

try:
    InferenceClient(url, token="wrong").text_generation(prompt)
except HfHubHTTPError as error:
    said["unauthorized"] = error.response.status_code

print(json.dumps(said))
