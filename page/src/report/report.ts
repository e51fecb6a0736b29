/** The script of a run's report: draws the timelines of its data on one scale of time. */

import "./report.css";
import { byId } from "../dom";
import type { Tones } from "../protocol";
import { type Axis, labelsOf } from "../timeline/axis";
import type { TimeCanvas } from "../timeline/canvas";
import { legendOf } from "../timeline/legend";
import type { Scene } from "../timeline/scene";
import { type Slice, tracedScene } from "../timeline/traced";
import { Timeline } from "../timeline/view";
import { type Curve, Memory } from "./memory";

/** A timeline as `lanes.rs` writes it. */
interface Lanes {
  ranks: number[];
  slices: [number, number, number, number, string, string, [string, number, number, string][]][];
  memory: [number, Curve["steps"]][];
  /** Places of the critical path among the slices. */
  critical: number[];
  tones: Record<number, Tones>;
}

/** The factor of the buttons. */
const ZOOM = 2;

const data = JSON.parse(byId("timelines").textContent ?? "{}") as Record<string, Lanes>;
const scenes = Object.entries(data).map(([name, lanes]): [string, Scene] =>
  [name, tracedScene(slicesOf(lanes), lanes.ranks, lanes.tones)]);
// Waits may outlast the work.
const whole = Math.max(0, ...scenes.map(([, { end }]) => end));
const views: TimeCanvas<Axis>[] = [];
const show = (from: number, to: number) => views.forEach((view) => view.zoom([from, to]));

function slicesOf({ slices, critical }: Lanes): Slice[] {
  const isCritical = new Set(critical);
  return slices.map(([rank, , start, took, kind, name, ops], nth) => ({
    rank, start, took, kind, name, isCritical: isCritical.has(nth),
    ops: ops.map(([kind, pipe, stage, micro_batches]) => ({ kind, pipe, stage, micro_batches })),
  }));
}

function drawTimelines(): void {
  for (const [name, scene] of scenes) {
    const timeline = new Timeline({ window: show }, byId(name) as HTMLCanvasElement);
    timeline.rows = Infinity;
    timeline.arrowsMove = true;
    timeline.marks.critical = true;
    timeline.upTo = whole;
    timeline.show(scene, `The timeline ${name}`);
    views.push(timeline);
  }
  byId("kinds").replaceWith(legendOf(scenes.map(([, scene]) => scene)));
}

function drawMemory(canvas: HTMLCanvasElement): void {
  const curves = new Map<number, Curve[]>();
  for (const [name, { memory }] of Object.entries(data)) {
    memory.forEach(([rank, steps]) => curves.set(rank, [...(curves.get(rank) ?? []), { name, steps }]));
  }
  const ranks = [...curves.keys()].sort((a, b) => a - b);
  const memory = new Memory(ranks.map((rank) => curves.get(rank) ?? []), labelsOf(ranks), show, canvas);
  memory.upTo = whole;
  memory.show();
  views.push(memory);
}

if (scenes.length > 0) {
  drawTimelines();
  const memory = document.getElementById("memory");
  if (memory) drawMemory(memory as HTMLCanvasElement);
  byId("in").addEventListener("click", () => views[0]?.zoomMiddle(1 / ZOOM));
  byId("out").addEventListener("click", () => views[0]?.zoomMiddle(ZOOM));
  byId("fit").addEventListener("click", () => show(0, whole));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => views.forEach((view) => view.paint()));
}
document.documentElement.dataset["drawn"] = "true";
