// The operator's view: stores, jobs, keys, numbers and the audit log.

import { get, getText } from "./api.js";
import { button, data, fill, h, table, when } from "./dom.js";
import { keys } from "./keys.js";
import { T } from "./texts.js";

const O = T.operator;

export async function open(place, world) {
  place.append(h("p", { class: "lead" }, O.lead));
  const [jobs, metrics, ...stats] = await Promise.all([
    get("/v1/silo/jobs"),
    getText("/metrics"),
    ...world.stores.map((item) => get("/v1/silo/stats", { store: item.store })),
  ]);
  place.append(
    card(
      O.stores,
      table(
        O.stores,
        O.store_heads,
        stats.map((item) => [
          data(item.store),
          item.documents,
          item.tokens,
          data(item.searches),
          item.kept_out ?? T.none,
          data(item.digest.slice(0, 16), "code"),
        ]),
      ),
    ),
    card(
      O.jobs,
      jobs.data.length
        ? table(
            O.jobs,
            O.job_heads,
            jobs.data.map((job) => [
              when(job.created),
              data(job.kind),
              data(job.store),
              data(job.state),
              data(job.error?.message ?? job.stage),
            ]),
          )
        : h("p", { class: "hint" }, O.jobs_none),
    ),
    ...(await keys(world)),
    card(O.metrics, table(O.metrics, O.metric_heads, readMetrics(metrics))),
    ...world.stores.map((item) => log(item.store)),
  );
}

const card = (title, ...content) => h("section", { class: "card" }, h("h2", {}, title), content);

// Prometheus' text: a name and a number per line.
function readMetrics(text) {
  const lines = text.split("\n").filter((line) => line && !line.startsWith("#") && !line.includes("_bucket"));
  return lines.map((line) => [
    data(line.slice(0, line.lastIndexOf(" ")), "code"),
    Number(line.slice(line.lastIndexOf(" ") + 1)),
  ]);
}

function log(store) {
  const place = h("div", {});
  const more = async (before, known) => {
    const found = await get("/v1/silo/log", { store, before, limit: 20 });
    const all = [...known, ...found.data];
    const lines = all.map((item) => [
      item.n,
      data(item.kind),
      data(item.hash.slice(0, 16), "code"),
      data(JSON.stringify(item.content).slice(0, 300), "code"),
    ]);
    fill(
      place,
      table(`${O.log} ${store}`, O.log_heads, lines),
      found.has_more && button(T.more, () => more(all.at(-1).n, all)),
    );
  };
  more(undefined, []);
  return card(`${O.log}: ${store}`, h("p", {}, O.log_lead), place);
}
