// "Try it": a chat over the OpenAI route, native requests, and raw jobs.

import { Watch, ask, endpoint, events, isFinal, send, sentence } from "./api.js";
import { $, $$, copy, h, problem, tabs, write } from "./dom.js";
import * as snippets from "./snippets.js";

const CHAT_ROUTE = "openai/v1/chat/completions";
const IDEAS = ["Tell me in two sentences what the Moon is.", "Count to thirty.", "Write a haiku."];
const POLL_MS = 300;
const TURNS = "chat.turns"; // in the session's storage: a reload keeps the conversation

export function start() {
  const panels = { chat: chat($("#chat")), native: native($("#native")), raw: raw($("#raw")) };
  let shown = "chat";
  tabs($("#ask [role=tablist]"), (id) => {
    shown = id;
    $("#new-chat").hidden = id !== "chat";
  });
  const dialog = $("#code");
  tabs($("[role=tablist]", dialog));
  $("#show-code").addEventListener("click", () => {
    let code;
    try {
      code = snippets[shown](panels[shown].request());
    } catch (error) {
      code = { curl: error.message, python: error.message };
    }
    for (const language of ["curl", "python"]) write($(`#${language}`), code[language]);
    dialog.showModal();
  });
  $("#close-code").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  $("#copy-code").addEventListener("click", () => copy($("pre:not([hidden])", dialog).textContent));
  keepFields();
}

/** Remember what was typed into the parameters, for this tab of the browser. */
function keepFields() {
  for (const field of $$("#ask .fields [name]")) {
    const key = `${field.form.id}.${field.name}`;
    const value = sessionStorage.getItem(key);
    if (field.type === "checkbox") field.checked = value === "true";
    else if (value !== null && field.name !== "model") field.value = value;
    field.dispatchEvent(new Event("change"));
    const keep = () =>
      sessionStorage.setItem(key, field.type === "checkbox" ? field.checked : field.value);
    field.addEventListener("input", keep);
  }
}

/** Run `task(signal)` for each submit of a form; while it runs, the stop button aborts the signal. */
function runs(form, task) {
  const [go, stop] = [$(".primary", form), $(".stop", form)];
  let controller = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (controller) return;
    controller = new AbortController();
    [go.hidden, stop.hidden] = [true, false];
    try {
      await task(controller.signal);
    } finally {
      controller = null;
      [go.hidden, stop.hidden] = [false, true];
    }
  });
  const halt = () => controller?.abort();
  stop.addEventListener("click", halt);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") halt();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return halt;
}

// --- chat -------------------------------------------------------------------------------------

function chat(form) {
  const { model, system, text, temperature, max_tokens, top_p, seed, stop } = form.elements;
  const log = $("#messages", form);
  let shown = []; // what was asked, with its answer and how that ended
  let models = null;

  const keep = () => sessionStorage.setItem(TURNS, JSON.stringify(shown));
  const turns = () => shown.filter(({ isWhole }) => isWhole).flatMap(({ question, words }) => [
    { role: "user", content: question },
    { role: "assistant", content: words },
  ]);

  const request = (messages) => ({
    ...(model.value && { model: model.value }),
    messages: [...(system.value ? [{ role: "system", content: system.value }] : []), ...messages],
    ...numbers({ temperature, max_tokens, top_p, seed }),
    ...(stop.value && { stop: stop.value.trim().startsWith("[") ? json(stop) : stop.value }),
    stream: true,
    stream_options: { include_usage: true },
  });

  // Each look is a job: the models are asked for when somebody comes here, and not again.
  async function loadModels() {
    if (models || !endpoint.ready) return;
    models = ask("openai/v1/models", undefined, { signal: AbortSignal.timeout(20_000) });
    try {
      const names = (await models).data.map(({ id }) => id);
      model.replaceChildren(...names.map((name) => h("option", {}, name)));
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

  async function answer(signal) {
    const question = text.value.trim();
    if (!question) return;
    await Promise.race([loadModels(), new Promise((done) => setTimeout(done, 2000))]);
    text.value = "";
    const about = { question, thought: "", words: "", facts: "interrupted", isWhole: false };
    shown.push(about);
    const [turn, thought, words, facts] = draw(about);
    turn.classList.add("busy");
    const watch = new Watch();
    const clock = setInterval(() => watch.pieces || write(facts, `waiting … ${watch.whole()}`), 100);
    let [reason, usage] = [null, null];
    try {
      const body = request([...turns(), { role: "user", content: question }]);
      const response = await send(CHAT_ROUTE, body, { signal });
      for await (const { data } of events(response.body)) {
        about.isWhole = data === "[DONE]";
        if (about.isWhole) break;
        const part = JSON.parse(data);
        if (part.error) throw new Error(sentence(part));
        usage = part.usage ?? usage;
        const { delta = {}, finish_reason } = part.choices?.[0] ?? {};
        reason = finish_reason ?? reason;
        const calls = delta.tool_calls ? JSON.stringify(delta.tool_calls) : "";
        const said = (delta.content ?? "") + calls;
        const thinks = delta.reasoning ?? delta.reasoning_content ?? "";
        if (!said && !thinks) continue;
        const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
        words.append(said);
        thought.append(thinks);
        [about.words, about.thought] = [words.textContent, thought.textContent];
        thought.hidden = !about.thought;
        watch.piece();
        write(facts, watch.text());
        if (follows) log.scrollTop = log.scrollHeight;
      }
      if (!about.isWhole) throw new Error("The stream ended without [DONE]: its job may tell why.");
    } catch (error) {
      if (signal.aborted) reason = "stopped";
      else turn.append(problem((about.problem = error.message)));
    } finally {
      clearInterval(clock);
      turn.classList.remove("busy");
      const spoken = watch.pieces ? watch.text(usage?.completion_tokens) : "";
      about.facts = about.problem
        ? `failed after ${watch.whole()}`
        : [spoken, reason].filter(Boolean).join(" · ");
      write(facts, about.facts);
      keep();
      log.scrollTop = log.scrollHeight;
    }
  }

  /** Show a question with its answer, and return the elements that an answer grows in. */
  function draw({ question, thought, words, facts, problem: wrong }) {
    $(".hello", log)?.remove();
    const parts = [
      h("p", { class: "thought", hidden: !thought }, thought),
      h("p", { class: "words" }, words),
      h("small", {}, facts),
    ];
    const turn = h("div", { class: "turn assistant" }, parts, wrong && problem(wrong));
    log.append(h("div", { class: "turn user" }, h("p", {}, question)), turn);
    log.scrollTop = log.scrollHeight;
    return [turn, ...parts];
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
    keep();
    greet();
    text.focus();
  });
  greet();
  shown = JSON.parse(sessionStorage.getItem(TURNS)) ?? [];
  shown.forEach(draw);
  addEventListener("pagehide", () => $(".busy", log) && keep());
  const next = () => [...turns(), { role: "user", content: text.value || IDEAS[0] }];
  return { request: () => request(next()) };
}

function numbers(fields) {
  const given = Object.entries(fields).filter(([, field]) => field.value !== "");
  return Object.fromEntries(given.map(([name, field]) => [name, Number(field.value)]));
}

function json(field) {
  try {
    return JSON.parse(field.value);
  } catch (error) {
    throw new Error(`${field.name} is not JSON: ${error.message}`);
  }
}

// --- native and raw ---------------------------------------------------------------------------

/** Show an answer: its text, or what is wrong with it, and the JSON it came in. */
function card(place) {
  const text = h("pre", { class: "words" });
  const facts = h("small", {});
  const badge = h("span", { class: "badge" });
  const whole = h("pre", { class: "code" });
  const details = h("details", {}, h("summary", {}, "JSON"), whole);
  const wrong = h("div");
  place.replaceChildren(h("div", { class: "facts" }, badge, facts), wrong, text, details);
  return {
    text: (value) => write(text, value),
    facts: (value) => write(facts, value),
    open: () => (details.open = true),
    fail: (error) => wrong.replaceChildren(problem(error.message)),
    status(view) {
      write(badge, view.status);
      badge.dataset.status = view.status;
      write(whole, JSON.stringify(view, null, 2));
      if (view.error) wrong.replaceChildren(problem(sentence(view.error)));
    },
  };
}

/** Return the text in what a worker yielded: native choices by index, strings; else its JSON. */
function reading(yields) {
  if (!yields.every((value) => Array.isArray(value?.choices))) {
    return yields.map((v) => (typeof v === "string" ? v : `${JSON.stringify(v)}\n`)).join("");
  }
  const texts = [];
  for (const { choices } of yields) {
    for (const [index, { tokens = [] }] of choices.entries()) {
      texts[index] = (texts[index] ?? "") + tokens.join("");
    }
  }
  return texts.length < 2 ? texts.join("") : texts.map((t, i) => `[${i}] ${t}`).join("\n\n");
}

function native(form) {
  const { kind, mode, prompt, template, messages, sampling } = form.elements;
  const isMessages = () => kind.value === "messages";
  kind.addEventListener("change", () => {
    for (const label of $$("[data-kind]", form)) label.hidden = label.dataset.kind !== kind.value;
  });
  const request = () => ({
    mode: mode.value,
    input: {
      ...(isMessages() ? { messages: json(messages) } : { prompt: prompt.value }),
      ...(!isMessages() && template.checked && { apply_chat_template: true }),
      sampling_params: sampling.value.trim() ? json(sampling) : {},
      ...(mode.value === "run" && { stream: true }),
    },
  });

  runs(form, async (signal) => {
    const result = card($(".answer", form));
    const watch = new Watch();
    let [tokens, ended] = [undefined, "done"];
    const facts = () => (tokens === undefined ? watch.whole() : watch.text(tokens));
    const clock = setInterval(() => result.facts(facts()), 100);
    try {
      const { input } = request();
      if (mode.value === "runsync") {
        const view = await ask("runsync", { input }, { signal });
        if (view.output !== undefined) result.text(reading([view.output].flat()));
        if (view.error) ended = "failed";
        return result.status(view);
      }
      const { id } = await ask("run", { input });
      const cancel = () => ask(`cancel/${id}`, {}).catch(() => {});
      signal.addEventListener("abort", cancel);
      if (signal.aborted) await cancel();
      const yields = [];
      let view = {};
      while (!isFinal(view.status) || view.stream.length) {
        view = await ask(`stream/${id}`);
        yields.push(...view.stream.map(({ output }) => output));
        tokens = yields.at(-1)?.usage?.output;
        if (view.stream.length) watch.piece();
        result.text(reading(yields));
      }
      view = await ask(`status/${id}`);
      if (view.error) ended = "failed";
      result.status(view);
    } catch (error) {
      ended = signal.aborted ? "stopped" : "failed";
      if (!signal.aborted) result.fail(error);
    } finally {
      clearInterval(clock);
      const isDone = ended === "done" && tokens !== undefined;
      result.facts(isDone ? facts() : `${ended} after ${watch.whole()}`);
    }
  });
  return { request };
}

function raw(form) {
  const request = () => ({ mode: "run", input: json(form.elements.input) });
  const retry = $(".retry", form);
  let id = null;

  async function follow(signal, submit) {
    const result = card($(".answer", form));
    result.open();
    retry.hidden = true;
    try {
      ({ id } = await submit());
      let [view, isCancelled] = [{}, false];
      while (!isFinal(view.status)) {
        if (signal.aborted && !isCancelled) isCancelled = await ask(`cancel/${id}`, {});
        view = await ask(`status/${id}`);
        result.status(view);
        if (!isFinal(view.status)) await new Promise((done) => setTimeout(done, POLL_MS));
      }
      retry.hidden = !["FAILED", "TIMED_OUT"].includes(view.status);
    } catch (error) {
      result.fail(error);
    }
  }

  let again = false;
  retry.addEventListener("click", () => {
    again = true;
    form.requestSubmit();
  });
  runs(form, (signal) => {
    const retrying = again;
    again = false;
    const submit = async () => ask("run", { input: request().input });
    return follow(signal, retrying ? () => ask(`retry/${id}`, {}) : submit);
  });
  return { request };
}
