// The endpoint's public side and control API, as the panels use them.

import { duration } from "./dom.js";

const HIDDEN_PAUSE_MS = 3000;
const FINAL = ["COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"];

export const isFinal = (status) => FINAL.includes(status);
export const endpoint = { id: "", url: "", openai_url: "", api_key: "", ready: false, models: [] };

/** Do something again and again, less often while nobody looks. */
export async function every(pause_ms, task) {
  await task();
  setTimeout(() => every(pause_ms, task), document.hidden ? HIDDEN_PAUSE_MS : pause_ms);
}

/** Send a request to the endpoint. Throws an `Error` with a sentence if it is refused. */
export async function send(path, body, options = {}) {
  const response = await fetch(path.startsWith("/") ? path : `/v2/${endpoint.id}/${path}`, {
    method: body === undefined ? "GET" : "POST",
    body: body === undefined ? undefined : JSON.stringify(body),
    headers: { Authorization: `Bearer ${endpoint.api_key}`, "Content-Type": "application/json" },
    ...options,
  });
  if (!response.ok) throw new Error(sentence(await response.text()) || `HTTP ${response.status}`);
  return response;
}

export const ask = async (path, body, options) => (await send(path, body, options)).json();

/** Return the sentence in an error, which may be JSON in a string, an object, or just text. */
export function sentence(error) {
  if (typeof error === "string") {
    try {
      return sentence(JSON.parse(error));
    } catch {
      return error;
    }
  }
  const inner = error?.error ?? error?.message ?? error?.error_message;
  return inner === undefined || inner === null ? JSON.stringify(error) : sentence(inner);
}

/** Read server-sent events `{event, data}` from a stream whose bytes may be cut anywhere. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let event = "";
  let data = [];
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    // A \r at the very end may be the first half of \r\n: it waits for what follows.
    const lines = (text + piece.value).split(/\r\n|\n|\r(?!$)/);
    text = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) yield { event, data: data.join("\n") };
        [event, data] = ["", []];
      }
      const [, field, value] = line.match(/^([^:]*):? ?(.*)$/s);
      if (field === "data") data.push(value);
      if (field === "event") event = value;
    }
  }
}

/** Measures an answer while it arrives: the wait for its first token, and then the rate. */
export class Watch {
  #start = performance.now();
  #first = null;
  #last = null;
  pieces = 0;

  piece() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.pieces += 1;
  }

  whole() {
    return duration((performance.now() - this.#start) / 1000);
  }

  /** Say how it went; without `tokens`, as the worker counts them, by the pieces that came. */
  text(tokens) {
    if (this.#first === null) return this.whole();
    const parts = [`first token ${duration((this.#first - this.#start) / 1000)}`];
    const about = tokens === undefined ? "about " : "";
    tokens ??= this.pieces;
    parts.push(`${about}${tokens} token${tokens === 1 ? "" : "s"}`);
    const seconds = (this.#last - this.#first) / 1000;
    if (tokens > 1 && seconds > 0.02) parts.push(`${Math.round((tokens - 1) / seconds)} tokens/s`);
    return parts.join(" · ");
  }
}
