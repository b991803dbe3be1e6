// One answer as it is written: its words shaded by the store's share, and whom it is owed to. Words are drawn once per
// frame, however fast they come.

import { data, fill, h, percent } from "./dom.js";
import { LEAST, SHOWN } from "./marks.js";
import { Panel } from "./panel.js";
import { watchWords } from "./popover.js";
import { licenseName, T } from "./texts.js";

const PATTERNS = 8;
const PANEL_MS = 250;
const PER_FRAME = 100;

export class Answer {
  // `may` says what the key sees; `guard` is the number of tokens, if one is on; `greedy` if nothing is drawn by lot.
  constructor({ prompt, may, guard, greedy, stores }) {
    Object.assign(this, { prompt, may, guard, greedy, stores });
    this.words = [];
    this.documents = null;
    this.drawn = 0;
    this.patterns = new Map();
    this.summary = h("p", { class: "summary" }, T.play.writing);
    this.text = h("div", {
      class: "answer",
      tabindex: "0",
      role: "group",
      "aria-label": T.play.text_label,
      "aria-live": "polite",
      "aria-busy": "true",
    });
    if (prompt) this.text.append(h("span", { class: "prompt" }, prompt));
    this.after = h("div", { class: "after" });
    this.panel = new Panel(this);
    watchWords(this);
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
      for (; this.drawn < end; this.drawn++) if (this.words[this.drawn].text) made.append(this.wordElement(this.drawn));
      this.text.append(made);
      if (end < this.words.length) this.draw();
      this.panelTimer ??= setTimeout(() => ((this.panelTimer = null), this.drawShares()), PANEL_MS);
    });
  }

  wordElement(index) {
    const word = this.words[index];
    const main = word.docs[0];
    const element = h("span", { class: "word", tabindex: "-1", data: { at: index } }, word.text);
    if (this.isFromStore(word)) {
      element.style.setProperty("--s", (1 - word.lm).toFixed(3));
      element.classList.add(main ? this.pattern(main[0]) : "p-other");
    }
    if (word.prevented) element.classList.add("guarded");
    return element;
  }

  // Has the store enough of a word to be named for it?
  isFromStore(word) {
    return 1 - word.lm >= LEAST;
  }

  // The stripe of a document; the first ones have their own.
  pattern(number) {
    if (!this.patterns.has(number))
      this.patterns.set(number, this.patterns.size < PATTERNS ? `p-${this.patterns.size}` : "p-other");
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
      this.drawShares();
      this.drawAfter();
      this.onfinish?.();
    });
  }

  // Somebody stopped the text: the server has named no document.
  leave() {
    if (this.reason) return;
    this.isLeft = true;
    this.finish("stop", {});
  }

  // Sentences stand for words where the server gives no shares of words.
  splitSentences(spans) {
    const characters = Array.from(this.unshared);
    this.rest?.remove();
    this.words = spans.map((span) => ({
      text: characters.slice(span.start, span.end).join(""),
      lm: span.lm,
      docs: span.docs,
      other: 0,
      tops: [],
    }));
    this.unshared = undefined;
    this.drawn = 0;
    this.draw();
  }

  facts(number) {
    return this.documents?.[number] ?? null;
  }

  // Shares of the whole answer by a name, the largest first.
  shares(by) {
    const sums = new Map();
    const add = (number, share) => {
      const key = this.named(number, by);
      const known = sums.get(key.id) ?? { ...key, share: 0, numbers: new Set() };
      known.share += share;
      known.numbers.add(number);
      sums.set(key.id, known);
    };
    let lm = 0;
    let other = 0;
    const written = this.words.filter((word) => !word.isEnd);
    for (const word of written) {
      lm += word.lm;
      other += word.other ?? 0;
      for (const [number, share] of word.docs) add(number, share);
    }
    const all = written.length || 1;
    const listed = [...sums.values()]
      .sort((a, b) => b.share - a.share)
      .map((item) => ({ ...item, share: item.share / all }));
    return { lm: lm / all, other: other / all, listed };
  }

  // What a document is called, or its owner or licence.
  named(number, by) {
    const facts = this.facts(number);
    if (!facts) return { id: `#${number}`, name: this.isLeft ? T.word.left(number) : T.word.later(number), number };
    if (facts.erased) return { id: "erased", name: T.erased, number };
    if (by === "document")
      return {
        id: facts.document,
        name: facts.external_id,
        note: [facts.owner || T.no_owner, licenseName(facts.license)],
        number,
        tier: facts.tier,
        document: facts.document,
      };
    const name = by === "owner" ? facts.owner || T.no_owner : licenseName(facts.license);
    return { id: name, name, number, tier: by === "license" ? facts.tier : undefined };
  }

  drawShares() {
    const { lm, listed } = this.shares("document");
    const used = listed.filter((item) => item.share >= SHOWN).length;
    fill(this.summary, this.summaryOf(lm, Math.max(1, used)));
    this.panel.draw();
  }

  summaryOf(lm, used) {
    if (!this.words.length) return this.reason ? T.play.finished[this.reason] : T.play.writing;
    if (1 - lm < 0.005) return T.play.all_lm;
    return [h("strong", {}, T.play.summary(percent(1 - lm), used)), ", ", T.play.summary_lm(percent(lm))];
  }

  drawAfter() {
    const parts = [];
    if (this.guard)
      parts.push(
        h(
          "section",
          {},
          h("h2", {}, T.play.guard_title),
          h("p", {}, T.play.guard_on(this.guard), " ", this.guardWords()),
        ),
      );
    const notices = this.owed.notices ?? [];
    parts.push(
      h(
        "section",
        {},
        h("h2", {}, T.play.notices),
        notices.length
          ? h(
              "ul",
              { class: "notices" },
              notices.map((line) => h("li", {}, data(line))),
            )
          : h("p", { class: "hint" }, T.play.notices_none),
      ),
    );
    fill(this.after, parts);
  }

  guardWords() {
    if (this.reason === "content_filter") return T.play.guard_stop;
    const met = this.words.filter((word) => word.prevented).length;
    if (met) return T.play.guard_met(met);
    return this.greedy ? T.play.guard_idle : T.play.guard_unknown;
  }
}

// Tokens of both of the server's shapes.
function readTokens(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content)
    return logprobs.content.map((item) => wordOf(item.token, item.logprob, item.top_logprobs, item.silo));
  return logprobs.tokens.map((token, at) => {
    const tops = Object.entries(logprobs.top_logprobs?.[at] ?? {}).map(([text, logprob]) => ({ token: text, logprob }));
    return wordOf(token, logprobs.token_logprobs[at], tops, logprobs.silo?.[at]);
  });
}

function wordOf(token, log, tops, silo) {
  const sorted = [...(tops ?? [])].sort((a, b) => b.logprob - a.logprob).slice(0, 5);
  return {
    token,
    text: token,
    log: log ?? undefined,
    tops: sorted,
    lm: silo?.lm ?? 1,
    docs: silo?.docs ?? [],
    other: silo?.other ?? 0,
    neighbours: silo?.neighbours,
  };
}

// What the likeliest word was, if another one was taken although nothing was drawn by lot.
function keptOut(word) {
  const first = word.tops[0];
  return first && first.token !== word.token && first.logprob > (word.log ?? 0) ? first : null;
}
