// The server's routes. A key lives in this tab's session and nowhere else.

const KEPT = "silo-key";
let key = sessionStorage.getItem(KEPT) ?? "";

export function useKey(given) {
  key = given.trim();
  if (key) sessionStorage.setItem(KEPT, key);
  else sessionStorage.removeItem(KEPT);
}

// What the server refused, in its own words.
export class Refusal extends Error {
  constructor(status, { message = "", hint = "", code = "" } = {}) {
    super(message || `HTTP ${status}`);
    Object.assign(this, { status, hint, code });
  }
}

async function send(method, path, body, { accept = "application/json", signal } = {}) {
  const headers = { accept };
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw new Refusal(response.status, (await response.json().catch(() => ({}))).error);
  return response;
}

export const get = async (path, query = {}) => (await send("GET", path + asQuery(query))).json();
export const remove = async (path) => (await send("DELETE", path)).json();
export const post = async (path, body) => (await send("POST", path, body)).json();
export const getText = async (path) => (await send("GET", path, undefined, { accept: "text/plain" })).text();

// A document of the first store that has it, with the store's name.
export async function findDocument(id, stores) {
  let refusal;
  for (const store of stores) {
    try {
      return { store, document: await get(`/v1/silo/documents/${encodeURIComponent(id)}`, { store }) };
    } catch (error) {
      refusal = error;
    }
  }
  throw refusal;
}

function asQuery(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

// Server-sent events, one object after the other.
export async function* stream(method, path, body, signal) {
  const response = await send(method, path, body, { accept: "text/event-stream", signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const line = part.replace(/^data: /, "");
      if (line === "[DONE]") return;
      const event = JSON.parse(line);
      if (event.error && !event.state) throw new Refusal(0, event.error);
      yield event;
    }
  }
}

// A job until it is over; `watch` sees every change.
export async function follow(job, watch) {
  watch(job);
  for await (const now of stream("GET", `/v1/silo/jobs/${job.id}`)) {
    job = now;
    watch(job);
  }
  if (job.state === "failed") throw new Refusal(0, job.error ?? {});
  return job;
}
