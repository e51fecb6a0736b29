/** All schedules of the table at one shape, the fastest first. */

import { button, el } from "./dom";
import type { Engine } from "./engine";
import type { Entry, Step } from "./protocol";
import { type Panel, type State, labelOf, ownOptions, panelOf, planOf } from "./state";
import { figure, percent } from "./words";

interface Ran {
  panel: Panel;
  makespan: number;
  step: Step;
}

export class Comparison {
  readonly element = el("div");
  private run = 0;

  constructor(
    private readonly engine: Engine,
    private readonly schedules: Entry[],
    private readonly add: (panel: Panel) => void,
  ) {}

  async show(state: State): Promise<void> {
    const run = (this.run += 1);
    const panels = this.schedules.filter(({ name }) => name !== "auto").flatMap((entry) =>
      entry.variants.map((variant) => panelWith(entry.name, variant)));
    const ran: Ran[] = [];
    const refused: [string, string][] = [];
    this.element.replaceChildren(el("p", { class: "hint" }, "comparing …"));
    for (const panel of panels) {
      const got = await this.engine.ask<Step>({ ask: "figures", plan: planOf(state, panel) }, "compare");
      if (!got || run !== this.run) return;
      const { figures, refusal } = got.answer;
      if (figures) ran.push({ panel, makespan: figures.makespan / figures.n_steps, step: got.answer });
      else refused.push([labelOf(panel), refusal?.text.split("\n")[0] ?? ""]);
    }
    this.draw(ran.sort((a, b) => a.makespan - b.makespan), refused);
  }

  private draw(ran: Ran[], refused: [string, string][]): void {
    const baseline = ran.find(({ panel }) => panel.schedule === "1f1b")?.makespan;
    const heads = ["Schedule", "Makespan of a step", "Speed-up over 1F1B", "Bubble", "Peak memory", "Copies", ""];
    const longest = Math.min(ran.at(-1)?.makespan ?? 1, 2 * (ran[0]?.makespan ?? 1));
    const rows = ran.map(({ panel, makespan, step }) => {
      const figures = step.figures;
      const bar = el("span");
      bar.style.width = `${Math.min(makespan / longest, 1) * 100}%`;
      return el("tr", {},
        el("th", { scope: "row" }, labelOf(panel)),
        el("td", {}, el("span", { class: "meter held", "aria-hidden": true }, bar), figure(makespan)),
        el("td", {}, baseline ? (baseline / makespan).toFixed(3) : ""),
        el("td", {}, percent(figures?.bubble_ratio ?? 0)),
        el("td", {}, figure(Math.max(...(figures?.peaks ?? [0])))),
        el("td", {}, String(figures?.weight_copies ?? "")),
        el("td", {}, button("Show", () => this.add(panel), { class: "quiet", "aria-label": `Show ${labelOf(panel)}` })));
    });
    this.element.replaceChildren(
      el("p", { class: "hint" }, "All cut the same model. Asynchronous schedules count a step's share of their window."),
      el("div", { class: "wide" }, el("table", {},
        el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
        el("tbody", {}, ...rows))),
      refused.length === 0 ? "" : el("ul", { class: "causes" }, ...refused.map(([label, why]) =>
        el("li", {}, el("strong", {}, `${label}: `), why))),
    );
  }
}

/** A schedule with options as on the command line, such as `--scaling halving`. */
function panelWith(name: string, variant: string): Panel {
  const panel = panelOf(name);
  for (const [, option = "", value = ""] of variant.matchAll(/--([a-z-]+) (\S+)/g)) {
    const own = option.replace("-", "_");
    if (ownOptions().includes(own)) panel.options[own] = value;
  }
  return panel;
}
