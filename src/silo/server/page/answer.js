// One answer as it is written: words shaded by the store's share, the popover of a word, and shares by document, owner
// and licence. Words are drawn once per frame, however fast they come.

import { get } from "./api.js";
import { button, data, fill, h, percent, say } from "./dom.js";
import { licenseName, T, TIERS } from "./texts.js";

const PATTERNS = 8;
const LEAST = 0.05;
const PANEL_MS = 250;
const PER_FRAME = 100;
const AROUND = 80;
const popover = document.getElementById("popover");
let texts = new Map();

export class Answer {
  // `may` says what the key sees; `guard` is the number of tokens, if one is on; `greedy` if nothing is drawn by lot.
  constructor({ prompt, may, guard, greedy, store }) {
    Object.assign(this, { prompt, may, guard, greedy, store });
    this.words = [];
    this.documents = null;
    this.drawn = 0;
    this.patterns = new Map();
    this.by = "document";
    this.summary = h("p", { class: "summary" }, T.play.writing);
    this.text = h("div", { class: "answer", tabindex: "0", role: "group", "aria-label": T.play.text_label, "aria-live": "polite", "aria-busy": "true" });
    if (prompt) this.text.append(h("span", { class: "prompt" }, prompt));
    this.panel = h("div", { class: "shares" });
    this.after = h("div", { class: "after" });
    this.listen();
  }

  // Take what a stream brings.
  take(choice) {
    const wrote = choice.delta?.content ?? choice.text ?? "";
    const items = readTokens(choice.logprobs);
    if (items.length === 1) items[0].text = wrote;
    else if (!items.length && wrote) this.plain(wrote);
    for (const item of items) this.add(item);
    if (choice.finish_reason) this.finish(choice.finish_reason, choice.silo ?? {});
  }

  add(word) {
    word.prevented = this.guard && this.greedy ? keptOut(word) : null;
    this.words.push(word);
    this.draw();
  }

  // Text without shares of its own: they come by sentence at the end.
  plain(text) {
    this.unshared = (this.unshared ?? "") + text;
    this.draw();
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const made = document.createDocumentFragment();
      if (this.unshared !== undefined) {
        this.rest ??= this.text.appendChild(h("span", {}));
        fill(this.rest, this.unshared);
      }
      const end = Math.min(this.words.length, this.drawn + PER_FRAME);
      for (; this.drawn < end; this.drawn++) made.append(this.wordElement(this.drawn));
      this.text.append(made);
      if (end < this.words.length) this.draw();
      this.panelTimer ??= setTimeout(() => ((this.panelTimer = null), this.drawPanel()), PANEL_MS);
    });
  }

  wordElement(index) {
    const word = this.words[index];
    const main = word.docs[0];
    const from = 1 - word.lm;
    const element = h("span", { class: "word", tabindex: "-1", data: { at: index } }, word.text);
    if (from >= LEAST) {
      element.style.setProperty("--s", from.toFixed(3));
      element.classList.add(main ? this.pattern(main[0]) : "p-other");
    }
    if (word.prevented) element.classList.add("guarded");
    return element;
  }

  // The stripe of a document; the first ones have their own.
  pattern(number) {
    if (!this.patterns.has(number)) this.patterns.set(number, this.patterns.size < PATTERNS ? `p-${this.patterns.size}` : "p-other");
    return this.patterns.get(number);
  }

  finish(reason, owed) {
    this.reason = reason;
    this.owed = owed;
    this.documents = owed.documents ?? [];
    const last = this.words.at(-1);
    if (last && !last.text && !last.docs.length) last.isEnd = true;
    if (this.unshared !== undefined) this.splitSentences(owed.spans ?? []);
    this.text.setAttribute("aria-busy", "false");
    requestAnimationFrame(() => {
      this.drawPanel();
      this.drawAfter();
      this.onfinish?.();
    });
  }

  // Sentences stand for words where the server gives no shares of words.
  splitSentences(spans) {
    const characters = Array.from(this.unshared);
    this.rest?.remove();
    this.words = spans.map((span) => ({ text: characters.slice(span.start, span.end).join(""), lm: span.lm, docs: span.docs, other: 0, tops: [], weight: 1 }));
    this.unshared = undefined;
    this.drawn = 0;
    this.draw();
  }

  facts(number) {
    return this.documents?.[number] ?? null;
  }

  // Shares of the whole answer by a name, the largest first.
  shares(by = this.by) {
    const sums = new Map();
    const add = (key, share, numbers) => {
      const known = sums.get(key.id) ?? { ...key, share: 0, numbers: new Set() };
      known.share += share;
      numbers.forEach((item) => known.numbers.add(item));
      sums.set(key.id, known);
    };
    let lm = 0;
    let other = 0;
    const written = this.words.filter((word) => !word.isEnd);
    for (const word of written) {
      lm += word.lm;
      other += word.other ?? 0;
      for (const [number, share] of word.docs) add(this.named(number, by), share, [number]);
    }
    const all = written.length || 1;
    const listed = [...sums.values()].sort((a, b) => b.share - a.share).map((item) => ({ ...item, share: item.share / all }));
    return { lm: lm / all, other: other / all, listed };
  }

  named(number, by) {
    const facts = this.facts(number);
    if (!facts) return { id: `#${number}`, name: T.word.later(number), number };
    if (facts.erased) return { id: "erased", name: T.erased, number };
    if (by === "document") return { id: facts.document, name: facts.external_id, note: [facts.owner || T.no_owner, licenseName(facts.license)], number, tier: facts.tier, document: facts.document };
    const name = by === "owner" ? facts.owner || T.no_owner : licenseName(facts.license);
    return { id: name, name, number, tier: by === "license" ? facts.tier : undefined };
  }

  drawPanel() {
    const { lm, other, listed } = this.shares();
    const used = this.shares("document").listed.filter((item) => item.share >= 0.005).length;
    const store = 1 - lm;
    if (!this.words.length) fill(this.summary, this.reason ? T.play.finished[this.reason] : T.play.writing);
    else if (store < 0.005) fill(this.summary, T.play.all_lm);
    else fill(this.summary, h("strong", {}, T.play.summary(percent(store), Math.max(1, used))), ", ", T.play.summary_lm(percent(lm)));
    const rows = listed.slice(0, 12).map((item) => this.bar(item));
    const rest = other + listed.slice(12).reduce((sum, item) => sum + item.share, 0);
    if (rest >= 0.005) rows.push(this.bar({ id: "other", name: T.others, share: rest, numbers: new Set(), plain: "p-other" }));
    rows.push(this.bar({ id: "lm", name: T.model, share: lm, numbers: new Set(), plain: "p-lm", lm: true }));
    if (!this.tabs) this.makePanel();
    fill(this.list, rows);
  }

  makePanel() {
    const tab = (by) => button(T.play.by[by], () => ((this.by = by), this.markTabs(), this.drawPanel()), { "aria-pressed": "false", data: { by } });
    this.tabs = h("div", { class: "tabs", role: "group", "aria-label": T.play.by_label }, Object.keys(T.play.by).map(tab));
    this.list = h("ul", { class: "bars" });
    fill(this.panel, this.tabs, this.list, h("p", { class: "hint" }, T.play.highlight));
    this.markTabs();
  }

  markTabs() {
    for (const item of this.tabs.children) item.setAttribute("aria-pressed", String(item.dataset.by === this.by));
  }

  bar(item) {
    const pattern = item.plain ?? this.pattern([...item.numbers][0]);
    const light = () => this.light(item);
    const dim = () => this.dim();
    return h(
      "li",
      {},
      h(
        "button",
        { type: "button", class: "share", on: { mouseenter: light, mouseleave: dim, focus: light, blur: dim, click: () => this.hold(item) } },
        h("span", { class: "line" }, h("span", { class: `swatch ${pattern}` }), data(item.name), h("b", {}, percent(item.share))),
        h("span", { class: "bar", vars: { "--w": item.share } }, h("span", { class: `fill ${pattern}` })),
        (item.note || item.tier) && h("span", { class: "note" }, (item.note ?? []).map((note) => [data(note), " · "]), item.tier && tierMark(item.tier)),
      ),
    );
  }

  // Show the words of one bar and dim all others.
  light(item) {
    this.text.classList.add("dimmed");
    for (const element of this.text.querySelectorAll(".word")) {
      const word = this.words[element.dataset.at];
      const part = item.lm ? word.lm : word.docs.reduce((sum, [number, share]) => sum + (item.numbers.has(number) ? share : 0), 0);
      element.classList.toggle("lit", part >= LEAST);
    }
  }

  dim() {
    if (this.held) this.light(this.held);
    else this.text.classList.remove("dimmed");
  }

  hold(item) {
    this.held = this.held?.id === item.id ? null : item;
    this.dim();
    if (item.document && item.document === this.held?.document) say(item.name);
  }

  drawAfter() {
    const parts = [];
    if (this.guard) parts.push(h("section", {}, h("h2", {}, T.play.guard_title), h("p", {}, T.play.guard_on(this.guard), " ", this.guardWords())));
    const notices = this.owed.notices ?? [];
    parts.push(h("section", {}, h("h2", {}, T.play.notices), notices.length ? h("ul", { class: "notices" }, notices.map((line) => h("li", {}, data(line)))) : h("p", { class: "hint" }, T.play.notices_none)));
    fill(this.after, parts);
  }

  guardWords() {
    if (this.reason === "content_filter") return T.play.guard_stop;
    const met = this.words.filter((word) => word.prevented).length;
    if (met) return T.play.guard_met(met);
    return this.greedy ? T.play.guard_idle : T.play.guard_unknown;
  }

  listen() {
    const at = (event) => event.target.closest?.(".word");
    this.text.addEventListener("mouseover", (event) => at(event) && this.open(at(event), false));
    this.text.addEventListener("mouseout", () => closeSoon());
    this.text.addEventListener("click", (event) => at(event) && this.open(at(event), true));
    this.text.addEventListener("focusin", (event) => at(event) && !returning && this.open(at(event), true));
    this.text.addEventListener("keydown", (event) => this.move(event));
  }

  move(event) {
    const words = [...this.text.querySelectorAll(".word")];
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
    words[this.target(steps[event.key], now, words.length)]?.focus();
  }

  // Left and right go word by word, up and down to where another document begins.
  target(step, now, count) {
    if (step === "first") return 0;
    if (step === "last") return count - 1;
    if (typeof step === "number") return Math.min(count - 1, Math.max(0, now + step));
    const main = (index) => (1 - this.words[index].lm >= LEAST ? (this.words[index].docs[0]?.[0] ?? -1) : -2);
    const way = step === "next" ? 1 : -1;
    let index = Math.max(0, now);
    while (index + way >= 0 && index + way < count && main(index + way) === main(Math.max(0, now))) index += way;
    return Math.min(count - 1, Math.max(0, index + way));
  }

  open(element, pinned) {
    const index = Number(element.dataset.at);
    clearTimeout(closing);
    if (popover.opened === element && popover.matches(":popover-open")) {
      popover.pinned ||= pinned;
      return;
    }
    popover.opened = element;
    popover.pinned = pinned;
    popover.answer = this;
    const place = h("div", {});
    fill(popover, this.wordCard(index, place));
    popover.showPopover();
    put(element);
    this.findPlace(index).then((found) => found && popover.opened === element && (fill(place, found), put(element)));
    if (pinned) say(this.spoken(index));
  }

  spoken(index) {
    const word = this.words[index];
    const parts = word.docs.slice(0, 3).map(([number, share]) => `${percent(share)} ${this.named(number, "document").name}`);
    return T.word.said(nameOf(word.text), [...parts, T.word.model(percent(word.lm))].join(", "));
  }

  wordCard(index, place) {
    const word = this.words[index];
    const chance = word.log === undefined ? null : h("span", { class: "hint" }, T.word.chance(percent(Math.exp(word.log))));
    const head = h("p", { class: "head" }, h("q", { class: "data" }, nameOf(word.text)), " ", h("b", {}, T.word.came(percent(1 - word.lm))), " ", chance);
    const stack = h("span", { class: "stack", "aria-hidden": "true" }, word.docs.map(([number, share]) => h("span", { class: this.pattern(number), vars: { "--w": share } })), h("span", { class: "p-lm", vars: { "--w": word.lm } }));
    const listed = word.docs.slice(0, 4).map(([number, share]) => this.documentLine(number, share));
    const rest = word.docs.slice(4).reduce((sum, [, share]) => sum + share, word.other ?? 0);
    return [
      button("×", close, { class: "close", "aria-label": T.word.close }),
      head,
      stack,
      word.prevented && h("p", { class: "warn" }, T.play.guard_here(nameOf(word.prevented.token), percent(Math.exp(word.prevented.logprob)))),
      h("ul", { class: "credits" }, listed, rest >= 0.005 && h("li", {}, T.word.others(percent(rest))), h("li", {}, h("span", { class: "swatch p-lm" }), " ", T.word.model(percent(word.lm)))),
      place,
      word.tops.length > 0 && h("section", {}, h("h3", {}, T.word.alternatives), h("ol", { class: "tops" }, word.tops.map((top) => h("li", {}, h("q", { class: "data" }, nameOf(top.token)), h("b", {}, percent(Math.exp(top.logprob))))))),
    ];
  }

  documentLine(number, share) {
    const facts = this.facts(number);
    const name = this.named(number, "document");
    const line = [h("span", { class: `swatch ${this.pattern(number)}` }), " ", h("b", {}, percent(share)), " ", data(name.name)];
    if (!facts || facts.erased) return h("li", {}, line);
    const acts = [
      this.may.documents && h("a", { href: `#document?id=${facts.document}` }, T.word.open),
      this.may.documents && h("a", { href: `#optout?kind=document&value=id:${facts.document}` }, T.word.optout),
    ];
    return h("li", {}, line, h("div", { class: "note" }, data(facts.owner || T.no_owner), " · ", data(licenseName(facts.license)), " · ", tierMark(facts.tier)), h("div", { class: "acts" }, acts));
  }

  // Where the words stand in the main document: as the search found it, or as its text shows.
  async findPlace(index) {
    const word = this.words[index];
    const near = word.neighbours?.find((item) => item.continuation && item.document === this.facts(word.docs[0]?.[0])?.document) ?? word.neighbours?.find((item) => item.continuation);
    if (near) return placeOf(near.left, near.continuation);
    const facts = this.facts(word.docs[0]?.[0]);
    if (!facts?.document || !this.may.text || !this.may.documents || 1 - word.lm < LEAST) return null;
    const before = this.prompt + this.words.slice(0, index).map((item) => item.text).join("");
    const text = await textOf(facts.document, this.store);
    const found = text && longestMatch(before + word.text, text);
    return found ? placeOf(text.slice(Math.max(0, found.end - AROUND), found.end), text.slice(found.end, found.end + AROUND)) : null;
  }
}

// A word as people name it; white space has names too.
const nameOf = (text) => text.trim() || T.word.white[text] || T.word.white.other;

function placeOf(left, right) {
  const one = (text) => text.replace(/\s+/g, " ");
  return h("section", {}, h("h3", {}, T.word.place), h("p", { class: "place data" }, "… ", one(left), h("mark", {}, one(right)), " …"));
}

// The texts of documents that were looked at; forgotten with the page.
async function textOf(document, store) {
  if (!texts.has(document)) texts.set(document, get(`/v1/silo/documents/${document}`, { store }).then((found) => found.text, () => null));
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

// Tokens of both of the server's shapes.
function readTokens(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) return logprobs.content.map((item) => wordOf(item.token, item.logprob, item.top_logprobs, item.silo));
  return logprobs.tokens.map((token, at) => {
    const tops = Object.entries(logprobs.top_logprobs?.[at] ?? {}).map(([text, logprob]) => ({ token: text, logprob }));
    return wordOf(token, logprobs.token_logprobs[at], tops, logprobs.silo?.[at]);
  });
}

function wordOf(token, log, tops, silo) {
  const sorted = [...(tops ?? [])].sort((a, b) => b.logprob - a.logprob).slice(0, 5);
  return { token, text: token, log: log ?? undefined, tops: sorted, lm: silo?.lm ?? 1, docs: silo?.docs ?? [], other: silo?.other ?? 0, neighbours: silo?.neighbours };
}

// What the likeliest word was, if another one was taken although nothing was drawn by lot.
function keptOut(word) {
  const first = word.tops[0];
  return first && first.token !== word.token && first.logprob > (word.log ?? 0) ? first : null;
}

export function tierMark(tier) {
  return h("span", { class: `tier tier-${tier}` }, TIERS[tier] ?? tier);
}

let closing;
let returning = false;
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
document.addEventListener("click", (event) => popover.opened && !popover.contains(event.target) && !event.target.closest?.(".word") && close());
addEventListener("hashchange", close);
