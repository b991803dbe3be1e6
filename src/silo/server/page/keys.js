// The operator's keys: which there are, making one (shown once), taking one away, and the log of both.

import { get, post, remove } from "./api.js";
import { button, choose, data, field, fill, h, table, when } from "./dom.js";
import { T } from "./texts.js";

const O = T.operator;
const LIMITS = ["guard", "max_tokens", "texts"];

export async function keys(world) {
  const list = h("div", {});
  const log = h("div", {});
  const draw = async () => {
    const [known, noted] = await Promise.all([get("/v1/silo/keys"), get("/v1/silo/keys/log", { limit: 20 })]);
    fill(list, known.data.length ? keyTable(world, known.data, draw) : h("p", { class: "hint" }, O.keys_none));
    fill(log, noted.data.length ? logTable(noted.data, known.data) : h("p", { class: "hint" }, O.key_log_none));
    return known.data.length;
  };
  const hasKeys = await draw();
  const card = (title, ...content) => h("section", { class: "card" }, h("h2", {}, title), content);
  if (!hasKeys) return [card(O.keys, list)];
  return [card(O.keys, list, maker(world, draw)), card(O.key_log, h("p", {}, O.key_log_lead), log)];
}

function keyTable(world, known, draw) {
  const rows = known.map((key) => [
    data(key.name || key.id),
    key.roles.join(", "),
    data(key.owner || T.none),
    key.roles.includes("operator") ? O.sees_all : key.permissions.map((name) => O.sees[name]).join(", ") || T.none,
    data(key.policy || T.none),
    when(key.created),
    key.id === world.me.id ? T.none : revoker(world, key, draw),
  ]);
  return table(O.keys, O.key_heads, rows);
}

// The first press asks, the second one does it.
function revoker(world, key, draw) {
  const place = h("span", {});
  const sure = async () => {
    try {
      await remove(`/v1/silo/keys/${encodeURIComponent(key.id)}`);
      await draw();
    } catch (error) {
      fill(place, world.problem(error));
    }
  };
  const ask = () => {
    const yes = button(O.revoke_sure, sure, { class: "danger" });
    fill(place, yes);
    yes.focus();
  };
  return fill(place, button(O.revoke, ask, { "aria-label": `${O.revoke} ${key.name || key.id}` }));
}

function maker(world, draw) {
  const { key_fields: labels, key_hints: hints } = O;
  const text = (name) => h("input", { name: `key-${name}`, autocomplete: "off" });
  const inputs = { name: text("name"), owner: text("owner"), policy: text("policy") };
  for (const name of LIMITS) inputs[name] = h("input", { type: "number", min: 1, step: 1, name: `key-${name}` });
  const role = choose(Object.entries(O.roles), { name: "key-role", selected: "reader" });
  const allow = Object.keys(O.allow).map((name) => [name, h("input", { type: "checkbox" })]);
  const owner = field(labels.owner, inputs.owner, hints.owner);
  const showOwner = () => (owner.hidden = role.value !== "owner");
  role.addEventListener("change", showOwner);
  showOwner();
  const result = h("div", { "aria-live": "polite" });
  const make = async (event) => {
    event.preventDefault();
    const limits = Object.fromEntries(LIMITS.map((name) => [name, Number(inputs[name].value) || 0]));
    try {
      const made = await post("/v1/silo/keys", {
        roles: [role.value],
        name: inputs.name.value,
        owner: owner.hidden ? "" : inputs.owner.value,
        policy: inputs.policy.value,
        permissions: allow.filter(([, box]) => box.checked).map(([name]) => name),
        ...limits,
      });
      fill(result, shownOnce(made));
      await draw();
    } catch (error) {
      fill(result, world.problem(error));
    }
  };
  return h(
    "form",
    { class: "new-key", on: { submit: make } },
    h("h3", {}, O.key_new),
    h("p", {}, O.key_new_lead),
    h(
      "div",
      { class: "grid" },
      field(labels.name, inputs.name, hints.name),
      field(labels.role, role),
      owner,
      field(labels.policy, inputs.policy, hints.policy),
      field(labels.guard, inputs.guard, hints.guard),
      field(labels.max_tokens, inputs.max_tokens, hints.limit),
      field(labels.texts, inputs.texts, hints.limit),
      h(
        "div",
        {},
        allow.map(([name, box]) => h("label", { class: "switch" }, box, O.allow[name])),
      ),
    ),
    h("div", { class: "row" }, h("button", { class: "main" }, O.key_make)),
    result,
  );
}

// A key as it is seen this once: it is gone with the view.
function shownOnce(made) {
  const copy = button(T.copy, async () => {
    await navigator.clipboard?.writeText(made.key);
    fill(copy, T.copied);
  });
  return h(
    "div",
    { class: "warn" },
    h("p", {}, O.key_made(made.name || made.id)),
    h("p", {}, h("code", { class: "secret" }, made.key), " ", copy),
  );
}

function logTable(entries, known) {
  const names = new Map(known.map((key) => [key.id, key.name || key.id]));
  const line = ({ n, kind, hash, content }) => [
    n,
    when(content.time),
    O.key_log_kinds[kind] ?? data(kind),
    data(content.name || content.key),
    content.roles.join(", "),
    data(names.get(content.by) ?? content.by),
    data(hash.slice(0, 16), "code"),
  ];
  return table(O.key_log, O.key_log_heads, entries.map(line));
}
