/** The settings that all schedules share. */

import { byId, choice, el } from "./dom";
import type { State } from "./state";

/** Calls `change` with what to set, after which the page shows it. */
export type Change = (change: (state: State) => void) => void;

interface Field {
  read: (state: State) => void;
}

/** Names of numbers that sliders set. */
type Numeric = "depth" | "microBatches" | "forward" | "input" | "weight" | "message";

const WIDE = window.matchMedia("(min-width: 900px)");

export class Controls {
  private readonly fields: Field[] = [];

  constructor(private readonly change: Change) {
    const form = byId("controls");
    form.addEventListener("submit", (event) => event.preventDefault());
    form.append(
      group("Shape", true,
        this.slider("depth", "Workers, D", scaleOfDepth, "of a pipeline group"),
        this.slider("microBatches", "Micro-batches, N", scaleOfCount, "of a step"),
      ),
      group("Times", WIDE.matches,
        el("p", { class: "hint" }, "Of a D-th of the model, for one micro-batch, in any unit."),
        this.slider("forward", "Forward", TIMES),
        this.slider("input", "Backward, for inputs", TIMES),
        this.slider("weight", "Backward, for weights", TIMES),
        this.slider("message", "Message", MESSAGES),
      ),
      group("Memory and passes", WIDE.matches, this.cap(), this.passes()),
    );
  }

  /** Shows a state. */
  read(state: State): void {
    this.fields.forEach((field) => field.read(state));
  }

  private slider(name: Numeric, label: string, values: number[], about = ""): HTMLElement {
    const whole = name === "depth" || name === "microBatches";
    const range = el("input", { type: "range", min: 0, max: values.length - 1, step: 1, id: `slide-${name}`, "aria-label": label });
    const number = el("input", {
      type: "number", id: `set-${name}`, min: whole ? 1 : 0, step: whole ? 1 : "any", "aria-label": `${label}, as a number`,
    });
    range.addEventListener("input", () => this.set(name, values[Number(range.value)] ?? 1));
    number.addEventListener("input", () => {
      const value = Number(number.value);
      if (number.value === "" || !Number.isFinite(value)) return;
      this.set(name, whole ? Math.max(1, Math.round(value)) : Math.max(0, value));
    });
    this.fields.push({
      read: (state) => {
        const value = state[name];
        if (document.activeElement !== number) number.value = String(value);
        const near = values.reduce((best, v, i) =>
          Math.abs(v - value) < Math.abs((values[best] as number) - value) ? i : best, 0);
        range.value = String(near);
        range.setAttribute("aria-valuetext", `${value} ${about}`.trim());
      },
    });
    return el("div", { class: "field" },
      el("label", { for: `set-${name}` }, label), number, range);
  }

  private set(name: Numeric, value: number): void {
    this.change((state) => {
      state[name] = value;
      if (name === "depth" || name === "microBatches") dropEdits(state);
    });
  }

  private cap(): HTMLElement {
    const has = el("input", { type: "checkbox", id: "has-cap" });
    const number = el("input", { type: "number", min: 0, step: "any", id: "cap", "aria-label": "Memory cap in micro-batches" });
    has.addEventListener("change", () =>
      this.change((state) => { state.memoryCap = has.checked ? state.depth : null; }));
    number.addEventListener("input", () => {
      const value = Number(number.value);
      if (number.value !== "" && Number.isFinite(value)) {
        this.change((state) => { state.memoryCap = Math.max(0, value); });
      }
    });
    this.fields.push({
      read: (state) => {
        has.checked = state.memoryCap !== null;
        number.disabled = state.memoryCap === null;
        if (document.activeElement !== number) number.value = state.memoryCap?.toString() ?? "";
      },
    });
    return el("div", { class: "field" },
      el("label", { class: "check", for: "has-cap" }, has, "Memory cap, micro-batches"), number);
  }

  private passes(): HTMLElement {
    const set = (change: (state: State) => void) =>
      this.change((state) => { change(state); dropEdits(state); });
    const recompute = choice("Recompute activations",
      [["none", "no recomputation"], ["full", "recompute all"], ["selective", "recompute selectively"]],
      "none", (value) => set((state) => { state.recompute = value; }));
    const moves = choice("Move activations",
      [["none", "no moves"], ["bpipe", "to other workers (BPipe)"], ["offload", "to the host (offload)"]],
      "none", (value) => set((state) => { state.moves = value as State["moves"]; }));
    const split = el("input", { type: "checkbox", id: "split" });
    split.addEventListener("change", () => set((state) => { state.splitBackward = split.checked; }));
    this.fields.push({
      read: (state) => {
        recompute.value = state.recompute;
        moves.value = state.moves;
        split.checked = state.splitBackward;
      },
    });
    return el("div", { class: "passes" },
      el("label", { class: "check", for: "split" }, split, "Split backwards"), recompute, moves);
  }
}

/** Forgets edited rows, which belong to another shape. */
export function dropEdits(state: State): void {
  state.panels.forEach((panel) => { panel.rows = {}; });
}

function group(name: string, isOpen: boolean, ...children: Node[]): HTMLElement {
  return el("details", { open: isOpen }, el("summary", {}, name), ...children);
}

const range = (from: number, to: number, step: number): number[] =>
  Array.from({ length: Math.floor((to - from) / step + 1.5) }, (_, i) => Number((from + i * step).toFixed(4)));

const scaleOfDepth = [...range(1, 16, 1), ...range(18, 32, 2), ...range(36, 64, 4)];
const scaleOfCount = [...range(1, 32, 1), ...range(36, 64, 4), ...range(72, 128, 8), ...range(160, 512, 32)];
const TIMES = range(0, 4, 0.1);
const MESSAGES = range(0, 2, 0.05);
