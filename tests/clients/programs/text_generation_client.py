"""text-generation, the client of text-generation-inference: a text, a stream, and errors."""

import json
import os

from text_generation import Client
from text_generation.errors import ValidationError

url = os.environ["BASE_URL"].removesuffix("/v1")
headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
client = Client(url, headers=headers, timeout=60)
prompt, length = os.environ["PROMPT"], {"max_new_tokens": 30}
said = {}

whole = client.generate(prompt, decoder_input_details=True, **length)
said["text"] = said["whole"] = whole.generated_text
said["whole_tokens"] = whole.details.generated_tokens
said["finish_reason"] = whole.details.finish_reason.value
said["ids"] = [token.id for token in whole.details.tokens]
said["prefill"] = [token.id for token in whole.details.prefill]

best = client.generate(prompt, do_sample=True, best_of=3, **length).details
said["best_of"] = [
    sum(token.logprob for token in one.tokens) for one in (best, *best.best_of_sequences)
]

events = list(client.generate_stream(prompt, **length))
said["pieces"] = [event.token.text for event in events]
said["stream_ids"] = [event.token.id for event in events]
said["stream_text"] = events[-1].generated_text
said["stream_tokens"] = events[-1].details.generated_tokens

chat = client.chat(messages=[{"role": "user", "content": prompt}], max_tokens=30, temperature=0)
said["chat"] = chat.choices[0].message.content

for name, ask in (("error", client.generate), ("stream_error", client.generate_stream)):
    try:
        list(ask(prompt, max_new_tokens=-1))
    except ValidationError as error:
        said[name] = [type(error).__name__, str(error)]

try:
    Client(url, headers={"Authorization": "Bearer wrong"}, timeout=60).generate(prompt)
except Exception as error:
    said["unauthorized"] = str(error)

print(json.dumps(said))
