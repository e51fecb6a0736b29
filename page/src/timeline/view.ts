/** A timeline that one points at, zooms, plays and edits. */

import type { Events, Step } from "../protocol";
import { type Marks, draw } from "./draw";
import { Layout, type Scene, describe, eventAt, eventOf, sceneOf } from "./scene";

/** Pixels that the pointer moves before a press becomes a drag. */
const SLACK = 4;

export interface Hooks {
  /** Moves a cell of a worker's row from one index to another. */
  move: (worker: number, from: number, to: number) => void;
  /** The view was zoomed or moved to these times. */
  window: (from: number, to: number) => void;
}

interface Press {
  x: number;
  y: number;
  from: number;
  to: number;
  event: number | null;
  isDrag: boolean;
}

/** The cell at fault, and the cells at which workers wait for each other. */
function refusedCells({ refusal }: Step): [number, number][] {
  if (!refusal || refusal.worker === null || refusal.cell === null) return [];
  const waits = (refusal.reason ?? "").matchAll(/worker (\d+) waits at cell (\d+)/g);
  return [[refusal.worker, refusal.cell], ...[...waits].map(([, worker, cell]): [number, number] => [Number(worker), Number(cell)])];
}

export class Timeline {
  readonly element = document.createElement("div");
  private readonly canvas = document.createElement("canvas");
  private readonly tip = document.createElement("div");
  private readonly flag = document.createElement("div");
  private readonly said = document.createElement("div");
  private scene: Scene | null = null;
  private layout: Layout | null = null;
  private isTimed = true;
  private longest = 0;
  private window: [number, number] | null = null;
  private press: Press | null = null;
  private queued = false;
  /** Most pixels of all rows together. */
  rows = 560;
  readonly marks: Marks = {
    now: null, hovered: null, selected: null, refused: [], critical: false, drop: null,
  };

  constructor(private readonly hooks: Hooks) {
    this.element.className = "timeline";
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.flag.className = "flag";
    this.flag.hidden = true;
    this.flag.setAttribute("aria-hidden", "true");
    this.said.className = "unseen";
    this.said.setAttribute("aria-live", "polite");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "timeline");
    this.element.append(this.canvas, this.flag, this.tip, this.said);
    this.listen();
    new ResizeObserver(() => this.paint()).observe(this.element);
  }

  /** Shows a step; `name` is what a screen reader says of it. */
  show(step: Step, events: Events, name: string): void {
    this.isTimed = step.refusal === null;
    this.scene = sceneOf(events, step.depth ?? 0, step.tones ?? []);
    this.marks.hovered = this.marks.selected = this.marks.drop = null;
    this.marks.refused = refusedCells(step).flatMap(([worker, cell]) => {
      const event = eventOf(this.scene as Scene, worker, cell);
      return event === null ? [] : [event];
    });
    this.flag.textContent = step.refusal?.reason?.split("; ")[0] ?? "";
    this.canvas.setAttribute(
      "aria-label",
      `${name}. Arrow keys select a cell, Alt with an arrow key moves it in its row, plus and minus zoom.`,
    );
    this.paintNow();
  }

  /** The end of the scene, 0 without one. */
  get end(): number {
    return this.scene?.end ?? 0;
  }

  /** Times at which something begins or ends. */
  *times(): Iterable<number> {
    if (!this.scene) return;
    yield* this.scene.events.start;
    yield* this.scene.events.end;
  }

  /** Draws up to this time, so that several timelines have one scale. */
  set upTo(longest: number) {
    this.longest = longest;
    this.paint();
  }

  /** Shows these times; `null` shows all. */
  zoom(window: [number, number] | null): void {
    this.window = window;
    this.paint();
  }

  /** Draws soon, once for all changes until then. */
  paint(): void {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => {
      this.queued = false;
      this.paintNow();
    });
  }

  private paintNow(): void {
    const width = this.element.clientWidth;
    if (!this.scene || width === 0) return;
    const [from, to] = this.window ?? [0, Math.max(this.longest, this.scene.end)];
    this.layout = new Layout(this.scene, width, from, to, this.rows);
    draw(this.canvas, this.layout, this.marks);
    this.placeFlag(this.scene, this.layout);
  }

  /** Puts the reason of a refusal below its cell. */
  private placeFlag({ events }: Scene, layout: Layout): void {
    const [at] = this.marks.refused;
    this.flag.hidden = at === undefined || this.flag.textContent === "";
    if (at === undefined || this.flag.hidden) return;
    const x = layout.x(events.start[at] as number);
    const width = Math.min(360, layout.width - 8);
    const left = Math.max(4, Math.min(x - 14, layout.width - width - 4));
    this.flag.style.width = `${width}px`;
    this.flag.style.left = `${left}px`;
    // Below the other marked rows too, where they are near.
    const worker = events.worker[at] as number;
    const marked = this.marks.refused.map((i) => events.worker[i] as number);
    const below = Math.max(worker, ...marked.filter((other) => other - worker < 4));
    this.flag.style.top = `${layout.y(below) + layout.height + 8}px`;
    this.flag.style.setProperty("--tail", `${Math.max(10, x - left + 6)}px`);
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", () => this.cancel());
    canvas.addEventListener("pointerleave", () => this.hover(null, 0, 0));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("dblclick", () => this.changeWindow(null));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  private at(x: number, y: number): number | null {
    if (!this.scene || !this.layout || x < this.layout.left) return null;
    return eventAt(this.scene, this.layout.worker(y), this.layout.time(x));
  }

  private down(event: PointerEvent): void {
    if (!this.layout || event.button !== 0) return;
    const { offsetX: x, offsetY: y } = event;
    const { from, to } = this.layout;
    this.press = { x, y, from, to, event: this.at(x, y), isDrag: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  private moved(event: PointerEvent): void {
    const { offsetX: x, offsetY: y } = event;
    const { press, layout, scene } = this;
    if (!press || !layout || !scene) {
      this.hover(this.at(x, y), x, y);
      return;
    }
    if (!press.isDrag && Math.abs(x - press.x) < SLACK) return;
    press.isDrag = true;
    if (press.event === null) {
      const by = (press.x - x) / layout.scale;
      this.changeWindow([press.from + by, press.to + by]);
      return;
    }
    const worker = scene.events.worker[press.event] as number;
    const before = this.dropBefore(worker, layout.time(x));
    this.marks.selected = press.event;
    this.marks.drop = { worker, time: before.time };
    this.hover(press.event, x, y);
    this.paint();
  }

  private up(event: PointerEvent): void {
    const { press, layout, scene } = this;
    this.press = null;
    this.marks.drop = null;
    if (!press || !layout || !scene) return;
    if (press.isDrag && press.event !== null) {
      const worker = scene.events.worker[press.event] as number;
      const from = scene.events.cell[press.event] as number;
      const { cell } = this.dropBefore(worker, layout.time(event.offsetX));
      this.hooks.move(worker, from, cell > from ? cell - 1 : cell);
    } else if (!press.isDrag) {
      this.select(press.event);
    }
    this.paint();
  }

  private cancel(): void {
    this.press = null;
    this.marks.drop = null;
    this.paint();
  }

  /** The cell before which one drops at a time, and where the mark stands. */
  private dropBefore(worker: number, time: number): { cell: number; time: number } {
    const { events, rows } = this.scene as Scene;
    const cells = (rows[worker]?.compute ?? []).filter((i) => events.cell[i] !== 0xffffffff);
    const next = cells.find((i) => ((events.start[i] as number) + (events.end[i] as number)) / 2 > time);
    if (next !== undefined) {
      return { cell: events.cell[next] as number, time: events.start[next] as number };
    }
    const last = cells.at(-1);
    return last === undefined
      ? { cell: 0, time: 0 }
      : { cell: (events.cell[last] as number) + 1, time: events.end[last] as number };
  }

  private hover(event: number | null, x: number, y: number): void {
    if (this.marks.hovered !== event) {
      this.marks.hovered = event;
      this.paint();
    }
    this.tip.hidden = event === null;
    if (event === null || !this.scene) return;
    this.tip.textContent = describe(this.scene, event, this.isTimed);
    const room = this.element.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(4, Math.min(x + 12, room))}px`;
    this.tip.style.top = `${y + 18}px`;
  }

  private select(event: number | null): void {
    this.marks.selected = event;
    if (event !== null && this.scene) this.said.textContent = describe(this.scene, event, this.isTimed);
    this.paint();
  }

  private key(event: KeyboardEvent): void {
    const { scene, layout } = this;
    if (!scene || !layout) return;
    const { events, rows } = scene;
    const selected = this.marks.selected;
    const worker = selected === null ? 0 : (events.worker[selected] as number);
    const row = rows[worker]?.compute ?? [];
    const place = selected === null ? -1 : row.indexOf(selected);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (by && event.altKey && selected !== null) {
      const from = events.cell[selected] as number;
      if (from !== 0xffffffff) this.hooks.move(worker, from, Math.max(0, from + by));
    } else if (by) {
      this.select(row[Math.min(Math.max(place + by, 0), row.length - 1)] ?? null);
    } else if (down && rows[worker + down]) {
      const time = selected === null ? 0 : (events.start[selected] as number);
      const near = (rows[worker + down]?.compute ?? []).find((i) => (events.end[i] as number) > time);
      this.select(near ?? rows[worker + down]?.compute.at(-1) ?? null);
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      this.zoomBy(event.key === "-" ? 1.5 : 1 / 1.5, (layout.from + layout.to) / 2);
    } else if (event.key === "0" || event.key === "Escape") {
      this.changeWindow(null);
      this.select(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  private wheel(event: WheelEvent): void {
    if (!this.layout) return;
    const { from, to, scale } = this.layout;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoomBy(Math.exp(event.deltaY / 300), this.layout.time(event.offsetX));
    } else if (this.window && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) {
      event.preventDefault();
      const by = (event.deltaX || event.deltaY) / scale;
      this.changeWindow([from + by, to + by]);
    }
  }

  /** Zooms around a time. */
  zoomBy(by: number, around: number): void {
    if (!this.layout) return;
    const { from, to } = this.layout;
    this.changeWindow([around - (around - from) * by, around + (to - around) * by]);
  }

  /** Zooms around the middle. */
  zoomMiddle(by: number): void {
    if (this.layout) this.zoomBy(by, (this.layout.from + this.layout.to) / 2);
  }

  private changeWindow(window: [number, number] | null): void {
    const whole = Math.max(this.longest, this.end);
    let [from, to] = window ?? [0, whole];
    const span = Math.max(to - from, whole / 5000);
    if (span >= whole) [from, to] = [0, whole];
    else [from, to] = [Math.min(Math.max(from, 0), whole - span), 0];
    this.hooks.window(from, span >= whole ? whole : from + span);
  }
}
