// The table of jobs, and one job in detail with its time line.

import { ask, sentence } from "./api.js";
import { $, ago, bytes, copyButton, duration, h, list, rate, svg, write } from "./dom.js";

const FINAL = ["COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"];
const [WIDTH, BASE, BAR, TALLEST] = [640, 70, 12, 44]; // of the time line
const MAX_POSTS_LISTED = 200;

let chosen = null; // the id of the job in detail
let shownAs = ""; // what of it is drawn already

export function show(jobs) {
  list($("#job-rows"), jobs, row, update);
  $("#no-jobs").hidden = jobs.length > 0;
  write($("#job-count"), jobs.length ? `the latest ${jobs.length}` : "");
  if (!chosen) return;
  const job = jobs.find(({ id }) => id === chosen);
  const now = job ? `${job.id} ${job.status} ${job.posts} ${job.bytes} ${!FINAL.includes(job.status) && Date.now()}` : "gone";
  if (now === shownAs) return;
  shownAs = now;
  if (job) detail(job);
  else choose(null);
}

function row({ id }) {
  const toggle = () => choose(chosen === id ? null : id);
  const open = h("button", { class: "link", "aria-expanded": "false", "aria-controls": "job" });
  const cells = ["n", "n", "n", "n", "n", "n"].map((kind) => h("td", { class: kind }));
  const badge = h("span", { class: "badge" });
  return h("tr", { onclick: toggle, "data-id": id }, h("td", {}, badge), h("td", {}, open, h("small")), ...cells);
}

function update(node, job) {
  const [badge, open, route] = [$(".badge", node), $("button", node), $("small", node)];
  write(badge, job.status);
  badge.dataset.status = job.status;
  write(open, job.id.replace(/^sync-/, "").slice(0, 8));
  write(route, job.route ?? `/${{ sync: "runsync" }[job.kind] ?? job.kind}`);
  open.setAttribute("aria-expanded", chosen === job.id);
  node.classList.toggle("chosen", chosen === job.id);
  node.title = job.error ? sentence(job.error) : "";
  const values = [
    duration(job.queued_s),
    duration(job.time_to_first_token_s),
    rate(job.tokens_per_s),
    job.posts,
    bytes(job.bytes),
    ago(job.submitted_s_ago),
  ];
  for (const [index, value] of values.entries()) write(node.cells[index + 2], value);
}

function choose(id) {
  [chosen, shownAs] = [id, ""];
  $("#job").hidden = id === null;
  for (const node of $("#job-rows").children) {
    node.classList.toggle("chosen", node.dataset.id === id);
    $("button", node).setAttribute("aria-expanded", node.dataset.id === id);
  }
  if (id) detail({ id }).then(() => $("#job").scrollIntoView({ block: "nearest" }));
}

async function detail({ id }) {
  let record;
  try {
    record = await ask(`/control/jobs/${encodeURIComponent(id)}`);
  } catch (error) {
    return $("#job").replaceChildren(h("p", { class: "error" }, error.message));
  }
  if (id === chosen) draw(record);
}

function draw(job) {
  const place = $("#job");
  const wasOpen = new Set([...place.querySelectorAll("details[open]")].map(({ id }) => id));
  const { scrollTop } = place;
  const act = (name) => h("button", { type: "button", onclick: () => ask(act.path(name), {}).catch(() => {}) }, name);
  act.path = (name) => `${name.toLowerCase()}/${job.id}`;
  const more = (id, name, ...content) => {
    return h("details", { id: `job-${id}`, open: wasOpen.has(`job-${id}`) }, h("summary", {}, name), ...content);
  };
  const start = job.states[0].at_s;
  const steps = job.states.map(({ at_s, status }) =>
    h("li", { "data-status": status }, status, h("small", {}, `+${duration(at_s - start)}`)));
  place.replaceChildren(
    h("div", { class: "bar" },
      h("h3", {}, job.id), copyButton(() => job.id, "the job's id"),
      !FINAL.includes(job.status) && act("Cancel"),
      ["FAILED", "TIMED_OUT"].includes(job.status) && act("Retry"),
      h("button", { type: "button", "aria-label": "Close details", onclick: () => choose(null) }, "✕")),
    h("ol", { class: "steps" }, steps),
    job.error ? h("p", { class: "error" }, sentence(job.error)) : null,
    timeline(job, start),
    more("input", "Input", h("pre", { class: "code" }, pretty(job.input))),
    more("output", "Output", h("pre", { class: "code" }, pretty(job.output))),
    more("posts", `${job.stream.length} posts`, posts(job, start)),
  );
  place.scrollTop = scrollTop;
}

const pretty = (value) =>
  value === undefined || value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value, null, 2);

function posts({ stream }, start) {
  const line = ({ at_s, bytes: size, preview }, index) => h("tr", {},
    h("td", { class: "n" }, `+${duration(at_s - start)}`),
    h("td", { class: "n" }, index ? duration(at_s - stream[index - 1].at_s) : ""),
    h("td", { class: "n" }, bytes(size)), h("td", {}, h("code", {}, pretty(preview))));
  const head = ["at", "gap", "bytes", "what"].map((name, i) => h("th", { class: i < 3 ? "n" : "" }, name));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, stream.slice(0, MAX_POSTS_LISTED).map(line)));
}

/** Draw when a job waited and ran, and each post as a bar as tall as the root of its bytes. */
function timeline(job, start) {
  const isOver = FINAL.includes(job.status);
  const times = [...job.states, ...job.stream, ...job.done, ...job.late].map(({ at_s }) => at_s);
  const end = isOver ? Math.max(...times) : job.now_s;
  const span = Math.max(end - start, 0.001);
  const x = (at_s) => Math.min(1, (at_s - start) / span) * (WIDTH - 8) + 4;
  const largest = Math.max(1, ...job.stream.map(({ bytes: size }) => size));
  const label = (kind, at_s, text) => svg("title", {}, `${kind} +${duration(at_s - start)}${text}`);
  const phases = job.states.flatMap(({ at_s, status }, index) => {
    const until = job.states[index + 1]?.at_s ?? end;
    if (FINAL.includes(status)) return [];
    return svg("rect", { x: x(at_s), y: BASE, width: Math.max(1.5, x(until) - x(at_s)), height: BAR, rx: 3, "data-status": status },
      label(status, at_s, ` for ${duration(until - at_s)}`));
  });
  const bars = job.stream.map(({ at_s, bytes: size }) => {
    const height = 5 + (TALLEST - 5) * Math.sqrt(size / largest);
    return svg("rect", { class: "post", x: x(at_s) - 1.25, y: BASE - 4 - height, width: 2.5, height, rx: 1.25 },
      label("post", at_s, `, ${bytes(size)}`));
  });
  const mark = (kind) => ({ at_s, bytes: size }) =>
    svg("circle", { class: kind, cx: x(at_s), cy: BASE + BAR / 2, r: 4 }, label(kind, at_s, size ? `, ${bytes(size)}` : ""));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => svg("g", {},
    svg("line", { x1: x(start + part * span), x2: x(start + part * span), y1: 14, y2: BASE + BAR }),
    svg("text", { x: x(start + part * span), y: BASE + BAR + 15, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, duration(part * span))));
  return h("figure", { class: "timeline" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${BASE + BAR + 20}`, role: "img", "aria-label": `Time line: ${job.stream.length} posts in ${duration(span)}` },
      ...ticks, ...phases, ...bars, ...job.stops.map((at_s) => mark("stop")({ at_s })), ...job.late.map(mark("late")), ...job.done.map(mark("done"))),
    h("figcaption", {}, ...["queued", "running", "post", "done", "stop", "late"].map((kind) => h("span", { class: kind }, kind))));
}
