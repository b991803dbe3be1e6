// An owner's own documents: what they were used for month by month, receipts, and the way out.

import { get } from "./api.js";
import { bars, button, choose, data, download, field, fill, h, percent, table, when } from "./dom.js";
import { rows, storePicker } from "./documents.js";
import { T } from "./texts.js";

const O = T.owner;
const MONTHS = 6;

export async function open(place, world) {
  const store = storePicker(world);
  const result = h("div", {});
  const contents = await world.contentsOf(store.value);
  const owner = world.may.operate
    ? choose(
        contents.owner.map((item) => [item.name, item.name || T.no_owner]),
        { selected: world.me.owner },
      )
    : null;
  const draw = async () => {
    const name = owner ? owner.value : world.me.owner;
    fill(result, h("p", { class: "hint" }, T.loading));
    try {
      fill(result, await statement(world, store.value, name));
    } catch (error) {
      fill(result, world.problem(error));
    }
  };
  for (const control of [owner, store]) control?.addEventListener("change", draw);
  if (owner || world.stores.length > 1)
    place.append(
      h(
        "div",
        { class: "card grid" },
        owner && field(O.who, owner),
        world.stores.length > 1 && field(T.documents.store, store),
      ),
    );
  place.append(result);
  await draw();
}

async function statement(world, store, owner) {
  const months = lastMonths();
  const [listed, jobs, credits] = await Promise.all([
    get("/v1/silo/documents", { store, owner, limit: 100 }),
    get("/v1/silo/jobs"),
    creditsOf(store, owner, months),
  ]);
  const contents = await world.contentsOf(store);
  const mine = contents.owner.find((item) => item.name === owner);
  const parts = credits.map(
    (month) => month.owners.find((item) => item.owner === owner) ?? { share: 0, tokens: 0, requests: 0, documents: 0 },
  );
  const lines = months.map((month, at) => ({
    name: month.name,
    value: parts[at].share,
    label: O.cell(percent(parts[at].share), parts[at].tokens.toFixed(1), parts[at].requests),
  }));
  const csv = () =>
    download(
      `statement-${months[0].name}.csv`,
      "text/csv",
      asCsv([
        ["month", "share", "tokens", "answers"],
        ...months.map((month, at) => [month.name, parts[at].share, parts[at].tokens, parts[at].requests]),
      ]),
    );
  const receipts = jobs.data.filter((job) => job.kind === "erase" && job.result?.receipt);
  return [
    h("p", { class: "lead" }, O.lead(owner || T.no_owner)),
    h("p", { class: "verdict" }, mine ? O.have(mine.documents, mine.tokens) : O.none),
    h(
      "section",
      { class: "card" },
      h("h2", {}, O.statement),
      bars(O.statement, O.heads, lines),
      h("p", { class: "hint" }, parts.every((part) => !part.requests) && [O.unused, " "], O.tokens),
      h("div", { class: "row" }, button(O.csv, csv)),
    ),
    listed.data.length > 0 &&
      h(
        "section",
        { class: "card" },
        h("h2", {}, O.mine),
        table(O.mine, T.documents.heads, rows(listed.data)),
        h(
          "div",
          { class: "row" },
          h(
            "a",
            { class: "button danger", href: `#optout?${new URLSearchParams({ kind: "owner", value: owner, store })}` },
            O.leave,
          ),
        ),
      ),
    h(
      "section",
      { class: "card" },
      h("h2", {}, O.receipts),
      receipts.length
        ? h(
            "ul",
            { class: "plain" },
            receipts.map((job) =>
              h(
                "li",
                {},
                h(
                  "a",
                  { href: `#optout?${new URLSearchParams({ receipt: job.result.receipt, store: job.store })}` },
                  data(job.result.receipt),
                ),
                " ",
                h("small", {}, when(job.ended)),
              ),
            ),
          )
        : h("p", { class: "hint" }, O.receipts_none),
    ),
  ];
}

// What the ledger says of each month; nothing where no answer was ever credited.
async function creditsOf(store, owner, months) {
  const ask = ({ from, to }) => get("/v1/silo/credits", { store, owner, from, to });
  try {
    const newest = await ask(months[0]);
    return [newest, ...(await Promise.all(months.slice(1).map(ask)))];
  } catch (error) {
    if (error.status !== 404) throw error;
    return months.map(() => ({ owners: [] }));
  }
}

// The newest first; bounds are the first moments of months.
function lastMonths() {
  const now = new Date();
  return Array.from({ length: MONTHS }, (_, back) => {
    const from = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1));
    const to = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back + 1, 1));
    return { name: from.toISOString().slice(0, 7), from: from.toISOString(), to: to.toISOString() };
  });
}

const asCsv = (lines) => lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
