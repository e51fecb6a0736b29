/** Draws a scene on a canvas, as the drawings of the command look. */

import type { Events } from "../protocol";
import { type Ink, begin, clip, drawAxis, font } from "./axis";
import { KINDS, type Layout, type Scene, firstAfter, labelOf, letterOf } from "./scene";

/** What stands out of a drawing. */
export interface Marks {
  /** The time of the player: what begins later is faint. */
  now: number | null;
  /** The event under the pointer, and the selected one. */
  hovered: number | null;
  selected: number | null;
  /** The events at which the schedule is refused: the cell at fault first, then those that wait too. */
  refused: number[];
  critical: boolean;
  /** While a cell is dragged: its worker, and the time at which it would stand. */
  drop: { worker: number; time: number } | null;
}

/** Events that together are narrower than this are drawn as one. */
const LEAST = 1.5;
const LEAST_LABEL = 7;
/** Pixels of a wait, in the middle of its row. */
const WAIT = 4;

interface Box {
  i: number;
  x: number;
  y: number;
  width: number;
  height: number;
  isCritical: boolean;
}

export function draw(canvas: HTMLCanvasElement, layout: Layout, marks: Marks): void {
  const begun = begin(canvas, layout);
  if (!begun) return;
  const [to, ink] = begun;
  drawGround(to, layout, ink);
  drawAxis(to, layout, ink);
  clip(to, layout);
  const boxes = boxesOf(layout);
  drawBoxes(to, layout.scene, boxes, ink, marks);
  drawLabels(to, layout.scene, boxes, ink, marks);
  drawMarks(to, layout, boxes, ink, marks);
  to.restore();
}

function drawGround(to: CanvasRenderingContext2D, layout: Layout, ink: Ink): void {
  const { scene } = layout;
  const [from, until] = [layout.x(Math.max(0, layout.from)), layout.x(Math.min(scene.end, layout.to))];
  to.textAlign = "right";
  for (let worker = 0; worker < scene.rows.length; worker += 1) {
    to.fillStyle = ink.idle;
    to.fillRect(from, layout.y(worker), until - from, layout.height);
    if (layout.pitch > 12 || worker % Math.ceil(13 / layout.pitch) === 0) {
      to.fillStyle = ink.soft;
      to.fillText(scene.labels.name(worker), layout.left - 8, layout.y(worker) + layout.height / 2);
    }
  }
}

/** What is in sight, with neighbours that are too narrow to be told apart in one box. */
function boxesOf(layout: Layout): Box[] {
  const { scene } = layout;
  const boxes: Box[] = [];
  scene.rows.forEach((row, worker) => {
    const y = layout.y(worker);
    const bar = Math.min(WAIT, layout.height);
    rowBoxes(layout, row.waits, y + (layout.height - bar) / 2, bar, boxes);
    rowBoxes(layout, row.compute, y, layout.height, boxes);
    row.lanes.forEach((lane, nth) => {
      const below = y + layout.height + 1 + nth * layout.lane;
      rowBoxes(layout, lane, below, Math.max(1, layout.lane - 1), boxes);
    });
  });
  return boxes;
}

function rowBoxes(layout: Layout, row: number[], y: number, height: number, into: Box[]): void {
  const { events } = layout.scene;
  let last: Box | null = null;
  for (let at = firstAfter(layout.scene, row, layout.from); at < row.length; at += 1) {
    const i = row[at] as number;
    const start = events.start[i] as number;
    if (start >= layout.to) break;
    const [x, end] = [layout.x(start), layout.x(events.end[i] as number)];
    const part = events.part[i] as number;
    const isCritical = events.critical[i] === 1;
    if (last && part === 0 && end - last.x < LEAST) {
      last.width = end - last.x;
      last.isCritical ||= isCritical;
      continue;
    }
    if (part === 0) {
      last = { i, x, y, width: end - x, height, isCritical };
    } else {
      const half = height / 2;
      last = { i, x, y: part === 1 ? y : y + half, width: end - x, height: half, isCritical };
    }
    into.push(last);
  }
}

function colourOf(scene: Scene, i: number, ink: Ink): string {
  const { tone, colour = "sum" } = KINDS[letterOf(scene.events, i)] ?? {};
  const tones = scene.tones[scene.events.pipe[i] as number] ?? scene.tones[0];
  return (tone === undefined ? undefined : tones?.[tone]) ?? ink[colour];
}

const isLater = (events: Events, i: number, now: number | null): boolean =>
  now !== null && (events.start[i] as number) >= now;

function drawBoxes(
  to: CanvasRenderingContext2D, scene: Scene, boxes: Box[], ink: Ink, marks: Marks,
): void {
  const groups = new Map<string, Box[]>();
  for (const box of boxes) {
    const faint = isLater(scene.events, box.i, marks.now) ? "faint " : "";
    const key = faint + colourOf(scene, box.i, ink);
    const group = groups.get(key);
    if (group) group.push(box);
    else groups.set(key, [box]);
  }
  for (const [key, group] of groups) {
    to.globalAlpha = key.startsWith("faint ") ? 0.16 : 1;
    to.fillStyle = key.replace("faint ", "");
    group.forEach((box) => drawBox(to, box));
  }
  to.globalAlpha = 1;
}

/** One at a time: a path of many thousands takes seconds to fill. */
function drawBox(to: CanvasRenderingContext2D, { x, y, width, height }: Box): void {
  const isWide = width >= 5 && height >= 3;
  if (isWide && height > 8) {
    to.beginPath();
    to.roundRect(x, y, width - 1, height, Math.min(height / 8, 2.5));
    to.fill();
  } else {
    to.fillRect(x, y, isWide ? width - 1 : width, height);
  }
}

function drawLabels(
  to: CanvasRenderingContext2D, scene: Scene, boxes: Box[], ink: Ink, marks: Marks,
): void {
  to.textAlign = "center";
  for (const box of boxes) {
    if (box.width < 8 || box.height < 10) continue;
    const label = labelOf(scene, box.i);
    if (label === "") continue;
    const size = Math.min(box.height * 0.6, 13, (box.width - 2) / (label.length * 0.6));
    if (size <= LEAST_LABEL) continue;
    const isPale = (KINDS[letterOf(scene.events, box.i)]?.tone ?? 0) < 2;
    to.globalAlpha = isLater(scene.events, box.i, marks.now) ? 0.35 : 1;
    to.fillStyle = isPale ? "#1c2733" : "#ffffff";
    if (to.globalAlpha < 1) to.fillStyle = ink.soft;
    to.font = font(size.toFixed(1));
    to.fillText(label, box.x + (box.width - 1) / 2, box.y + box.height / 2 + 0.5);
  }
  to.globalAlpha = 1;
}

function drawMarks(
  to: CanvasRenderingContext2D, layout: Layout, boxes: Box[], ink: Ink, marks: Marks,
): void {
  const { events } = layout.scene;
  const outline = (box: Box, colour: string, line: number) => {
    to.strokeStyle = colour;
    to.lineWidth = line;
    to.strokeRect(box.x - 0.5, box.y - 0.5, Math.max(box.width, 2), box.height + 1);
  };
  for (const box of boxes) {
    if (marks.critical && box.isCritical) outline(box, ink.mark, 1.5);
    const isNow = marks.now !== null && (events.start[box.i] as number) < marks.now
      && (events.end[box.i] as number) >= marks.now;
    if (isNow && layout.height > 8) outline(box, ink.ink, 1.5);
  }
  const outlined: [number | null, string, number][] = [
    [marks.hovered, ink.ink, 1.5], [marks.selected, ink.ink, 2.5],
    ...marks.refused.map((i): [number, string, number] => [i, ink.red, 3]),
  ];
  for (const [i, colour, line] of outlined) {
    const box = i === null ? undefined : boxes.find((box) => box.i === i);
    if (box) outline(box, colour, line);
  }
  if (marks.now !== null) vertical(to, layout, layout.x(marks.now), ink.ink);
  if (marks.drop) {
    const x = layout.x(marks.drop.time);
    to.fillStyle = ink.mark;
    to.fillRect(x - 2, layout.y(marks.drop.worker) - 2, 3, layout.height + 4);
  }
}

function vertical(to: CanvasRenderingContext2D, layout: Layout, x: number, colour: string): void {
  to.strokeStyle = colour;
  to.lineWidth = 1.5;
  to.beginPath();
  to.moveTo(x, layout.top - 4);
  to.lineTo(x, layout.top + layout.rows + 2);
  to.stroke();
}
