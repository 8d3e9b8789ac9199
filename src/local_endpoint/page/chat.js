// A chat over the OpenAI route, kept over a reload.

import { Watch, ask, endpoint, events, send, sentence } from "./api.js";
import { $, copyButton, h, pretty, problem, write } from "./dom.js";
import { json, numbers, runs } from "./forms.js";
import { render } from "./markdown.js";

const ROUTE = "openai/v1/chat/completions";
const IDEAS = ["Tell me in two sentences what the Moon is.", "Count to thirty.", "Write a haiku."];
const TURNS = "chat.turns"; // in the browser's storage

export function chat(form) {
  const { model, system, text, temperature, max_tokens, top_p, seed, stop, tools } = form.elements;
  const log = $("#messages", form);
  let shown = restored(); // what was asked, with its answer and how that ended
  let again = null; // the question to ask instead of what is typed
  let models = null;

  const turns = () => shown.filter(({ isWhole }) => isWhole).flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: spoken(turn) },
  ]);

  const request = (messages) => ({
    ...(model.value && { model: model.value }),
    messages: [...(system.value ? [{ role: "system", content: system.value }] : []), ...messages],
    ...numbers({ temperature, max_tokens, top_p, seed }),
    ...(stop.value && { stop: stop.value.trim().startsWith("[") ? json(stop) : stop.value }),
    ...(tools.value.trim() && { tools: json(tools) }),
    stream: true,
    stream_options: { include_usage: true },
  });

  // Each look is a job: the models are asked for when somebody comes here, and not again.
  async function loadModels() {
    if (models || !endpoint.ready) return;
    models = ask("openai/v1/models", undefined, { signal: AbortSignal.timeout(20_000) });
    try {
      endpoint.models = (await models).data.map(({ id }) => id);
      model.replaceChildren(...endpoint.models.map((name) => h("option", {}, name)));
    } catch {
      // A worker without this route is asked without a model.
    }
  }

  function greet() {
    const idea = (words) => h("button", { type: "button", onclick: () => say(words) }, words);
    const hello = h("p", {}, "Say something to the worker.");
    log.replaceChildren(h("div", { class: "hello" }, hello, IDEAS.map(idea)));
  }

  function say(words) {
    text.value = words;
    form.requestSubmit();
  }

  function regenerate() {
    if ($(".busy", log)) return;
    again = shown.pop().question;
    for (let count = 0; count < 2; count += 1) log.lastElementChild.remove();
    form.requestSubmit();
  }

  async function answer(signal) {
    const question = again ?? text.value.trim();
    if (!question) return;
    if (again === null) text.value = "";
    again = null;
    const about = { question, thought: "", words: "", calls: {}, facts: "interrupted", isWhole: false };
    const before = turns();
    shown.push(about);
    const turn = draw(about);
    turn.isBusy(true);
    const watch = new Watch();
    const clock = setInterval(() => watch.pieces || turn.facts(`waiting … ${watch.whole()}`), 100);
    let [reason, usage] = [null, null];
    try {
      await Promise.race([loadModels(), new Promise((done) => setTimeout(done, 2000))]);
      const body = request([...before, { role: "user", content: question }]);
      const response = await send(ROUTE, body, { signal });
      for await (const { data } of events(response.body)) {
        about.isWhole = data === "[DONE]";
        if (about.isWhole) break;
        const part = JSON.parse(data);
        if (part.error) throw new Error(sentence(part));
        usage = part.usage ?? usage;
        const { delta = {}, finish_reason } = part.choices?.[0] ?? {};
        reason = finish_reason ?? reason;
        const thinks = delta.reasoning ?? delta.reasoning_content ?? "";
        if (!delta.content && !thinks && !delta.tool_calls) continue;
        about.words += delta.content ?? "";
        about.thought += thinks;
        gather(about.calls, delta.tool_calls ?? []);
        watch.piece();
        turn.facts(watch.text());
        turn.grow();
      }
      if (!about.isWhole) throw new Error("The stream ended without [DONE]: its job may tell why.");
    } catch (error) {
      if (signal.aborted) reason = "stopped";
      else turn.fail((about.problem = error.message));
    } finally {
      clearInterval(clock);
      const told = watch.pieces ? watch.text(usage?.completion_tokens) : "";
      about.facts = about.problem
        ? `failed after ${watch.whole()}`
        : [told, reason].filter(Boolean).join(" · ");
      turn.facts(about.facts);
      turn.isBusy(false);
      keep(shown);
    }
  }

  /** Show a question with its answer, and return how that changes. */
  function draw(about) {
    $(".hello", log)?.remove();
    const thought = h("p", { class: "thought" });
    const words = h("div", { class: "words" });
    const calls = h("div");
    const facts = h("small", {}, about.facts);
    const acts = h("span", { class: "acts" },
      copyButton(() => spoken(about), "this answer"),
      h("button", { type: "button", class: "copy again", onclick: regenerate }, "Regenerate"));
    const node = h("div", { class: "turn assistant" }, thought, words, calls,
      h("div", { class: "facts" }, facts, acts));
    const fail = (message) => node.insertBefore(problem(message), node.lastChild);
    const update = () => {
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      write(thought, about.thought);
      thought.hidden = !about.thought;
      render(words, about.words);
      calls.replaceChildren(...Object.values(about.calls).map(call));
      if (follows) log.scrollTop = log.scrollHeight;
    };
    let frame = 0;
    update();
    if (about.problem) fail(about.problem);
    log.append(h("div", { class: "turn user" }, h("p", {}, about.question)), node);
    log.scrollTop = log.scrollHeight;
    return {
      fail,
      facts: (value) => write(facts, value),
      grow() {
        frame ||= requestAnimationFrame(() => {
          frame = 0;
          update();
        });
      },
      isBusy(isBusy) {
        node.classList.toggle("busy", isBusy);
        node.ariaBusy = isBusy; // it is read aloud when it is whole
        if (!isBusy) update();
      },
    };
  }

  const halt = runs(form, answer);
  form.addEventListener("focusin", loadModels);
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  $("#new-chat").addEventListener("click", () => {
    halt();
    [shown, models] = [[], null];
    keep(shown);
    greet();
    text.focus();
  });
  greet();
  shown.forEach(draw);
  addEventListener("pagehide", () => $(".busy", log) && keep(shown));
  const next = () => [...turns(), { role: "user", content: text.value || IDEAS[0] }];
  return { request: () => request(next()) };
}

function restored() {
  try {
    return JSON.parse(localStorage.getItem(TURNS)) ?? [];
  } catch {
    return [];
  }
}

/** Keep a conversation; where it does not fit into the browser's storage, the latest of it. */
function keep(turns) {
  for (let from = 0; from <= turns.length; from += 1) {
    try {
      return localStorage.setItem(TURNS, JSON.stringify(turns.slice(from)));
    } catch {
      // full
    }
  }
}

/** Add the pieces of tool calls to what is there of them. */
function gather(calls, pieces) {
  for (const { index = 0, function: piece = {} } of pieces) {
    const known = (calls[Number(index)] ??= { name: "", arguments: "" });
    known.name += piece.name ?? "";
    known.arguments += piece.arguments ?? "";
  }
}

const call = ({ name, arguments: given }) =>
  h("figure", { class: "listing call" }, h("figcaption", {}, h("span", {}, "calls ", h("b", {}, name))),
    h("pre", {}, pretty(given)));

const spoken = ({ words, calls }) =>
  [words, ...Object.values(calls).map((one) => `${one.name}(${one.arguments})`)].filter(Boolean).join("\n");
