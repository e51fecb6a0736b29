/** A timeline that one points at, zooms, plays and edits. */

import type { Refusal } from "../protocol";
import { TimeCanvas, type Press } from "./canvas";
import { type Marks, draw } from "./draw";
import { Layout, type Scene, describe, eventAt, eventOf, isInRow } from "./scene";

export interface Hooks {
  /** Moves a cell of a worker's row from one index to another. Without it, cells cannot be moved. */
  move?: (worker: number, from: number, to: number) => void;
  /** The view was zoomed or moved to these times. */
  window: (from: number, to: number) => void;
}

/** The cell at fault, and the cells at which workers wait for each other. */
function refusedCells(refusal: Refusal | null): [number, number][] {
  if (!refusal || refusal.worker === null || refusal.cell === null) return [];
  const waits = (refusal.reason ?? "").matchAll(/worker (\d+) waits at cell (\d+)/g);
  return [[refusal.worker, refusal.cell], ...[...waits].map(([, worker, cell]): [number, number] => [Number(worker), Number(cell)])];
}

export class Timeline extends TimeCanvas<Layout> {
  private readonly flag = document.createElement("div");
  private readonly said = document.createElement("div");
  private scene: Scene | null = null;
  /** The event at which the pointer was pressed. */
  private pressed: number | null = null;
  /** Most pixels of all rows together. */
  rows = 560;
  /** Whether arrow keys move the view instead of selecting cells. */
  arrowsMove = false;
  readonly marks: Marks = {
    now: null, hovered: null, selected: null, refused: [], critical: false, drop: null,
  };

  constructor(private readonly hooks: Hooks, canvas?: HTMLCanvasElement) {
    super((from, to) => hooks.window(from, to), canvas);
    this.flag.className = "flag";
    this.flag.hidden = true;
    this.flag.setAttribute("aria-hidden", "true");
    this.said.className = "unseen";
    this.said.setAttribute("aria-live", "polite");
    this.canvas.setAttribute("aria-roledescription", "timeline");
    this.element.append(this.flag, this.said);
  }

  /** Shows a scene; `name` is what a screen reader says of it. */
  show(scene: Scene, name: string, refusal: Refusal | null = null): void {
    this.scene = scene;
    this.marks.hovered = this.marks.selected = this.marks.drop = null;
    this.marks.refused = refusedCells(refusal).flatMap(([worker, cell]) => eventOf(scene, worker, cell) ?? []);
    this.flag.textContent = refusal?.reason?.split("; ")[0] ?? "";
    const arrows = this.arrowsMove ? "Arrow keys move the view" : "Arrow keys select a cell";
    const edits = this.hooks.move ? ", Alt with an arrow key moves it in its row" : "";
    this.canvas.setAttribute("aria-label", `${name}. ${arrows}${edits}, plus and minus zoom.`);
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

  protected draw(width: number, from: number, to: number): Layout | null {
    if (!this.scene) return null;
    const layout = new Layout(this.scene, width, from, to, this.rows);
    draw(this.canvas, layout, this.marks);
    this.placeFlag(this.scene, layout);
    return layout;
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

  protected pointAt(x: number, y: number): string | null {
    const event = this.axis && eventAt(this.axis, x, y);
    if (this.marks.hovered !== event) {
      this.marks.hovered = event;
      this.paint();
    }
    return event === null || !this.scene ? null : describe(this.scene, event);
  }

  protected override down(event: PointerEvent): void {
    super.down(event);
    this.pressed = this.axis && eventAt(this.axis, event.offsetX, event.offsetY);
  }

  /** The cell under the press, if it can be moved. */
  private get held(): number | null {
    const { scene, pressed } = this;
    return scene && pressed !== null && this.hooks.move && isInRow(scene.events, pressed) ? pressed : null;
  }

  protected override drag(press: Press, x: number, y: number): void {
    const { scene, axis, held } = this;
    if (!scene || !axis || held === null) {
      super.drag(press, x, y);
      return;
    }
    const worker = scene.events.worker[held] as number;
    const before = this.dropBefore(scene, worker, axis.time(x));
    this.marks.selected = this.marks.hovered = held;
    this.marks.drop = { worker, time: before.time };
    this.tell(describe(scene, held), x, y);
    this.paint();
  }

  protected override release(press: Press | null, x: number): void {
    const { scene, axis, held } = this;
    this.marks.drop = null;
    if (press?.isDrag && scene && axis && held !== null) {
      const worker = scene.events.worker[held] as number;
      const from = scene.events.cell[held] as number;
      const { cell } = this.dropBefore(scene, worker, axis.time(x));
      this.hooks.move?.(worker, from, cell > from ? cell - 1 : cell);
    } else if (press && !press.isDrag) {
      this.select(this.pressed);
    }
    this.paint();
  }

  /** The cell before which one drops at a time, and where the mark stands. */
  private dropBefore({ events, rows }: Scene, worker: number, time: number): { cell: number; time: number } {
    const cells = (rows[worker]?.compute ?? []).filter((i) => isInRow(events, i));
    const next = cells.find((i) => ((events.start[i] as number) + (events.end[i] as number)) / 2 > time);
    if (next !== undefined) {
      return { cell: events.cell[next] as number, time: events.start[next] as number };
    }
    const last = cells.at(-1);
    return last === undefined
      ? { cell: 0, time: 0 }
      : { cell: (events.cell[last] as number) + 1, time: events.end[last] as number };
  }

  private select(event: number | null): void {
    this.marks.selected = event;
    if (event !== null && this.scene) this.said.textContent = describe(this.scene, event);
    this.paint();
  }

  protected override key(event: KeyboardEvent): boolean {
    const { scene } = this;
    const selected = this.marks.selected;
    if (event.key === "0" || event.key === "Escape") this.select(null);
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!scene || this.arrowsMove || (!by && !down)) return super.key(event);
    const { events, rows } = scene;
    const worker = selected === null ? 0 : (events.worker[selected] as number);
    const row = rows[worker]?.compute ?? [];
    const next = rows[worker + (down ?? 0)]?.compute;
    if (by && event.altKey && selected !== null) {
      const from = events.cell[selected] as number;
      if (isInRow(events, selected)) this.hooks.move?.(worker, from, Math.max(0, from + by));
    } else if (by) {
      const place = selected === null ? -1 : row.indexOf(selected);
      this.select(row[Math.min(Math.max(place + by, 0), row.length - 1)] ?? null);
    } else if (next) {
      const time = selected === null ? 0 : (events.start[selected] as number);
      this.select(next.find((i) => (events.end[i] as number) > time) ?? next.at(-1) ?? null);
    } else {
      return false;
    }
    return true;
  }
}
