// The workers, with what can be done to them.

import { ask } from "./api.js";
import { $, ago, h, list, write } from "./dom.js";
import { engines, percent } from "./engines.js";
import * as logs from "./log.js";

// What asks first ends a worker with nothing in its place.
const ACTIONS = [
  ["restart", "Restart", "No more jobs, SIGTERM, and another in its place"],
  ["stop", "Stop", "No more jobs, then SIGTERM, as when the platform scales down"],
  ["kill", "Kill", "SIGKILL, as when a machine is lost"],
];
const ASK_FIRST = ["stop", "kill"];

export function show({ workers, scaling }) {
  $("#start-worker").hidden = !scaling.supervised;
  $("#no-workers").hidden = workers.length > 0;
  list($("#worker-list"), workers, card, update);
}

const order = (what) => ask("/control/workers", what).catch((error) => alert(error.message));

/** Ask before something is done to a worker that cannot be undone. */
async function sure(name, id, title) {
  const dialog = $("#sure");
  write($("#sure-what"), `${name} ${id}?`);
  write($("#sure-means"), `${title}.`);
  write($("[value=yes]", dialog), name);
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  return dialog.returnValue === "yes";
}

function card({ id }) {
  const act = async (action, name, title) => {
    if (!ASK_FIRST.includes(action) || (await sure(name, id, title))) order({ action, id });
  };
  const buttons = ACTIONS.map(([action, name, title]) =>
    h("button", { type: "button", title, onclick: () => act(action, name, title) }, name));
  const log = h("button", { type: "button", title: "What it writes, live", onclick: () => logs.open(id) }, "Log");
  const badge = h("span", { class: "badge" });
  return h("li", { "data-id": id }, h("b", {}, id), badge, h("span", { class: "acts" }, log, buttons), h("small"));
}

function update(node, worker) {
  const badge = $(".badge", node);
  badge.dataset.status = worker.is_retired ? "retired" : worker.state;
  write(badge, badge.dataset.status);
  const several = (count, what) => count && `${count} ${what}${count > 1 ? "s" : ""}`;
  const engine = engines[worker.id];
  const news = [
    worker.state === "initializing" && worker.phase,
    worker.jobs.length && `${several(worker.jobs.length, "job")} running`,
    engine && `engine ${engine.running} running, ${engine.waiting} waiting, cache ${percent(engine.cache_use)}`,
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

$("#start-worker").addEventListener("click", () => order({ action: "start" }));
