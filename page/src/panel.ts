/** One schedule on the page: its choice, figures and timeline. */

import type { Change } from "./controls";
import { button, choice, el } from "./dom";
import type { Progress } from "./engine";
import type { Entry, Events, Idle, Step } from "./protocol";
import { numberRow, type Panel, type State } from "./state";
import { legendOf } from "./timeline/legend";
import { sceneOf } from "./timeline/scene";
import { Timeline, type Hooks } from "./timeline/view";
import { causeOf, counted, figure, percent } from "./words";

export interface PanelHooks extends Hooks {
  change: Change;
  choose: () => void;
  remove: () => void;
}

export class PanelView {
  readonly element = el("article", { class: "panel" });
  readonly timeline: Timeline;
  private readonly head = el("div", { class: "head" });
  private readonly figures = el("dl", { class: "figures" });
  private readonly kinds = el("div");
  private readonly bubble = el("div", { class: "bubble" });
  private readonly verdict = el("div", { class: "verdict" });
  private readonly place = el("p", { class: "place" });
  private headOf = "";
  step: Step | null = null;

  constructor(
    private readonly schedules: Entry[],
    private readonly index: number,
    private readonly hooks: PanelHooks,
  ) {
    this.timeline = new Timeline(hooks);
    this.element.append(this.head, this.figures, this.verdict, this.timeline.element, this.kinds, this.bubble);
    this.element.addEventListener("focusin", () => hooks.choose());
    this.element.addEventListener("pointerdown", () => hooks.choose());
  }

  /** Shows the choices of a panel. */
  read(state: State, panel: Panel): void {
    const isActive = state.active === this.index && state.panels.length > 1;
    this.element.classList.toggle("active", isActive);
    const entry = this.schedules.find((entry) => entry.name === panel.schedule);
    const now = JSON.stringify([
      panel.schedule, panel.options, panel.file?.name, state.panels.length, Object.keys(panel.rows), this.step?.scaling,
    ]);
    const focused = document.activeElement;
    const isTyping = focused?.tagName === "INPUT" && this.head.contains(focused);
    if (now === this.headOf || isTyping) return;
    this.headOf = now;
    this.drawHead(state, panel, entry);
  }

  private drawHead(state: State, panel: Panel, entry: Entry | undefined): void {
    const set = (change: (panel: Panel) => void) => this.hooks.change((state) => {
      const panel = state.panels[this.index];
      if (!panel) return;
      change(panel);
      panel.rows = {};
    });
    const names = this.schedules.map(({ name }): [string, string] => [name, name === "auto" ? "auto (search)" : name]);
    const name = panel.file
      ? el("strong", { class: "name" }, panel.file.name)
      : choice("Schedule", names, panel.schedule, (value) => set((panel) => {
        panel.schedule = value;
        panel.options = {};
      }));
    name.classList.add("name");
    const reads = (entry?.reads ?? []).map((read) => read.replace("-", "_"));
    const own = panel.file ? [] : reads.filter((read) => isRead(panel, read)).map((read) => this.own(read, panel, set));
    const edited = Object.keys(panel.rows).length;
    const undo = edited === 0 ? null
      : button(`Undo ${counted(edited, "edited row", "edited rows")}`, () => set(() => undefined), { class: "quiet" });
    const close = state.panels.length === 1 ? null
      : button("×", () => this.hooks.remove(), { class: "quiet close", "aria-label": `Remove ${panel.schedule}` });
    const about = entry && !panel.file ? `${entry.about}${entry.paper ? `. ${entry.paper}` : ""}` : "";
    const had = this.head.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    this.head.replaceChildren(name, ...own, el("span", { class: "about", title: about }, about), ...[this.place, undo, close].filter((x) => x !== null));
    if (had) this.head.querySelector<HTMLElement>(`[aria-label="${had}"]`)?.focus();
  }

  private own(option: string, panel: Panel, set: (change: (panel: Panel) => void) => void): HTMLElement {
    const give = (value: string, usual: string) => set((panel) => {
      if (value === usual || value === "") delete panel.options[option];
      else panel.options[option] = value;
    });
    if (option === "scaling" || option === "placement") {
      const usual = option === "scaling" ? "auto" : "mirrored";
      const taken = option === "scaling" && this.step?.scaling ? `scaling: ${this.step.scaling}` : "scaling";
      const options: [string, string][] = option === "scaling"
        ? [["auto", panel.options.scaling ? "scaling: shorter" : taken], ["direct", "direct"], ["halving", "halving"], ["doubling", "doubling"]]
        : [["mirrored", "mirrored"], ["line", "line"], ["interleaved", "interleaved"], ["v", "V"], ["wave", "wave"]];
      return choice(option, options, panel.options[option] ?? usual, (value) => give(value, usual));
    }
    const { label: name = option, usual = 1, step = 1 } = numberRow(option) ?? {};
    const input = el("input", {
      type: "number", min: step, step, "aria-label": name,
      value: panel.options[option] ?? (usual === 0 ? "" : usual), placeholder: "auto",
    });
    input.addEventListener("input", () => give(input.value.replace(/\D.*$/, ""), String(usual)));
    return el("label", { class: "own" }, name, input);
  }

  /** Shows an answer. */
  show(step: Step, events: Events | null, ms: number, label: string): void {
    this.step = step;
    const { figures, refusal } = step;
    this.element.classList.toggle("refused", refusal !== null);
    this.element.dataset["state"] = refusal ? "refused" : "proven";
    this.element.dataset["ms"] = ms.toFixed(1);
    this.timeline.element.hidden = step.depth === undefined;
    if (figures) {
      const most = Math.max(...figures.peaks);
      const worker = figures.peaks.indexOf(most);
      const steps = figures.n_steps > 1 ? ` for ${figures.n_steps} steps` : "";
      this.figures.replaceChildren(
        ...term("Makespan", figure(figures.makespan) + steps),
        ...term("Bubble", percent(figures.bubble_ratio)),
        ...term("Peak memory", counted(most, "micro-batch", "micro-batches"), `on worker ${worker}`),
        ...term("Weights", counted(figures.weight_copies, "copy", "copies"), "of a stage"),
        ...term("Messages", String(figures.n_messages)),
      );
      this.verdict.replaceChildren(el("p", {}, el("span", { class: "tick", "aria-hidden": true }, "✓"), figures.proven));
      if (step.search) this.verdict.append(el("p", { class: "search" }, step.search));
      this.showIdle(figures.idle, figures.bubble_ratio);
    } else {
      this.figures.replaceChildren();
      this.bubble.replaceChildren();
      const [line = "", ...drawing] = (refusal?.text ?? "").split("\n");
      this.verdict.replaceChildren(el("p", { role: "alert" }, line));
      if (drawing.length > 0) this.verdict.append(el("pre", {}, drawing.join("\n")));
      if (step.depth !== undefined) {
        this.bubble.replaceChildren(el("p", { class: "hint" }, "Drawn in order of the rows, without waiting."));
      }
    }
    this.kinds.replaceChildren();
    if (events && step.depth !== undefined) {
      const scene = sceneOf(events, step.depth, step.tones ?? [], { isTimed: !refusal });
      const said = figures ? figures.summary.split("\n")[0] : refusal?.text.split("\n")[0];
      this.timeline.show(scene, `Timeline of ${label}: ${said}`, refusal);
      this.kinds.append(legendOf([scene]));
    }
  }

  /** Shows the bubble by cause, or that it is being counted. */
  showIdle(idle: Idle | null, ratio: number): void {
    if (!idle) {
      this.bubble.replaceChildren(el("p", { class: "hint" }, "counting idle time …"));
      return;
    }
    if (this.step?.figures) this.step.figures.idle = idle;
    const causes = idle.causes.filter(({ share }) => share >= 5e-4).sort((a, b) => b.share - a.share);
    const bar = el("div", { class: "bar", role: "img", "aria-label": idle.line });
    const piece = (share: number, colour: string, name: string) => {
      const part = el("span", { title: `${name}: ${percent(share)}` });
      part.style.width = `${share * 100}%`;
      part.style.background = colour;
      bar.append(part);
    };
    piece(1 - ratio, "var(--busy)", "computing");
    const legend = el("ul", { class: "legend" });
    const named = (name: string, share: number, colour: string, why: string) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": true });
      swatch.style.background = colour;
      legend.append(el("li", { title: why }, swatch, `${name} ${percent(share)}`));
    };
    named("computing", 1 - ratio, "var(--busy)", "Forwards, backwards and updates.");
    for (const { name, share } of causes) {
      const { plain, why, colour } = causeOf(name);
      piece(share, colour, plain);
      named(plain, share, colour, why);
    }
    this.bubble.replaceChildren(bar, legend);
  }

  /** Shows how far a search is. */
  showProgress({ makespan, lowerBound, orders }: Progress): void {
    const bound = lowerBound > 0 ? `, no order is shorter than ${figure(lowerBound)}` : "";
    const best = Number.isFinite(makespan) ? `makespan ${figure(makespan)}${bound}` : "nothing fits yet";
    this.verdict.replaceChildren(el("p", { class: "search" }, `searching: ${best}, ${orders} orders tried`));
  }

  /** Shows that an answer is awaited. */
  wait(isWaiting: boolean): void {
    this.element.setAttribute("aria-busy", String(isWaiting));
  }

  /** Shows the place in a race; nothing for an empty text. */
  finish(text: string): void {
    if (this.place.textContent !== text) this.place.textContent = text;
  }
}

/** Returns false for options of placements that a search does not use. */
function isRead(panel: Panel, option: string): boolean {
  const places = numberRow(option)?.places;
  return panel.schedule !== "auto" || places === undefined || places.includes(panel.options.placement ?? "mirrored");
}

function term(name: string, value: string, note?: string): HTMLElement[] {
  return [el("div", {}, el("dt", {}, name), el("dd", {}, value, note ? el("small", {}, ` ${note}`) : null))];
}
