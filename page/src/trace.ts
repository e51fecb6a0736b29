/** A run's trace (`chimera train --trace`), one step of it, beside the plan. */

import { choice, el } from "./dom";
import type { Tones } from "./protocol";
import { type Slice, tracedScene } from "./timeline/traced";
import { Timeline } from "./timeline/view";
import { figure } from "./words";

const MICROSECONDS = 1e6;

export class Trace {
  readonly element = el("div", { class: "trace" });
  private readonly told = el("p", { class: "hint", role: "status" },
    "A trace of a run, as `chimera train --trace FILE` writes it, or one of `simulate --trace`. It stays in this page.");
  private readonly shown = el("div");
  private readonly timeline = new Timeline({ window: (from, to) => this.timeline.zoom([from, to]) });
  private tones: Tones[] = [];

  constructor() {
    const file = el("input", { type: "file", accept: ".json", id: "trace-file" });
    file.addEventListener("change", () => void this.open(file.files?.[0]));
    this.element.append(el("label", { class: "file", for: "trace-file" }, "Open a trace ", file), this.told, this.shown);
  }

  /** Colours of the plan, which the trace takes too. */
  colour(tones: Tones[]): void {
    this.tones = tones;
  }

  private async open(file: File | undefined): Promise<void> {
    if (!file) return;
    try {
      const slices = slicesOf(JSON.parse(await file.text()) as unknown);
      const steps = slices.filter(({ kind }) => kind === "step");
      const names = [...new Set(steps.map(({ name }) => name))];
      const show = (name: string | undefined) => this.show(file.name, slices, steps.filter((step) => step.name === name));
      const last = names.at(-1);
      const choose = names.length < 2 ? null
        : choice("Step of the run", names.map((name): [string, string] => [name, name]), last ?? "", show);
      this.shown.replaceChildren(...(choose ? [choose] : []), this.timeline.element);
      show(last);
    } catch (error) {
      this.told.textContent = `${file.name} is not a trace of Chimera: ${error instanceof Error ? error.message : error}`;
    }
  }

  private show(name: string, slices: Slice[], steps: Slice[]): void {
    const work = slices.filter(({ kind }) => !["step", "kernel", "recovery"].includes(kind));
    const from = steps.length > 0 ? Math.min(...steps.map(({ start }) => start)) : 0;
    const isOf = ({ rank, start, took }: Slice) => steps.length === 0 || steps.some((step) =>
      step.rank === rank && start + took / 2 >= step.start && start + took / 2 <= step.start + step.took);
    const shown = work.filter(isOf);
    const ranks = [...new Set(shown.map(({ rank }) => rank))].sort((a, b) => a - b);
    const scene = tracedScene(shown.map((slice) => ({ ...slice, start: slice.start - from })), ranks, this.tones);
    this.timeline.zoom(null);
    this.timeline.show(scene, `Trace ${name}`);
    const which = steps[0]?.name ?? "the simulated step";
    this.told.textContent = `${name}, ${which}: ${figure(Number(scene.end.toPrecision(4)))} s on ${ranks.length} ranks.`;
  }
}

function slicesOf(file: unknown): Slice[] {
  const events = (file as { traceEvents?: unknown }).traceEvents;
  if (!Array.isArray(events)) throw new Error("it has no traceEvents");
  const slices = events.flatMap((event: Record<string, unknown>): Slice[] => {
    if (event["ph"] !== "X") return [];
    const args = (event["args"] ?? {}) as { ops?: Slice["ops"] };
    const [start, took] = [Number(event["ts"]) / MICROSECONDS, Number(event["dur"]) / MICROSECONDS];
    return [{ rank: Number(event["pid"]), start, took, kind: String(event["cat"]), name: String(event["name"]), ops: args.ops ?? [] }];
  });
  if (slices.length === 0) throw new Error("nothing happens in it");
  return slices;
}
