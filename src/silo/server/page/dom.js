// Elements from data. Whatever data spells is text: nothing here reads markup, and characters that turn or hide text
// are shown by their numbers.

const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]|[\ud800-\udfff](?![\udc00-\udfff])/gu;

// A text in which nothing is hidden.
export function shown(text) {
  return String(text).replace(
    HIDDEN,
    (mark) => `⟦U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`,
  );
}

// An element. Properties: `class`, `on` (listeners), `vars` (CSS variables), `data`, `value`, `checked`, and attributes.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  element.append(...nodes(children));
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
  else if (name === "vars")
    for (const [variable, given] of Object.entries(value)) element.style.setProperty(variable, given);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "value" || name === "checked" || name === "disabled" || name === "open") element[name] = value;
  else if (name === "class") element.className = value;
  else element.setAttribute(name, value === true ? "" : shown(value));
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== undefined && child !== null && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(shown(child))));
}

// Put something else into an element.
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

// Text of somebody else's: its direction does not reach what stands around it.
export function data(text, tag = "bdi") {
  return h(tag, { class: "data" }, text);
}

export function button(label, run, properties = {}) {
  return h("button", { type: "button", ...properties, on: { click: run } }, label);
}

// A labelled control; the label is a text.
export function field(label, control, hint) {
  return h("label", { class: "field" }, h("span", {}, label), control, hint && h("small", {}, hint));
}

export function choose(options, properties = {}) {
  const made = options.map(([value, label]) => h("option", { value, selected: value === properties.selected }, label));
  const { selected, ...rest } = properties;
  return h("select", rest, made);
}

// A table; every row is a list of cells, numbers stand right.
export function table(caption, heads, rows) {
  const cell = (content) =>
    h(
      "td",
      { class: typeof content === "number" ? "number" : undefined },
      typeof content === "number" ? number(content) : content,
    );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head, at) =>
            h("th", { scope: "col", class: typeof rows[0]?.[at] === "number" ? "number" : undefined }, head),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, row.map(cell))),
      ),
    ),
  );
}

// A table of names with a bar for each.
export function bars(caption, heads, items, mark = () => null) {
  const most = Math.max(...items.map((item) => item.value), 1e-9);
  const bar = (item) => h("span", { class: "bar", vars: { "--w": item.value / most } }, h("span", { class: "fill" }));
  return table(
    caption,
    heads,
    items.map((item) => [
      h("span", {}, mark(item), data(item.name)),
      h("span", { class: "barcell" }, bar(item), item.label),
    ]),
  );
}

export const number = (value) => value.toLocaleString("en");
export const when = (time) => `${time.replace("T", " ").slice(0, 16)} UTC`;
export const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`);

// A file for the browser to keep.
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// Tell a screen reader.
export function say(text) {
  fill(document.getElementById("say"), text);
}
