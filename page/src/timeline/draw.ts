/** Draws a scene on a canvas, as the drawings of the command look. */

import type { Events } from "../protocol";
import { type Layout, type Scene, firstAfter, labelOf, short } from "./scene";

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
const FONT = "Inter, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";

interface Ink {
  ink: string;
  soft: string;
  ground: string;
  line: string;
  step: string;
  sum: string;
  red: string;
  mark: string;
}

function inks(element: Element): Ink {
  const style = getComputedStyle(element);
  const of = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: of("ink"), soft: of("soft"), ground: of("idle"), line: of("line"), step: of("step"),
    sum: of("sum"), red: of("red"), mark: of("mark"),
  };
}

/** The tone of each letter: pale, medium, strong, dark. */
export const TONES: Record<string, 0 | 1 | 2 | 3> = {
  F: 0, R: 0, O: 0, K: 0, W: 1, L: 1, T: 1, I: 2, B: 3,
};

interface Box {
  i: number;
  x: number;
  y: number;
  width: number;
  height: number;
}

export function draw(canvas: HTMLCanvasElement, layout: Layout, marks: Marks): void {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [layout.width, layout.whole];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const to = canvas.getContext("2d");
  if (!to) return;
  const ink = inks(canvas);
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  to.clearRect(0, 0, width, height);
  drawGround(to, layout, ink);
  drawAxis(to, layout, ink);
  to.save();
  to.beginPath();
  to.rect(layout.left, 0, width - layout.left, height);
  to.clip();
  const boxes = boxesOf(layout);
  drawBoxes(to, layout.scene, boxes, ink, marks);
  drawLabels(to, layout.scene, boxes, ink, marks);
  drawMarks(to, layout, boxes, ink, marks);
  to.restore();
}

function drawGround(to: CanvasRenderingContext2D, layout: Layout, ink: Ink): void {
  const { scene } = layout;
  const [from, until] = [layout.x(Math.max(0, layout.from)), layout.x(Math.min(scene.end, layout.to))];
  to.font = `12px ${FONT}`;
  to.textAlign = "right";
  to.textBaseline = "middle";
  for (let worker = 0; worker < scene.rows.length; worker += 1) {
    to.fillStyle = ink.ground;
    to.fillRect(from, layout.y(worker), until - from, layout.height);
    if (layout.pitch > 12 || worker % Math.ceil(13 / layout.pitch) === 0) {
      to.fillStyle = ink.soft;
      to.fillText(`P${worker}`, layout.left - 8, layout.y(worker) + layout.height / 2);
    }
  }
}

function drawAxis(to: CanvasRenderingContext2D, layout: Layout, ink: Ink): void {
  if (layout.scale <= 0) return;
  const step = roundAbove(64 / layout.scale);
  const bottom = layout.whole - layout.axis;
  to.textAlign = "center";
  to.lineWidth = 1;
  for (let n = Math.ceil(layout.from / step); n * step <= layout.to; n += 1) {
    const x = Math.round(layout.x(n * step)) + 0.5;
    to.strokeStyle = ink.line;
    to.beginPath();
    to.moveTo(x, layout.top - 4);
    to.lineTo(x, bottom + 2);
    to.stroke();
    to.fillStyle = ink.soft;
    to.fillText(short(n * step), x, bottom + 12);
  }
}

/** The least of 1, 2 and 5 times a power of ten that is at least `least`. */
function roundAbove(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((by) => by * power).find((step) => step >= least) ?? 10 * power;
}

/** What is in sight, with neighbours that are too narrow to be told apart in one box. */
function boxesOf(layout: Layout): Box[] {
  const { scene } = layout;
  const boxes: Box[] = [];
  scene.rows.forEach((row, worker) => {
    const y = layout.y(worker);
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
    if (last && part === 0 && end - last.x < LEAST) {
      last.width = end - last.x;
      continue;
    }
    if (part === 0) {
      last = { i, x, y, width: end - x, height };
    } else {
      const half = height / 2;
      last = { i, x, y: part === 1 ? y : y + half, width: end - x, height: half };
    }
    into.push(last);
  }
}

function colourOf(scene: Scene, i: number, ink: Ink): string {
  const letter = String.fromCharCode(scene.events.letter[i] as number);
  if (letter === "U") return ink.step;
  if (letter === "G") return ink.sum;
  const tones = scene.tones[scene.events.pipe[i] as number] ?? scene.tones[0];
  return tones?.[TONES[letter] ?? 0] ?? ink.sum;
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
  to.textBaseline = "middle";
  for (const box of boxes) {
    if (box.width < 8 || box.height < 10) continue;
    const label = labelOf(scene, box.i);
    if (label === "") continue;
    const size = Math.min(box.height * 0.6, 13, (box.width - 2) / (label.length * 0.6));
    if (size <= LEAST_LABEL) continue;
    const letter = String.fromCharCode(scene.events.letter[box.i] as number);
    to.globalAlpha = isLater(scene.events, box.i, marks.now) ? 0.35 : 1;
    to.fillStyle = letter === "B" || letter === "I" ? "#ffffff" : "#1c2733";
    if (to.globalAlpha < 1) to.fillStyle = ink.soft;
    to.font = `${size.toFixed(1)}px ${FONT}`;
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
    if (marks.critical && events.critical[box.i] === 1) outline(box, ink.mark, 1.5);
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
  to.lineTo(x, layout.whole - layout.axis + 2);
  to.stroke();
}
