/** The worker, as promises. Of several questions in one slot only the newest is answered. */

import type { Asked, Events, Question, Told } from "./protocol";

export interface Answer<T> {
  answer: T;
  events: Events | null;
  ms: number;
}

export type Progress = Extract<Told, { progress: unknown }>["progress"];

interface Waiting {
  question: Question;
  resolve: (answer: Answer<unknown> | null) => void;
  onProgress: ((progress: Progress) => void) | undefined;
}

/** A question that takes longer gives way to a newer one in its slot. */
const PATIENCE_MS = 3000;

export class Engine {
  private worker = this.start();
  private nextId = 1;
  private nextSlot = 0;
  private running: (Waiting & { id: number; slot: string; since: number }) | null = null;
  private readonly waiting = new Map<string, Waiting>();

  /** Asks in a slot. The promise gives `null` if a newer question took the slot. */
  ask<T>(
    question: Question,
    slot = `once ${(this.nextSlot += 1)}`,
    onProgress?: (progress: Progress) => void,
  ): Promise<Answer<T> | null> {
    return new Promise((resolve) => {
      this.waiting.get(slot)?.resolve(null);
      this.waiting.set(slot, { question, onProgress, resolve: resolve as Waiting["resolve"] });
      const { running } = this;
      if (running?.slot === slot && performance.now() - running.since > PATIENCE_MS) this.restart(null);
      this.next();
    });
  }

  /** Whether it computes. */
  get isRunning(): boolean {
    return this.running !== null;
  }

  /** Ends what runs, such as a search that is not wanted any more. */
  stop(): void {
    this.restart(null);
    for (const { resolve } of this.waiting.values()) resolve(null);
    this.waiting.clear();
  }

  private start(): Worker {
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Told>) => this.hear(data);
    worker.onerror = (event) => this.fail(event.message);
    return worker;
  }

  /** A new worker in place of this one, whose question gets an answer from here. */
  private restart(answer: Answer<unknown> | null): void {
    this.worker.terminate();
    this.worker = this.start();
    const { running } = this;
    this.running = null;
    running?.resolve(answer);
  }

  /** A module that has failed may have left anything in its memory. */
  private fail(why: string): void {
    const error = `the page could not compute this, for want of memory or by a fault of its own: ${why}`;
    this.restart({ answer: { error }, events: null, ms: 0 });
    this.next();
  }

  private next(): void {
    if (this.running) return;
    const [first] = this.waiting;
    if (!first) return;
    const [slot, waiting] = first;
    this.waiting.delete(slot);
    this.running = { ...waiting, slot, id: (this.nextId += 1), since: performance.now() };
    const asked: Asked = { id: this.running.id, question: waiting.question };
    this.worker.postMessage(asked);
  }

  private hear(told: Told): void {
    const running = this.running;
    if (!running || running.id !== told.id) return;
    if ("progress" in told) {
      running.onProgress?.(told.progress);
      return;
    }
    if ("failed" in told) {
      this.fail(told.failed);
      return;
    }
    this.running = null;
    // A newer question in the slot makes this answer old, but it is drawn all the same: while a
    // slider moves, something moves with it.
    running.resolve({ answer: told.answer, events: told.events, ms: told.ms });
    this.next();
  }
}
