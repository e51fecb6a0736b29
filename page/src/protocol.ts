/** Questions to the module and its answers; page/wasm has the other side. */

/** A schedule with all that its step depends on. Names are those of the command's options. */
export interface Plan {
  schedule: string;
  depth: number;
  micro_batches: number;
  scaling?: string;
  placement?: string;
  search_time?: number;
  recompute?: string;
  split_backward?: boolean;
  bpipe?: boolean;
  offload?: boolean;
  memory_cap?: number | null;
  forward?: number[];
  input?: number[];
  weight?: number[];
  message?: number[];
  file?: { name: string; text: string };
  rows?: Record<string, string>;
}

export type FileFormat =
  "json" | "program-json" | "pytorch-csv" | "pytorch-comms-csv" | "chrome" | "svg";

export type Question =
  | { ask: "schedules" }
  | { ask: "step" | "figures" | "causes"; plan: Plan }
  | { ask: "row"; plan: Plan; worker: number }
  | { ask: "files"; plan: Plan; format: FileFormat };

/** A number that only some schedules read, and the placements on which a search reads it. */
export interface NumberRow {
  name: string;
  label: string;
  usual: number;
  step: number;
  /** The field of a shape in Rust. */
  field: string;
  is_optional: boolean;
  places: string[];
}

/** A schedule of the table. */
export interface Entry {
  name: string;
  about: string;
  paper: string;
  place: string;
  reads: string[];
  variants: string[];
}

/** Why a schedule is refused, in the words of the command, and at which cell. */
export interface Refusal {
  text: string;
  reason: string | null;
  worker: number | null;
  cell: number | null;
}

/** Pale, medium, strong and dark. */
export type Tones = [string, string, string, string];

/** A step. A refused one has no figures, and no shape if there is not even a timetable. */
export interface Step {
  refusal: Refusal | null;
  schedule?: string;
  depth?: number;
  n_micro_batches?: number;
  n_stages?: number;
  n_pipes?: number;
  scaling?: string;
  search?: string | null;
  stages?: number[][];
  tones?: Tones[];
  figures: Figures | null;
}

export interface Figures {
  title: string;
  proven: string;
  summary: string;
  /** Absent at first where a step has many ops. */
  idle: Idle | null;
  makespan: number;
  bubble_ratio: number;
  busy: number[];
  peaks: number[];
  kept: number[];
  n_messages: number;
  channel_bound: number;
  n_steps: number;
  weight_copies: number;
}

/** The bubble in the command's line, and each cause with its share of the time of all workers. */
export interface Idle {
  line: string;
  causes: { name: string; share: number }[];
}

export interface OutFile {
  ending: string;
  text: string;
}

/** Work in time, one entry per op, update and reduction, in parallel arrays. */
export interface Events {
  length: number;
  start: Float64Array;
  end: Float64Array;
  /** Index of the cell in its row; 2^32 - 1 for what is not a cell. */
  cell: Uint32Array;
  unit: Uint32Array;
  units: Uint16Array;
  stage: Uint16Array;
  pipe: Uint16Array;
  worker: Uint16Array;
  /** The letter of the kind: F B I W R O L K T, U for an update, G for a reduction. */
  letter: Uint8Array;
  /** 0 for a whole cell, 1 and 2 for the parts of a pair. */
  part: Uint8Array;
  critical: Uint8Array;
}

/** Bytes of an event, as `events.rs` writes it. */
const BYTES = 40;

/** Reads the events that the module has written. */
export function readEvents(bytes: Uint8Array): Events {
  const length = bytes.byteLength / BYTES;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const events = noEvents(length);
  for (let i = 0, at = 0; i < length; i += 1, at += BYTES) {
    events.start[i] = view.getFloat64(at, true);
    events.end[i] = view.getFloat64(at + 8, true);
    events.cell[i] = view.getUint32(at + 16, true);
    events.unit[i] = view.getUint32(at + 20, true);
    events.units[i] = view.getUint16(at + 24, true);
    events.stage[i] = view.getUint16(at + 26, true);
    events.pipe[i] = view.getUint16(at + 28, true);
    events.worker[i] = view.getUint16(at + 30, true);
    events.letter[i] = view.getUint8(at + 32);
    events.part[i] = view.getUint8(at + 33);
    events.critical[i] = view.getUint8(at + 34);
  }
  return events;
}

/** Room for events. */
export function noEvents(length: number): Events {
  const whole = () => new Uint16Array(length);
  return {
    length,
    start: new Float64Array(length),
    end: new Float64Array(length),
    cell: new Uint32Array(length),
    unit: new Uint32Array(length),
    units: whole(),
    stage: whole(),
    pipe: whole(),
    worker: whole(),
    letter: new Uint8Array(length),
    part: new Uint8Array(length),
    critical: new Uint8Array(length),
  };
}

/** The buffers of events, to hand over to another thread. */
export function buffersOf(events: Events): Transferable[] {
  const { length: _, ...arrays } = events;
  return Object.values(arrays).map((array) => array.buffer as ArrayBuffer);
}

/** What goes to the worker. */
export interface Asked {
  id: number;
  question: Question;
}

/** What comes from the worker: progress of a search, or an answer with the time it took. */
export type Told =
  | { id: number; progress: { makespan: number; lowerBound: number; orders: number } }
  | { id: number; answer: unknown; events: Events | null; ms: number }
  | { id: number; failed: string };
