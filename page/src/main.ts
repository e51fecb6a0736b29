/** The page: a state, the views of it, and the questions that follow from it. */

import { Comparison } from "./compare";
import { Controls } from "./controls";
import { Tabs } from "./details";
import { byId, button, el } from "./dom";
import { Editor, movedRow } from "./editor";
import { Engine } from "./engine";
import { Exports } from "./exports";
import { PanelView } from "./panel";
import { Player } from "./player";
import type { Entry, Idle, NumberRow, Step } from "./protocol";
import {
  NUMBERS, type Panel, type State, firstState, fromAddress, isFull, labelOf, panelOf, planOf, toAddress,
} from "./state";
import { themeButton } from "./theme";
import { Trace } from "./trace";
import { workersOf } from "./workers";

/** Pause of changes after which the address follows. */
const ADDRESS_MS = 150;

class Page {
  private state: State = firstState();
  private readonly engine = new Engine();
  /** Searches have a thread of their own, which is ended when their question changes. */
  private readonly searches = new Engine();
  private schedules: Entry[] = [];
  private views: PanelView[] = [];
  private asked: string[] = [];
  private readonly controls = new Controls((change) => this.change(change));
  private readonly player = new Player(() => this.views);
  private readonly exports = new Exports((panel) => this.engineOf(panel));
  private readonly editor = new Editor((panel) => this.engineOf(panel), (change) => this.change(change));
  private readonly trace = new Trace();
  private readonly workers = el("div");
  private comparison: Comparison | null = null;
  private tabs: Tabs | null = null;

  async start(): Promise<void> {
    const got = await this.engine.ask<{ schedules: Entry[]; numbers: NumberRow[] }>({ ask: "schedules" });
    this.schedules = got?.answer.schedules ?? [];
    NUMBERS.push(...(got?.answer.numbers ?? []));
    if (location.hash.length > 1) this.state = fromAddress(location.hash);
    this.comparison = new Comparison(this.engine, this.schedules, (panel) => this.add(panel));
    this.tabs = new Tabs(() => this.showDetails(), [
      ["Workers", this.workers], ["Edit rows", this.editor.element], ["Compare all", this.comparison.element],
      ["Take away", this.exports.element], ["A run's trace", this.trace.element],
    ]);
    byId("actions").append(
      button("Copy link", () => void this.share()),
      themeButton(() => this.views.forEach((view) => view.timeline.paint())),
    );
    this.fillAdding();
    window.addEventListener("hashchange", () => {
      if (location.hash.slice(1) === toAddress(this.state)) return;
      this.state = fromAddress(location.hash);
      this.views = [];
      this.refresh();
    });
    this.refresh();
  }

  private fillAdding(): void {
    const file = el("input", { type: "file", accept: ".json,.csv", id: "open-file" });
    file.addEventListener("change", () => void this.open(file));
    byId("adding").append(
      button("Add a schedule", () => this.add(panelOf(this.unused())), { id: "add" }),
      button("Search for a shorter one", () => this.add(panelOf("auto")), { id: "search" }),
      el("label", { class: "file", for: "open-file" }, "Open a timetable ", file),
    );
  }

  private unused(): string {
    const shown = this.state.panels.map(({ schedule }) => schedule);
    return ["zb-v", "chimera", "1f1b", "gpipe"].find((name) => !shown.includes(name)) ?? "dualpipe";
  }

  private async open(input: HTMLInputElement): Promise<void> {
    const file = input.files?.[0];
    if (!file) return;
    this.add({ ...panelOf(file.name), file: { name: file.name, text: await file.text() } });
    input.value = "";
  }

  private add(panel: Panel): void {
    this.change((state) => {
      if (isFull(state)) state.panels.pop();
      state.panels.push({ ...panel, options: { ...panel.options }, rows: { ...panel.rows } });
      state.active = state.panels.length - 1;
    });
  }

  private async share(): Promise<void> {
    history.replaceState(null, "", `#${toAddress(this.state)}`);
    try {
      await navigator.clipboard.writeText(location.href);
      byId("said").textContent = "The link is copied.";
    } catch {
      byId("said").textContent = "Copy the address of the page: it holds everything that is set.";
    }
  }

  private change(change: (state: State) => void): void {
    change(this.state);
    this.refresh();
  }

  /** Searches have a thread of their own, which keeps what it has found. */
  private engineOf(panel: Panel | undefined): Engine {
    return panel?.schedule === "auto" ? this.searches : this.engine;
  }

  private addressing = 0;

  /** Writes the state into the address, not more often than browsers let a page. */
  private writeAddress(): void {
    clearTimeout(this.addressing);
    this.addressing = setTimeout(() => history.replaceState(null, "", `#${toAddress(this.state)}`), ADDRESS_MS);
  }

  /** Shows the state, and asks what has changed. */
  private refresh(): void {
    this.writeAddress();
    this.controls.read(this.state);
    if (this.views.length !== this.state.panels.length) this.makeViews();
    this.state.panels.forEach((panel, nth) => this.views[nth]?.read(this.state, panel));
    const plans = this.state.panels.map((panel) => JSON.stringify(planOf(this.state, panel)));
    const isSearch = (nth: number) => this.state.panels[nth]?.schedule === "auto";
    if (plans.some((plan, nth) => isSearch(nth) && plan !== this.asked[nth]) && this.searches.isRunning) {
      this.searches.stop();
      plans.forEach((_, nth) => { if (isSearch(nth)) this.asked[nth] = ""; });
    }
    plans.forEach((plan, nth) => {
      if (plan !== this.asked[nth]) void this.ask(nth, plan);
    });
    this.showDetails();
  }

  private makeViews(): void {
    this.asked = [];
    this.views = this.state.panels.map((_, nth) => new PanelView(this.schedules, nth, {
      change: (change) => this.change(change),
      choose: () => this.choose(nth),
      remove: () => this.change((state) => {
        state.panels.splice(nth, 1);
        state.active = Math.min(state.active, state.panels.length - 1);
        this.views = [];
      }),
      move: (worker, from, to) => void this.move(nth, worker, from, to),
      window: (from, to) => this.views.forEach((view) => view.timeline.zoom([from, to])),
    }));
    byId("panels").replaceChildren(...this.views.map((view) => view.element));
    this.views.forEach((view) => { view.timeline.rows = this.views.length > 1 ? 400 : 560; });
  }

  private choose(nth: number): void {
    if (this.state.active === nth) return;
    this.state.active = nth;
    this.refresh();
  }

  private async ask(nth: number, plan: string): Promise<void> {
    this.asked[nth] = plan;
    const [view, panel] = [this.views[nth], this.state.panels[nth]];
    if (!view || !panel) return;
    const engine = this.engineOf(panel);
    const question = { ask: "step", plan: JSON.parse(plan) } as const;
    view.wait(true);
    const got = await engine.ask<Step & { error?: string }>(question, `step ${nth}`, (progress) => view.showProgress(progress));
    if (!got || view !== this.views[nth]) return;
    const isNew = this.asked[nth] === plan;
    view.wait(!isNew);
    const began = performance.now();
    const step = stepOf(got.answer);
    view.show(step, got.events, got.ms, labelOf(panel));
    view.element.dataset["drawn"] = (performance.now() - began).toFixed(1);
    view.element.dataset["plan"] = plan;
    view.read(this.state, panel);
    const longest = Math.max(0, ...this.views.map((view) => (view.step?.figures ? view.timeline.end : 0)));
    this.views.forEach((view) => { view.timeline.upTo = longest; });
    this.player.reset();
    if (nth === this.state.active) this.showDetails();
    if (isNew && step.figures && !step.figures.idle) await this.askCauses(nth, plan, view, step);
  }

  private async askCauses(nth: number, plan: string, view: PanelView, step: Step): Promise<void> {
    const question = { ask: "causes", plan: JSON.parse(plan) } as const;
    const engine = this.engineOf(this.state.panels[nth]);
    const got = await engine.ask<{ idle?: Idle }>(question, `causes ${nth}`);
    if (!got?.answer.idle || view.step !== step) return;
    view.showIdle(got.answer.idle, step.figures?.bubble_ratio ?? 0);
    if (nth === this.state.active) this.showDetails();
  }

  private async move(nth: number, worker: number, from: number, to: number): Promise<void> {
    const panel = this.state.panels[nth];
    if (!panel || from === to) return;
    const plan = planOf(this.state, panel);
    const got = await this.engineOf(panel).ask<{ row?: string }>({ ask: "row", plan, worker });
    const row = panel.rows[worker] ?? got?.answer.row;
    if (row === undefined) return;
    this.editor.choose(worker);
    this.change((state) => {
      state.active = nth;
      const moved = movedRow(row, from, to);
      if (moved === got?.answer.row) delete panel.rows[worker];
      else panel.rows[worker] = moved;
    });
  }

  private showDetails(): void {
    const [panel, view] = [this.state.panels[this.state.active], this.views[this.state.active]];
    if (!panel || !this.tabs) return;
    this.tabs.name(labelOf(panel));
    const step = view?.step;
    if (!step) return;
    const said = step.figures ? `${step.figures.proven}\n${step.figures.summary}` : (step.refusal?.text ?? "");
    this.editor.answer(said, step.refusal !== null);
    this.trace.colour(step.tones ?? []);
    if (this.tabs.chosen === 0) this.workers.replaceChildren(workersOf(step, this.state.memoryCap));
    if (this.tabs.chosen === 1) void this.editor.show(this.state, panel, step.depth ?? this.state.depth);
    if (this.tabs.chosen === 2) void this.compare();
    if (this.tabs.chosen === 3) this.exports.show(this.state, panel, step);
  }

  private compared = "";

  /** Compares all schedules, unless that was done for these settings. */
  private async compare(): Promise<void> {
    const { panels: _, active: __, ...shared } = this.state;
    const now = JSON.stringify(shared);
    if (now === this.compared) return;
    this.compared = now;
    await this.comparison?.show(this.state);
  }
}

/** A step, or the refusal of a question that the module does not understand. */
function stepOf(answer: Step & { error?: string }): Step {
  if (answer.error === undefined) return answer;
  const refusal = { text: answer.error, reason: null, worker: null, cell: null };
  return { refusal, figures: null };
}

void new Page().start();
