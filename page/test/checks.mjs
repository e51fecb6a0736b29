// Checks of what one does on the page.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { answered, ensure, open } from "./browser.mjs";

const dataOf = (page) => page.evaluate(() => [...document.querySelectorAll("article.panel")].map((panel) => ({
  state: panel.dataset.state, plan: panel.dataset.plan, text: panel.querySelector(".figures").textContent,
  verdict: panel.querySelector(".verdict").textContent,
})));

/** Everything that one can use has a name for a screen reader. */
export async function names() {
  const page = await open();
  for (const tab of await page.getByRole("tab").all()) {
    await tab.click();
    await page.waitForTimeout(50);
    const nameless = await page.evaluate(() => {
      const named = (element) => element.getAttribute("aria-label") || element.textContent.trim()
        || element.title || element.labels?.[0]?.textContent.trim();
      const all = document.querySelectorAll("button, select, input, textarea, canvas, a, [role=img]");
      return [...all].filter((element) => element.checkVisibility() && !named(element)).map((e) => e.outerHTML.slice(0, 120));
    });
    ensure(nameless.length === 0, `without a name: ${nameless.join("; ")}`);
  }
  await page.context().close();
}

/** Nothing is wider than the window. */
export async function widths() {
  for (const width of [320, 400, 768, 1024, 1600]) {
    const page = await open("d=8&n=16&s=1f1b&s=chimera", { viewport: { width, height: 800 } });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    ensure(wide <= width, `at ${width} px the page is ${wide} px wide`);
    await page.context().close();
  }
}

/** The address holds the state: another page opened at it shows the same. */
export async function addresses() {
  const page = await open();
  await page.locator("#set-depth").fill("6");
  await page.locator("#set-microBatches").fill("12");
  await page.locator("#set-message").fill("0.25");
  await page.locator("#set-forward").fill("1.5");
  await page.locator("#has-cap").check();
  await page.locator("#cap").fill("9");
  await page.locator("#split").check();
  await page.locator("#add").click();
  await page.getByLabel("Schedule", { exact: true }).last().selectOption("interleaved");
  await page.getByLabel("chunks").fill("3");
  await page.getByLabel("scaling").selectOption("halving");
  await answered(page);
  await page.getByRole("tab", { name: "Edit rows" }).click();
  const text = page.locator(".editor textarea");
  await page.waitForFunction(() => document.querySelector(".editor textarea").value !== "");
  const row = (await text.inputValue()).split(" ");
  await text.fill([row[1], row[0], ...row.slice(2)].join(" "));
  await page.waitForTimeout(600);
  await answered(page);
  const [hash, shown] = [await page.evaluate(() => location.hash.slice(1)), await dataOf(page)];
  const again = await open(hash);
  const restored = await dataOf(again);
  ensure(JSON.stringify(shown) === JSON.stringify(restored), `restored otherwise:\n${JSON.stringify(shown)}\n${JSON.stringify(restored)}`);
  ensure(await again.evaluate(() => location.hash.slice(1)) === hash, "the address changes");
  ensure(shown.some(({ state }) => state === "proven"), "nothing is proven");
  for (const id of ["set-depth", "set-microBatches", "set-message", "set-forward", "cap"]) {
    const values = await Promise.all([page, again].map((p) => p.locator(`#${id}`).inputValue()));
    ensure(values[0] === values[1], `${id} is ${values}`);
  }
  for (const hash of ["d=x&n=-4&s=%00&row=9/9/&a=77&cap=", "s=nonsense", "row=0/0/zz&s=1f1b&d=2&n=2", "&&&=%"]) {
    const page = await open(hash);
    await page.context().close();
  }
  await page.context().close();
  await again.context().close();
}

/** A cell that is dragged, or moved by keys, changes its row, and can be put back. */
export async function dragsAndKeys() {
  const page = await open("s=1f1b&d=4&n=8");
  const canvas = page.locator(".panel canvas");
  const box = await canvas.boundingBox();
  const unit = (box.width - 48) / 33;
  const at = (time) => box.x + 40 + time * unit;
  await page.mouse.move(at(0.5), box.y + 20);
  await page.mouse.down();
  await page.mouse.move(at(2), box.y + 20, { steps: 4 });
  await page.mouse.move(at(12.8), box.y + 20, { steps: 6 });
  await page.mouse.up();
  await page.waitForFunction(() => document.querySelector("article.panel").dataset.state === "refused");
  const [{ plan, verdict }] = await dataOf(page);
  ensure(Object.keys(JSON.parse(plan).rows).join() === "0", `the edited rows are ${plan}`);
  ensure(verdict.startsWith("1f1b is not a safe schedule: worker 0, cell "), verdict);
  await page.getByRole("button", { name: "Undo 1 edited row" }).click();
  await page.waitForFunction(() => document.querySelector("article.panel").dataset.state === "proven");

  await canvas.focus();
  for (const key of ["ArrowRight", "ArrowRight", "ArrowDown", "Alt+ArrowRight"]) await page.keyboard.press(key);
  await page.waitForFunction(() => JSON.parse(document.querySelector("article.panel").dataset.plan).rows?.["1"]);
  await page.getByRole("button", { name: "Undo 1 edited row" }).click();
  await page.waitForFunction(() => document.querySelector("article.panel").dataset.state === "proven");
  await canvas.focus();
  for (const key of ["+", "+", "-", "0"]) await page.keyboard.press(key);
  await page.context().close();
}

/** A race ends with the faster one first; a search finds what that of the command does; all are compared. */
export async function race(chimera) {
  const page = await open("d=4&n=8&s=1f1b&s=chimera");
  await page.getByLabel("Speed").selectOption("4");
  await page.getByRole("button", { name: "Race" }).click();
  await page.waitForFunction(() => [...document.querySelectorAll(".place")].every((place) => place.textContent !== ""), null, { timeout: 60_000 });
  const places = await page.locator(".place").allTextContents();
  ensure(places.filter((place) => place === "first").length >= 1, `the places are ${places}`);
  await page.getByRole("button", { name: "One event back" }).click();
  await page.locator("#search").click();
  await answered(page);
  const spans = (await dataOf(page)).map(({ text }) => Number(/Makespan([\d.]+)/.exec(text)?.[1]));
  const auto = ["simulate", "auto", "--depth", "4", "--micro-batches", "8", "--json"];
  const { makespan } = JSON.parse(execFileSync(chimera, auto, { encoding: "utf8" }));
  ensure(spans[2] === makespan, `the search found ${spans[2]}, that of the command ${makespan}`);
  await page.getByRole("tab", { name: "Compare all" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".details tbody tr").length > 15, null, { timeout: 60_000 });
  await page.context().close();
}

/** The work in a trace. Counters that change twice at one time may stand in another order. */
const slicesOf = (trace) => JSON.parse(trace).traceEvents.filter(({ ph }) => ph === "X");

/** Files are those of the command. */
export async function files(chimera, out) {
  const page = await open("d=4&n=8&s=1f1b");
  await page.getByRole("tab", { name: "Take away" }).click();
  const shape = ["1f1b", "--depth", "4", "--micro-batches", "8"];
  const kinds = { JSON: "json", CSV: "pytorch-csv", SVG: "svg", Trace: "chrome", Program: "program-json" };
  for (const [name, format] of [...Object.entries(kinds), ["PNG", null], ["PDF", null]]) {
    const download = page.waitForEvent("download");
    await page.getByRole("button", { name, exact: true }).click();
    const path = join(out, (await download).suggestedFilename());
    await (await download).saveAs(path);
    const content = readFileSync(path);
    if (format === null) {
      ensure(content.subarray(1, 4).toString() === name && content.length > 5000, `${path} is no picture`);
      continue;
    }
    const wanted = execFileSync(chimera, ["schedule", "export", ...shape, "--format", format], { encoding: "utf8" });
    // The order of keys depends on what else is built with the JSON library.
    const [got, other] = [content.toString().trim(), wanted.trim()];
    const isSame = format === "chrome" ? isDeepStrictEqual(slicesOf(got), slicesOf(other))
      : format.endsWith("json") ? isDeepStrictEqual(JSON.parse(got), JSON.parse(other)) : got === other;
    ensure(isSame, `${name} is not the command's`);
  }
  const command = await page.locator(".exports pre").first().textContent();
  ensure(command === "chimera simulate 1f1b --depth 4 --micro-batches 8", command);
  await page.context().close();
}

/** A trace of the command opens beside the plan. */
export async function traces(chimera, out) {
  const path = join(out, "trace.json");
  execFileSync(chimera, ["simulate", "1f1b", "--depth", "4", "--micro-batches", "8", "--trace", path]);
  const page = await open("d=4&n=8&s=1f1b");
  await page.getByRole("tab", { name: "A run's trace" }).click();
  await page.locator("#trace-file").setInputFiles(path);
  await page.getByText("33 s on 4 ranks").waitFor();
  const canvas = page.locator(".trace canvas");
  await canvas.scrollIntoViewIfNeeded();
  await canvas.hover({ position: { x: 70, y: 20 } });
  const told = await page.locator(".trace .tip").textContent();
  ensure(told === "forward of micro-batch 0, stage 0, pipe 0 · rank 0, cell 0 · start 0 s · duration 1 s", told);
  const timetable = join(out, "opened.json");
  execFileSync(chimera, ["schedule", "export", "gpipe", "--depth", "4", "--micro-batches", "8", "--format", "json", "--out", timetable]);
  await page.locator("#open-file").setInputFiles(timetable);
  await page.waitForFunction(() => document.querySelectorAll("article.panel").length === 2);
  await answered(page);
  ensure((await dataOf(page))[1].state === "proven", "an opened timetable is not proven");
  await page.context().close();
}
