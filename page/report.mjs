// Bundles src/report into the script and the style sheet of `chimera report`: node report.mjs [--check]
// Both are committed, since building the command takes neither Node nor a network.

import { readFileSync, writeFileSync } from "node:fs";
import { argv, exit } from "node:process";
import { build } from "vite";

const FOLDER = new URL("../src/cli/parts/training/report/", import.meta.url);

const [{ output }] = await build({
  configFile: false,
  logLevel: "warn",
  build: {
    write: false, target: "es2022", minify: false, cssMinify: false,
    lib: { entry: "src/report/report.ts", formats: ["iife"], name: "report" },
  },
});
let isStale = false;
for (const file of output) {
  const ending = file.type === "chunk" ? "js" : "css";
  const made = `/* Generated from page/src/report by "cargo xtask page". */\n${file.code ?? file.source}`;
  const path = new URL(`page.${ending}`, FOLDER);
  if (readFileSync(path, "utf8") === made) continue;
  if (!argv.includes("--check")) writeFileSync(path, made);
  else console.error(`${path.pathname} is not up to date`);
  isStale = true;
}
if (isStale && argv.includes("--check")) {
  console.error("build the script of reports again: cargo xtask page");
  exit(1);
}
