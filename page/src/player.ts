/** Plays the timelines: all at once, from the start of the step. */

import { byId, button, choice, el } from "./dom";
import type { PanelView } from "./panel";
import { figure } from "./words";

/** Seconds that the longest timeline plays at speed 1. */
const WHOLE_S = 12;

export class Player {
  private now: number | null = null;
  private speed = 1;
  private last = 0;
  private isPlaying = false;
  private readonly time = el("input", { type: "range", min: 0, max: 1000, step: 1, value: 0, "aria-label": "Time" });
  private readonly play = button("Play", () => this.toggle(), { class: "play" });
  private readonly at = el("output", { class: "at" });
  private readonly critical = el("input", { type: "checkbox", id: "critical" });

  constructor(private readonly panels: () => PanelView[]) {
    const speeds: [string, string][] = [["0.25", "¼ speed"], ["1", "speed 1"], ["4", "speed 4"]];
    byId("player").append(
      this.play,
      button("‹", () => this.step(-1), { "aria-label": "One event back", class: "quiet" }),
      button("›", () => this.step(1), { "aria-label": "One event on", class: "quiet" }),
      this.time, this.at,
      choice("Speed", speeds, "1", (value) => { this.speed = Number(value); }),
      button("−", () => this.zoom(1.5), { "aria-label": "Zoom out", class: "quiet" }),
      button("+", () => this.zoom(1 / 1.5), { "aria-label": "Zoom in", class: "quiet" }),
      button("Fit", () => this.panels().forEach((panel) => panel.timeline.zoom(null)), { class: "quiet" }),
      el("label", { class: "check", for: "critical" }, this.critical, "critical path"),
    );
    this.time.addEventListener("input", () => {
      this.pause();
      this.go((Number(this.time.value) / 1000) * this.end());
    });
    this.critical.addEventListener("change", () => this.mark());
  }

  /** Goes back to showing all, as after a change of the schedules. */
  reset(): void {
    this.pause();
    this.go(null);
  }

  /** The last end of all timelines that are proven. */
  private end(): number {
    return Math.max(0, ...this.runners().map((panel) => panel.timeline.end));
  }

  private runners(): PanelView[] {
    return this.panels().filter((panel) => panel.step?.figures);
  }

  private toggle(): void {
    if (this.isPlaying) {
      this.pause();
      return;
    }
    if (this.now === null || this.now >= this.end()) this.go(0);
    this.isPlaying = true;
    this.play.textContent = "Pause";
    this.last = performance.now();
    requestAnimationFrame(() => this.frame());
  }

  private pause(): void {
    this.isPlaying = false;
    const several = this.runners().length > 1;
    this.play.textContent = several ? "Race" : "Play";
  }

  private frame(): void {
    if (!this.isPlaying) return;
    const now = performance.now();
    const by = ((now - this.last) / 1000 / WHOLE_S) * this.speed * this.end();
    this.last = now;
    this.go(Math.min((this.now ?? 0) + by, this.end()));
    if (this.now === this.end()) this.pause();
    else requestAnimationFrame(() => this.frame());
  }

  /** Goes to the next or the last time at which an op begins or ends. */
  private step(by: 1 | -1): void {
    this.pause();
    const now = this.now ?? (by === 1 ? 0 : this.end());
    let next = by === 1 ? this.end() : 0;
    const slack = this.end() * 1e-9;
    for (const { timeline } of this.runners()) {
      for (const time of timeline.times()) {
        if (by === 1 && time > now + slack) next = Math.min(next, time);
        if (by === -1 && time < now - slack) next = Math.max(next, time);
      }
    }
    this.go(next);
  }

  private go(now: number | null): void {
    this.now = now;
    const end = this.end();
    this.time.value = String(now === null || end === 0 ? 1000 : Math.round((now / end) * 1000));
    this.at.textContent = now === null ? "" : figure(Number(now.toPrecision(4)));
    this.mark();
  }

  private mark(): void {
    const { now } = this;
    const done = this.runners().filter((panel) => now !== null && panel.timeline.end <= now);
    const first = Math.min(...done.map((panel) => panel.timeline.end));
    for (const panel of this.panels()) {
      panel.timeline.marks.now = panel.step?.figures ? now : null;
      panel.timeline.marks.critical = this.critical.checked;
      panel.timeline.paint();
      const isDone = done.includes(panel) && this.runners().length > 1;
      const end = panel.timeline.end;
      panel.finish(!isDone ? "" : end === first ? "first" : `${figure(Number((end - first).toPrecision(4)))} later`);
    }
  }

  private zoom(by: number): void {
    this.panels()[0]?.timeline.zoomMiddle(by);
  }
}
