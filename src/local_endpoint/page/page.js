// Asks for the state twice a second, and hands it to the panels.

import { ask, endpoint } from "./api.js";
import * as asking from "./ask.js";
import { $, ago, copyButton, h, list, svg, write } from "./dom.js";
import * as jobs from "./jobs.js";

const [POLL_MS, HIDDEN_POLL_MS, TIMEOUT_MS] = [500, 3000, 5000];
const SAMPLES = 120; // of the sparkline: a minute
const ACTIONS = [
  ["restart", "Restart", "No more jobs, SIGTERM, and another in its place"],
  ["stop", "Stop", "No more jobs, then SIGTERM, as when the platform scales down"],
  ["kill", "Kill", "SIGKILL, as when a machine is lost"],
];
const rates = Array(SAMPLES).fill(0);
let before = null; // the posts of each job at the last look, and when that was

async function look() {
  try {
    show(await ask("/control/state", undefined, { signal: AbortSignal.timeout(TIMEOUT_MS) }));
    document.body.classList.remove("lost");
  } catch (error) {
    document.body.classList.add("lost");
    const isGone = error instanceof TypeError || error.name === "TimeoutError";
    write($("#connection"), isGone ? "endpoint stopped" : error.message);
  }
}

async function watch() {
  await look();
  setTimeout(watch, document.hidden ? HIDDEN_POLL_MS : POLL_MS);
}

function show(state) {
  const { endpoint: about, health, workers } = state;
  Object.assign(endpoint, about);
  endpoint.ready = workers.some((worker) => ["idle", "running"].includes(worker.state));
  const { inQueue, inProgress, completed, failed } = health.jobs;
  document.title = `${inProgress ? `(${inProgress}) ` : ""}${about.id} – local endpoint`;
  write($("#endpoint-id"), about.id);
  const kind = about.type === "load_balancer" ? "load balancer, " : "";
  write($("#connection"), `${kind}running for ${ago(about.started_s_ago)}`);
  facts($("#addresses"), [["base URL", about.openai_url], ["endpoint", about.url], ["key", about.api_key]]);
  facts($("#counters"), [
    ["in queue", inQueue, "IN_QUEUE"],
    ["running", inProgress, "IN_PROGRESS"],
    ["completed", completed, "COMPLETED"],
    ["failed", failed, "FAILED"],
    ["workers", workers.length],
  ]);
  sparkline(state);
  const faults = state.faults.length;
  $("#faults").hidden = !faults;
  write($("#faults"), `${faults} fault${faults > 1 ? "s" : ""} waiting ✕`);
  $("#record").ariaPressed = state.recording;
  $("#start-worker").hidden = !state.scaling.supervised;
  $("#no-workers").hidden = workers.length > 0;
  list($("#worker-list"), workers, workerCard, updateWorker);
  jobs.show(state.jobs);
}

/** Show names and values; texts can be copied, numbers are coloured by the status they count. */
function facts(place, given) {
  for (const [name, value, status] of given) {
    let node = $(`[data-name="${name}"]`, place);
    if (!node) {
      const isText = typeof value === "string";
      node = h(isText ? "code" : "b", { "data-name": name, "data-status": status });
      const copying = isText && copyButton(() => node.textContent, `the ${name}`);
      place.append(h("div", {}, h("dt", {}, name), h("dd", {}, node, copying)));
    }
    write(node, value);
    node.classList.toggle("zero", value === 0);
  }
}

function sparkline({ jobs: all, now_s }) {
  const posts = new Map(all.map((job) => [job.id, job.posts]));
  if (before && now_s > before.now_s) {
    let news = 0;
    for (const [id, count] of posts) news += Math.max(0, count - (before.posts.get(id) ?? 0));
    rates.push(news / (now_s - before.now_s));
    rates.shift();
  }
  before = { posts, now_s };
  const top = Math.max(1, ...rates);
  const line = rates.map((value, index) => `${index} ${(29 - (27 * value) / top).toFixed(1)}`).join(" L");
  const spark = $("#spark");
  if (!spark.firstChild) spark.append(svg("path", { class: "area" }), svg("path", { class: "line" }));
  spark.firstChild.setAttribute("d", `M0 30 L${line} L${SAMPLES - 1} 30 Z`);
  spark.lastChild.setAttribute("d", `M${line}`);
  write($("#rate"), Math.round((rates.at(-1) + rates.at(-2)) / 2));
}

const order = (what) => ask("/control/workers", what).catch((error) => alert(error.message));

function workerCard({ id }) {
  const buttons = ACTIONS.map(([action, name, title]) =>
    h("button", { type: "button", title, onclick: () => order({ action, id }) }, name));
  const badge = h("span", { class: "badge" });
  return h("li", { "data-id": id }, h("b", {}, id), badge, h("span", { class: "acts" }, buttons), h("small"));
}

function updateWorker(node, worker) {
  const badge = $(".badge", node);
  badge.dataset.status = worker.is_retired ? "retired" : worker.state;
  write(badge, badge.dataset.status);
  const several = (count, what) => count && `${count} ${what}${count > 1 ? "s" : ""}`;
  const news = [
    worker.state === "initializing" && worker.phase,
    worker.jobs.length && `${several(worker.jobs.length, "job")} running`,
    worker.stops_pending.length && `${several(worker.stops_pending.length, "stop")} pending`,
    worker.ping_s_ago === null ? "no ping yet" : `ping ${ago(worker.ping_s_ago)}`,
    worker.sdk_version && `SDK ${worker.sdk_version}`,
    worker.pid && `pid ${worker.pid}`,
    several(worker.starts - 1, "restart"),
  ];
  write($("small", node), news.filter(Boolean).join(" · "));
  $(".acts", node).hidden = !worker.pid;
  node.title = worker.log ? `log: ${worker.log}` : "";
}

asking.start();
$("#start-worker").addEventListener("click", () => order({ action: "start" }));
$("#faults").addEventListener("click", () => ask("/control/faults", undefined, { method: "DELETE" }));
$("#record").addEventListener("click", ({ target }) =>
  ask("/control/recording", { on: target.ariaPressed !== "true" }).then(look));
document.addEventListener("visibilitychange", () => document.hidden || look());
watch();
