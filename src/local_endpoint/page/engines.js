// The header's figures: what the engines say of themselves, and where none does, the posts.

import { ask, endpoint } from "./api.js";
import { $, svg, write } from "./dom.js";

const SAMPLES = 120;

export let engines = {}; // what each said last, by its worker's id
let kind = ""; // of the samples
let samples = [];
let before = null; // the counters at the last sample, and when that was

/** Ask the engines, and draw the tokens a second. */
export async function look() {
  try {
    const answer = await ask("/control/engines", undefined, { signal: AbortSignal.timeout(5000) });
    engines = answer.engines;
    const tokens = Object.entries(engines).map(([id, engine]) => [id, engine.tokens]);
    if (tokens.length) sample("tokens", tokens, answer.now_s);
  } catch {
    engines = {}; // the endpoint is away, which the look at its state says
  }
}

/** Show the sums of the engines; without any, draw the posts a second instead. */
export function show({ jobs, now_s }) {
  const all = Object.values(engines);
  $("#engine").hidden = all.length === 0;
  if (!all.length) sample("posts", jobs.map(({ id, posts }) => [id, posts]), now_s);
  const sum = (name) => all.reduce((total, engine) => total + engine[name], 0);
  write($("#engine-running"), sum("running"));
  write($("#engine-waiting"), sum("waiting"));
  write($("#engine-cache"), percent(Math.max(0, ...all.map(({ cache_use }) => cache_use))));
  const told = [...new Set(all.map(({ model }) => model).filter(Boolean))];
  write($("#model"), (told.length ? told : endpoint.models).join(", "));
}

export const percent = (part) => `${(part * 100).toFixed(part < 0.1 && part > 0 ? 1 : 0)}\u00a0%`;

/** Add one sample: how much the counters, `[id, count]`, have grown a second since the last. */
function sample(what, counters, now_s) {
  if (what !== kind) [kind, samples, before] = [what, Array(SAMPLES).fill(0), null];
  const counts = new Map(counters);
  if (before && now_s > before.now_s) {
    // A job that is new has posted since; an engine that is new has counted for long.
    const then = (id, count) => before.counts.get(id) ?? (what === "posts" ? 0 : count);
    const news = counters.map(([id, count]) => Math.max(0, count - then(id, count)));
    samples.push(news.reduce((total, count) => total + count, 0) / (now_s - before.now_s));
    samples.shift();
  }
  before = { counts, now_s };
  draw();
}

function draw() {
  const top = Math.max(1, ...samples);
  const line = samples.map((value, index) => `${index} ${(29 - (27 * value) / top).toFixed(1)}`).join(" L");
  const spark = $("#spark");
  if (!spark.firstChild) spark.append(svg("path", { class: "area" }), svg("path", { class: "line" }));
  spark.firstChild.setAttribute("d", `M0 30 L${line} L${SAMPLES - 1} 30 Z`);
  spark.lastChild.setAttribute("d", `M${line}`);
  spark.setAttribute("aria-label", `${kind} per second, the last ${kind === "posts" ? "minute" : "two minutes"}`);
  write($("#rate"), Math.round((samples.at(-1) + samples.at(-2)) / 2));
  write($("#rate-of"), `${kind}/s`);
}
