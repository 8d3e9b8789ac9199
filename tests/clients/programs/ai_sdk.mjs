// The AI SDK with RunPod's provider: text, streamed text, and what errors look like.

import { createRunpod } from "@runpod/ai-sdk-provider";
import { APICallError, generateText, streamText } from "ai";

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env;
const runpod = createRunpod({ baseURL: BASE_URL, apiKey: API_KEY });
const chat = { model: runpod(MODEL), prompt: PROMPT, temperature: 0, maxOutputTokens: 30 };
const said = {};

const reply = await generateText(chat);
said.whole = reply.text;
said.whole_tokens = reply.usage.outputTokens;

const stream = streamText(chat);
said.pieces = [];
for await (const piece of stream.textStream) said.pieces.push(piece);
said.stream_tokens = (await stream.usage).outputTokens;

const wrong = { ...chat, model: runpod("nope"), maxRetries: 0 };
try {
  await generateText(wrong);
} catch (error) {
  if (!APICallError.isInstance(error)) throw error;
  said.error = error.message;
}

// A stream of the AI SDK throws nothing: its errors are parts of it.
for await (const part of streamText({ ...wrong, onError: () => {} }).fullStream) {
  if (part.type === "error") said.stream_error = part.error.message ?? String(part.error);
}

try {
  await generateText({ ...chat, model: createRunpod({ baseURL: BASE_URL, apiKey: "wrong" })(MODEL) });
} catch (error) {
  if (!APICallError.isInstance(error)) throw error;
  said.unauthorized = error.statusCode;
}

console.log(JSON.stringify(said));
