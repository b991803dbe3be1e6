// The shares of an answer by document, owner or licence: bars that find their words in the text.

import { button, data, fill, h, percent, say } from "./dom.js";
import { LEAST, SHOWN, tierMark } from "./marks.js";
import { T } from "./texts.js";

const MOST = 12;

export class Panel {
  constructor(answer) {
    this.answer = answer;
    this.by = "document";
    this.place = h("div", { class: "shares" });
  }

  draw() {
    if (!this.tabs) this.make();
    const { lm, other, listed } = this.answer.shares(this.by);
    const named = listed.filter((item) => item.share >= SHOWN).slice(0, MOST);
    const rows = named.map((item) => this.bar(item));
    const rest = other + listed.slice(named.length).reduce((sum, item) => sum + item.share, 0);
    if (rest >= SHOWN)
      rows.push(this.bar({ id: "other", name: T.others, share: rest, numbers: new Set(), plain: "p-other" }));
    rows.push(this.bar({ id: "lm", name: T.model, share: lm, numbers: new Set(), plain: "p-lm", lm: true }));
    fill(this.list, rows);
  }

  make() {
    const tab = (by) =>
      button(T.play.by[by], () => ((this.by = by), this.markTabs(), this.draw()), {
        "aria-pressed": "false",
        data: { by },
      });
    this.tabs = h(
      "div",
      { class: "tabs", role: "group", "aria-label": T.play.by_label },
      Object.keys(T.play.by).map(tab),
    );
    this.list = h("ul", { class: "bars" });
    fill(this.place, this.tabs, this.list, h("p", { class: "hint" }, T.play.highlight));
    this.markTabs();
  }

  markTabs() {
    for (const item of this.tabs.children) item.setAttribute("aria-pressed", String(item.dataset.by === this.by));
  }

  bar(item) {
    const pattern = item.plain ?? this.answer.pattern([...item.numbers][0]);
    const light = () => this.light(item);
    const dim = () => this.dim();
    return h(
      "li",
      {},
      h(
        "button",
        {
          type: "button",
          class: "share",
          on: { mouseenter: light, mouseleave: dim, focus: light, blur: dim, click: () => this.hold(item) },
        },
        h(
          "span",
          { class: "line" },
          h("span", { class: `swatch ${pattern}` }),
          data(item.name),
          h("b", {}, percent(item.share)),
        ),
        h("span", { class: "bar", vars: { "--w": item.share } }, h("span", { class: `fill ${pattern}` })),
        (item.note || item.tier) &&
          h(
            "span",
            { class: "note" },
            (item.note ?? []).map((note) => [data(note), " · "]),
            item.tier && tierMark(item.tier),
          ),
      ),
    );
  }

  // Show the words of one bar and dim all others.
  light(item) {
    this.answer.text.classList.add("dimmed");
    for (const element of this.answer.text.querySelectorAll(".word")) {
      const word = this.answer.words[element.dataset.at];
      const part = item.lm
        ? word.lm
        : word.docs.reduce((sum, [number, share]) => sum + (item.numbers.has(number) ? share : 0), 0);
      element.classList.toggle("lit", part >= LEAST);
    }
  }

  dim() {
    if (this.held) this.light(this.held);
    else this.answer.text.classList.remove("dimmed");
  }

  hold(item) {
    this.held = this.held?.id === item.id ? null : item;
    this.dim();
    if (this.held) say(item.name);
  }
}
