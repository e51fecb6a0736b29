/** The legend of timelines: the kinds of work in them, in the colours of all pipes. */

import { el } from "../dom";
import { KINDS, type Scene } from "./scene";

export function legendOf(scenes: Scene[]): HTMLElement {
  const used = new Set(scenes.flatMap(({ kinds }) => [...kinds]));
  const all = scenes.flatMap(({ tones }) => Object.values(tones));
  const hues = [...new Map(all.map((tones) => [tones[0], tones])).values()];
  const entries = Object.entries(KINDS).filter(([letter]) => used.has(letter));
  const items = entries.map(([, { name, tone, colour }]) => {
    const fills = tone === undefined ? [`var(--${colour})`] : hues.map((hue) => hue[tone]);
    const swatches = fills.map((fill) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": true });
      swatch.style.background = fill;
      return swatch;
    });
    return el("li", {}, ...swatches, name);
  });
  // Of an even number of pipes the second half goes up.
  const ways = hues.length === 2 ? "blue goes down the workers, orange up"
    : hues.length > 2 && hues.length % 2 === 0 ? "the first half of the colours go down the workers, the others up" : "";
  return el("ul", { class: "legend kinds" }, ...items, ways ? el("li", {}, ways) : null);
}
