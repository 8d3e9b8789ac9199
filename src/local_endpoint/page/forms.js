// What the forms share: a run that can be stopped, and how their fields are read and remembered.

import { $, $$ } from "./dom.js";

/** Remember what was typed into the parameters, for this tab of the browser. */
export function keepFields() {
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
export function runs(form, task) {
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

export function numbers(fields) {
  const given = Object.entries(fields).filter(([, field]) => field.value !== "");
  return Object.fromEntries(given.map(([name, field]) => [name, Number(field.value)]));
}

export function json(field) {
  try {
    return JSON.parse(field.value);
  } catch (error) {
    throw new Error(`${field.name} is not JSON: ${error.message}`);
  }
}
