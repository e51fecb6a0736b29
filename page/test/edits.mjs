// Random edits of rows: the page's answer is the command's, word by word.

import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ensure, open } from "./browser.mjs";

/** Schedules and shapes whose rows are edited: one pipe and several, whole and split backwards, pairs and halves. */
const SHAPES = [
  ["1f1b", 4, 8], ["gpipe", 3, 5], ["chimera", 4, 8], ["chimera", 4, 4], ["zb-h1", 4, 8], ["zb-v", 4, 8],
  ["interleaved", 4, 8], ["dualpipe", 4, 8], ["hanayo", 4, 8], ["gems", 4, 8],
];

/** Numbers of a fixed seed, so that a failure can be repeated (mulberry32). */
function drawn(seed) {
  return (below) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let x = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return (((x ^ (x >>> 14)) >>> 0) / 2 ** 32) * below | 0;
  };
}

/** Changes the same places of a row of text and a row of JSON. */
function edit(rows, below) {
  const length = rows[0].length;
  const [from, to] = [below(length), below(length)];
  const kind = below(8);
  for (const row of rows) {
    if (kind === 0) row.splice(from, 1);
    else if (kind === 1) row.splice(to, 0, row[from]);
    else if (kind === 2) [row[from], row[to]] = [row[to], row[from]];
    else if (kind < 5) row.splice(Math.min(from + 1, length - 1), 0, ...row.splice(from, 1));
    else row.splice(to, 0, ...row.splice(from, 1));
  }
}

function ran(chimera, args) {
  return new Promise((resolve) => {
    execFile(chimera, args, { maxBuffer: 1 << 26 }, (error, stdout, stderr) => {
      resolve({ isRefused: error !== null, stdout, stderr });
    });
  });
}

/** Types a row into the editor of a page, and returns what the page answers. */
async function answerOf(page, worker, row) {
  return page.evaluate(async ([worker, row]) => {
    const editor = document.querySelector(".editor");
    const choose = editor.querySelector("select");
    const until = async (is) => {
      for (const began = performance.now(); !is(); ) {
        if (performance.now() - began > 20_000) throw new Error("no answer");
        await new Promise((resolve) => setTimeout(resolve));
      }
    };
    const text = editor.querySelector("textarea");
    if (choose.value !== String(worker)) {
      choose.value = String(worker);
      choose.dispatchEvent(new Event("change"));
      await until(() => editor.dataset.row === String(worker));
    }
    text.value = row;
    text.dispatchEvent(new Event("input"));
    const panel = document.querySelector("article.panel");
    const rows = () => JSON.parse(panel.dataset.plan).rows ?? {};
    const isSame = () => (rows()[worker] ?? "") === row || rows()[worker] === undefined && Object.keys(rows()).length === 0;
    await until(() => isSame() && panel.getAttribute("aria-busy") === "false");
    return { text: editor.querySelector(".answer").textContent, isRefused: panel.dataset.state === "refused" };
  }, [worker, row]);
}

export async function edits(chimera, out, n) {
  const below = drawn(20260701);
  let [refused, nth] = [0, 0];
  for (const [schedule, depth, micro] of SHAPES) {
    const shape = ["--depth", `${depth}`, "--micro-batches", `${micro}`];
    const whole = JSON.parse((await ran(chimera, ["schedule", "show", schedule, ...shape, "--json"])).stdout);
    const page = await open(`s=${schedule}&d=${depth}&n=${micro}`);
    await page.getByRole("tab", { name: "Edit rows" }).click();
    await page.waitForFunction(() => document.querySelector(".editor textarea").value !== "");
    const texts = [];
    for (let worker = 0; worker < depth; worker += 1) {
      texts.push(await page.evaluate(async (worker) => {
        const editor = document.querySelector(".editor");
        const text = editor.querySelector("textarea");
        const choose = editor.querySelector("select");
        choose.value = String(worker);
        choose.dispatchEvent(new Event("change"));
        while (editor.dataset.row !== String(worker)) await new Promise((resolve) => setTimeout(resolve, 5));
        return text.value;
      }, worker));
    }
    for (; nth < (n * (SHAPES.findIndex((s) => s[0] === schedule && s[2] === micro) + 1)) / SHAPES.length; nth += 1) {
      const worker = below(depth);
      const cells = texts[worker].split(" ");
      const rows = structuredClone(whole.rows);
      for (let left = 1 + below(2); left > 0; left -= 1) edit([cells, rows[worker]], below);
      const file = join(out, `${schedule}.json`);
      writeFileSync(file, JSON.stringify({ ...whole, rows }));
      const answer = await answerOf(page, worker, cells.join(" "));
      const command = await ran(chimera, ["schedule", "check", file]);
      const said = command.isRefused
        ? command.stderr.trim().replace(`error: ${file}: `, "")
        : command.stdout.trim();
      ensure(
        answer.isRefused === command.isRefused && answer.text.trim() === said,
        `edit ${nth}, ${schedule} ${depth}x${micro}, worker ${worker}: ${cells.join(" ")}\npage: ${answer.text}\ncommand: ${said}`,
      );
      refused += command.isRefused ? 1 : 0;
      await answerOf(page, worker, texts[worker]);
    }
    await page.context().close();
  }
  ensure(refused > n / 4 && refused < n, `${refused} of ${n} edits were refused: they try one side only`);
  console.log(`${nth} edits, ${refused} of them refused: all answers are the command's`);
}
