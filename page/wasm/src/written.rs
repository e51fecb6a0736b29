//! Files of a step, as the command's `export` writes them.

use std::collections::BTreeSet;

use chimera_schedule::analyze::simulate;
use chimera_schedule::ids::PipeId;
use chimera_schedule::interchange::{program_to_json, to_comms_csv, to_csv, to_json};
use chimera_schedule::render::report::title;
use chimera_schedule::render::{chrome, svg};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::plan::{Made, Plan, Refused};

/// A form of a file.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// The timetable.
    Json,
    /// The proven program.
    ProgramJson,
    /// PyTorch's `compute_only`, a file for each pipe.
    PytorchCsv,
    /// PyTorch's `compute_comms`.
    PytorchCommsCsv,
    /// A trace for Perfetto.
    Chrome,
    /// The drawing.
    Svg,
}

/// The files, each with what its name ends with.
pub(crate) fn written(plan: &Plan, made: &Made, format: Format) -> Result<Value, Refused> {
    let timetable = &made.timetable;
    let one = |ending: &str, text: String| vec![json!({"ending": ending, "text": text})];
    let files = match format {
        Format::Json => one("json", to_json(timetable)),
        Format::ProgramJson => one("program.json", program_to_json(made.program()?.as_ref())),
        Format::PytorchCommsCsv => one("comms.csv", to_comms_csv(made.program()?.as_ref())?),
        Format::PytorchCsv => {
            let pipes: BTreeSet<PipeId> = timetable.ops().map(|op| op.pipe).collect();
            let of_pipe = |pipe: &PipeId| -> Result<Value, Refused> {
                let ending = match pipes.len() {
                    1 => "csv".to_string(),
                    _ => format!("pipe{}.csv", pipe.0),
                };
                Ok(json!({"ending": ending, "text": to_csv(timetable, *pipe)?}))
            };
            pipes.iter().map(of_pipe).collect::<Result<_, _>>()?
        }
        Format::Chrome | Format::Svg => {
            let program = made.program()?;
            let timeline = simulate(&program, &made.costs);
            match format {
                Format::Chrome => one("trace.json", chrome::trace(&program, &timeline)),
                _ => one("svg", svg::timeline(&timeline, &title(timetable, plan.times().unit()))),
            }
        }
    };
    Ok(json!({"files": files}))
}
