// Checks receipts of erasures in this browser, with the browser's own Ed25519 and SHA-256 and none of the server's code.

// The one byte form of a JSON value: sorted keys, no spaces, UTF-8. Receipts hold whole numbers only.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort(byCodePoint);
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

function byCodePoint(one, other) {
  const [a, b] = [Array.from(one), Array.from(other)];
  const at = a.findIndex((character, index) => character !== b[index]);
  return at < 0 ? a.length - b.length : a[at].codePointAt(0) - (b[at]?.codePointAt(0) ?? -1);
}

// true, false, or null where this browser has no Ed25519.
export async function signatureFits(receipt) {
  const { signature, ...signed } = receipt;
  if (!globalThis.crypto?.subtle) return null;
  try {
    const key = await crypto.subtle.importKey("raw", bytesOf(receipt.public_key), "Ed25519", false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", key, bytesOf(signature), new TextEncoder().encode(canonical(signed)));
  } catch (error) {
    return error.name === "NotSupportedError" ? null : false;
  }
}

// Does the receipt speak of this document? Only whoever has the salt can tell.
export async function speaksOf(receipt, document, salt) {
  const opened = Uint8Array.from(salt.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  const named = new TextEncoder().encode(document);
  const joined = new Uint8Array([...opened, ...named]);
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", joined));
  return receipt.commitments.includes(Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join(""));
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
