// OpenAI's Node client: a chat, the same chat as a stream, what errors look like, and leaving.

import OpenAI from "openai";

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env;
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY });
const chat = {
  model: MODEL,
  messages: [{ role: "user", content: PROMPT }],
  temperature: 0,
  max_tokens: 30,
};
const withUsage = { stream: true, stream_options: { include_usage: true } };
const said = {};

const reply = await client.chat.completions.create(chat);
said.whole = reply.choices[0].message.content;
said.whole_tokens = reply.usage.completion_tokens;

said.pieces = [];
for await (const chunk of await client.chat.completions.create({ ...chat, ...withUsage })) {
  const piece = chunk.choices[0]?.delta.content;
  if (piece) said.pieces.push(piece);
  if (chunk.usage) said.stream_tokens = chunk.usage.completion_tokens;
}

const wrong = { ...chat, model: "nope" };
try {
  await client.chat.completions.create(wrong, { maxRetries: 0 });
} catch (error) {
  if (!(error instanceof OpenAI.APIError)) throw error;
  said.error = error.message;
}

try {
  const stream = await client.chat.completions.create({ ...wrong, stream: true }, { maxRetries: 0 });
  for await (const _chunk of stream);
} catch (error) {
  if (!(error instanceof OpenAI.APIError)) throw error;
  said.stream_error = error.message;
}

try {
  await client.withOptions({ apiKey: "wrong" }).models.list();
} catch (error) {
  if (!(error instanceof OpenAI.AuthenticationError)) throw error;
  said.unauthorized = error.status;
}

const endless = { ...chat, stream: true, max_tokens: 400, ignore_eos: true };
for await (const chunk of await client.chat.completions.create(endless)) {
  said.left = chunk.id;
  break;
}

console.log(JSON.stringify(said));
