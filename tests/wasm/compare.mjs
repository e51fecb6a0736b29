// Runs the module under Node and compares its answers with the command's: node compare.mjs MODULE CHIMERA

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";

const [path, chimera] = process.argv.slice(2);
// The module imports nothing: no clock, no randomness, no file.
const { instance } = await WebAssembly.instantiate(readFileSync(path), {});
const { memory, reserve, show, answer, answer_bytes } = instance.exports;

function ofModule(name, depth, microBatches) {
  const bytes = new TextEncoder().encode(name);
  const address = reserve(bytes.length);
  new Uint8Array(memory.buffer, address, bytes.length).set(bytes);
  const makespan = show(depth, microBatches);
  const text = new TextDecoder().decode(new Uint8Array(memory.buffer, answer(), answer_bytes()));
  return { makespan, text };
}

function ofCommand(...args) {
  const { status, stdout, stderr, error } = spawnSync(chimera, args, { encoding: "utf8" });
  if (error) throw error;
  return { status, stdout, stderr };
}

const cases = [
  ["gpipe", 4, 8], ["1f1b", 4, 8], ["seq1f1b", 4, 8], ["gems", 4, 8], ["chimera", 4, 4],
  ["chimera", 8, 32], ["interleaved", 4, 8], ["zb-h1", 4, 8], ["zb-h2", 4, 8], ["zb-v", 4, 8],
  ["v-half", 4, 8], ["v-min", 4, 8], ["hanayo", 4, 8], ["dualpipe", 4, 8], ["dualpipe-v", 4, 8],
  ["mixpipe", 4, 8], ["pipedream", 4, 8], ["pipedream-2bw", 4, 8], ["timeprest", 4, 8],
  ["pipeoptim", 4, 8], ["auto", 4, 4], ["chimera", 3, 4], ["1f2b", 4, 8],
];
let failures = 0;
for (const [name, depth, microBatches] of cases) {
  const shape = ["--depth", `${depth}`, "--micro-batches", `${microBatches}`];
  if (name === "auto") shape.push("--placement", "wave");
  const { makespan, text } = ofModule(name, depth, microBatches);
  const shown = ofCommand("schedule", "show", name, ...shape);
  let same;
  if (Number.isNaN(makespan)) {
    same = shown.status !== 0 && shown.stderr.includes(text);
  } else {
    const figures = JSON.parse(ofCommand("simulate", name, ...shape, "--json").stdout);
    same = shown.stdout.startsWith(text) && figures.makespan === makespan;
  }
  const answer = Number.isNaN(makespan) ? `refused: ${text}` : `makespan ${makespan}`;
  console.log(`${same ? "same" : "DIFFERS"}  ${name} ${depth}x${microBatches}: ${answer}`);
  if (!same) {
    failures += 1;
    console.error(`module:\n${text}\ncommand:\n${shown.stdout}${shown.stderr}`);
  }
}
if (failures > 0) {
  console.error(`${failures} of ${cases.length} answers differ from the command's`);
  process.exit(1);
}
