/** A run's trace (`chimera train --trace`), one step of it, beside the plan. */

import { choice, el } from "./dom";
import { type Events, type Step, type Tones, noEvents } from "./protocol";
import { Timeline } from "./timeline/view";
import { figure } from "./words";

interface Slice {
  name: string;
  cat: string;
  pid: number;
  ts: number;
  dur: number;
  ops: { kind: string; pipe: number; stage: number; micro_batches: string }[];
  bucket: number;
}

const MICROSECONDS = 1e6;

export class Trace {
  readonly element = el("div", { class: "trace" });
  private readonly told = el("p", { class: "hint", role: "status" },
    "A trace of a run, as `chimera train --trace FILE` writes it, or one of `simulate --trace`. It stays in this page.");
  private readonly shown = el("div");
  private readonly timeline = new Timeline({ move: () => undefined, window: (from, to) => this.timeline.zoom([from, to]) });
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
      const steps = slices.filter(({ cat }) => cat === "step");
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
    const work = slices.filter(({ cat }) => !["step", "wait", "kernel", "recovery"].includes(cat));
    const from = steps.length > 0 ? Math.min(...steps.map(({ ts }) => ts)) : 0;
    const to = steps.length > 0 ? Math.max(...steps.map(({ ts, dur }) => ts + dur)) : Infinity;
    const events = eventsOf(work.filter(({ ts, dur }) => ts >= from && ts + dur <= to), from);
    const depth = 1 + Math.max(-1, ...events.worker);
    const step: Step = { refusal: null, figures: null, depth, tones: this.tones };
    this.timeline.zoom(null);
    this.timeline.show(step, events, `Trace ${name}`);
    const which = steps[0]?.name ?? "the simulated step";
    this.told.textContent = `${name}, ${which}: ${figure(Number(this.timeline.end.toPrecision(4)))} s on ${depth} ranks.`;
  }
}

function slicesOf(file: unknown): Slice[] {
  const events = (file as { traceEvents?: unknown }).traceEvents;
  if (!Array.isArray(events)) throw new Error("it has no traceEvents");
  const slices = events.flatMap((event: Record<string, unknown>): Slice[] => {
    if (event["ph"] !== "X") return [];
    const args = (event["args"] ?? {}) as { ops?: Slice["ops"]; bucket?: number };
    return [{
      name: String(event["name"]), cat: String(event["cat"]), pid: Number(event["pid"]),
      ts: Number(event["ts"]), dur: Number(event["dur"]), ops: args.ops ?? [], bucket: args.bucket ?? 0,
    }];
  });
  if (slices.length === 0) throw new Error("nothing happens in it");
  return slices;
}

function eventsOf(slices: Slice[], from: number): Events {
  const sorted = [...slices].sort((a, b) => a.ts - b.ts);
  const events = noEvents(sorted.reduce((n, { ops }) => n + Math.max(1, ops.length), 0));
  const cells = new Map<number, number>();
  let i = 0;
  for (const { cat, pid, ts, dur, ops, bucket } of sorted) {
    const cell = cells.get(pid) ?? 0;
    if (ops.length > 0) cells.set(pid, cell + 1);
    const all = ops.length > 0 ? ops
      : [{ kind: cat === "reduction" ? "G" : "U", pipe: 0, stage: 0, micro_batches: String(bucket) }];
    all.forEach((op, nth) => {
      const [first = 0, last = first] = op.micro_batches.split("-").map(Number);
      events.start[i] = (ts - from) / MICROSECONDS;
      events.end[i] = (ts + dur - from) / MICROSECONDS;
      events.cell[i] = ops.length > 0 ? cell : 0xffffffff;
      events.unit[i] = first;
      events.units[i] = last - first + 1;
      events.stage[i] = op.stage;
      events.pipe[i] = op.pipe;
      events.worker[i] = pid;
      events.letter[i] = op.kind.charCodeAt(0);
      events.part[i] = all.length > 1 ? nth + 1 : 0;
      i += 1;
    });
  }
  return events;
}
