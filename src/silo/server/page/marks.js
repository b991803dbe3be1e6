// Signs and bounds that several views share.

import { h } from "./dom.js";
import { TIERS } from "./texts.js";

// A smaller share of a word is not shown.
export const LEAST = 0.05;

// A smaller share of a text is not named on its own.
export const SHOWN = 0.005;

export function tierMark(tier) {
  return h("span", { class: `tier tier-${tier}` }, TIERS[tier] ?? tier);
}
