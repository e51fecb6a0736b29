/** A step as rows of events, and where each stands on the screen. */

import type { Events, Tones } from "../protocol";
import { Axis, type Labels, WORKERS } from "./axis";

interface Kind {
  name: string;
  /** Of an op, the tone of its pipe: pale, medium, strong, dark. */
  tone?: 0 | 1 | 2 | 3;
  /** Of other work, its colour in the style sheet. */
  colour?: "step" | "sum" | "edge" | "work";
}

/** Kinds of work by letter. */
export const KINDS: Record<string, Kind> = {
  F: { name: "forward", tone: 0 },
  B: { name: "backward", tone: 3 },
  I: { name: "backward for inputs", tone: 2 },
  W: { name: "backward for weights", tone: 1 },
  R: { name: "recompute", tone: 0 },
  O: { name: "offload", tone: 0 },
  L: { name: "reload", tone: 1 },
  K: { name: "keep", tone: 0 },
  T: { name: "return", tone: 1 },
  X: { name: "work beside the training", colour: "work" },
  U: { name: "update", colour: "step" },
  G: { name: "gradient reduction", colour: "sum" },
  "-": { name: "wait", colour: "edge" },
};

/** One worker's events, as indices in order of time. */
interface Row {
  compute: number[];
  waits: number[];
  /** Lanes of moves and reductions below the row. */
  lanes: number[][];
}

export interface Scene {
  events: Events;
  rows: Row[];
  /** By pipe. */
  tones: Record<number, Tones>;
  /** Letters of what is drawn. */
  kinds: Set<string>;
  /** The last end. */
  end: number;
  /** Letters of stages, where a worker has several of one pipe. */
  letters: Map<number, string>[];
  /** Most lanes below a row. */
  lanes: number;
  labels: Labels;
  /** Events with a name of their own. */
  names: Map<number, string>;
  /** Whether times mean something. */
  isTimed: boolean;
}

/** The cell of an event that is not one. */
export const NOT_A_CELL = 0xffffffff;
/** Work in lanes below a row. */
const BESIDE = "GOLKT";

export const letterOf = (events: Events, i: number): string => String.fromCharCode(events.letter[i] as number);

/** Whether an event is a cell within its worker's row. */
export const isInRow = (events: Events, i: number): boolean =>
  events.cell[i] !== NOT_A_CELL && !BESIDE.includes(letterOf(events, i));

export function sceneOf(
  events: Events, depth: number, tones: Scene["tones"],
  more: Partial<Pick<Scene, "labels" | "names" | "isTimed">> = {},
): Scene {
  const rows: Row[] = Array.from({ length: depth }, () => ({ compute: [], waits: [], lanes: [] }));
  const stages: Set<number>[] = rows.map(() => new Set());
  const kinds = new Set<string>();
  let end = 0;
  for (let i = 0; i < events.length; i += 1) {
    const worker = events.worker[i] as number;
    const row = rows[worker];
    const letter = letterOf(events, i);
    end = Math.max(end, events.end[i] as number);
    if (!row || (events.end[i] as number) <= (events.start[i] as number)) continue;
    if (BESIDE.includes(letter)) intoLane(row, events, i);
    else if (letter === "-") row.waits.push(i);
    else row.compute.push(i);
    kinds.add(letter);
    if (KINDS[letter]?.tone !== undefined) stages[worker]?.add(stageOf(events, i));
  }
  const lanes = Math.max(0, ...rows.map((row) => row.lanes.length));
  const letters = stages.map(lettersOf);
  return { events, rows, tones, kinds, end, letters, lanes, labels: WORKERS, names: new Map(), isTimed: true, ...more };
}

/** A number of a pipe's stage. */
const stageOf = (events: Events, i: number): number =>
  (events.pipe[i] as number) * 65536 + (events.stage[i] as number);

/** In as few lanes as show nothing over another. */
function intoLane(row: Row, events: Events, i: number): void {
  const start = (events.start[i] as number) * (1 + 1e-9); // times of traces are rounded
  const free = row.lanes.find((lane) => {
    const last = lane.at(-1);
    return last === undefined || (events.end[last] as number) <= start;
  });
  if (free) free.push(i);
  else row.lanes.push([i]);
}

/** `a` for the first stage of a pipe on a worker, and so on; nothing where each pipe has one. */
function lettersOf(stages: Set<number>): Map<number, string> {
  const sorted = [...stages].sort((a, b) => a - b);
  const pipes = new Set(sorted.map((stage) => Math.floor(stage / 65536)));
  const letters = new Map<number, string>();
  if (sorted.length === pipes.size) return letters;
  const seen = new Map<number, number>();
  for (const stage of sorted) {
    const pipe = Math.floor(stage / 65536);
    const nth = seen.get(pipe) ?? 0;
    seen.set(pipe, nth + 1);
    letters.set(stage, nth < 26 ? String.fromCharCode(97 + nth) : "");
  }
  return letters;
}

/** The micro-batches of an event, after the letter of its stage: `3`, `b3`, `0-1`. */
export function labelOf(scene: Scene, i: number): string {
  const { events } = scene;
  if (KINDS[letterOf(events, i)]?.tone === undefined) return "";
  const first = events.unit[i] as number;
  const n = events.units[i] as number;
  const span = n > 1 ? `${first}-${first + n - 1}` : String(first);
  return (scene.letters[events.worker[i] as number]?.get(stageOf(events, i)) ?? "") + span;
}

/** Positions of a scene: time goes to the right, workers go down. */
export class Layout extends Axis {
  readonly height: number;
  readonly lane: number;
  readonly gap: number;

  constructor(readonly scene: Scene, width: number, from: number, to: number, most: number) {
    super(scene.labels, width, from, to);
    const depth = Math.max(1, scene.rows.length);
    // Canvases cannot be as high as one likes.
    this.height = Math.min(Math.max(most / depth, depth > 256 ? 1 : 3), 28);
    this.gap = this.height > 10 ? 4 : Number(depth <= 256);
    this.lane = scene.lanes === 0 ? 0 : Math.max(this.height / Math.max(scene.lanes, 4), 2);
  }

  get rows(): number {
    return this.scene.rows.length * this.pitch;
  }

  get pitch(): number {
    return this.height + this.lane * this.scene.lanes + this.gap;
  }

  y(worker: number): number {
    return this.top + worker * this.pitch;
  }

  worker(y: number): number {
    return Math.floor((y - this.top) / this.pitch);
  }
}

/** Pixels beside an event at which one still points at it. */
const NEAR = 1.5;

/** The event at a place: in a row, in a lane below it, or else a wait. */
export function eventAt(layout: Layout, x: number, y: number): number | null {
  const { scene } = layout;
  const worker = layout.worker(y);
  const row = scene.rows[worker];
  if (!row || x < layout.left || layout.scale <= 0) return null;
  const [time, slack] = [layout.time(x), NEAR / layout.scale];
  const below = y - layout.y(worker) - layout.height;
  if (below > 0 && scene.lanes > 0) return nearest(scene, row.lanes[Math.floor((below - 1) / layout.lane)] ?? [], time, slack);
  return nearest(scene, row.compute, time, slack) ?? nearest(scene, row.waits, time, 0);
}

function nearest(scene: Scene, row: number[], time: number, slack: number): number | null {
  const { start, end } = scene.events;
  const place = firstAfter(scene, row, time);
  const [next, before] = [row[place], row[place - 1]];
  if (next !== undefined && (start[next] as number) <= time + slack) return next;
  return before !== undefined && (end[before] as number) >= time - slack ? before : null;
}

/** The place in a row of the first event that ends after a time. */
export function firstAfter(scene: Scene, row: number[], time: number): number {
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((scene.events.end[row[middle] as number] as number) <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The event of a cell of a worker. */
export function eventOf(scene: Scene, worker: number, cell: number): number | null {
  const { events, rows } = scene;
  const row = rows[worker];
  const all = row ? [...row.compute, ...row.lanes.flat()] : [];
  return all.find((i) => events.cell[i] === cell && cell !== NOT_A_CELL) ?? null;
}

/** An event in words, with the other op of a pair. */
export function describe(scene: Scene, i: number): string {
  const { events, labels } = scene;
  const [start, end] = [events.start[i] as number, events.end[i] as number];
  const pair = [[i], [i, i + 1], [i - 1, i]][events.part[i] as number] ?? [i];
  const cell = events.cell[i] === NOT_A_CELL ? "" : `, cell ${events.cell[i]}`;
  const parts = [pair.map((op) => workOf(scene, op)).join(" and "), labels.row(events.worker[i] as number) + cell];
  if (scene.isTimed) parts.push(`start ${labels.time(start)}`, `duration ${labels.time(end - start)}`);
  if (events.critical[i] === 1) parts.push("on the critical path");
  return parts.join(" · ");
}

function workOf(scene: Scene, i: number): string {
  const { events } = scene;
  const [first, n] = [events.unit[i] as number, events.units[i] as number];
  const { name = "work", tone } = KINDS[letterOf(events, i)] ?? {};
  if (tone === undefined) return scene.names.get(i) ?? `${name} of bucket ${first}`;
  const micro = n > 1 ? `micro-batches ${first} to ${first + n - 1}` : `micro-batch ${first}`;
  return `${name} of ${micro}, stage ${events.stage[i]}, pipe ${events.pipe[i]}`;
}
