/** Curves of the activation memory of ranks: planned ones dashed, measured ones solid. */

import { Axis, type Labels, begin, clip, drawAxis, font } from "../timeline/axis";
import { TimeCanvas } from "../timeline/canvas";

export interface Curve {
  name: string;
  /** Times, and the bytes from then on. */
  steps: [number, number][];
}

/** Pixels of a rank, and of the gap below its curves. */
const ROW = 46;
const GAP = 4;

const UNITS: [number, string][] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

function bytes(n: number): string {
  const [size, unit] = UNITS.find(([size]) => n >= size) ?? [1, "B"];
  return `${Number((n / size).toPrecision(3))} ${unit}`;
}

class MemoryAxis extends Axis {
  constructor(labels: Labels, width: number, from: number, to: number, readonly rows: number) {
    super(labels, width, from, to);
  }
}

export class Memory extends TimeCanvas<MemoryAxis> {
  /** The peak of each rank, and of all. */
  private readonly peaks: number[];
  private readonly peak: number;
  readonly end = 0;

  constructor(
    /** By row. */
    private readonly curves: Curve[][],
    private readonly labels: Labels,
    onWindow: (from: number, to: number) => void,
    canvas: HTMLCanvasElement,
  ) {
    super(onWindow, canvas);
    const largest = (numbers: number[]) => numbers.reduce((most, n) => Math.max(most, n), 0);
    this.peaks = curves.map((all) => largest(all.flatMap(({ steps }) => steps.map(([, n]) => n))));
    this.peak = largest(this.peaks) || 1;
    canvas.setAttribute("aria-label", "Activation memory over time. Arrow keys move the view, plus and minus zoom.");
  }

  show(): void {
    this.paintNow();
  }

  protected draw(width: number, from: number, to: number): MemoryAxis | null {
    const axis = new MemoryAxis(this.labels, width, from, to, this.curves.length * ROW);
    const begun = begin(this.canvas, axis);
    if (!begun) return null;
    const [pen, ink] = begun;
    pen.textAlign = "right";
    pen.fillStyle = ink.soft;
    this.peaks.forEach((peak, row) => {
      const middle = axis.top + (row + 0.5) * ROW;
      pen.fillText(this.labels.name(row), axis.left - 8, middle - 7);
      pen.font = font("11");
      pen.fillText(bytes(peak), axis.left - 8, middle + 7);
      pen.font = font("12");
    });
    drawAxis(pen, axis, ink);
    clip(pen, axis);
    this.curves.forEach((curves, row) => {
      for (const { name, steps } of curves) {
        pen.strokeStyle = name === "planned" ? ink.soft : ink.accent;
        pen.setLineDash(name === "planned" ? [4, 3] : []);
        this.line(pen, axis, steps, axis.top + (row + 1) * ROW - GAP);
      }
    });
    pen.restore();
    return axis;
  }

  private line(pen: CanvasRenderingContext2D, axis: MemoryAxis, steps: Curve["steps"], base: number): void {
    // Dashes of a line that is far longer than the canvas run together.
    const x = (time: number) => Math.min(Math.max(axis.x(time), axis.left - GAP), axis.width + GAP);
    const y = (n: number) => base - (n / this.peak) * (ROW - 2 * GAP);
    let last = 0;
    pen.beginPath();
    for (const [time, n] of steps) {
      pen.lineTo(x(time), y(last));
      pen.lineTo(x(time), y(n));
      last = n;
    }
    pen.stroke();
  }

  protected pointAt(x: number, y: number): string | null {
    const row = this.axis ? Math.floor((y - this.axis.top) / ROW) : -1;
    const curves = this.curves[row];
    if (!this.axis || !curves || x < this.axis.left) return null;
    const time = this.axis.time(x);
    const held = ({ name, steps }: Curve) => `${name} ${bytes(steps.findLast(([at]) => at <= time)?.[1] ?? 0)}`;
    return [`${this.labels.name(row)} at ${this.labels.time(time)}`, ...curves.map(held)].join(" · ");
  }
}
