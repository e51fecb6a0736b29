/** A run's work as a scene: what traces and reports draw. */

import { type Tones, noEvents } from "../protocol";
import { labelsOf } from "./axis";
import { KINDS, NOT_A_CELL, type Scene, sceneOf } from "./scene";

/** A piece of work on a rank, with times in seconds. */
export interface Slice {
  rank: number;
  start: number;
  took: number;
  kind: string;
  name: string;
  ops: { kind: string; pipe: number; stage: number; micro_batches: string }[];
  isCritical?: boolean;
}

/** Letters of what is not an op. */
const LETTERS: Record<string, string> = { reduction: "G", update: "U", wait: "-" };

/** The scene of these ranks, a row for each. */
export function tracedScene(slices: Slice[], ranks: number[], tones: Record<number, Tones>): Scene {
  const rows = new Map(ranks.map((rank, nth) => [rank, nth]));
  const sorted = slices.filter(({ rank }) => rows.has(rank)).sort((a, b) => a.start - b.start);
  const events = noEvents(sorted.reduce((n, { ops }) => n + Math.max(1, ops.length), 0));
  const names = new Map<number, string>();
  const cells = ranks.map(() => 0);
  let i = 0;
  for (const { rank, start, took, kind, name, ops, isCritical } of sorted) {
    const row = rows.get(rank) ?? 0;
    const bucket = /\d+$/.exec(name)?.[0] ?? "0";
    const all = ops.length > 0 ? ops : [{ kind: LETTERS[kind] ?? "?", pipe: 0, stage: 0, micro_batches: bucket }];
    const cell = ops.length > 0 ? (cells[row] as number) : NOT_A_CELL;
    if (ops.length > 0) cells[row] = cell + 1;
    all.forEach((op, nth) => {
      const [first = 0, last = first] = op.micro_batches.split("-").map(Number);
      events.start[i] = start;
      events.end[i] = start + took;
      events.cell[i] = cell;
      events.unit[i] = first;
      events.units[i] = last - first + 1;
      events.stage[i] = op.stage;
      events.pipe[i] = op.pipe;
      events.worker[i] = row;
      events.letter[i] = op.kind.charCodeAt(0);
      events.part[i] = all.length > 1 ? nth + 1 : 0;
      events.critical[i] = Number(isCritical ?? false);
      if (KINDS[op.kind]?.tone === undefined && op.kind !== "G" && op.kind !== "U") names.set(i, name);
      i += 1;
    });
  }
  return sceneOf(events, ranks.length, tones, { labels: labelsOf(ranks), names });
}
