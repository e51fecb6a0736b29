/** A canvas over time that one points at, zooms and moves. */

import type { Axis } from "./axis";

/** Pixels that the pointer moves before a press becomes a drag. */
const SLACK = 4;
/** How much narrower than the whole a view may be. */
const NARROWEST = 1e-6;
/** The factor of a key, and the share of the view by which arrow keys move it. */
const ZOOM = 1.5;
const MOVE = 0.2;

/** A press of the pointer, with the view at that time. */
export interface Press {
  x: number;
  from: number;
  to: number;
  isDrag: boolean;
}

export abstract class TimeCanvas<A extends Axis> {
  readonly element = document.createElement("div");
  private readonly tip = document.createElement("div");
  protected axis: A | null = null;
  private press: Press | null = null;
  private longest = 0;
  private window: [number, number] | null = null;
  private queued = false;

  /** `onWindow` hears to which times the view was zoomed or moved, and shows them. */
  constructor(
    private readonly onWindow: (from: number, to: number) => void,
    protected readonly canvas = document.createElement("canvas"),
  ) {
    this.element.className = "timeline";
    this.tip.className = "tip";
    this.tip.hidden = true;
    canvas.replaceWith(this.element);
    this.element.append(canvas, this.tip);
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    this.listen();
    new ResizeObserver(() => this.paint()).observe(this.element);
  }

  /** The end of what is drawn. */
  abstract get end(): number;

  /** Draws the times from one to another. Returns the positions, `null` if there is nothing yet. */
  protected abstract draw(width: number, from: number, to: number): A | null;

  /** Describes what is at a place, if anything. */
  protected abstract pointAt(x: number, y: number): string | null;

  /** Draws up to this time, so that several canvases have one scale. */
  set upTo(longest: number) {
    this.longest = longest;
    this.paint();
  }

  /** Shows these times; `null` shows all. */
  zoom(window: [number, number] | null): void {
    this.window = window;
    this.paint();
  }

  /** Draws soon, once for all changes until then. */
  paint(): void {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => {
      this.queued = false;
      this.paintNow();
    });
  }

  protected paintNow(): void {
    const width = this.element.clientWidth;
    if (width === 0) return;
    this.axis = this.draw(width, ...this.view);
  }

  /** The times that are shown, or will be in the next frame. */
  private get view(): [number, number] {
    return this.window ?? [0, this.whole];
  }

  private get whole(): number {
    return Math.max(this.longest, this.end);
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", () => {
      this.press = null;
      this.release(null, 0);
    });
    canvas.addEventListener("pointerleave", () => this.tell(this.pointAt(-1, -1), 0, 0));
    canvas.addEventListener("dblclick", () => this.look(null));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || !this.axis || !this.key(event)) return;
      event.preventDefault();
    });
  }

  protected down(event: PointerEvent): void {
    if (!this.axis || event.button !== 0) return;
    const { from, to } = this.axis;
    this.press = { x: event.offsetX, from, to, isDrag: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  private moved({ offsetX: x, offsetY: y }: PointerEvent): void {
    const { press } = this;
    if (!press) {
      this.tell(this.pointAt(x, y), x, y);
      return;
    }
    if (!press.isDrag && Math.abs(x - press.x) < SLACK) return;
    press.isDrag = true;
    this.drag(press, x, y);
  }

  private up(event: PointerEvent): void {
    const { press } = this;
    this.press = null;
    if (press) this.release(press, event.offsetX);
  }

  /** Moves the view with the pointer. */
  protected drag(press: Press, x: number, _y: number): void {
    if (!this.axis) return;
    this.tell(null, x, 0);
    const by = (press.x - x) / this.axis.scale;
    this.look([press.from + by, press.to + by]);
  }

  /** Ends a press, with `null` if it was broken off. */
  protected release(_press: Press | null, _x: number): void {}

  /** Follows a key. Returns false if it means nothing here. */
  protected key({ key }: KeyboardEvent): boolean {
    const keys: Record<string, () => void> = {
      "+": () => this.zoomMiddle(1 / ZOOM), "=": () => this.zoomMiddle(1 / ZOOM), "-": () => this.zoomMiddle(ZOOM),
      0: () => this.look(null), Escape: () => this.look(null),
      ArrowLeft: () => this.move(-MOVE), ArrowRight: () => this.move(MOVE),
    };
    const act = keys[key];
    act?.();
    return act !== undefined;
  }

  /** Shows words beside a place; `null` hides them. */
  protected tell(text: string | null, x: number, y: number): void {
    this.tip.hidden = text === null;
    if (text === null) return;
    this.tip.textContent = text;
    const room = this.element.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(4, Math.min(x + 12, room))}px`;
    this.tip.style.top = `${y + 18}px`;
  }

  private wheel(event: WheelEvent): void {
    if (!this.axis) return;
    const { from, to, scale } = this.axis;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoomBy(Math.exp(event.deltaY / 300), this.axis.time(event.offsetX));
    } else if (this.window && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) {
      event.preventDefault();
      const by = (event.deltaX || event.deltaY) / scale;
      this.look([from + by, to + by]);
    }
  }

  /** Zooms around a time. */
  private zoomBy(by: number, around: number): void {
    const [from, to] = this.view;
    this.look([around - (around - from) * by, around + (to - around) * by]);
  }

  /** Zooms around the middle. */
  zoomMiddle(by: number): void {
    const [from, to] = this.view;
    this.zoomBy(by, (from + to) / 2);
  }

  /** Moves the view by a share of its width. */
  private move(share: number): void {
    const [from, to] = this.view;
    this.look([from + share * (to - from), to + share * (to - from)]);
  }

  /** Asks for a view, within the whole; `null` is all of it. */
  private look(window: [number, number] | null): void {
    const { whole } = this;
    const [from, to] = window ?? [0, whole];
    const span = Math.min(Math.max(to - from, whole * NARROWEST), whole);
    const start = Math.min(Math.max(from, 0), whole - span);
    this.onWindow(start, start + span);
  }
}
