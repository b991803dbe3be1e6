// The playground: controls, one answer with its shares, the same prompt with and without, and links that bring it back.

import { Answer } from "./answer.js";
import { findDocument, get, stream } from "./api.js";
import { button, choose, data, field, fill, h, percent } from "./dom.js";
import { licenseName, T, TIERS } from "./texts.js";

const TOKENS = 80;
const MOST_SWITCHES = 40;
const CONTROLS = ["mode", "model", "method", "settings", "lambda", "temperature", "seed", "tokens", "guard"];
const kept = {
  prompt: "",
  controls: {},
  off: { tier: [], license: [], owner: [] },
  closed: [],
  answer: null,
  last: "",
};

// What was written last, for measuring the price of an opt-out.
export const lastText = () => kept.last;

export async function open(place, world, query) {
  const view = new Playground(place, world);
  await view.make(query);
}

class Playground {
  constructor(place, world) {
    Object.assign(this, { place, world });
  }

  async make(query) {
    if (query.has("prompt")) this.restore(query);
    this.model = this.world.models.find((model) => model.id === kept.controls.model) ?? this.world.models[0];
    this.names = await this.namesIn(this.model.silo.stores);
    this.result = h("div", { class: "result" });
    this.place.append(h("p", { class: "lead" }, T.play.lead), this.form(), this.result);
    if (query.get("answer")) await this.bringBack(query.get("answer"));
    else if (kept.answer) this.show(kept.answer);
    else this.showEmpty();
  }

  // What the documents of some stores are called by, as far as the key may see it.
  async namesIn(stores) {
    const all = await Promise.all(stores.map(this.world.contentsOf));
    const names = (column) => [...new Set(all.flatMap((contents) => contents[column].map((item) => item.name)))];
    return { tier: names("tier"), license: names("license"), owner: names("owner") };
  }

  form() {
    const chat = kept.controls.mode === "chat";
    this.prompt = h("textarea", {
      rows: 2,
      value: kept.prompt,
      placeholder: T.play.example,
      on: { keydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.write() },
    });
    this.writeButton = h("button", { class: "main" }, T.play.write);
    this.stopButton = button(T.play.stop, () => this.abort?.abort(), { disabled: true });
    const compare = this.model.silo.stores.length > 0 && button(T.play.compare, () => this.compare());
    const submit = (event) => (event.preventDefault(), this.write());
    return h(
      "form",
      { class: "card", on: { submit } },
      field(chat ? T.play.chat_prompt : T.play.prompt, this.prompt),
      h("div", { class: "row" }, this.writeButton, this.stopButton, compare),
      h("div", { class: "folds" }, this.settings(), this.model.silo.stores.length > 0 && this.policy()),
    );
  }

  settings() {
    const { silo } = this.model;
    const given = kept.controls;
    const methods = ["", "lm", ...combinations(silo.searches)];
    const name = (method) =>
      T.play.methods[method] ??
      method
        .split("+")
        .map((part) => T.play.methods[part] ?? part)
        .join(" + ");
    const pick = (options, name) => choose(options, { name, selected: given[name] ?? "" });
    const number = (name, bounds) => h("input", { type: "number", name, value: given[name] ?? "", ...bounds });
    const again = (event) => {
      this.read();
      if (["model", "mode"].includes(event.target.name)) this.again();
    };
    const { fields, hints } = T.play;
    this.controls = h(
      "div",
      { class: "grid", on: { change: again } },
      silo.chats &&
        field(fields.mode, choose(Object.entries(T.play.modes), { name: "mode", selected: given.mode ?? "text" })),
      field(
        fields.model,
        choose(
          this.world.models.map((model) => [model.id, model.id]),
          { name: "model", selected: this.model.id },
        ),
      ),
      silo.stores.length === 1 &&
        h("p", { class: "field" }, h("span", {}, fields.store), data(silo.stores[0], "b")),
      silo.stores.length > 1 && this.stores(),
      silo.stores.length > 0 &&
        field(
          fields.method,
          choose(
            methods.map((method) => [method, name(method)]),
            { name: "method", selected: given.method ?? "" },
          ),
        ),
      silo.settings.length > 0 &&
        field(
          fields.settings,
          pick([["", T.play.no_settings], ...silo.settings.map((item) => [item, item])], "settings"),
        ),
      silo.searches.includes("knn") &&
        field(fields.lambda, number("lambda", { min: 0, max: 1, step: 0.05 }), hints.lambda),
      field(
        fields.temperature,
        h("input", { type: "number", name: "temperature", value: given.temperature ?? "0", min: 0, max: 2, step: 0.1 }),
        hints.temperature,
      ),
      field(
        fields.seed,
        h("input", { type: "number", name: "seed", value: given.seed ?? "1", min: 0, step: 1 }),
        hints.seed,
      ),
      field(
        fields.tokens,
        h("input", {
          type: "number",
          name: "tokens",
          value: given.tokens ?? String(TOKENS),
          min: 1,
          max: this.most(),
          step: 1,
        }),
      ),
      silo.searches.includes("ngram") && field(fields.guard, number("guard", { min: 1, step: 1 }), hints.guard),
      silo.stores.length > 0 &&
        field(
          fields.ledger,
          h("input", { type: "checkbox", name: "ledger", checked: given.ledger ?? false }),
          hints.ledger,
        ),
    );
    return h("details", {}, h("summary", {}, T.play.settings), this.controls);
  }

  // Which of the model's stores are read.
  stores() {
    const turn = (name) => (event) => {
      kept.closed = kept.closed.filter((other) => other !== name).concat(event.target.checked ? [] : [name]);
    };
    const line = (name) =>
      h(
        "label",
        { class: "switch" },
        h("input", {
          type: "checkbox",
          role: "switch",
          checked: !kept.closed.includes(name),
          on: { change: turn(name) },
        }),
        data(name),
      );
    return h(
      "fieldset",
      { class: "stores" },
      h("legend", {}, T.play.fields.stores),
      this.model.silo.stores.map(line),
      h("small", {}, T.play.hints.stores),
    );
  }

  openStores() {
    return this.model.silo.stores.filter((name) => !kept.closed.includes(name));
  }

  most() {
    return this.world.me.max_tokens || this.world.me.limits.max_tokens;
  }

  policy() {
    const all = { ...this.names, tier: this.names.tier.length ? this.names.tier : Object.keys(TIERS) };
    this.expression = h("code", {}, "");
    const group = (column, title, label) =>
      all[column].length > 0 &&
      h(
        "fieldset",
        {},
        h("legend", {}, title),
        all[column].slice(0, MOST_SWITCHES).map((name) => this.switch(column, name, label(name))),
      );
    const made = h(
      "details",
      { class: "policy" },
      h("summary", {}, T.play.policy),
      h("p", { class: "hint" }, T.play.policy_lead),
      h(
        "div",
        { class: "columns" },
        group("tier", T.play.tiers, (name) => TIERS[name]),
        group("license", T.play.licenses, licenseName),
        group("owner", T.play.owners, (name) => name || T.no_owner),
      ),
      h("p", {}, h("span", { class: "hint" }, T.play.expression, ": "), this.expression),
    );
    this.showExpression();
    return made;
  }

  switch(column, name, label) {
    const turn = (event) => {
      const off = new Set(kept.off[column]);
      if (event.target.checked) off.delete(name);
      else off.add(name);
      kept.off[column] = [...off];
      this.showExpression();
    };
    return h(
      "label",
      { class: "switch" },
      h("input", { type: "checkbox", role: "switch", checked: !kept.off[column].includes(name), on: { change: turn } }),
      data(label),
    );
  }

  showExpression() {
    fill(this.expression, policyText() || T.play.everything);
  }

  read() {
    kept.prompt = this.prompt.value;
    for (const control of this.controls.querySelectorAll("[name]"))
      kept.controls[control.name] = control.type === "checkbox" ? control.checked : control.value;
  }

  async again() {
    kept.answer = null;
    fill(this.place, this.place.firstChild);
    await this.make(new URLSearchParams());
  }

  // The request of the controls, with changes.
  request(changes = {}) {
    const { controls } = kept;
    const { may } = this.world;
    const given = (name) =>
      controls[name] === undefined || controls[name] === "" ? undefined : Number(controls[name]);
    const stores = this.openStores();
    const isPart = stores.length < this.model.silo.stores.length;
    const silo = this.model.silo.stores.length
      ? {
          stores: isPart ? stores : undefined,
          method: stores.length ? controls.method || undefined : "lm",
          settings: controls.settings || undefined,
          policy: policyText() || undefined,
          lambda: given("lambda"),
          guard: given("guard"),
          ledger: controls.ledger || undefined,
          ...changes,
        }
      : {};
    if (may.text && !silo.guard && usesNeighbours(silo.method ?? this.model.silo.method))
      silo.neighbours = Math.min(3, this.world.me.limits.neighbours);
    if (silo.method === "lm")
      for (const name of ["stores", "lambda", "settings", "guard", "policy", "neighbours"]) delete silo[name];
    const chat = controls.mode === "chat" && this.model.silo.chats;
    const probabilities = may.logprobs ? (chat ? { logprobs: true, top_logprobs: 5 } : { logprobs: 5 }) : {};
    const asked = chat ? { messages: [{ role: "user", content: kept.prompt }] } : { prompt: kept.prompt };
    return {
      path: chat ? "/v1/chat/completions" : "/v1/completions",
      chat,
      body: {
        model: this.model.id,
        ...asked,
        max_tokens: given("tokens") ?? TOKENS,
        temperature: given("temperature") ?? 0,
        seed: given("seed"),
        stream: true,
        ...probabilities,
        silo,
      },
    };
  }

  // An answer of a request, before its first word.
  answerTo(request) {
    const { body, chat } = request;
    const guard = Math.min(...[body.silo.guard, this.model.silo.guard, this.world.me.guard].filter(Boolean));
    return new Answer({
      prompt: chat ? "" : kept.prompt,
      may: this.world.may,
      guard: Number.isFinite(guard) && body.silo.method !== "lm" ? guard : 0,
      greedy: body.temperature === 0,
      stores: this.model.silo.stores,
    });
  }

  async run(answer, request, signal) {
    for await (const event of stream("POST", request.path, request.body, signal)) {
      answer.id = event.id;
      for (const choice of event.choices) answer.take(choice);
    }
  }

  async write() {
    this.read();
    const request = this.request();
    const answer = this.answerTo(request);
    kept.answer = answer;
    this.show(answer);
    await this.during(async (signal) => {
      await this.run(answer, request, signal);
      kept.last = kept.prompt + answer.words.map((word) => word.text).join("");
    }, answer.text);
  }

  // Something that takes a while and can be stopped.
  async during(work, place) {
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    this.stopButton.disabled = false;
    try {
      await work(abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) place.after(this.world.problem(error));
      else kept.answer?.leave();
    } finally {
      if (this.abort === abort) this.stopButton.disabled = true;
    }
  }

  showEmpty() {
    fill(this.result, h("div", { class: "card empty" }, h("h2", {}, T.play.empty_title), h("p", {}, T.play.empty)));
  }

  show(answer) {
    const link = h("p", { class: "link" });
    const foot = h("div", { class: "foot" }, answer.after, link);
    answer.onfinish = () => this.showLink(answer, link);
    if (answer.reason) this.showLink(answer, link);
    fill(
      this.result,
      h(
        "div",
        { class: "beside" },
        h(
          "section",
          { class: "card", "aria-label": T.views.play },
          answer.summary,
          answer.text,
          h("p", { class: "hint" }, this.world.may.logprobs ? T.play.legend : T.play.no_tokens),
          foot,
        ),
        h("aside", { class: "card", "aria-label": T.play.panel }, h("h2", {}, T.play.panel), answer.panel.place),
      ),
    );
  }

  showLink(answer, place) {
    const address = new URL(location.href);
    address.hash = `play?${this.asQuery(answer.id)}`;
    const copy = button(T.copy, async () => {
      await navigator.clipboard?.writeText(address.href);
      fill(copy, T.copied);
    });
    fill(place, h("a", { href: address.href }, T.play.link), " ", copy, h("br"), h("small", {}, T.play.link_hint));
  }

  asQuery(answer) {
    const query = new URLSearchParams({ prompt: kept.prompt });
    if (answer) query.set("answer", answer);
    for (const name of CONTROLS) if (kept.controls[name]) query.set(name, kept.controls[name]);
    for (const name of kept.closed) query.append("off-store", name);
    for (const [column, names] of Object.entries(kept.off))
      names.forEach((name) => query.append(`off-${column}`, name));
    return query;
  }

  restore(query) {
    kept.prompt = query.get("prompt");
    kept.answer = null;
    kept.controls = Object.fromEntries(
      CONTROLS.filter((name) => query.has(name)).map((name) => [name, query.get(name)]),
    );
    for (const column of Object.keys(kept.off)) kept.off[column] = query.getAll(`off-${column}`);
    kept.closed = query.getAll("off-store");
  }

  // Ids and shares of an earlier answer, without what was erased since.
  async bringBack(id) {
    const found = await get(`/v1/silo/attributions/${encodeURIComponent(id)}`).catch(() => null);
    if (!found)
      return fill(
        this.result,
        h("div", { class: "card empty" }, h("h2", {}, T.play.back_title), h("p", {}, T.play.back_gone)),
      );
    const [choice] = found.choices;
    const rows = await Promise.all(choice.documents.slice(0, 20).map((item) => this.line(item)));
    const erased =
      choice.erased_share > 0 &&
      h("li", { class: "erased" }, h("b", {}, percent(choice.erased_share)), " ", T.play.back_erased);
    const lm = h("li", {}, h("b", {}, percent(choice.lm_share)), " ", T.model);
    return fill(
      this.result,
      h(
        "div",
        { class: "card" },
        h("h2", {}, T.play.back_title),
        h("p", {}, T.play.back),
        h("ul", { class: "plain" }, rows, erased, lm),
      ),
    );
  }

  async line(item) {
    const found =
      this.world.may.documents && (await findDocument(item.document, this.model.silo.stores).catch(() => null));
    const facts = found?.document;
    const name = facts
      ? h("a", { href: `#document?id=${item.document}` }, data(facts.external_id))
      : data(item.document, "code");
    return h(
      "li",
      {},
      h("b", {}, percent(item.share)),
      " ",
      name,
      facts &&
        h("span", { class: "note" }, " ", data(facts.owner || T.no_owner), " · ", data(licenseName(facts.license))),
    );
  }

  // The language model alone, the store, and the store without one owner, beside each other.
  async compare() {
    this.read();
    const owners = this.owners();
    const left = kept.without && owners.includes(kept.without) ? kept.without : owners[0];
    const without =
      left === undefined
        ? null
        : this.request({
            policy: [policyText() && `(${policyText()})`, `owner != ${JSON.stringify(left)}`]
              .filter(Boolean)
              .join(" and "),
          });
    const runs = [
      [T.play.compare_lm, this.request({ method: "lm" })],
      [T.play.compare_store, this.request()],
      ...(without ? [[T.play.compare_without(left || T.no_owner), without]] : []),
    ].map(([title, request]) => ({ title, request, answer: this.answerTo(request) }));
    const change = (event) => ((kept.without = event.target.value), this.compare());
    const pane = ({ title, answer }) =>
      h("section", { class: "card pane" }, h("h3", {}, data(title)), answer.summary, answer.text, answer.panel.place);
    fill(
      this.result,
      h("h2", {}, T.play.compare_title),
      left === undefined
        ? h("p", { class: "hint" }, T.play.compare_none)
        : field(
            T.play.compare_owner,
            choose(
              owners.map((owner) => [owner, owner || T.no_owner]),
              { selected: left, on: { change } },
            ),
          ),
      h("div", { class: "panes" }, runs.map(pane)),
    );
    await this.during(
      (signal) =>
        Promise.all(
          runs.map(({ answer, request }) =>
            this.run(answer, request, signal).catch(
              (error) => signal.aborted || answer.text.after(this.world.problem(error)),
            ),
          ),
        ),
      this.result,
    );
  }

  // Owners that can be left out: those of the last answer first.
  owners() {
    const used = kept.answer?.documents
      ? kept.answer.shares("document").listed.map((item) => kept.answer.facts(item.number)?.owner)
      : [];
    return [...new Set([...used, ...this.names.owner])].filter((owner) => owner !== undefined).slice(0, MOST_SWITCHES);
  }
}

// What is switched off, in the language of policies.
function policyText() {
  return Object.entries(kept.off)
    .filter(([, names]) => names.length)
    .map(([column, names]) => `${column} not in [${names.map((name) => JSON.stringify(name)).join(", ")}]`)
    .join(" and ");
}

const usesNeighbours = (method) => method.split("+").includes("knn");

// Every way to join what a store can search; passages need another name there.
function combinations(searches) {
  const parts = ["knn", "ngram", "ric"].filter((part) => searches.includes(part === "ric" ? "bm25" : part));
  const joined = parts.reduce((found, part) => [...found, ...found.map((other) => [...other, part])], [[]]);
  return joined.filter((item) => item.length).map((item) => item.join("+"));
}
