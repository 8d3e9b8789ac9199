// Elements, and how numbers are written. Text is always text here, never markup.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child || child === 0 || child === ""));
  return node;
}

export const h = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** Set a text where it differs, so that what somebody has selected stays selected. */
export function write(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

/** Make `parent` hold one element per item, in order, and keep the elements of known items. */
export function list(parent, items, make, update) {
  const known = (parent.known ??= new Map());
  const gone = new Set(known.keys());
  let place = parent.firstElementChild;
  for (const item of items) {
    gone.delete(item.id);
    if (!known.has(item.id)) known.set(item.id, make(item));
    const node = known.get(item.id);
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const id of gone) {
    known.get(id).remove();
    known.delete(id);
  }
}

/** Return JSON on lines of its own; what is none, as it is. */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** Show what is wrong: the sentence, and below it, smaller, the traceback it may come with. */
export function problem(text) {
  const [first, ...rest] = text.trim().split("\n");
  const more = rest.length > 0 && h("pre", {}, rest.join("\n"));
  return h("div", { class: "error", role: "alert" }, h("p", {}, first), more);
}

/** Return a button that copies what `text()` gives, and says so. */
export function copyButton(text, name, label = "Copy") {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy ${name}` }, label);
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1200);
  });
  return button;
}

// The page is for this machine only, where a browser gives it the clipboard without https.
export const copy = (text) => navigator.clipboard.writeText(text).catch(() => {});

/** Make a row of tabs work with mouse, arrows, Home and End; `chosen` hears the panel's id. */
export function tabs(row, chosen = () => {}) {
  const all = $$("[role=tab]", row);
  const choose = (tab, focus) => {
    for (const other of all) {
      other.setAttribute("aria-selected", other === tab);
      other.tabIndex = other === tab ? 0 : -1;
      $(`#${other.getAttribute("aria-controls")}`).hidden = other !== tab;
    }
    if (focus) tab.focus();
    chosen(tab.getAttribute("aria-controls"));
  };
  for (const [index, tab] of all.entries()) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1 }[event.key];
      if (to !== undefined) choose(all.at(to % all.length), true);
    });
  }
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export function ago(seconds) {
  return seconds < 1 ? "now" : duration(Math.floor(seconds)).replace(/\.\d+/, "");
}

export function bytes(count) {
  if (!count) return count === 0 ? "0 B" : "–";
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1e3).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

export const rate = (number) =>
  number === null || number === undefined ? "–" : number.toFixed(number < 10 ? 1 : 0);
