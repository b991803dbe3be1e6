// What is behind one word of an answer: its documents, the place that matched, the model's share and what else it could
// have been. Hovering persists, Esc closes, and the arrow keys move from word to word.

import { findDocument } from "./api.js";
import { button, data, fill, h, percent, say } from "./dom.js";
import { tierMark } from "./marks.js";
import { licenseName, T } from "./texts.js";

const AROUND = 80;
const popover = document.getElementById("popover");
let texts = new Map();
let closing;
let returning = false;

// Hover, focus, tap and the arrow keys open what is behind a word of an answer.
export function watchWords(answer) {
  const at = (event) => event.target.closest?.(".word");
  answer.text.addEventListener("mouseover", (event) => at(event) && open(answer, at(event), false));
  answer.text.addEventListener("mouseout", () => closeSoon());
  answer.text.addEventListener("click", (event) => at(event) && open(answer, at(event), true));
  answer.text.addEventListener("focusin", (event) => at(event) && !returning && open(answer, at(event), true));
  answer.text.addEventListener("keydown", (event) => move(answer, event));
}

function move(answer, event) {
  const words = [...answer.text.querySelectorAll(".word")];
  if (!words.length) return;
  const now = words.indexOf(document.activeElement);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "next", ArrowUp: "before", Home: "first", End: "last" };
  if (event.key === "Enter" && now >= 0) {
    event.preventDefault();
    popover.querySelector("button")?.focus();
    return;
  }
  if (!(event.key in steps)) return;
  event.preventDefault();
  words[target(answer, steps[event.key], now, words)]?.focus();
}

// Left and right go word by word, up and down to where another document begins.
function target(answer, step, now, elements) {
  const count = elements.length;
  if (step === "first") return 0;
  if (step === "last") return count - 1;
  if (typeof step === "number") return Math.min(count - 1, Math.max(0, now + step));
  const main = (index) => {
    const word = answer.words[elements[index].dataset.at];
    return answer.isFromStore(word) ? (word.docs[0]?.[0] ?? -1) : -2;
  };
  const way = step === "next" ? 1 : -1;
  let index = Math.max(0, now);
  while (index + way >= 0 && index + way < count && main(index + way) === main(Math.max(0, now))) index += way;
  return Math.min(count - 1, Math.max(0, index + way));
}

function open(answer, element, pinned) {
  const index = Number(element.dataset.at);
  clearTimeout(closing);
  if (popover.opened === element && popover.matches(":popover-open")) {
    popover.pinned ||= pinned;
    return;
  }
  popover.opened = element;
  popover.pinned = pinned;
  const place = h("div", {});
  fill(popover, wordCard(answer, index, place));
  popover.showPopover();
  put(element);
  findPlace(answer, index).then((found) => found && popover.opened === element && (fill(place, found), put(element)));
  if (pinned) say(spoken(answer, index));
}

function spoken(answer, index) {
  const word = answer.words[index];
  const parts = word.docs
    .slice(0, 3)
    .map(([number, share]) => `${percent(share)} ${answer.named(number, "document").name}`);
  return T.word.said(nameOf(word.text), [...parts, T.word.model(percent(word.lm))].join(", "));
}

function wordCard(answer, index, place) {
  const word = answer.words[index];
  const chance =
    word.log === undefined ? null : h("span", { class: "hint" }, T.word.chance(percent(Math.exp(word.log))));
  const head = h(
    "p",
    { class: "head" },
    h("q", { class: "data" }, nameOf(word.text)),
    " ",
    h("b", {}, T.word.came(percent(1 - word.lm))),
    " ",
    chance,
  );
  const stack = h(
    "span",
    { class: "stack", "aria-hidden": "true" },
    word.docs.map(([number, share]) => h("span", { class: answer.pattern(number), vars: { "--w": share } })),
    h("span", { class: "p-lm", vars: { "--w": word.lm } }),
  );
  const listed = word.docs.slice(0, 4).map(([number, share]) => documentLine(answer, number, share));
  const rest = word.docs.slice(4).reduce((sum, [, share]) => sum + share, word.other ?? 0);
  return [
    button("×", close, { class: "close", "aria-label": T.word.close }),
    head,
    stack,
    word.prevented &&
      h(
        "p",
        { class: "warn" },
        T.play.guard_here(nameOf(word.prevented.token), percent(Math.exp(word.prevented.logprob))),
      ),
    h(
      "ul",
      { class: "credits" },
      listed,
      rest >= 0.005 && h("li", {}, T.word.others(percent(rest))),
      h("li", {}, h("span", { class: "swatch p-lm" }), " ", T.word.model(percent(word.lm))),
    ),
    place,
    word.tops.length > 0 &&
      h(
        "section",
        {},
        h("h3", {}, T.word.alternatives),
        h(
          "ol",
          { class: "tops" },
          word.tops.map((top) =>
            h("li", {}, h("q", { class: "data" }, nameOf(top.token)), h("b", {}, percent(Math.exp(top.logprob)))),
          ),
        ),
      ),
  ];
}

function documentLine(answer, number, share) {
  const facts = answer.facts(number);
  const name = answer.named(number, "document");
  const line = [
    h("span", { class: `swatch ${answer.pattern(number)}` }),
    " ",
    h("b", {}, percent(share)),
    " ",
    data(name.name),
  ];
  if (!facts || facts.erased) return h("li", {}, line);
  const acts = [
    answer.may.documents && h("a", { href: `#document?id=${facts.document}` }, T.word.open),
    answer.may.documents && h("a", { href: `#optout?kind=document&value=id:${facts.document}` }, T.word.optout),
  ];
  return h(
    "li",
    {},
    line,
    h(
      "div",
      { class: "note" },
      data(facts.owner || T.no_owner),
      " · ",
      data(licenseName(facts.license)),
      " · ",
      tierMark(facts.tier),
    ),
    h("div", { class: "acts" }, acts),
  );
}

// Where the words stand in the main document: as the search found it, or as its text shows.
async function findPlace(answer, index) {
  const word = answer.words[index];
  const near =
    word.neighbours?.find((item) => item.continuation && item.document === answer.facts(word.docs[0]?.[0])?.document) ??
    word.neighbours?.find((item) => item.continuation);
  if (near) return placeOf(near.left, near.continuation);
  const facts = answer.facts(word.docs[0]?.[0]);
  if (!facts?.document || !answer.may.text || !answer.may.documents || !answer.isFromStore(word)) return null;
  const before =
    answer.prompt +
    answer.words
      .slice(0, index)
      .map((item) => item.text)
      .join("");
  const text = await textOf(facts.document, answer.stores);
  const found = text && longestMatch(before + word.text, text);
  return found
    ? placeOf(text.slice(Math.max(0, found.end - AROUND), found.end), text.slice(found.end, found.end + AROUND))
    : null;
}

// A word as people name it; white space has names too.
const nameOf = (text) => text.trim() || T.word.white[text] || T.word.white.other;

function placeOf(left, right) {
  const one = (text) => text.replace(/\s+/g, " ");
  return h(
    "section",
    {},
    h("h3", {}, T.word.place),
    h("p", { class: "place data" }, "… ", one(left), h("mark", {}, one(right)), " …"),
  );
}

// The texts of documents that were looked at; forgotten with the page.
function textOf(document, stores) {
  if (!texts.has(document))
    texts.set(
      document,
      findDocument(document, stores).then(
        (found) => found.document.text,
        () => null,
      ),
    );
  return texts.get(document);
}

// What was looked at may have been erased.
export function forgetTexts() {
  texts = new Map();
}

// The longest end of `words` that stands in `text`.
function longestMatch(words, text) {
  let [low, high, best] = [1, Math.min(words.length, 400), null];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const at = text.indexOf(words.slice(-middle));
    if (at >= 0) [best, low] = [{ at, end: at + middle }, middle + 1];
    else high = middle - 1;
  }
  return best && best.end - best.at >= 4 ? best : null;
}

function closeSoon() {
  clearTimeout(closing);
  closing = setTimeout(() => popover.pinned || close(), 300);
}

function close() {
  const inside = popover.contains(document.activeElement);
  if (popover.matches(":popover-open")) popover.hidePopover();
  const word = popover.opened;
  popover.opened = null;
  popover.pinned = false;
  if (!inside || !word) return;
  returning = true;
  word.focus();
  returning = false;
}

// Below the word, above it where there is no room, and never outside of the window.
function put(element) {
  const word = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const [width, height] = [popover.offsetWidth, popover.offsetHeight];
  const left = Math.max(8, Math.min(word.left, innerWidth - width - 8));
  const below = word.bottom + 6 + height <= innerHeight || word.top < height;
  popover.style.left = `${left}px`;
  popover.style.top = `${below ? Math.min(word.bottom + 6, Math.max(8, innerHeight - height - 8)) : word.top - height - 6}px`;
}

popover.addEventListener("mouseenter", () => clearTimeout(closing));
popover.addEventListener("mouseleave", closeSoon);
document.addEventListener("keydown", (event) => event.key === "Escape" && popover.matches(":popover-open") && close());
document.addEventListener(
  "click",
  (event) => popover.opened && !popover.contains(event.target) && !event.target.closest?.(".word") && close(),
);
addEventListener("hashchange", close);
