/** Edits a row as text. The prover answers while one types. */

import type { Change } from "./controls";
import { button, choice, el } from "./dom";
import type { Engine } from "./engine";
import { type Panel, type State, planOf } from "./state";

export class Editor {
  readonly element = el("div", { class: "editor" });
  private readonly text = el("textarea", {
    rows: 4, spellcheck: "false", autocapitalize: "off", "aria-label": "The row, cell by cell",
  });
  private readonly verdict = el("pre", { class: "answer", role: "status" });
  private readonly head = el("div", { class: "row" });
  private worker = 0;
  private whole = "";

  constructor(private readonly engineOf: (panel: Panel) => Engine, private readonly change: Change) {
    this.text.addEventListener("input", () => this.edit(this.text.value));
    this.element.append(
      el("p", { class: "hint" },
        "A cell is a micro-batch: 3 is its forward, 3' its backward, 3i and 3w the halves, b3 on a second stage. ",
        "In the timeline, drag a cell within its row, or select one and press Alt with an arrow key."),
      this.head, this.text, this.verdict,
    );
  }

  /** Shows the row of the chosen worker. */
  async show(state: State, panel: Panel, depth: number): Promise<void> {
    this.worker = Math.min(this.worker, Math.max(0, depth - 1));
    const workers = Array.from({ length: depth }, (_, w): [string, string] =>
      [String(w), `worker ${w}${panel.rows[w] === undefined ? "" : ", edited"}`]);
    const choose = choice("Worker", workers, String(this.worker), (value) => {
      this.worker = Number(value);
      void this.show(state, panel, depth);
    });
    const undo = button("Undo this row", () => this.edit(this.whole), { class: "quiet" });
    undo.disabled = panel.rows[this.worker] === undefined;
    this.head.replaceChildren(choose, undo);
    const worker = this.worker;
    const got = await this.engineOf(panel).ask<{ row?: string }>({ ask: "row", plan: planOf(state, panel), worker }, "row");
    if (!got || worker !== this.worker) return;
    this.whole = got.answer.row ?? "";
    const shown = panel.rows[worker] ?? this.whole;
    if (document.activeElement !== this.text || this.text.value.trim() !== shown) this.text.value = shown;
    this.element.dataset["row"] = String(worker);
  }

  /** Shows the prover's answer. */
  answer(text: string, isRefused: boolean): void {
    this.verdict.textContent = text;
    this.verdict.classList.toggle("bad", isRefused);
  }

  /** Edits this worker's row next. */
  choose(worker: number): void {
    this.worker = worker;
  }

  private edit(text: string): void {
    const { worker, whole } = this;
    this.change((state) => {
      const panel = state.panels[state.active];
      if (!panel) return;
      const row = text.trim().split(/\s+/).join(" ");
      if (row === whole) delete panel.rows[worker];
      else panel.rows[worker] = row;
    });
  }
}

/** A row with one cell moved. */
export function movedRow(row: string, from: number, to: number): string {
  const cells = row.split(" ");
  const [cell] = cells.splice(from, 1);
  if (cell !== undefined) cells.splice(to, 0, cell);
  return cells.join(" ");
}
