// Asks for the state twice a second, and hands it to the panels.

import { ask, endpoint, every } from "./api.js";
import * as asking from "./ask.js";
import { $, ago, copyButton, h, tabs, write } from "./dom.js";
import * as engines from "./engines.js";
import * as jobs from "./jobs.js";
import * as workers from "./workers.js";

const [POLL_MS, ENGINES_MS, TIMEOUT_MS] = [500, 1000, 5000];

async function look() {
  try {
    await show(await ask("/control/state", undefined, { signal: AbortSignal.timeout(TIMEOUT_MS) }));
    document.body.classList.remove("lost");
  } catch (error) {
    document.body.classList.add("lost");
    const isGone = error instanceof TypeError || error.name === "TimeoutError";
    write($("#connection"), isGone ? "endpoint stopped" : error.message);
  }
}

async function show(state) {
  const { endpoint: about, health } = state;
  Object.assign(endpoint, about);
  endpoint.ready = state.workers.some((worker) => ["idle", "running"].includes(worker.state));
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
    ["workers", state.workers.length],
  ]);
  engines.show(state);
  const faults = state.faults.length;
  $("#faults").hidden = !faults;
  write($("#faults"), `${faults} fault${faults > 1 ? "s" : ""} waiting ✕`);
  $("#record").ariaPressed = state.recording;
  workers.show(state);
  await jobs.show(state.jobs);
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

asking.start();
tabs($("#places"));
$("#faults").addEventListener("click", () => ask("/control/faults", undefined, { method: "DELETE" }));
$("#record").addEventListener("click", ({ target }) =>
  ask("/control/recording", { on: target.ariaPressed !== "true" }).then(look));
$("#job-filter").addEventListener("change", look);
document.addEventListener("visibilitychange", () => document.hidden || look());
every(POLL_MS, look);
every(ENGINES_MS, engines.look);
