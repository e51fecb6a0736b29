/** A step as rows of events, and where each stands on the screen. */

import type { Events, Tones } from "../protocol";

/** One worker's events, as indices in order of time. */
interface Row {
  compute: number[];
  /** Lanes of moves and reductions below the row. */
  lanes: number[][];
}

export interface Scene {
  events: Events;
  rows: Row[];
  tones: Tones[];
  /** The last end. */
  end: number;
  /** Letters of stages, where a worker has several of one pipe. */
  letters: Map<number, string>[];
  /** Most lanes below a row. */
  lanes: number;
}

const NOT_A_CELL = 0xffffffff;
const LETTERS = { U: "U".charCodeAt(0), G: "G".charCodeAt(0) };
const MOVES = new Set([..."OLKT"].map((letter) => letter.charCodeAt(0)));

export function sceneOf(events: Events, depth: number, tones: Tones[]): Scene {
  const rows: Row[] = Array.from({ length: depth }, () => ({ compute: [], lanes: [] }));
  const stages: Set<number>[] = rows.map(() => new Set());
  let end = 0;
  for (let i = 0; i < events.length; i += 1) {
    const row = rows[events.worker[i] as number];
    const letter = events.letter[i] as number;
    end = Math.max(end, events.end[i] as number);
    if (!row || (events.end[i] as number) <= (events.start[i] as number)) continue;
    if (letter === LETTERS.G || MOVES.has(letter)) intoLane(row, events, i);
    else row.compute.push(i);
    if (letter !== LETTERS.G && letter !== LETTERS.U) {
      const stage = (events.pipe[i] as number) * 65536 + (events.stage[i] as number);
      stages[events.worker[i] as number]?.add(stage);
    }
  }
  const lanes = Math.max(0, ...rows.map((row) => row.lanes.length));
  return { events, rows, tones, end, letters: stages.map(lettersOf), lanes };
}

/** In as few lanes as show nothing over another. */
function intoLane(row: Row, events: Events, i: number): void {
  const start = events.start[i] as number;
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
  const letter = events.letter[i] as number;
  if (letter === LETTERS.U || letter === LETTERS.G) return "";
  const stage = (events.pipe[i] as number) * 65536 + (events.stage[i] as number);
  const first = events.unit[i] as number;
  const n = events.units[i] as number;
  const span = n > 1 ? `${first}-${first + n - 1}` : String(first);
  return (scene.letters[events.worker[i] as number]?.get(stage) ?? "") + span;
}

/** Positions on a canvas: time goes to the right, workers go down. */
export class Layout {
  readonly left = 40;
  readonly top = 6;
  readonly axis = 22;
  readonly height: number;
  readonly lane: number;
  readonly gap: number;

  constructor(
    readonly scene: Scene,
    readonly width: number,
    /** The times at the left and the right edge. */
    readonly from: number,
    readonly to: number,
    most: number,
  ) {
    const depth = Math.max(1, scene.rows.length);
    // Canvases cannot be as high as one likes.
    this.height = Math.min(Math.max(most / depth, depth > 256 ? 1 : 3), 28);
    this.gap = this.height > 10 ? 4 : Number(depth <= 256);
    this.lane = scene.lanes === 0 ? 0 : Math.max(this.height / Math.max(scene.lanes, 4), 2);
  }

  get pitch(): number {
    return this.height + this.lane * this.scene.lanes + this.gap;
  }

  get whole(): number {
    return this.top + this.scene.rows.length * this.pitch + this.axis;
  }

  /** Pixels per unit of time. */
  get scale(): number {
    const span = this.to - this.from;
    return span > 0 ? (this.width - this.left - 8) / span : 0;
  }

  x(time: number): number {
    return this.left + (time - this.from) * this.scale;
  }

  y(worker: number): number {
    return this.top + worker * this.pitch;
  }

  time(x: number): number {
    return this.scale > 0 ? this.from + (x - this.left) / this.scale : 0;
  }

  worker(y: number): number {
    return Math.floor((y - this.top) / this.pitch);
  }
}

/** The compute event of a worker at a time, if there is one. */
export function eventAt(scene: Scene, worker: number, time: number): number | null {
  const row = scene.rows[worker]?.compute ?? [];
  const i = row[firstAfter(scene, row, time)];
  return i !== undefined && (scene.events.start[i] as number) <= time ? i : null;
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

export const KINDS: Record<string, string> = {
  F: "forward", B: "backward", I: "backward for inputs", W: "backward for weights",
  R: "recompute", O: "offload", L: "reload", K: "keep", T: "return",
};

/** An event in words. */
export function describe(scene: Scene, i: number, isTimed: boolean): string {
  const { events } = scene;
  const letter = String.fromCharCode(events.letter[i] as number);
  const [start, end] = [events.start[i] as number, events.end[i] as number];
  const when = isTimed ? ` · ${short(start)} to ${short(end)}` : "";
  const worker = `worker ${events.worker[i]}`;
  if (letter === "G") return `gradient reduction of bucket ${events.unit[i]} · ${worker}${when}`;
  if (letter === "U") return `update of bucket ${events.unit[i]} · ${worker}${when}`;
  const first = events.unit[i] as number;
  const n = events.units[i] as number;
  const micro = n > 1 ? `micro-batches ${first} to ${first + n - 1}` : `micro-batch ${first}`;
  const where = `stage ${events.stage[i]}, pipe ${events.pipe[i]}`;
  return `${KINDS[letter] ?? letter} of ${micro} · ${where} · ${worker}, cell ${events.cell[i]}${when}`;
}

/** A number with four significant digits. */
export function short(x: number): string {
  return String(Number(x.toPrecision(4)));
}
