/** What all drawings over time share: positions, the axis with its numbers, and colours. */

/** How rows and times are named. */
export interface Labels {
  /** A row in a sentence, such as `worker 3`. */
  row: (nth: number) => string;
  /** Its name beside the row, such as `P3`. */
  name: (nth: number) => string;
  time: (time: number, digits?: number) => string;
  /** Pixels for names beside the rows. */
  left: number;
}

/** Workers of a schedule, whose times have no unit. */
export const WORKERS: Labels = { row: (nth) => `worker ${nth}`, name: (nth) => `P${nth}`, time: short, left: 40 };

/** Ranks of a run, with times in seconds. */
export function labelsOf(ranks: number[]): Labels {
  const row = (nth: number) => `rank ${ranks[nth]}`;
  return { row, name: row, time: seconds, left: 64 };
}

/** A number with four significant digits, or as many as are asked for. */
export function short(x: number, digits = 4): string {
  return String(Number(x.toPrecision(digits)));
}

const UNITS: [number, string][] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

/** Seconds in the largest unit that gives at least 1. */
export function seconds(x: number, digits = 4): string {
  const [size, unit] = UNITS.find(([size]) => Math.abs(x) >= size) ?? [1, "s"];
  return `${short(x / size, digits)} ${unit}`;
}

/** Positions on a canvas, where time goes to the right. */
export abstract class Axis {
  readonly top = 6;

  constructor(
    readonly labels: Labels,
    readonly width: number,
    /** The times at the left and the right edge. */
    readonly from: number,
    readonly to: number,
  ) {}

  /** Pixels of all rows. */
  abstract get rows(): number;

  /** Pixels of the canvas, with numbers below the rows. */
  get whole(): number {
    return this.top + this.rows + 22;
  }

  get left(): number {
    return this.labels.left;
  }

  /** Pixels per unit of time. */
  get scale(): number {
    const span = this.to - this.from;
    return span > 0 ? (this.width - this.left - 8) / span : 0;
  }

  x(time: number): number {
    return this.left + (time - this.from) * this.scale;
  }

  time(x: number): number {
    return this.scale > 0 ? this.from + (x - this.left) / this.scale : 0;
  }
}

const FAMILY = "Inter, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif";

export const font = (size: string): string => `${size}px ${FAMILY}`;

const INKS = ["ink", "soft", "idle", "line", "edge", "step", "sum", "work", "red", "mark", "accent"] as const;

export type Ink = Record<(typeof INKS)[number], string>;

/** The colours of an element's style sheet. */
function inksOf(element: Element): Ink {
  const style = getComputedStyle(element);
  return Object.fromEntries(INKS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as Ink;
}

/** Clears a canvas and draws the axis. Returns what one draws with: only to the right of the names. */
export function begin(canvas: HTMLCanvasElement, axis: Axis): [CanvasRenderingContext2D, Ink] | null {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [axis.width, axis.whole];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const to = canvas.getContext("2d");
  if (!to) return null;
  const ink = inksOf(canvas);
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  to.clearRect(0, 0, width, height);
  to.font = font("12");
  to.textBaseline = "middle";
  to.lineWidth = 1;
  return [to, ink];
}

/** Draws lines and numbers of times. */
export function drawAxis(to: CanvasRenderingContext2D, axis: Axis, ink: Ink): void {
  if (axis.scale <= 0) return;
  const { labels } = axis;
  // Numbers far from zero need more digits to differ.
  const digits = Math.min(Math.max(4, Math.ceil(Math.log10((axis.to * axis.scale) / 64)) + 1), 15);
  const room = Math.max(64, to.measureText(labels.time(axis.to, digits)).width + 16);
  const step = roundAbove(room / axis.scale);
  const bottom = axis.top + axis.rows;
  to.textAlign = "center";
  for (let n = Math.ceil(axis.from / step); n * step <= axis.to; n += 1) {
    const x = Math.round(axis.x(n * step)) + 0.5;
    to.strokeStyle = ink.line;
    to.beginPath();
    to.moveTo(x, axis.top - 4);
    to.lineTo(x, bottom + 2);
    to.stroke();
    to.fillStyle = ink.soft;
    const text = labels.time(n * step, digits);
    to.fillText(text, Math.min(x, axis.width - to.measureText(text).width / 2), bottom + 12);
  }
}

/** Keeps what follows to the right of the names, until `to.restore()`. */
export function clip(to: CanvasRenderingContext2D, axis: Axis): void {
  to.save();
  to.beginPath();
  to.rect(axis.left, 0, axis.width - axis.left, axis.whole);
  to.clip();
}

/** The least of 1, 2 and 5 times a power of ten that is at least `least`. */
function roundAbove(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((by) => by * power).find((step) => step >= least) ?? 10 * power;
}
