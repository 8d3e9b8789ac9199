// A worker's log, live, also of one that has ended.

import { ask, every } from "./api.js";
import { $, copyButton, h, problem, write } from "./dom.js";

const POLL_MS = 500;
const MAX_LINES = 2000;
const COLOURS = /\x1b\[[0-9;]*[A-Za-z]/g;

let shown = null; // the id of the worker
let end = 0; // the byte up to which its log is shown

const lines = $("#log pre");

/** Show a worker's log, from its end on. */
export async function open(id) {
  [shown, end] = [id, 0];
  lines.replaceChildren();
  write($("#log h3"), id);
  $("#log").hidden = false;
  $("#tab-workers").click(); // where only one panel fits
  await look();
  $("#log").scrollIntoView({ block: "nearest" });
}

async function look() {
  const id = shown;
  if (id === null) return;
  const from = end;
  try {
    const news = await ask(`/control/workers/${encodeURIComponent(id)}/log?since=${from}`);
    if (id !== shown || from !== end) return;
    end = news.end;
    // Where some is left out, the first line is the rest of one.
    add(news.start === from ? news.text : news.text.slice(news.text.indexOf("\n") + 1));
  } catch (error) {
    if (id === shown && !end) lines.replaceChildren(problem(error.message));
  }
}

function add(text) {
  if (!text) return;
  const follows = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
  const clean = text.replace(COLOURS, "").split("\n").slice(0, -1);
  // Of a line that was written over, as progress is, the last counts.
  const news = clean.slice(-MAX_LINES).map((line) => line.trimEnd().split("\r").at(-1));
  lines.append(...news.map((line) => h("span", {}, `${line}\n`)));
  while (lines.childElementCount > MAX_LINES) lines.firstElementChild.remove();
  if (follows) lines.scrollTop = lines.scrollHeight;
}

$("#log h3").after(copyButton(() => lines.textContent, "this log"));
$("#close-log").addEventListener("click", () => {
  shown = null;
  $("#log").hidden = true;
});
every(POLL_MS, look);
