// The opt-out desk: choose, see what goes and what it costs, confirm by typing, watch, and check the receipt.

import { findDocument, follow, get, post } from "./api.js";
import { button, choose, data, download, field, fill, h, percent, say, table } from "./dom.js";
import { rows, storePicker } from "./documents.js";
import { lastText } from "./play.js";
import { forgetTexts } from "./popover.js";
import { signatureFits, speaksOf } from "./receipt.js";
import { T } from "./texts.js";

const O = T.optout;

export async function open(place, world, query) {
  place.append(h("p", { class: "lead" }, O.lead));
  const desk = new Desk(world);
  place.append(desk.chooser(query), desk.rest, verifier(world));
  if (query.get("receipt")) await showReceipt(desk.rest, world, query.get("receipt"), query.get("store"));
  else if (query.get("value")) {
    if (!query.has("store")) await desk.findStore();
    await desk.look();
  }
}

class Desk {
  constructor(world) {
    this.world = world;
    this.rest = h("div", {});
  }

  chooser(query) {
    this.kind = choose(Object.entries(O.kinds), { name: "kind", selected: query.get("kind") ?? "document" });
    this.value = h("input", { name: "value", required: true, value: query.get("value") ?? "", autocomplete: "off" });
    this.store = storePicker(this.world, query.get("store") ?? undefined);
    this.form = h(
      "form",
      { class: "card", on: { submit: (event) => (event.preventDefault(), this.look()) } },
      h("h2", {}, O.choose),
      h("div", { class: "grid" }, field(O.kind, this.kind), field(O.value, this.value), field(O.store, this.store)),
      h("div", { class: "row" }, h("button", { class: "main" }, O.look)),
    );
    return this.form;
  }

  // A document that is known by silo's id alone is in one of the stores.
  async findStore() {
    const [, id] = this.value.value.match(/^id:(.+)$/) ?? [];
    const stores = this.world.stores.map((item) => item.store);
    const found = id && (await findDocument(id, stores).catch(() => null));
    if (found) this.store.value = found.store;
  }

  selector() {
    return { [this.kind.value]: this.value.value };
  }

  async look() {
    fill(this.rest);
    const chosen = { selector: this.selector(), store: this.store.value };
    try {
      const { documents } = await post("/v1/silo/erase", { ...chosen.selector, store: chosen.store, dry_run: true });
      fill(
        this.rest,
        h(
          "section",
          { class: "card" },
          h("p", { class: "verdict" }, O.goes(documents.length)),
          table(T.documents.caption, O.heads, rows(documents.slice(0, 100))),
        ),
        this.price(chosen),
        this.confirm(chosen, documents),
      );
    } catch (error) {
      fill(this.rest, this.world.problem(error));
    }
  }

  price(chosen) {
    const models = this.world.models.filter((model) => model.silo.stores.includes(chosen.store));
    const model = choose(
      models.map((item) => [item.id, item.id]),
      {},
    );
    const text = h("textarea", { rows: 3, value: lastText() });
    const own = field(O.price_text, text);
    const held = choose(Object.entries(O.price_on), { name: "on", on: { change: () => show() } });
    const on = field(O.price_which, held);
    const result = h("div", { "aria-live": "polite" });
    const hasHeld = () => models.find((item) => item.id === model.value)?.silo.validation_tokens > 0;
    const show = () => {
      on.hidden = !hasHeld();
      own.hidden = hasHeld() && held.value === "validation";
    };
    model.addEventListener("change", show);
    show();
    const measure = async (event) => {
      event.preventDefault();
      if (!own.hidden && !text.value.trim()) return fill(result, h("p", { class: "hint" }, O.price_empty));
      fill(result, h("p", { class: "hint" }, O.price_wait));
      try {
        const { perplexity, tokens } = await post("/v1/silo/opt-out-price", {
          ...chosen.selector,
          model: model.value,
          store: chosen.store,
          text: own.hidden ? "" : text.value,
        });
        return fill(result, priceBars(perplexity), h("p", { class: "hint" }, O.price_tokens(tokens)));
      } catch (error) {
        return fill(result, this.world.problem(error));
      }
    };
    return h(
      "form",
      { class: "card", on: { submit: measure } },
      h("h2", {}, O.price),
      h("p", {}, O.price_lead, " ", O.price_skip),
      on,
      own,
      models.length > 1 && field(O.price_model, model),
      h("div", { class: "row" }, h("button", {}, O.price_look)),
      result,
    );
  }

  confirm(chosen, documents) {
    const phrase = O.phrase(documents.length);
    const [copies, mayReturn] = [h("input", { type: "checkbox" }), h("input", { type: "checkbox" })];
    const erase = h("button", { class: "danger", disabled: true }, O.erase);
    const typed = h("input", {
      autocomplete: "off",
      spellcheck: "false",
      name: "confirm",
      on: { input: () => (erase.disabled = typed.value.trim() !== phrase) },
    });
    const begin = async (event) => {
      event.preventDefault();
      if (typed.value.trim() !== phrase) return;
      await this.erase(chosen, { copies: copies.checked, may_return: mayReturn.checked });
    };
    return h(
      "form",
      { class: "card", on: { submit: begin } },
      h("h2", {}, O.confirm),
      h("p", {}, O.confirm_lead),
      h("label", { class: "switch" }, copies, O.copies),
      h("label", { class: "switch" }, mayReturn, O.may_return),
      field(O.confirm_type(phrase), typed),
      h("div", { class: "row" }, erase),
    );
  }

  async erase(chosen, options) {
    const steps = Object.fromEntries(
      Object.entries(O.steps).map(([name, label]) => [name, h("li", {}, label, h("small", {}))]),
    );
    const mark = (name, ms) => {
      if (steps[name].classList.contains("yes")) return;
      steps[name].classList.add("yes");
      if (ms !== undefined) fill(steps[name].lastChild, " ", O.at(ms));
      say(O.steps[name]);
    };
    const place = h("div", {});
    this.form.remove();
    fill(
      this.rest,
      h("section", { class: "card" }, h("h2", {}, O.progress), h("ol", { class: "steps" }, Object.values(steps))),
      place,
    );
    const begun = performance.now();
    mark("asked");
    try {
      const job = await follow(
        await post("/v1/silo/erase", { ...chosen.selector, store: chosen.store, ...options }),
        (now) =>
          (now.stage === "accepted" || now.state === "done") &&
          mark("accepted", now.result?.accepted_ms ?? performance.now() - begun),
      );
      forgetTexts();
      mark("done", job.result.done_ms);
      if (job.result.receipt) {
        mark("receipt");
        await showReceipt(place, this.world, job.result.receipt, job.store, job.result.salts);
      }
    } catch (error) {
      place.append(this.world.problem(error));
    }
  }
}

function changeWords(change) {
  if (Math.abs(change) < 0.005) return O.price_same;
  if (change >= 1) return O.price_times((1 + change).toFixed(1));
  return change > 0 ? O.price_up(percent(change)) : O.price_down(percent(-change));
}

function priceBars(perplexity) {
  const change = perplexity.without / perplexity.with - 1;
  const words = changeWords(change);
  const most = Math.max(perplexity.with, perplexity.without);
  const bar = (label, value) =>
    h(
      "div",
      { class: "priced" },
      h("span", {}, label),
      h("span", { class: "bar", vars: { "--w": value / most } }, h("span", { class: "fill" })),
      h("b", {}, value.toFixed(2)),
    );
  return h(
    "div",
    {},
    h("p", { class: "verdict" }, O.price_change(words)),
    bar(O.price_with, perplexity.with),
    bar(O.price_without, perplexity.without),
  );
}

async function showReceipt(place, world, name, store, salts = {}) {
  const receipt = await get(`/v1/silo/receipts/${encodeURIComponent(name)}`);
  const proofs = Object.keys(salts).length > 0;
  const keep = [
    button(O.download, () => download(name, "application/json", `${JSON.stringify(receipt, null, 1)}\n`), {
      class: "main",
    }),
    proofs &&
      button(O.salts, () =>
        download(`proof-${name}`, "application/json", `${JSON.stringify({ receipt: name, salts }, null, 1)}\n`),
      ),
  ];
  place.append(
    h(
      "section",
      { class: "card receipt" },
      h("h2", {}, O.receipt),
      h("div", { class: "row" }, keep),
      proofs && h("p", { class: "hint" }, O.salts_hint),
      await findings(world, receipt, store, salts),
    ),
  );
}

// What this page finds out for itself, and what the server says.
async function findings(world, receipt, store, salts = {}) {
  const fits = await signatureFits(receipt);
  const models = receipt.models ?? [];
  const listing = models.filter((model) => model.listed);
  const named = Object.entries(salts);
  const speaks =
    named.length > 0 && (await Promise.all(named.map(([id, salt]) => speaksOf(receipt, id, salt)))).every(Boolean);
  const server = await post("/v1/silo/receipts/verify", { receipt, store }).then(
    (found) => h("p", { class: "yes" }, found.valid ? O.genuine : found.verdict),
    (error) => world.problem(error),
  );
  return h(
    "div",
    {},
    h("p", { class: "verdict" }, O.facts(receipt.counts.documents, receipt.done.replace("T", " ").slice(0, 19))),
    h(
      "div",
      { class: "columns" },
      h(
        "section",
        {},
        h("h3", {}, O.in_page),
        h("p", { class: fits ? "yes" : fits === null ? "" : "no" }, O.signature[fits]),
        named.length > 0 && h("p", { class: speaks ? "yes" : "no" }, O.speaks[speaks]),
      ),
      h("section", {}, h("h3", {}, O.by_server), server),
      h(
        "section",
        {},
        h("h3", {}, O.checks),
        h("ul", { class: "plain" }, Object.entries(receipt.checks).map(checkLine)),
      ),
    ),
    h("h3", {}, O.models),
    h("p", {}, listing.length ? data(listing.map((model) => model.name).join(", ")) : O.models_none(models.length)),
    h("h3", {}, O.covers),
    h(
      "ul",
      { class: "covers" },
      receipt.exclusions.map((line) => h("li", {}, data(line))),
    ),
  );
}

// A check that was made and passed says so by its tick; counts are given, and hits must be none.
function checkLine([name, value]) {
  const label = O.check_names[name] ?? data(name);
  if (value === "not checked") return h("li", {}, label, ": ", O.not_made);
  const isGood = typeof value === "number" ? !name.endsWith("-hits") || value === 0 : value;
  const said = typeof value === "number" ? [": ", String(value)] : value ? "" : [": ", O.failed];
  return h("li", { class: isGood ? "yes" : "no" }, label, said);
}

function verifier(world) {
  const result = h("div", { "aria-live": "polite" });
  const store = storePicker(world);
  const check = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    try {
      fill(result, await findings(world, JSON.parse(await file.text()), store.value));
    } catch (error) {
      fill(result, world.problem(error));
    }
  };
  return h(
    "section",
    { class: "card" },
    h("h2", {}, O.verify_title),
    h("p", {}, O.verify_lead),
    h(
      "div",
      { class: "grid" },
      field(O.verify_file, h("input", { type: "file", accept: ".json", on: { change: check } })),
      world.stores.length > 1 && field(O.store, store),
    ),
    result,
  );
}
