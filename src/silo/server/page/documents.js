// Documents: search, "is my text in here?", one document with its evidence, and adding with the verdict first.

import { findDocument, follow, get, post } from "./api.js";
import { button, choose, data, field, fill, h, number, percent, table, when } from "./dom.js";
import { tierMark } from "./marks.js";
import { licenseName, methodName, reasonName, T, TIER_MEANING, TIERS } from "./texts.js";

const PAGE = 50;
const TEXT = 3000;

export async function open(place, world, query, name) {
  if (name === "document") return openOne(place, world, query);
  place.append(h("p", { class: "lead" }, T.documents.lead));
  place.append(search(world, query), lookFor(world), add(world));
  return null;
}

export const storePicker = (world, selected) =>
  choose(
    world.stores.map((item) => [item.store, item.store]),
    { name: "store", selected: selected ?? world.stores[0].store },
  );

// Rows of documents as every list shows them.
export function rows(found) {
  return found.map((item) => [
    h("a", { href: `#document?id=${item.id}` }, data(item.external_id || item.id)),
    data(item.owner || T.no_owner),
    data(licenseName(item.license)),
    tierMark(item.tier),
    item.characters,
  ]);
}

function search(world, query) {
  const text = (name) => h("input", { name, value: query.get(name) ?? "", autocomplete: "off" });
  const results = h("div", { "aria-live": "polite" });
  const controls = {
    query: text("query"),
    owner: text("owner"),
    license: text("license"),
    source: text("source"),
    tier: choose([["", T.documents.any], ...Object.entries(TIERS)], {
      name: "tier",
      selected: query.get("tier") ?? "",
    }),
  };
  const store = storePicker(world);
  const form = h(
    "form",
    { class: "card", role: "search", on: { submit: (event) => (event.preventDefault(), run()) } },
    h(
      "div",
      { class: "grid" },
      field(T.documents.words, controls.query),
      field(T.documents.owner, controls.owner),
      field(T.documents.license, controls.license),
      field(T.documents.source, controls.source),
      field(T.documents.tier, controls.tier),
      field(T.documents.store, store),
    ),
    h("div", { class: "row" }, h("button", { class: "main" }, T.documents.search)),
    results,
  );
  const run = async (after = "", before = []) => {
    const wanted = Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value]));
    try {
      const found = await get("/v1/silo/documents", { ...wanted, store: store.value, after, limit: PAGE });
      const all = [...before, ...found.data];
      if (!all.length)
        fill(results, h("p", { class: "empty" }, h("strong", {}, T.documents.nothing), " ", T.documents.nothing_hint));
      else
        fill(
          results,
          table(T.documents.caption, T.documents.heads, rows(all)),
          found.has_more && button(T.more, () => run(found.last_id, all)),
        );
    } catch (error) {
      fill(results, world.problem(error));
    }
  };
  run();
  return form;
}

function lookFor(world) {
  const text = h("textarea", { rows: 3 });
  const store = storePicker(world);
  const result = h("div", { "aria-live": "polite" });
  const run = async (event) => {
    event.preventDefault();
    if (!text.value.trim()) return;
    try {
      const found = await post("/v1/silo/documents/find", { text: text.value, store: store.value });
      if (!found.data.length) fill(result, h("p", { class: "verdict" }, T.documents.mine_no));
      else
        fill(
          result,
          h("p", { class: "verdict" }, T.documents.mine_yes(found.data.length)),
          table(T.documents.caption, T.documents.heads, rows(found.data)),
        );
    } catch (error) {
      fill(result, world.problem(error));
    }
  };
  return h(
    "form",
    { class: "card", on: { submit: run } },
    h("h2", {}, T.documents.mine_title),
    h("p", {}, T.documents.mine_lead),
    field(T.documents.mine_label, text),
    world.stores.length > 1 && field(T.documents.store, store),
    h("div", { class: "row" }, h("button", {}, T.documents.mine)),
    result,
  );
}

function add(world) {
  const D = T.documents;
  const file = h("input", { type: "file", accept: ".txt,.md,text/*" });
  const text = h("textarea", { rows: 3 });
  const input = (properties = {}) => h("input", { autocomplete: "off", ...properties });
  const [id, owner, license] = [
    input({ required: true }),
    input({ value: world.me.owner, disabled: !world.may.operate }),
    input(),
  ];
  const store = storePicker(world);
  const result = h("div", { "aria-live": "polite" });
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    text.value = await chosen.text();
    id.value ||= chosen.name;
  });
  const record = () => ({
    id: id.value,
    text: text.value,
    ...(owner.value && { owner: owner.value }),
    ...(license.value && { license: license.value }),
  });
  const send = (dry_run) => post("/v1/silo/documents", { documents: [record()], store: store.value, dry_run });
  const guarded = (work) => async (event) => {
    event.preventDefault();
    try {
      await work();
    } catch (error) {
      fill(result, world.problem(error));
    }
  };
  const check = guarded(async () => {
    const { documents, quarantined } = await send(true);
    if (quarantined.length) return fill(result, h("p", { class: "problem" }, D.unreadable(quarantined[0].code)));
    const [judged] = documents;
    return fill(
      result,
      h("p", { class: "verdict" }, D.verdict(judged.external_id, TIERS[judged.tier]), " ", TIER_MEANING[judged.tier]),
      rightsOf(judged),
      evidenceOf(judged),
      h("div", { class: "row" }, button(D.store_it, keep, { class: "main" })),
    );
  });
  const keep = guarded(async () => {
    const job = await follow(await send(false), (now) =>
      fill(
        result,
        h("p", {}, D.adding, " … ", now.stage, now.total ? ` ${number(now.done)} / ${number(now.total)}` : ""),
      ),
    );
    const { added, unchanged, rejected_documents: refused } = job.result;
    fill(
      result,
      h(
        "p",
        { class: "verdict" },
        refused?.length ? D.rejected(reasonName(refused[0].reason)) : unchanged && !added ? D.unchanged : D.added(added),
      ),
    );
  });
  return h(
    "form",
    { class: "card", on: { submit: check } },
    h("h2", {}, D.add_title),
    h("p", {}, D.add_lead),
    h(
      "div",
      { class: "grid" },
      field(D.add_file, file),
      field(D.add_id, id),
      field(D.add_owner, owner),
      field(D.add_license, license, D.add_license_hint),
      world.stores.length > 1 && field(D.store, store),
    ),
    field(D.add_text, text),
    h("div", { class: "row" }, h("button", {}, D.check)),
    result,
  );
}

async function openOne(place, world, query) {
  const D = T.documents;
  const stores = query.has("store") ? [query.get("store")] : world.stores.map((item) => item.store);
  const { store, document: found } = await findDocument(query.get("id"), stores);
  const uses = await get(`/v1/silo/documents/${found.id}/uses`, { store });
  const facts = Object.entries(D.facts)
    .filter(([name]) => found[name])
    .map(([name, label]) => [h("dt", {}, label), h("dd", {}, data(found[name]))]);
  fill(
    place,
    h("p", {}, h("a", { href: "#documents" }, "‹ ", D.back)),
    h("h1", {}, data(found.external_id || found.id)),
    h("p", { class: "verdict" }, tierMark(found.tier), ": ", TIER_MEANING[found.tier]),
    h(
      "div",
      { class: "beside" },
      h(
        "div",
        {},
        h("section", { class: "card" }, h("h2", {}, D.why), evidenceOf(found)),
        h("section", { class: "card" }, h("h2", {}, D.uses), usesOf(uses)),
        h("section", { class: "card" }, h("h2", {}, D.text), textOf(found)),
      ),
      h(
        "aside",
        { class: "card", "aria-label": D.rights },
        h("h2", {}, D.rights),
        rightsOf(found),
        h("dl", { class: "facts" }, facts),
        h(
          "div",
          { class: "row" },
          h(
            "a",
            {
              class: "button danger",
              href: `#optout?kind=document&value=id:${found.id}&store=${encodeURIComponent(store)}`,
            },
            D.optout,
          ),
          found.text &&
            world.may.read &&
            h(
              "a",
              { class: "button", href: `#play?${new URLSearchParams({ prompt: firstWords(found.text) })}` },
              D.use,
            ),
        ),
      ),
    ),
  );
}

// What the ledger noted of it: when, and how much of which answer.
function usesOf({ requests, tokens, last }) {
  const D = T.documents;
  if (!requests) return h("p", {}, D.uses_none);
  const line = (use) => [
    when(use.time),
    percent(use.document_tokens / use.tokens),
    Number(use.document_tokens.toFixed(1)),
    use.tokens,
  ];
  return h(
    "div",
    {},
    h("p", { class: "verdict" }, D.used(requests, tokens.toFixed(1))),
    table(D.uses, D.use_heads, last.map(line)),
    h("p", { class: "hint" }, requests > last.length ? D.uses_more(last.length) : "", " ", D.uses_hint),
  );
}

function evidenceOf(found) {
  const D = T.documents;
  const lines = found.evidence.map((item) => [
    data(item.asserted),
    data(item.where),
    data(methodName(item.method)),
    `${Math.round(100 * item.confidence)}%`,
    item.tier ? tierMark(item.tier) : data((item.denies ?? []).join(", ") || T.none),
  ]);
  return h(
    "div",
    {},
    lines.length ? table(D.why, D.evidence, lines) : h("p", {}, D.no_evidence),
    found.conflicts.length > 0 &&
      h(
        "div",
        { class: "warn" },
        h("strong", {}, D.conflicts),
        h(
          "ul",
          {},
          found.conflicts.map((line) => h("li", {}, data(line))),
        ),
      ),
    found.duties.length > 0 && h("p", {}, D.duties, ": ", data(found.duties.join(", "))),
  );
}

function rightsOf(found) {
  const D = T.documents;
  const said = (name, value) => (name === "quote" ? D.quote(value) : value ? D.yes : D.no);
  return h(
    "dl",
    { class: "facts" },
    Object.entries(D.right).map(([name, label]) => [
      h("dt", {}, label),
      h("dd", { class: found.rights[name] ? "yes" : "no" }, said(name, found.rights[name])),
    ]),
  );
}

function textOf(found) {
  if (found.text === undefined) return h("p", { class: "hint" }, T.documents.text_hidden);
  const place = h(
    "div",
    { class: "document data", tabindex: "0", role: "region", "aria-label": T.documents.text },
    found.text.slice(0, TEXT),
  );
  const all = found.text.length > TEXT && button(T.documents.text_all, () => (fill(place, found.text), all.remove()));
  return h("div", {}, place, all);
}

const firstWords = (text) => text.trim().split(/\s+/).slice(0, 12).join(" ");
