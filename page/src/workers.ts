/** What each worker does and holds, as bars. */

import { el } from "./dom";
import type { Step } from "./protocol";
import { causeOf, counted, figure, percent } from "./words";

/** Rows that are shown: more would take long to lay out. */
const MOST_ROWS = 256;

export function workersOf(step: Step, cap: number | null): HTMLElement {
  const { figures } = step;
  if (!figures) return el("p", { class: "hint" }, "A schedule that is refused has no figures.");
  const most = Math.max(...figures.peaks, cap ?? 0, 1e-9);
  const table = el("table", { class: "workers" },
    el("thead", {}, el("tr", {},
      ...["Worker", "Stages", "Busy", "Activations held at most"].map((head) => el("th", { scope: "col" }, head)))));
  const body = el("tbody");
  figures.peaks.slice(0, MOST_ROWS).forEach((peak, worker) => {
    const busy = figures.makespan > 0 ? (figures.busy[worker] ?? 0) / figures.makespan : 0;
    const kept = figures.kept[worker] ?? 0;
    const held = counted(peak, "micro-batch", "micro-batches") + (kept > 0 ? `, ${figure(kept)} checkpointed` : "");
    body.append(el("tr", {},
      el("th", { scope: "row" }, `P${worker}`),
      el("td", {}, ranges(step.stages?.[worker] ?? [])),
      el("td", {}, meter(busy, "busy"), percent(busy)),
      el("td", {}, meter(peak / most, "held", cap === null ? null : cap / most), held),
    ));
  });
  table.append(body);
  const idle = figures.idle?.causes.filter(({ share }) => share >= 5e-4) ?? [];
  const causes = el("ul", { class: "causes" }, ...idle.sort((a, b) => b.share - a.share).map(({ name, share }) => {
    const { plain, why } = causeOf(name);
    return el("li", {}, el("strong", {}, `${percent(share)} ${plain}. `), why);
  }));
  return el("div", {}, el("pre", { class: "summary", tabindex: 0 }, [figures.proven, figures.summary, figures.idle?.line ?? ""].join("\n")), causes, el("div", { class: "wide tall", tabindex: 0 }, table));
}

/** A bar, and a mark where the limit is. */
function meter(part: number, kind: string, limit: number | null = null): HTMLElement {
  const bar = el("span");
  bar.style.width = `${Math.min(part, 1) * 100}%`;
  const meter = el("span", { class: `meter ${kind}`, "aria-hidden": true }, bar);
  if (limit !== null) {
    const mark = el("i");
    mark.style.left = `${Math.min(limit, 1) * 100}%`;
    meter.append(mark);
  }
  return meter;
}

/** Numbers with runs as `0-3`. */
function ranges(numbers: number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < numbers.length; ) {
    let j = i;
    while (numbers[j + 1] === (numbers[j] as number) + 1) j += 1;
    parts.push(j > i + 1 ? `${numbers[i]}-${numbers[j]}` : numbers.slice(i, j + 1).join(", "));
    i = j + 1;
  }
  return parts.join(", ");
}
