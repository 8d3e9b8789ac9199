// "Try it": the chat, native requests, and raw jobs, each also as code.

import { Watch, ask, isFinal, sentence } from "./api.js";
import { chat } from "./chat.js";
import { $, $$, copyButton, h, problem, tabs, write } from "./dom.js";
import { json, keepFields, runs } from "./forms.js";
import * as snippets from "./snippets.js";

const POLL_MS = 300;

export function start() {
  const panels = { chat: chat($("#chat")), native: native($("#native")), raw: raw($("#raw")) };
  let shown = "chat";
  tabs($("#ask [role=tablist]"), (id) => {
    shown = id;
    $("#new-chat").hidden = id !== "chat";
  });
  const dialog = $("#code");
  tabs($("[role=tablist]", dialog));
  const fill = () => {
    let code;
    try {
      const place = snippets.places[$("[name=place]:checked", dialog).value];
      code = snippets[shown](panels[shown].request(), place);
    } catch (error) {
      code = { curl: error.message, python: error.message, javascript: error.message };
    }
    for (const [language, text] of Object.entries(code)) write($(`#${language}`), text);
  };
  dialog.addEventListener("change", fill);
  $("#show-code").addEventListener("click", () => {
    fill();
    dialog.showModal();
  });
  const code = () => $("pre:not([hidden])", dialog).textContent;
  $("#close-code").before(copyButton(code, "this code"));
  $("#close-code").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  keepFields();
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
