// The table of jobs, and one job in detail with its time line.

import { ask, isFinal, sentence } from "./api.js";
import { $, $$, ago, bytes, copyButton, duration, h, list, pretty, problem, rate, svg, write } from "./dom.js";
import * as logs from "./log.js";

const [BASE, BAR, TALLEST] = [70, 12, 46]; // of the time line, in pixels
const MAX_POSTS_LISTED = 200;
const NO_JOBS = "No job yet. Send one under Try it, or point a client at the base URL above.";
const KINDS = { run: "/run", sync: "/runsync", openai: "/openai" };

let chosen = null; // the id of the job in detail
let drawn = ""; // what of it is drawn already

/** Show the latest jobs of all states, or those of the one that is chosen. */
export async function show(latest) {
  const status = $("#job-filter").value;
  const { jobs } = status ? await ask(`/control/jobs?status=${status}`) : { jobs: latest };
  if (status !== $("#job-filter").value) return;
  list($("#job-rows"), jobs, row, update);
  $("#no-jobs").hidden = jobs.length > 0;
  write($("#no-jobs"), status ? `No job is ${status}.` : NO_JOBS);
  write($("#job-count"), jobs.length ? `the latest ${jobs.length}` : "");
  const job = [...jobs, ...latest].find(({ id }) => id === chosen);
  if (!job) return;
  const look = [job.status, job.posts, isFinal(job.status) || job.submitted_s_ago].join();
  if (look === drawn || !$("#job").clientWidth) return; // nothing new, or behind another tab
  drawn = look;
  detail();
}

function row({ id }) {
  const toggle = () => choose(chosen === id ? null : id);
  const open = h("button", { class: "link", title: id, "aria-controls": "job" });
  const numbers = Array.from({ length: 6 }, () => h("td", { class: "n" }));
  const [badge, route] = [h("span", { class: "badge" }), h("small", { class: "route" })];
  const job = h("td", {}, open, route, h("small", { class: "reason" }));
  return h("tr", { onclick: toggle, "data-id": id }, h("td", {}, badge), job, numbers);
}

function update(node, job) {
  const [badge, open] = [$(".badge", node), $("button", node)];
  const [route, reason] = [$(".route", node), $(".reason", node)];
  write(badge, job.status);
  badge.dataset.status = job.status;
  write(reason, job.error ? sentence(job.error).trim().split("\n")[0] : "");
  reason.title = reason.textContent;
  write(open, job.id.replace("sync-", "").slice(0, 8));
  write(route, job.route ?? KINDS[job.kind]);
  route.title = route.textContent;
  mark(node);
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

function mark(node) {
  const isChosen = node.dataset.id === chosen;
  node.classList.toggle("chosen", isChosen);
  $("button", node).setAttribute("aria-expanded", isChosen);
}

async function choose(id) {
  [chosen, drawn] = [id, ""];
  $$("#job-rows tr").forEach(mark);
  $("#job").hidden = id === null;
  if (!id) return;
  await detail();
  $("#job").scrollIntoView({ block: "nearest" });
}

async function detail() {
  const id = chosen;
  try {
    const job = await ask(`/control/jobs/${encodeURIComponent(id)}`);
    if (id === chosen) draw(sinceSubmission(job));
  } catch (error) {
    $("#job").replaceChildren(problem(error.message));
  }
}

/** Give each state, post and stop its `t`, the seconds since the job was submitted. */
function sinceSubmission({ states, stream = [], done = [], late = [], stops = [], ...rest }) {
  const timed = (item) => ({ ...item, t: item.at_s - states[0].at_s });
  const lists = Object.entries({ states, stream, done, late, stops: stops.map((at_s) => ({ at_s })) });
  return { ...rest, ...Object.fromEntries(lists.map(([name, items]) => [name, items.map(timed)])) };
}

function draw(job) {
  const place = $("#job");
  const wasOpen = $$("details[open]", place).map(({ dataset }) => dataset.name);
  const { scrollTop } = place;
  const focused = place.contains(document.activeElement) && document.activeElement.textContent;
  const act = (name) => {
    const order = () => ask(`${name.toLowerCase()}/${job.id}`, {}).catch(() => {});
    return h("button", { type: "button", onclick: order }, name);
  };
  const more = (name, content, title = name) =>
    h("details", { "data-name": name, open: wasOpen.includes(name) }, h("summary", {}, title), content);
  const code = (text) => h("pre", { class: "code" }, pretty(text) ?? "none");
  place.replaceChildren(
    ...[
      h("div", { class: "bar" },
        h("h3", {}, job.id),
        copyButton(() => job.id, "the job's id"),
        !isFinal(job.status) && act("Cancel"),
        ["FAILED", "TIMED_OUT"].includes(job.status) && act("Retry"),
        job.worker_id && h("button", { type: "button", onclick: () => logs.open(job.worker_id) }, "Log"),
        h("button", { type: "button", "aria-label": "Close details", onclick: () => choose(null) }, "✕")),
      h("ol", { class: "steps" }, job.states.map(({ t, status }) =>
        h("li", { "data-status": status }, status, h("small", {}, `+${duration(t)}`)))),
      job.error && problem(sentence(job.error)),
      timeline(job, place.clientWidth - 32),
      h("small", {}, facts(job)),
      more("Input", code(job.input)),
      more("Output", code(job.output)),
      more("Posts", posts(job), `${job.stream.length} posts`),
    ].filter(Boolean),
  );
  place.scrollTop = scrollTop;
  $$("button, summary", place).find((node) => node.textContent === focused)?.focus();
}

function facts({ worker_id, tokens, tokens_reported, tokens_per_s, bytes: size }) {
  const about = tokens_reported ? "" : "about ";
  const count = tokens ? `${about}${tokens} tokens` : "";
  const speed = tokens_per_s ? `${rate(tokens_per_s)} tokens/s` : "";
  return [worker_id && `worker ${worker_id}`, count, speed, bytes(size)].filter(Boolean).join(" · ");
}

function posts({ stream }) {
  const cells = (...texts) => texts.map((text) => h("td", { class: "n" }, text));
  const line = ({ t, bytes: size, preview }, index) => {
    const gap = index ? duration(t - stream[index - 1].t) : "";
    const what = h("td", {}, h("code", {}, preview ?? "not recorded"));
    return h("tr", {}, cells(`+${duration(t)}`, gap, bytes(size)), what);
  };
  const head = ["at", "gap", "bytes"].map((name) => h("th", { class: "n" }, name));
  const lines = stream.slice(0, MAX_POSTS_LISTED).map(line);
  return h("table", {}, h("thead", {}, h("tr", {}, head, h("th", {}, "what"))), h("tbody", {}, lines));
}

/** Draw when a job waited and ran, and each post as a bar as tall as the root of its bytes. */
function timeline({ states, status, submitted_s_ago, stream, done, late, stops }, width) {
  const last = Math.max(...[...states, ...stream, ...done, ...late].map(({ t }) => t));
  const end = Math.max(isFinal(status) ? last : submitted_s_ago, 0.001);
  const largest = Math.max(1, ...stream.map(({ bytes: size }) => size));
  const x = (t) => 5 + (t / end) * (width - 10);
  const shape = (name, attributes, title) => svg(name, attributes, svg("title", {}, title));
  const phase = ({ t, status: state }, index) => {
    if (isFinal(state)) return null;
    const until = states[index + 1]?.t ?? end;
    const place = { x: x(t), y: BASE, width: Math.max(2, x(until) - x(t)), height: BAR, rx: 3 };
    return shape("rect", { ...place, "data-status": state }, `${state} for ${duration(until - t)}`);
  };
  const bar = ({ t, bytes: size }) => {
    const height = 5 + (TALLEST - 5) * Math.sqrt(size / largest);
    const place = { x: x(t) - 1.25, y: BASE - 4 - height, width: 2.5, height, rx: 1.25 };
    return shape("rect", { ...place, class: "post" }, `post +${duration(t)}, ${bytes(size)}`);
  };
  const dot = (kind) => ({ t }) =>
    shape("circle", { class: kind, cx: x(t), cy: BASE + BAR / 2, r: 4 }, `${kind} +${duration(t)}`);
  const tick = (part) => {
    const [at, anchor] = [x(part * end), { 0: "start", 1: "end" }[part] ?? "middle"];
    const label = svg("text", { x: at, y: BASE + BAR + 15, "text-anchor": anchor }, duration(part * end));
    return svg("g", {}, svg("line", { x1: at, x2: at, y1: 12, y2: BASE + BAR }), label);
  };
  const title = `Time line: ${stream.length} posts in ${duration(end)}`;
  const kinds = ["queued", "running", "post", "done", "stop", "late"];
  return h("figure", { class: "timeline" },
    svg("svg", { viewBox: `0 0 ${width} ${BASE + BAR + 20}`, width, role: "img", "aria-label": title },
      [0, 0.25, 0.5, 0.75, 1].map(tick), states.map(phase), stream.map(bar),
      stops.map(dot("stop")), late.map(dot("late")), done.map(dot("done"))),
    h("figcaption", {}, kinds.map((kind) => h("span", { class: kind }, kind))));
}
