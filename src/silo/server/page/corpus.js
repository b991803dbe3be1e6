// What a store is made of: by risk, licence, owner, source and kind; statements that disagree; what was left out.

import { get } from "./api.js";
import { bars, data, fill, field, h, table } from "./dom.js";
import { storePicker } from "./documents.js";
import { tierMark } from "./marks.js";
import { licenseName, T, TIERS } from "./texts.js";

const C = T.corpus;
const MOST = 12;

export async function open(place, world) {
  const store = storePicker(world);
  const result = h("div", {});
  place.append(h("p", { class: "lead" }, C.lead));
  if (world.stores.length > 1) place.append(h("div", { class: "card grid" }, field(T.documents.store, store)));
  place.append(result);
  const draw = async () => fill(result, await charts(world, store.value));
  store.addEventListener("change", draw);
  await draw();
}

async function charts(world, store) {
  const [contents, jobs] = await Promise.all([world.contentsOf(store), get("/v1/silo/jobs")]);
  if (!contents.tier.length) return h("div", { class: "card empty" }, h("h2", {}, C.empty), h("p", {}, C.empty_hint));
  const rejected = jobs.data.filter((job) => job.kind === "add").flatMap((job) => job.result?.rejected_documents ?? []);
  return [
    h(
      "div",
      { class: "panes" },
      Object.keys(C.by).map((column) =>
        h("section", { class: "card" }, h("h2", {}, C.by[column]), chart(column, contents[column])),
      ),
    ),
    h("section", { class: "card" }, h("h2", {}, C.conflicts), h("p", {}, C.conflicts_lead), conflicts(world, store)),
    h(
      "section",
      { class: "card" },
      h("h2", {}, C.rejected),
      h("p", {}, C.rejected_lead),
      rejected.length
        ? table(
            C.rejected,
            C.rejected_heads,
            rejected.map((item) => [data(item.id), data(item.reason), data(item.detail)]),
          )
        : h("p", { class: "hint" }, C.rejected_none),
    ),
  ];
}

// Every document is read for this, so it comes when it comes.
function conflicts(world, store) {
  const place = h("div", { "aria-live": "polite" }, h("p", { class: "hint" }, T.loading));
  const show = (found) =>
    found.data.length
      ? table(C.conflicts, C.conflict_heads, found.data.map(conflict))
      : h("p", { class: "hint" }, C.conflicts_none);
  get("/v1/silo/documents", { store, conflicts: true, limit: 100 }).then(
    (found) => fill(place, show(found)),
    (error) => fill(place, world.problem(error)),
  );
  return place;
}

function chart(column, counted) {
  const named = { tier: (name) => TIERS[name], license: licenseName, owner: (name) => name || T.no_owner };
  const items = counted.slice(0, MOST).map((item) => ({
    name: (named[column] ?? ((name) => name || T.unnamed))(item.name),
    tier: item.name,
    value: item.documents,
    label: C.cell(item.documents, item.tokens),
  }));
  return bars(
    C.by[column],
    C.heads,
    items,
    (item) => column === "tier" && h("span", { class: `dot tier-${item.tier}` }),
  );
}

const conflict = (item) => [
  h("a", { href: `#document?id=${item.id}` }, data(item.external_id)),
  data(item.owner || T.no_owner),
  tierMark(item.tier),
  data(item.conflicts.join("; ")),
];
