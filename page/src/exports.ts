/** What one takes away of a schedule: files, and lines to paste. */

import { button, el, save } from "./dom";
import type { Engine } from "./engine";
import { commandOf, pythonOf, rustOf } from "./lines";
import { pdfOf } from "./pdf";
import type { FileFormat, OutFile, Step } from "./protocol";
import { type Panel, type State, planOf } from "./state";

/** Formats of the module, and pictures that this page makes of a drawing. */
type Format = FileFormat | "png" | "pdf";

const FORMATS: [Format, string, string][] = [
  ["json", "JSON", "The timetable, whole: what `chimera schedule check` reads"],
  ["pytorch-csv", "CSV", "For PyTorch's pipelining runtime, a file for each pipe"],
  ["svg", "SVG", "The drawing"],
  ["png", "PNG", "The drawing, in pixels"],
  ["pdf", "PDF", "The drawing, for papers"],
  ["chrome", "Trace", "The simulated step, for ui.perfetto.dev"],
  ["program-json", "Program", "The proven program, for executors"],
];

/** Pixels of a PNG for each of the drawing. */
const SHARPNESS = 2;

export class Exports {
  readonly element = el("div", { class: "exports" });
  private readonly told = el("p", { class: "hint", role: "status" });

  constructor(private readonly engineOf: (panel: Panel) => Engine) {}

  show(state: State, panel: Panel, step: Step): void {
    const name = nameOf(state, panel);
    const files = el("div", { class: "row" }, ...FORMATS.map(([format, text, about]) => {
      const needsProof = format !== "json" && format !== "pytorch-csv";
      const give = button(text, () => void this.give(state, panel, format), { title: about });
      give.disabled = needsProof && !step.figures;
      return give;
    }));
    const lines: [string, string][] = [
      ["Command", commandOf(state, panel, step, name)],
      ["Python", pythonOf(state, panel, step, name)],
      ["Rust", rustOf(state, panel, step, name)],
    ];
    const isOwn = panel.file || Object.keys(panel.rows).length > 0;
    this.element.replaceChildren(
      el("h3", {}, "Files"), files, this.told,
      isOwn ? el("p", { class: "hint" }, `The lines read ${name}.json: save the JSON first.`) : "",
      ...lines.flatMap(([what, text]) => [
        el("h3", {}, what, button("Copy", () => void this.copy(text), { class: "quiet", "aria-label": `Copy the ${what} lines` })),
        el("pre", { tabindex: 0 }, text),
      ]),
    );
  }

  private async copy(text: string): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      this.told.textContent = "Copied.";
    } catch {
      this.told.textContent = "The browser does not let this page copy: select the lines and copy them.";
    }
  }

  private async give(state: State, panel: Panel, format: Format): Promise<void> {
    this.told.textContent = "";
    const asked = format === "png" || format === "pdf" ? "svg" : format;
    const plan = planOf(state, panel);
    const got = await this.engineOf(panel).ask<{ files?: OutFile[]; error?: string }>({ ask: "files", plan, format: asked });
    const files = got?.answer.files ?? [];
    if (got?.answer.error) this.told.textContent = got.answer.error;
    for (const { ending, text } of files) {
      const name = `${nameOf(state, panel)}.${ending}`;
      if (format === "png") save(name.replace(/svg$/, "png"), await pixels(text));
      else if (format === "pdf") save(name.replace(/svg$/, "pdf"), pdfOf(text));
      else save(name, text, ending === "svg" ? "image/svg+xml" : "text/plain");
    }
  }
}

function nameOf(state: State, panel: Panel): string {
  const name = panel.file?.name.replace(/\.[^.]*$/, "") ?? `${panel.schedule}-${state.depth}x${state.microBatches}`;
  return Object.keys(panel.rows).length > 0 ? `${name}-edited` : name;
}

/** Draws an SVG in pixels. */
async function pixels(svg: string): Promise<Blob> {
  const image = new Image();
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    image.src = address;
    await image.decode();
    const canvas = el("canvas", { width: image.width * SHARPNESS, height: image.height * SHARPNESS });
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) => {
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture was made"))));
    });
  } finally {
    URL.revokeObjectURL(address);
  }
}
