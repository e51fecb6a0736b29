/** What the page shows, and its form in the address. */

import type { NumberRow, Plan } from "./protocol";

/** Numbers that only some schedules read, from the table of the module. */
export const NUMBERS: NumberRow[] = [];
/** Returns the options that only some schedules read; each panel has its own. */
export const ownOptions = (): string[] => [...NUMBERS.map(({ name }) => name), "scaling", "placement"];
export const numberRow = (option: string): NumberRow | undefined => NUMBERS.find(({ name }) => name === option);

/** One schedule of the page. */
export interface Panel {
  schedule: string;
  options: Record<string, string>;
  /** Edited rows, by worker. */
  rows: Record<number, string>;
  /** A timetable that was opened; it does not go into the address. */
  file?: { name: string; text: string };
}

/** What all panels share, and the panels. */
export interface State {
  depth: number;
  microBatches: number;
  forward: number;
  input: number;
  weight: number;
  message: number;
  memoryCap: number | null;
  recompute: string;
  splitBackward: boolean;
  moves: "none" | "bpipe" | "offload";
  panels: Panel[];
  /** The panel that is edited and exported. */
  active: number;
}

/** Seconds that `auto` searches here; the command takes ten. */
const SEARCH_TIME = 5;
const MOST_PANELS = 6;

export function panelOf(schedule: string): Panel {
  return { schedule, options: {}, rows: {} };
}

export function firstState(): State {
  return {
    depth: 4, microBatches: 8,
    forward: 1, input: 1, weight: 1, message: 0,
    memoryCap: null, recompute: "none", splitBackward: false, moves: "none",
    panels: [panelOf("1f1b"), panelOf("chimera")],
    active: 1,
  };
}

export const isFull = (state: State): boolean => state.panels.length >= MOST_PANELS;

/** The plan of a panel. Times that are the command's defaults are not given. */
export function planOf(state: State, panel: Panel): Plan {
  const plan: Plan = {
    schedule: panel.schedule,
    depth: state.depth,
    micro_batches: state.microBatches,
    recompute: state.recompute,
    split_backward: state.splitBackward,
    bpipe: state.moves === "bpipe",
    offload: state.moves === "offload",
    memory_cap: state.memoryCap,
    search_time: SEARCH_TIME,
  };
  for (const [name, time, usual] of times(state)) {
    if (time !== usual) plan[name] = [time];
  }
  for (const [name, text] of Object.entries(panel.options)) {
    const value = name === "scaling" || name === "placement" ? text : Number(text);
    Object.assign(plan, { [name]: value });
  }
  if (Object.keys(panel.rows).length > 0) plan.rows = panel.rows;
  if (panel.file) plan.file = panel.file;
  return plan;
}

/** Each time with its option and its default. */
export function times(state: State): ["forward" | "input" | "weight" | "message", number, number][] {
  return [
    ["forward", state.forward, 1],
    ["input", state.input, 1],
    ["weight", state.weight, 1],
    ["message", state.message, 0],
  ];
}

/** A panel in a word or a few, such as `chimera scaling=halving`. */
export function labelOf(panel: Panel): string {
  const name = panel.file?.name ?? panel.schedule;
  const options = ownOptions().flatMap((option) => {
    const value = panel.options[option];
    return value === undefined ? [] : [`${option.replace("_", "-")}=${value}`];
  });
  return [name, ...options].join(" ");
}

/** The state as the part of the address after `#`. */
export function toAddress(state: State): string {
  const first = firstState();
  const words = new URLSearchParams();
  words.set("d", String(state.depth));
  words.set("n", String(state.microBatches));
  const others: [string, string | number | null, string | number | null][] = [
    ["f", state.forward, first.forward],
    ["i", state.input, first.input],
    ["w", state.weight, first.weight],
    ["c", state.message, first.message],
    ["cap", state.memoryCap, first.memoryCap],
    ["recompute", state.recompute, first.recompute],
    ["split", state.splitBackward ? 1 : 0, 0],
    ["moves", state.moves, first.moves],
  ];
  for (const [key, value, usual] of others) {
    if (value !== usual && value !== null) words.set(key, String(value));
  }
  const named = state.panels.filter((panel) => !panel.file);
  named.forEach((panel, index) => {
    words.append("s", labelOf(panel));
    for (const [worker, row] of Object.entries(panel.rows)) {
      words.append("row", `${index}/${worker}/${row}`);
    }
  });
  words.set("a", String(Math.max(0, named.indexOf(state.panels[state.active] as Panel))));
  return words.toString();
}

/** Reads the state from an address; what is missing or makes no sense is as at first. */
export function fromAddress(hash: string): State {
  const state = firstState();
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (key: string, or: number, least: number, most: number) => {
    const text = words.get(key);
    const value = Number(text);
    return text !== null && Number.isFinite(value) ? Math.min(Math.max(value, least), most) : or;
  };
  state.depth = Math.round(number("d", state.depth, 1, 8192));
  state.microBatches = Math.round(number("n", state.microBatches, 1, 1 << 20));
  state.forward = number("f", state.forward, 0, 1e12);
  state.input = number("i", state.input, 0, 1e12);
  state.weight = number("w", state.weight, 0, 1e12);
  state.message = number("c", state.message, 0, 1e12);
  state.memoryCap = words.has("cap") ? number("cap", 8, 0, 1e6) : null;
  const recompute = words.get("recompute") ?? "";
  if (["full", "selective"].includes(recompute)) state.recompute = recompute;
  state.splitBackward = words.get("split") === "1";
  const moves = words.get("moves");
  if (moves === "bpipe" || moves === "offload") state.moves = moves;
  const panels = words.getAll("s").slice(0, MOST_PANELS).map(panelFrom);
  if (panels.length > 0) state.panels = panels;
  for (const text of words.getAll("row")) {
    const [, panel, worker, row] = /^(\d+)\/(\d+)\/(.*)$/s.exec(text) ?? [];
    const edited = state.panels[Number(panel)];
    if (edited && row !== undefined) edited.rows[Number(worker)] = row;
  }
  state.active = Math.round(number("a", state.panels.length - 1, 0, state.panels.length - 1));
  return state;
}

function panelFrom(label: string): Panel {
  const [schedule = "chimera", ...options] = label.split(/\s+/);
  const panel = panelOf(schedule);
  for (const word of options) {
    const [name = "", value = ""] = word.split("=");
    const option = ownOptions().find((own) => own === name.replace("-", "_"));
    if (option && /^[a-z0-9]{1,12}$/.test(value)) panel.options[option] = value;
  }
  return panel;
}
