/** The thread that runs the module, so that the page never waits for it. */

import moduleAddress from "#module?url";
import { type Asked, type Told, buffersOf, readEvents } from "./protocol";

interface Module {
  memory: WebAssembly.Memory;
  reserve(bytes: number): number;
  ask(): void;
  answer(): number;
  answer_bytes(): number;
  drawn(): number;
  drawn_bytes(): number;
}

/** The question that is being answered. */
let current = 0;

const imports = {
  page: {
    now: () => performance.now(),
    progress: (makespan: number, lowerBound: number, orders: number) => {
      tell({ id: current, progress: { makespan, lowerBound, orders } });
    },
  },
};

const module: Promise<Module> = (async () => {
  const response = await fetch(moduleAddress);
  if (!response.ok) throw new Error(`the module is missing: ${response.status}`);
  // Not by streaming: a server of files may not know the type of a module.
  const { instance } = await WebAssembly.instantiate(await response.arrayBuffer(), imports);
  return instance.exports as unknown as Module;
})();

self.onmessage = async ({ data }: MessageEvent<Asked>) => {
  const { id, question } = data;
  try {
    const m = await module;
    current = id;
    const began = performance.now();
    const bytes = new TextEncoder().encode(JSON.stringify(question));
    const address = m.reserve(bytes.length); // which may move the memory
    new Uint8Array(m.memory.buffer, address, bytes.length).set(bytes);
    m.ask();
    const written = new Uint8Array(m.memory.buffer, m.answer(), m.answer_bytes());
    const answer: unknown = JSON.parse(new TextDecoder().decode(written));
    const drawn = new Uint8Array(m.memory.buffer, m.drawn(), m.drawn_bytes());
    const events = question.ask === "step" ? readEvents(drawn) : null;
    const ms = performance.now() - began;
    tell({ id, answer, events, ms }, events === null ? [] : buffersOf(events));
  } catch (error) {
    tell({ id, failed: error instanceof Error ? error.message : String(error) });
  }
};

function tell(told: Told, transfer: Transferable[] = []): void {
  self.postMessage(told, { transfer });
}
