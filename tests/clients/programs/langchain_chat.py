"""LangChain's OpenAI chat model: a chat, the same chat as a stream, and errors."""

import json
import os

import openai
from langchain_openai import ChatOpenAI

settings = {
    "base_url": os.environ["BASE_URL"],
    "api_key": os.environ["API_KEY"],
    "model": os.environ["MODEL"],
    "temperature": 0,
    "max_tokens": 30,
}
chat = ChatOpenAI(**settings, stream_usage=True)
prompt = os.environ["PROMPT"]
said = {}

reply = chat.invoke(prompt)
said["whole"] = reply.content
said["whole_tokens"] = reply.usage_metadata["output_tokens"]

chunks = list(chat.stream(prompt))
said["pieces"] = [chunk.content for chunk in chunks if chunk.content]
said["stream_tokens"] = sum(
    chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata
)

wrong = ChatOpenAI(**settings | {"model": "nope"}, max_retries=0)
try:
    wrong.invoke(prompt)
except openai.APIStatusError as error:
    said["error"] = error.message

try:
    list(wrong.stream(prompt))
except openai.APIError as error:
    said["stream_error"] = error.message

try:
    ChatOpenAI(**settings | {"api_key": "wrong"}).invoke(prompt)
except openai.AuthenticationError as error:
    said["unauthorized"] = error.status_code

print(json.dumps(said))
