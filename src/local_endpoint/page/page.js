// Asks for the state twice a second, and hands it to the panels.

import { ask, endpoint } from "./api.js";
import * as asking from "./ask.js";
import { $, ago, copyButton, h, list, svg, write } from "./dom.js";
import * as jobs from "./jobs.js";

const [POLL_MS, HIDDEN_POLL_MS, LOST_POLL_MS] = [500, 3000, 1500];
const SAMPLES = 120; // of the sparkline: a minute
const rates = [];
let before = null; // posts by job, and when

async function look() {
  let state;
  try {
    state = await ask("/control/state", undefined, { signal: AbortSignal.timeout(5000) });
  } catch (error) {
    return lost(error);
  }
  document.body.classList.remove("lost");
  Object.assign(endpoint, state.endpoint);
  endpoint.ready = state.workers.some((worker) => ["idle", "running"].includes(worker.state));
  header(state);
  list($("#worker-list"), state.workers, workerCard, updateWorker);
  if (!state.workers.length) $("#workers").dataset.empty = "No worker yet. Start one with the endpoint, or give one elsewhere the environment it prints.";
  else delete $("#workers").dataset.empty;
  jobs.show(state.jobs);
}

function lost(error) {
  document.body.classList.add("lost");
  const isStopped = error instanceof TypeError || error.name === "TimeoutError";
  write($("#connection"), isStopped ? "endpoint stopped" : error.message);
}

async function watch() {
  await look();
  const isLost = document.body.classList.contains("lost");
  setTimeout(watch, document.hidden ? HIDDEN_POLL_MS : isLost ? LOST_POLL_MS : POLL_MS);
}

// --- header -----------------------------------------------------------------------------------

function header({ endpoint: about, health, jobs: all, now_s, workers }) {
  write($("#endpoint-id"), about.id);
  write($("#connection"), `running for ${ago(about.started_s_ago)}`);
  addresses({ "base URL": about.openai_url, endpoint: about.url, key: about.api_key });
  const count = health.jobs;
  counters({
    "in queue": [count.inQueue, "IN_QUEUE"],
    running: [count.inProgress, "IN_PROGRESS"],
    completed: [count.completed, "COMPLETED"],
    failed: [count.failed, "FAILED"],
    workers: [workers.filter(({ state }) => state !== "unhealthy").length, ""],
  });
  document.title = `${count.inProgress ? `(${count.inProgress}) ` : ""}${about.id} – local endpoint`;
  sparkline(all, now_s);
}

function addresses(given) {
  const place = $("#addresses");
  for (const [name, value] of Object.entries(given)) {
    let code = $(`[data-name="${name}"]`, place);
    if (!code) {
      code = h("code", { "data-name": name });
      place.append(h("div", {}, h("dt", {}, name), h("dd", {}, code, copyButton(() => code.textContent, `the ${name}`))));
    }
    write(code, value);
  }
}

function counters(given) {
  const place = $("#counters");
  for (const [name, [value, status]] of Object.entries(given)) {
    let number = $(`[data-name="${name}"]`, place);
    if (!number) {
      number = h("dd", { "data-name": name, "data-status": status });
      place.append(h("div", {}, h("dt", {}, name), number));
    }
    write(number, value);
    number.classList.toggle("zero", !value);
  }
}

function sparkline(all, now_s) {
  const posts = new Map(all.map(({ id, posts: count }) => [id, count ?? 0]));
  if (before && now_s > before.now_s) {
    let news = 0;
    for (const [id, count] of posts) news += Math.max(0, count - (before.posts.get(id) ?? 0));
    rates.push(news / (now_s - before.now_s));
    if (rates.length > SAMPLES) rates.shift();
  }
  before = { posts, now_s };
  const top = Math.max(1, ...rates);
  const point = (value, index) => `${SAMPLES - rates.length + index} ${(29 - (27 * value) / top).toFixed(1)}`;
  const line = rates.map(point).join(" L");
  const area = rates.length ? `M${SAMPLES - rates.length} 30 L${line} L${SAMPLES - 1} 30 Z` : "";
  const spark = $("#spark");
  if (!spark.firstChild) spark.append(svg("path", { class: "area" }), svg("path", { class: "line" }));
  spark.firstChild.setAttribute("d", area);
  spark.lastChild.setAttribute("d", line && `M${line}`);
  write($("#rate"), Math.round(rates.slice(-4).reduce((sum, value) => sum + value, 0) / Math.min(4, rates.length || 1)));
}

// --- workers ----------------------------------------------------------------------------------

function workerCard({ id }) {
  const act = (action, name, title) => {
    const order = () => ask("/control/workers", { id, action }).catch((error) => alert(error.message));
    return h("button", { type: "button", title, onclick: order }, name);
  };
  return h("li", { "data-id": id },
    h("b", {}, id), h("span", { class: "badge" }), h("small", {}),
    h("span", { class: "acts" }, act("term", "Stop", "SIGTERM, as when the platform scales down"), act("kill", "Kill", "SIGKILL, as when a machine is lost")));
}

function updateWorker(node, worker) {
  const badge = $(".badge", node);
  const isLeaving = worker.is_retired;
  write(badge, isLeaving ? "retired" : worker.state);
  badge.dataset.status = isLeaving ? "retired" : worker.state;
  const restarts = (worker.starts ?? 1) - 1;
  const facts = [
    worker.jobs.length ? `${worker.jobs.length} job${worker.jobs.length > 1 ? "s" : ""} in hand` : "",
    worker.stops_pending.length ? `${worker.stops_pending.length} stop pending` : "",
    worker.ping_s_ago === null ? "no ping yet" : `ping ${ago(worker.ping_s_ago)}`,
    worker.sdk_version ? `SDK ${worker.sdk_version}` : "",
    worker.pid ? `pid ${worker.pid}` : "",
    restarts > 0 ? `${restarts} restart${restarts > 1 ? "s" : ""}` : "",
  ];
  write($("small", node), facts.filter(Boolean).join(" · "));
  $(".acts", node).hidden = !worker.pid;
}

asking.start();
watch();
document.addEventListener("visibilitychange", () => document.hidden || look());
