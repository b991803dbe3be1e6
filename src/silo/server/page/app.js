// The page: who is here, which view, and what goes wrong in words.

import { get, Refusal, useKey } from "./api.js";
import * as corpus from "./corpus.js";
import * as documents from "./documents.js";
import { button, data, field, fill, h } from "./dom.js";
import * as operator from "./operator.js";
import * as optout from "./optout.js";
import * as owner from "./owner.js";
import * as play from "./play.js";
import { T } from "./texts.js";

const VIEWS = { play, documents, optout, owner, operator, corpus };
const main = document.getElementById("main");
const head = document.getElementById("head");
let world = null;

async function begin() {
  fill(main, h("p", { class: "hint" }, T.loading));
  try {
    world = await findWorld();
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) return askForKey();
    return fill(main, problem(error));
  }
  drawHead();
  return route();
}

// Who is asking, and what there is.
async function findWorld() {
  const me = await get("/v1/silo/me");
  const [models, stores] = await Promise.all([get("/v1/models"), get("/v1/silo/stores")]);
  const is = (role) => me.roles.includes(role);
  const may = {
    read: is("reader") || is("operator"),
    documents: is("owner") || is("operator"),
    operate: is("operator"),
    text: me.permissions.includes("text"),
    logprobs: me.permissions.includes("logprobs"),
  };
  return { me, may, models: models.data, stores: stores.data, problem, contentsOf: (store) => contentsOf(store, may) };
}

// Names and counts for switches and lists; whoever may not see documents has none.
async function contentsOf(store, may) {
  if (!may.documents || !store) return { tier: [], license: [], owner: [], source: [], domain: [] };
  return get("/v1/silo/contents", { store });
}

function allowed() {
  const { may, stores } = world;
  const open = {
    play: may.read,
    documents: may.documents && stores.length,
    optout: may.documents && stores.length,
    owner: may.documents && stores.length,
    operator: may.operate,
    corpus: may.documents && stores.length,
  };
  return Object.keys(VIEWS).filter((name) => open[name]);
}

function drawHead(now) {
  const link = (name) => h("a", { href: `#${name}`, "aria-current": name === now ? "page" : undefined }, T.views[name]);
  const names = world ? allowed() : [];
  const { me } = world ?? {};
  fill(
    head,
    h(
      "a",
      { class: "brand", href: "#play" },
      h("img", { src: "/page/icon.svg", alt: "", width: 24, height: 24 }),
      T.title,
    ),
    h("nav", { "aria-label": T.views_label }, names.map(link)),
    h(
      "div",
      { class: "who" },
      me && h("span", { class: "hint" }, me.id === "local" ? T.local : data(T.signed_in(me.name || me.id))),
      me && me.id !== "local" && button(T.leave, leave),
      themes(),
    ),
  );
}

function themes() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const turn = { auto: "light", light: "dark", dark: "auto" };
  return button(`${T.theme_short}: ${T.themes[now]}`, () => (setTheme(turn[now]), drawHead(viewName())), {
    title: T.theme,
  });
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("silo-theme", theme);
}

const viewName = () => location.hash.slice(1).split("?")[0];

// `#view?name=value`: the part behind # never leaves the browser.
async function route() {
  if (!world) return;
  const [name, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  if (name === "main") return;
  const names = allowed();
  const view = name === "document" ? "documents" : names.includes(name) ? name : names[0];
  drawHead(view);
  if (!view) return fill(main, h("p", {}, T.key.nothing));
  document.title = `${T.views[view]} · ${T.title}`;
  const place = h("div", { class: `view view-${view}` }, h("h1", {}, T.views[view]));
  fill(main, place);
  try {
    await VIEWS[view].open(place, world, new URLSearchParams(query), name);
  } catch (error) {
    place.append(problem(error));
  }
}

// What went wrong, and what to do.
export function problem(error) {
  const isNetwork = !(error instanceof Refusal) && error instanceof TypeError;
  if (!(error instanceof Refusal)) console.error(error);
  const message = isNetwork ? T.offline : error.message;
  const hint = isNetwork ? T.offline_hint : error.hint;
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("strong", {}, T.failed),
    data(message),
    hint && h("p", {}, data(hint)),
  );
}

function askForKey() {
  const input = h("input", { type: "password", autocomplete: "off", required: true, name: "key" });
  const enter = (event) => {
    event.preventDefault();
    useKey(input.value);
    begin();
  };
  const had = sessionStorage.getItem("silo-key");
  useKey("");
  drawHead();
  fill(
    main,
    h(
      "form",
      { class: "card narrow", on: { submit: enter } },
      h("h1", {}, T.key.title),
      h("p", {}, T.key.lead),
      had && h("p", { class: "problem", role: "alert" }, T.key.wrong),
      field(T.key.label, input),
      h("button", { class: "main" }, T.key.enter),
    ),
  );
  input.focus();
}

function leave() {
  useKey("");
  world = null;
  begin();
}

setTheme(localStorage.getItem("silo-theme") ?? "auto");
addEventListener("hashchange", route);
drawHead();
begin();
