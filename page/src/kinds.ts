/** The legend of a timeline: the kinds of ops in it, in the colours of both directions. */

import { el } from "./dom";
import type { Events, Step } from "./protocol";
import { TONES } from "./timeline/draw";
import { KINDS } from "./timeline/scene";

export function kindsOf(step: Step, events: Events): HTMLElement {
  const letters = new Set(events.letter);
  const tones = step.tones ?? [];
  // Of several pipes the second half goes up.
  const hues = [tones[0], tones.length > 1 ? tones[tones.length >> 1] : undefined].filter((hue) => hue !== undefined);
  const entries = Object.entries(KINDS).filter(([letter]) => letters.has(letter.charCodeAt(0)));
  const items = entries.map(([letter, name]) => {
    const swatches = hues.map((hue) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": true });
      swatch.style.background = hue[TONES[letter] ?? 0] ?? "";
      return swatch;
    });
    return el("li", {}, ...swatches, name);
  });
  const ways = hues.length > 1 ? [el("li", {}, "blue goes down the workers, orange up")] : [];
  return el("ul", { class: "legend kinds" }, ...items, ...ways);
}
