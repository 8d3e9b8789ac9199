// Markdown, as models write it, becomes elements: text stays text, so nothing in it can be markup.

import { copyButton, h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s{0,9}([^\s`]{0,99})[^`]{0,200}$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(\S.*)$/;
const TABLE = /^\s*\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?$/;
const DEEPEST = 8; // lists in quotes in lists …; below that it is text
// In this order: an escape, code, a link, an address, bold, italic. Bounded, so that it is quick.
const INLINE = new RegExp(
  [
    /\\([!-/:-@[-`{-~])/,
    /(`+)([^`].{0,1000}?|[^`])\2(?!`)/,
    /\[([^[\]\n]{1,500})\]\((https?:\/\/[^\s()]{1,2000}(?:\([^\s()]{0,200}\))?[^\s()]{0,200})\)/,
    /(https?:\/\/[^\s<>()[\]"'`]{0,2000}[^\s<>()[\]"'`.,:;!?*_])/,
    /\*\*(?=\S)(.{0,1000}?\S)\*\*(?!\*)|\b__(?=\S)(.{0,1000}?\S)__\b/,
    /\*(?=[^\s*])(.{0,1000}?[^\s*])\*(?!\*)|\b_(?=[^\s_])(.{0,1000}?[^\s_])_\b/,
  ].map(({ source }) => source).join("|"),
  "gs",
);

/** Show a text in `place`; of one that grows, the blocks that stay are left as they are. */
export function render(place, text) {
  const all = blocks(text.split(/\r?\n/), 0);
  for (const [index, [source, make]] of all.entries()) {
    const old = place.children[index];
    if (old?.source === source) continue;
    const node = make();
    node.source = source;
    if (old) old.replaceWith(node);
    else place.append(node);
  }
  while (place.childElementCount > all.length) place.lastElementChild.remove();
}

/** Cut lines into blocks: each is `[source, make]`, its text and what makes an element of it. */
function blocks(lines, depth) {
  const found = [];
  let at = 0;
  const starts = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((form) => form.test(line));
  const until = (isEnd) => {
    const from = at;
    for (at += 1; at < lines.length && !isEnd(lines[at], at); at += 1);
    return lines.slice(from, at);
  };
  const add = (kind, taken, make) => found.push([`${kind}\n${taken.join("\n")}`, make]);

  while (at < lines.length) {
    const line = lines[at];
    const [fence, heading] = [FENCE.exec(line), HEADING.exec(line)];
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const [, mark, language] = fence;
      const taken = until((next) => next.trim().startsWith(mark) && !next.trim().replaceAll(mark[0], ""));
      const isClosed = at < lines.length;
      at += 1;
      add(`code ${isClosed}`, taken, () => codeBlock(taken.slice(1).join("\n"), language));
    } else if (heading) {
      at += 1;
      const [, marks, title] = heading;
      add("heading", [line], () =>
        h(`h${Math.min(6, marks.length + 2)}`, {}, inline(title.trimEnd().replace(/ #+$/, ""))));
    } else if (RULE.test(line)) {
      at += 1;
      add("rule", [line], () => h("hr"));
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const taken = until((next) => !QUOTE.test(next));
      add("quote", taken, () =>
        h("blockquote", {}, made(taken.map((text) => text.replace(QUOTE, "")), depth + 1)));
    } else if (ITEM.test(line) && depth < DEEPEST) {
      const { taken, items, start } = takeList(lines, at);
      at += taken.length;
      add("list", taken, () =>
        h(start === null ? "ul" : "ol", { start }, items.map((item) => h("li", {}, made(item, depth + 1, true)))));
    } else if (line.includes("|") && TABLE.test(lines[at + 1] ?? "")) {
      const taken = until((next) => !next.includes("|"));
      add("table", taken, () => table(taken));
    } else {
      const taken = until((next, index) =>
        !next.trim() || starts(next) || (next.includes("|") && TABLE.test(lines[index + 1] ?? "")));
      add("text", taken, () => h("p", {}, inline(taken.join("\n"))));
    }
  }
  return found;
}

/** Make the blocks inside another one; the only text of a list's item is no paragraph. */
function made(lines, depth, isItem = false) {
  const nodes = blocks(lines, depth).map(([, make]) => make());
  const isTight = isItem && nodes.filter(({ tagName }) => tagName === "P").length === 1;
  return nodes.flatMap((node) => (isTight && node.tagName === "P" ? [...node.childNodes] : [node]));
}

function takeList(lines, from) {
  const [, { length: indent }, first] = ITEM.exec(lines[from]);
  const isOrdered = (mark) => /\d/.test(mark);
  const items = [];
  let [at, width] = [from, 0];
  for (; at < lines.length; at += 1) {
    const line = lines[at];
    const item = ITEM.exec(line);
    const depth = line.search(/\S|$/);
    if (item && depth <= indent + 1 && depth >= indent - 1) {
      if (isOrdered(item[2]) !== isOrdered(first) || (RULE.test(line) && at > from)) break;
      width = line.length - item[3].length;
      items.push([item[3]]);
    } else if (!line.trim()) {
      const next = lines.slice(at + 1, at + 3).find((text) => text.trim()) ?? "";
      if (next.search(/\S|$/) <= indent && !ITEM.test(next)) break;
      items.at(-1).push("");
    } else if (depth > indent || (!item && lines[at - 1].trim() && !FENCE.test(line) && !HEADING.test(line))) {
      items.at(-1).push(line.slice(Math.min(depth, width)));
    } else {
      break;
    }
  }
  return { taken: lines.slice(from, at), items, start: isOrdered(first) ? parseInt(first, 10) : null };
}

function table([head, , ...rows]) {
  const cells = (line, tag) =>
    line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => h(tag, {}, inline(cell.trim())));
  const body = rows.map((line) => h("tr", {}, cells(line, "td")));
  return h("div", { class: "table" },
    h("table", {}, h("thead", {}, h("tr", {}, cells(head, "th"))), h("tbody", {}, body)));
}

function codeBlock(text, language) {
  const bar = h("figcaption", {}, language || "text", copyButton(() => text, "this code"));
  return h("figure", { class: "listing" }, bar, h("pre", {}, h("code", {}, text)));
}

function inline(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, escaped, , code, name, link, address, bold, bold2, italic, italic2] = found;
    parts.push(text.slice(end, found.index));
    end = found.index + whole.length;
    if (escaped) parts.push(escaped);
    else if (code) parts.push(h("code", {}, code.trim() || code));
    else if (link) parts.push(anchor(link, inline(name)));
    else if (address) parts.push(anchor(address, [address]));
    else if (bold ?? bold2) parts.push(h("strong", {}, inline(bold ?? bold2)));
    else parts.push(h("em", {}, inline(italic ?? italic2)));
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}

const anchor = (href, content) => h("a", { href, target: "_blank", rel: "noreferrer" }, content);
