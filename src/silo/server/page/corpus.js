// What a store or a corpus is made of: by risk, licence, owner, source and kind; statements that disagree, texts under
// two licences, and what was left out.

import { get } from "./api.js";
import { bars, choose, data, field, fill, h, table } from "./dom.js";
import { tierMark } from "./marks.js";
import { licenseName, reasonName, T, TIERS } from "./texts.js";

const C = T.corpus;
const MOST = 12;
const LISTED = 100;

export async function open(place, world) {
  const corpora = world.may.operate ? (await get("/v1/silo/corpora")).data : [];
  const options = [
    ...world.stores.map((item) => [`store ${item.store}`, C.store(item.store)]),
    ...corpora.map((item) => [`corpus ${item.corpus}`, C.corpus(item.corpus)]),
  ];
  const which = choose(options, { name: "which", selected: options[0][0] });
  const result = h("div", {});
  place.append(h("p", { class: "lead" }, C.lead));
  if (options.length > 1) place.append(h("div", { class: "card grid" }, field(C.which, which)));
  place.append(result);
  const draw = async () => {
    const [kind, name] = which.value.split(/ (.*)/s);
    try {
      fill(result, kind === "store" ? await ofStore(world, name) : await ofCorpus(name));
    } catch (error) {
      fill(result, world.problem(error));
    }
  };
  which.addEventListener("change", draw);
  await draw();
}

const card = (title, lead, ...content) =>
  h("section", { class: "card" }, h("h2", {}, title), lead && h("p", {}, lead), content);
const none = (text) => h("p", { class: "hint" }, text);

function charts(contents) {
  return h(
    "div",
    { class: "panes" },
    Object.keys(C.by)
      .filter((column) => contents[column])
      .map((column) => card(C.by[column], null, chart(column, contents[column], contents.names?.[column]))),
  );
}

async function ofStore(world, store) {
  const [contents, jobs] = await Promise.all([world.contentsOf(store), get("/v1/silo/jobs", { limit: 1000 })]);
  if (!contents.tier.length) return h("div", { class: "card empty" }, h("h2", {}, C.empty), h("p", {}, C.empty_hint));
  const additions = jobs.data.filter((job) => job.kind === "add" && job.store === store);
  const refused = additions.flatMap((job) => job.result?.rejected_documents ?? []);
  return [
    charts(contents),
    card(C.conflicts, C.conflicts_lead, later(world, "documents", { store, conflicts: true }, conflictTable)),
    world.may.operate && card(C.laundering, C.laundering_lead, later(world, "same-texts", { store }, sameTexts)),
    card(C.rejected, C.rejected_lead, refusedTable(refused)),
  ];
}

async function ofCorpus(name) {
  const found = await get(`/v1/silo/corpora/${encodeURIComponent(name)}`, { limit: LISTED });
  const reasons = Object.entries(found.reasons)
    .sort(([, one], [, other]) => other - one)
    .map(([reason, count]) => ({ name: reasonName(reason), value: count, label: count.toLocaleString("en") }));
  const first = ({ data: rows, total }) => total > rows.length && none(C.first(rows.length, total));
  return [
    h("p", { class: "verdict" }, C.built(found.counts)),
    found.opted_out > 0 && h("p", {}, C.opted_out(found.opted_out)),
    charts(found),
    card(C.conflicts, C.conflicts_lead, corpusConflicts(found.conflicts.data), first(found.conflicts)),
    card(C.laundering, C.laundering_lead, launderingTable(found.laundering.data), first(found.laundering)),
    reasons.length > 0 && card(C.reasons, null, bars(C.reasons, C.heads, reasons)),
    card(C.rejected, null, refusedTable(found.rejected.data), first(found.rejected)),
  ];
}

// What takes the server a while comes when it comes.
function later(world, route, query, show) {
  const place = h("div", { "aria-live": "polite" }, none(T.loading));
  get(`/v1/silo/${route}`, { ...query, limit: LISTED }).then(
    (found) => fill(place, show(found.data)),
    (error) => fill(place, world.problem(error)),
  );
  return place;
}

function chart(column, counted, names = counted.length) {
  const named = { tier: (name) => TIERS[name], license: licenseName, owner: (name) => name || T.no_owner };
  const items = counted.slice(0, MOST).map((item) => ({
    name: (named[column] ?? ((name) => name || T.unnamed))(item.name),
    tier: item.name,
    value: item.documents,
    label: C.cell(item.documents, item.tokens),
  }));
  const made = bars(
    C.by[column],
    C.heads,
    items,
    (item) => column === "tier" && h("span", { class: `dot tier-${item.tier}` }),
  );
  return [made, names > items.length && none(C.names_more(names - items.length))];
}

const documentLink = (item) => h("a", { href: `#document?id=${item.id}` }, data(item.external_id || item.id));

function conflictTable(found) {
  if (!found.length) return none(C.conflicts_none);
  const line = (item) => [
    documentLink(item),
    data(item.owner || T.no_owner),
    tierMark(item.tier),
    data(item.conflicts.join("; ")),
  ];
  return table(C.conflicts, C.conflict_heads, found.map(line));
}

function corpusConflicts(found) {
  if (!found.length) return none(C.conflicts_none);
  const line = (item) => [
    data(item.external_id),
    data(item.source),
    tierMark(item.tier),
    data(item.conflicts.join("; ")),
  ];
  return table(C.conflicts, C.corpus_conflict_heads, found.map(line));
}

// The documents of one text stand below each other.
function sameTexts(found) {
  if (!found.length) return none(C.laundering_none);
  const line = (item) => [
    documentLink(item),
    data(item.owner || T.no_owner),
    data(licenseName(item.license)),
    tierMark(item.tier),
  ];
  return found.map(({ documents }) => table(C.laundering, C.laundering_heads, documents.map(line)));
}

function launderingTable(found) {
  if (!found.length) return none(C.laundering_none);
  const line = (pair) => [
    data(pair.kept, "code"),
    h("span", {}, data(licenseName(pair.kept_license)), " ", tierMark(pair.kept_tier)),
    data(pair.dropped, "code"),
    h("span", {}, data(licenseName(pair.dropped_license)), " ", tierMark(pair.dropped_tier)),
  ];
  return table(C.laundering, C.laundering_pairs, found.map(line));
}

function refusedTable(found) {
  if (!found.length) return none(C.rejected_none);
  const line = (item) => [
    item.external_id ? data(item.external_id) : h("em", {}, C.rejected_nameless),
    data(reasonName(item.reason)),
    data(item.detail),
  ];
  return table(C.rejected, C.rejected_heads, found.map(line));
}
