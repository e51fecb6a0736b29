/** The lines that do the same elsewhere: on the command line, in Python and in Rust. */

import type { Step } from "./protocol";
import { numberRow, type Panel, type State, times } from "./state";

/** A time of a stage: the page's times are of a D-th of the model. */
function ofStages(state: State, step: Step): [string, number][] {
  const share = (step.depth ?? 1) / (step.n_stages ?? 1);
  const given = times(state);
  const hasOps = given.some(([name, time, usual]) => name !== "message" && time !== usual);
  return given.flatMap(([name, time, usual]): [string, number][] => {
    if (name === "message") return time === usual ? [] : [[name, time]];
    return hasOps ? [[name, Number((time * share).toPrecision(12))]] : [];
  });
}

const isOwn = (panel: Panel): boolean =>
  panel.file !== undefined || Object.keys(panel.rows).length > 0;

export function commandOf(state: State, panel: Panel, step: Step, name: string): string {
  const words: string[] = [];
  if (isOwn(panel)) {
    words.push(`chimera schedule check ${name}.json`);
  } else {
    words.push(`chimera simulate ${panel.schedule} --depth ${state.depth} --micro-batches ${state.microBatches}`);
    for (const [option, value] of Object.entries(panel.options)) {
      words.push(`--${option.replace("_", "-")} ${value}`);
    }
    if (state.recompute !== "none") words.push(`--recompute ${state.recompute}`);
    if (state.splitBackward) words.push("--split-backward");
    if (state.moves === "bpipe") words.push("--bpipe");
    if (state.moves === "offload") words.push("--offload auto");
  }
  if (state.memoryCap !== null) words.push(`--memory-cap ${state.memoryCap}`);
  for (const [option, time] of ofStages(state, step)) words.push(`--${option} ${time}`);
  return words.join(" ");
}

export function pythonOf(state: State, panel: Panel, step: Step, name: string): string {
  const lines = ["import chimera_pipeline as chimera", ""];
  const times = ofStages(state, step).map(([option, time]) => `${option}=${time}`);
  const cap = state.memoryCap === null ? [] : [`memory_cap=${state.memoryCap}`];
  const call = (words: string[]) => words.filter((word) => word !== "").join(", ");
  if (isOwn(panel)) {
    lines.push(`timetable = chimera.parse(open("${name}.json").read())`);
  } else {
    const options = Object.entries(panel.options).map(([option, value]) =>
      `${option}=${/^\d+$/.test(value) ? value : `"${value}"`}`);
    const shape = [`depth=${state.depth}`, `micro_batches=${state.microBatches}`, ...options];
    const orders = [
      state.recompute === "none" ? "" : `recompute="${state.recompute}"`,
      state.splitBackward ? "split_backward=True" : "",
    ];
    const moves = state.moves === "bpipe" ? "bpipe=True" : state.moves === "offload" ? 'offload="auto"' : "";
    const isSearch = panel.schedule === "auto";
    lines.push(isSearch
      ? `timetable = chimera.auto(${call([...shape, ...orders, ...cap, ...times])})`
      : `timetable = chimera.schedule(${call([`"${panel.schedule}"`, ...shape, ...times])})`);
    const passes = call([...(isSearch ? [] : orders), moves]);
    if (passes !== "") lines.push(`timetable = timetable.passes(${call([passes, ...cap, ...times])})`);
  }
  lines.push(
    `program = timetable.lower(${call([...cap, ...times])})  # chimera.Refusal if it is not safe`,
    `timeline = program.simulate(${call(times)})`,
    "print(timeline.makespan, timeline.bubble_ratio)",
  );
  return lines.join("\n");
}

export function rustOf(state: State, panel: Panel, step: Step, name: string): string {
  const pascal = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
  const lines = ["use chimera_core::prelude::*;"];
  if (isOwn(panel) || panel.schedule === "auto") {
    lines.push("use chimera_core::interchange::from_json;", "",
      `let timetable = from_json(include_bytes!("${name}.json"))?;`);
  } else {
    const options = { ...panel.options };
    if (step.scaling && step.scaling !== "direct") options.scaling = step.scaling;
    const given = Object.entries(options).map(([option, value]) => {
      if (option === "scaling") return `scaling: Scaling::${pascal(value)}`;
      const { field = option, is_optional: isOptional = false } = numberRow(option) ?? {};
      return `${field}: ${isOptional ? `Some(${value})` : value}`;
    });
    const plain = `Shape::new(${state.depth}, ${state.microBatches})`;
    if (options.scaling) lines.push("use chimera_core::schedule::Scaling;");
    lines.push("",
      given.length === 0 ? `let shape = ${plain};` : `let shape = Shape { ${given.join(", ")}, ..${plain} };`,
      `let timetable = find("${panel.schedule}")?.timetable(&shape)?;`);
  }
  const share = (step.depth ?? 1) / (step.n_stages ?? 1);
  const [forward, backward] = [state.forward * share, (state.input + state.weight) * share];
  lines.push(
    `let costs = UniformCosts::new(${forward.toFixed(3)}, ${backward.toFixed(3)}, ${state.message.toFixed(3)}).per_units(timetable.units_per_micro);`,
    `let how = Lowering { max_peak: ${state.memoryCap === null ? "None" : `Some(${state.memoryCap.toFixed(1)})`}, ..Lowering::default() };`,
  );
  const isPassed = state.recompute !== "none" || state.splitBackward;
  if (isPassed && !isOwn(panel)) {
    lines.push(`let passes = Passes { recompute: Recompute::${pascal(state.recompute)}, split_backward: ${state.splitBackward}, ..Passes::default() };`,
      "let timetable = passes.apply(timetable, &how, &costs)?;");
  }
  lines.push("let program = lower(&timetable, &how)?; // refused if it is not safe",
    "let timeline = simulate(&program, &costs);",
    'println!("{} {}", timeline.makespan(), timeline.bubble_ratio());');
  return lines.join("\n");
}
