// The page in a headless Chromium, served by the command: node browser.mjs CHIMERA PAGE CHROMIUM OUT
// Its claims are checked one by one, and pictures are taken. A browser that cannot fail a check shows nothing, so the
// first check is that an error of a script is seen.

import { spawn } from "node:child_process";
import { mkdirSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { edits } from "./edits.mjs";
import { addresses, dragsAndKeys, files, names, race, traces, widths } from "./checks.mjs";
import { pictures } from "./pictures.mjs";

const [chimera, folder, executablePath, out] = process.argv.slice(2);
mkdirSync(out, { recursive: true });

/** The server, and the address that it prints. */
function serve() {
  const server = spawn(chimera, ["schedule", "explore", "--page", folder], { stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.once("exit", (code) => reject(new Error(`the server ended: ${code}`)));
    server.stdout.on("data", (data) => {
      const address = /http:\/\/\S+/.exec(String(data))?.[0];
      if (address) resolve({ server, address });
    });
  });
}

const sizeOf = (path) => {
  const found = statSync(path);
  if (!found.isDirectory()) return found.size;
  return readdirSync(path).reduce((sum, name) => sum + sizeOf(join(path, name)), 0);
};

export function ensure(isTrue, what) {
  if (!isTrue) throw new Error(what);
}

const { server, address } = await serve();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const complaints = [];

/** A new page, whose console and requests are watched. */
export async function open(hash = "", options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 940 }, ...options });
  const page = await context.newPage();
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("requestfailed", (request) => complaints.push(`${request.url()} failed`));
  page.on("request", (request) => {
    const url = request.url();
    const isOwn = url.startsWith(address) || url.startsWith("blob:") || url.startsWith("data:");
    if (!isOwn) complaints.push(`it asked ${url}`);
  });
  await page.goto(address + (hash ? `#${hash}` : ""));
  await answered(page);
  return page;
}

/** Waits until every panel shows the answer to what is asked. */
export async function answered(page, timeout = 120_000) {
  await page.waitForFunction(() => {
    const panels = [...document.querySelectorAll("article.panel")];
    return panels.length > 0 && panels.every((panel) => panel.dataset.state && panel.getAttribute("aria-busy") === "false");
  }, null, { timeout });
}

async function seesErrors() {
  const page = await open();
  await page.evaluate(() => { setTimeout(() => { throw new Error("on purpose"); }); });
  for (let n = 0; n < 50 && complaints.length === 0; n += 1) await page.waitForTimeout(100);
  ensure(complaints.length === 1, "an error of a script goes unseen");
  complaints.length = 0;
  await page.context().close();
}

/** The time from a question to what is drawn, and the longest time in which the page did not draw. */
async function times() {
  const page = await open("s=1f1b&d=8&n=16");
  for (const [schedule, most] of [["1f1b", 1000], ["chimera", 1000], ["zb-v", 3000]]) {
    const tries = [];
    for (let nth = 0; nth < 3; nth += 1) {
      await page.goto(`${address}#s=${schedule}&d=4&n=8`);
      await answered(page);
      await page.waitForTimeout(500);
      const took = await page.evaluate(([schedule, nth]) => {
        let [longest, last, isOver] = [0, performance.now(), false];
        const frame = () => {
          longest = Math.max(longest, performance.now() - last);
          last = performance.now();
          if (!isOver) requestAnimationFrame(frame);
        };
        requestAnimationFrame(frame);
        const began = performance.now();
        // Another time of messages each time: the module keeps the last timetables.
        location.hash = `s=${schedule}&d=64&n=512&c=${nth / 1000}`;
        return new Promise((resolve) => {
          const look = () => {
            const panel = document.querySelector("article.panel");
            const isThere = panel?.dataset.plan?.includes('"depth":64') && panel.dataset.state === "proven";
            if (!isThere) return setTimeout(look, 2);
            isOver = true;
            resolve({ all: performance.now() - began, worker: Number(panel.dataset.ms), drawn: Number(panel.dataset.drawn), longest });
          };
          look();
        });
      }, [schedule, nth]);
      tries.push(took);
    }
    const best = tries.reduce((a, b) => (a.all < b.all ? a : b));
    const all = tries.map(({ all }) => Math.round(all)).join(", ");
    console.log(
      `${schedule}, D = 64, N = 512: drawn after ${all} ms; in the best ${Math.round(best.worker)} ms in the worker, ` +
      `${Math.round(best.drawn)} ms to draw, and the page stood still for ${Math.round(best.longest)} ms`,
    );
    ensure(best.all < most, `${schedule} took ${Math.round(best.all)} ms, more than ${most}`);
    ensure(best.longest < 300, `the page stood still for ${Math.round(best.longest)} ms`);
  }
  await page.context().close();
}

const bytes = sizeOf(folder);
console.log(`the page has ${(bytes / 1e6).toFixed(2)} MB`);
ensure(bytes < 5e6, "the page has more than 5 MB");

const n = Number(process.env.CHIMERA_EDITS ?? 1000);
const checks = {
  seesErrors, names, widths, addresses, dragsAndKeys, race: () => race(chimera),
  files: () => files(chimera, out), traces: () => traces(chimera, out), edits: () => edits(chimera, out, n), times,
  pictures: () => pictures(out),
};
const wanted = process.env.CHIMERA_CHECKS?.split(",");
try {
  for (const [name, check] of Object.entries(checks)) {
    if (wanted && !wanted.includes(name)) continue;
    await check();
    ensure(complaints.length === 0, `${name}: the browser complains:\n${complaints.join("\n")}`);
    console.log(`passed: ${name}`);
  }
} finally {
  await browser.close();
  server.removeAllListeners("exit");
  server.kill();
}
