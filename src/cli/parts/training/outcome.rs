//! The results of a training, which are printed at its end.

use anyhow::Result;
use chimera_core::analyze::{MeasuredCosts, Timeline, simulate};
use chimera_core::render::chrome::{self, Ran};
use chimera_core::render::{svg, text};
use serde_json::{Value, json};

use crate::cli::parts::schedule::drawing::screen;
use crate::cli::parts::terminal::console::counted;
use crate::cli::parts::terminal::progress::Say;
use crate::cli::parts::training::bubble::{causes, in_plain_words};
use crate::cli::parts::training::comparison::length;
use crate::cli::parts::training::kernels;
use crate::cli::parts::training::learnt::{Learnt, learnt};
use crate::cli::parts::training::predicted;
use crate::cli::parts::training::suggest;
use crate::device::{OpenDevice, n_cores};
use crate::observe::Metrics;
use crate::plan::{Figure, Need, Prediction};
use crate::run::{DRAWING, MEASURED, PLANNED, Place, Run, SUMMARY, Trained};

/// The reason why a run that has done all its steps has no drawing and no traces of its last step.
pub(crate) const NOT_DRAWN: &str = "none of its last steps was a whole run of its schedule: they were fewer than a window, \
                                    trained by fewer ranks, or by another `in-turn`";

/// The memory that the command's allocator holds for the workers, relative to their peak use, since
/// some free memory lies between blocks in use. The second constant is the bytes of everything else:
/// small blocks, parts of huge pages, and code that only training uses. Both were measured with
/// models of 90 MB.
const HELD_BY_USED: f64 = 1.03;
const SMALL_BLOCKS_AND_CODE: f64 = 1.2e7;

/// From this share of its cores on, a process has nearly all that it can use.
const NEARLY_ALL: f64 = 0.9;

/// A run that is done.
pub(crate) struct Outcome<'r> {
    pub(crate) run: &'r Run,
    pub(crate) place: &'r Place,
    pub(crate) say: &'r Say,
    /// Hints about the machine that were printed before the first step.
    pub(crate) hints: Vec<String>,
    /// The metrics of its last step, if they are known.
    pub(crate) last: Option<Metrics>,
}

impl Outcome<'_> {
    /// Prints the validation loss, a sample, and the measured pipeline. Writes all files of the run
    /// except its report, and returns the summary for scripts.
    pub(crate) fn show(&self, trained: &Trained, seconds: Option<f64>) -> Result<Value> {
        let Outcome { run, place, say, ref last, .. } = *self;
        let Learnt { loss: validation_loss, perplexity, sample } = learnt(run, trained, say)?;
        self.show_learnt(validation_loss, perplexity, sample.as_deref(), seconds);
        let program = trained.drawn_program(run);
        let (overhead, bubble) = (trained.overhead(program), trained.bubble(program));
        let mut advice = self.hints.clone();
        if let Some(timeline) = trained.timelines.last() {
            let overhead = overhead.map(against_prediction);
            self.draw(trained, timeline, overhead.as_deref())?;
            advice.extend(overhead);
            if let Some(bubble) = &bubble {
                let length = length(program.window().n_steps().into());
                let line = in_plain_words(&format!("last {length}"), bubble);
                say.line(&line);
                advice.push(line);
            }
        } else if trained.last.is_some() {
            say.line(&format!("no drawing: {NOT_DRAWN}"));
        }
        kernels::table(&trained.kernels).iter().for_each(|line| say.line(line));
        // If no step was seen, there is nothing to compare.
        let prediction = run.prediction()?.filter(|_| trained.last.is_some());
        advice.extend(prediction.and_then(|prediction| prediction.doubt.clone()));
        let figures =
            prediction.map(|prediction| self.predicted(prediction, trained)).transpose()?;
        if let Some(figures) = &figures {
            predicted::table(figures).lines().for_each(|line| say.line(line));
        }
        if let Some(line) = busy_machine(trained.core_share, self.cores_used()) {
            say.line(&line);
            advice.push(line);
        }
        let suggestion = if self.on_host() { run.advice(trained)? } else { None };
        if let Some(suggestion) = &suggestion {
            let has_out = run.config().output.out.is_some();
            let command = suggest::to_change(has_out, place.path(), &suggestion.options);
            let line = format!("{}, by simulation: {command}", suggestion.sentence());
            say.line(&line);
            advice.push(line);
        }
        let summary = json!({
            "run": place.path(), "steps": trained.n_steps,
            "loss": last.as_ref().and_then(|last| last.loss),
            "validation_loss": validation_loss, "perplexity": perplexity, "seconds": seconds,
            "bubble_ratio": last.as_ref().map(|last| last.bubble_ratio),
            "bubble_by_cause": bubble.as_ref().map(causes),
            "measured_over_simulated": overhead,
            "prediction": figures,
            "suggestion": suggestion,
            "core_share": trained.core_share,
            "sample": sample.as_deref().map(str::trim),
            "kernels": (!trained.kernels.is_empty()).then_some(&trained.kernels),
        });
        let mut whole = summary.clone();
        whole["advice"] = json!(advice);
        whole["planned_by"] = self.trace(trained, prediction)?.into();
        place.write(SUMMARY, &format!("{whole:#}\n"))?;
        Ok(summary)
    }

    fn show_learnt(
        &self,
        validation_loss: f64,
        perplexity: Option<f64>,
        sample: Option<&str>,
        seconds: Option<f64>,
    ) {
        let unit = match perplexity {
            Some(perplexity) => format!("nats per token, perplexity {perplexity:.2}"),
            None => "nats, per masked token and per pair".into(),
        };
        let after = seconds.map_or(String::new(), |s| format!(", after {s:.1} s of training"));
        self.say.line(&format!("validation loss {validation_loss:.4} {unit}{after}"));
        if let Some(text) = sample {
            self.say.line("sample:");
            for line in text.trim().lines() {
                self.say.line(&format!("  | {}", line.replace(char::is_control, " ")));
            }
        }
    }

    /// Writes traces of the last step, or the last window of steps, as planned and as measured.
    /// Returns the source of the plan's times.
    fn trace(
        &self,
        trained: &Trained,
        prediction: Option<&Prediction>,
    ) -> Result<Option<&'static str>> {
        let Outcome { run, place, .. } = *self;
        let (Some(timeline), Some(waits)) = (trained.timelines.last(), trained.waits.last()) else {
            return Ok(None);
        };
        let (program, sizes) = (trained.drawn_program(run), run.sizes());
        // A profile only predicts whole windows of steps.
        let (planned, by) = match prediction.filter(|_| !trained.is_bordered) {
            Some(prediction) => (prediction.timeline.clone(), "the profile's times"),
            None => (simulate(program, &MeasuredCosts::of(timeline)), "measured op times"),
        };
        let step = trained.drawn_step.unwrap_or(0);
        let ran =
            |timeline, waits| Ran { program, group: 0, step, timeline, waits, kernels: Vec::new() };
        let traces =
            [(PLANNED, ran(planned, Vec::new())), (MEASURED, ran(timeline.clone(), waits.clone()))];
        for (name, ran) in traces {
            place.write(name, &chrome::training(&[ran], &[], Some(&sizes)))?;
        }
        Ok(Some(by))
    }

    /// Compares predicted with measured figures.
    fn predicted(&self, prediction: &Prediction, trained: &Trained) -> Result<Vec<Figure>> {
        let (program, needs) = (self.run.program(), self.run.needs());
        // The prediction is for a run without borders.
        let (timelines, waits) = if trained.is_bordered {
            (&[][..], &[][..])
        } else {
            (&trained.timelines[..], &trained.waits[..])
        };
        let mut figures = prediction.against(program, &trained.steps_s, timelines, waits);
        let width = self.run.config().schedule.width as f64;
        let all = |of: &dyn Fn(&Need) -> f64| needs.iter().map(of).sum::<f64>() * width;
        let kept = |need: &Need| need.state + need.activations;
        if let Some(last) = &trained.last {
            // Groups are alike, so a worker stands for the one in the first group.
            for (worker, (need, rank)) in needs.iter().zip(&last.ranks).enumerate() {
                let what = format!("worker {worker} memory, bytes");
                figures.push(Figure::of(what, kept(need), rank.bytes as f64));
            }
            figures.push(Figure::of("peak memory, bytes", all(&kept), last.bytes() as f64));
        }
        if let Some([before, most]) = trained.process.filter(|_| self.on_host()) {
            let workers = HELD_BY_USED * all(&Need::total);
            let expected = before + SMALL_BLOCKS_AND_CODE + workers;
            figures.push(Figure::of("process memory, bytes", expected, most));
        }
        if let (Some(before), Some(after)) = (prediction.reference, self.run.reference()?) {
            figures.push(Figure::of("reference work", before.now, after.now));
        }
        Ok(figures)
    }

    /// Number of cores that the threads of this process can use.
    fn cores_used(&self) -> usize {
        let config = self.run.config();
        let threads = config.schedule.width * config.schedule.depth * config.devices.threads;
        if self.on_host() { n_cores().min(threads) } else { n_cores() }
    }

    /// Returns true if all workers compute in the memory of this process.
    fn on_host(&self) -> bool {
        self.run.devices().one().is_some_and(OpenDevice::is_host)
    }

    /// Draws the measured pipeline on the terminal and in the folder.
    fn draw(&self, trained: &Trained, timeline: &Timeline, overhead: Option<&str>) -> Result<()> {
        let Outcome { run, place, say, .. } = *self;
        let (name, d) = (run.program().schedule(), run.config().schedule.depth);
        let program = trained.drawn_program(run);
        let border = if trained.is_bordered { " with a border" } else { "" };
        let what = format!("the last {}{border}", length(program.window().n_steps().into()));
        let workers = if d == 1 { "one worker".into() } else { format!("{d} workers") };
        say.line(&format!("{what} as it ran ({name}, {workers}, {:.3} s):", timeline.makespan()));
        for line in text::scaled_on(timeline, 96, screen(say.to_stderr, 2)).lines() {
            say.line(&format!("  {line}"));
        }
        if let Some(overhead) = overhead {
            say.line(overhead);
        }
        let title = format!("{name}, {workers}, {what} as it ran, in seconds");
        place.write(DRAWING, &svg::step(program, timeline, &title))?;
        say.line(&format!("drawing: {}", place.path().join(DRAWING).display()));
        Ok(())
    }
}

/// Describes the ratio of the measured time of steps to the predicted one.
fn against_prediction(ratio: f64) -> String {
    let percent = 100.0 * (ratio - 1.0).abs();
    let how = if ratio < 1.0 { "less time" } else { "longer" };
    format!("steps took {percent:.1} % {how} than the schedule predicts from measured op times")
}

/// Describes the share of its cores that the process got, if it was much less than all of them.
fn busy_machine(share: Option<f64>, n_cores: usize) -> Option<String> {
    let share = share.filter(|share| *share < NEARLY_ALL)?;
    let cores = counted(n_cores as f64, "core", "s");
    let percent = 100.0 * share;
    Some(format!(
        "the process got {percent:.0} % of its {cores}: times of this run are longer than on an idle machine"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_shared_its_cores_with_others_says_so() {
        let said = "the process got 62 % of its 2 cores: times of this run are longer than on an idle machine";
        assert_eq!(busy_machine(Some(0.62), 2).as_deref(), Some(said));
        for share in [Some(1.0), Some(0.93), None] {
            assert_eq!(busy_machine(share, 2), None);
        }
    }

    #[test]
    fn steps_are_longer_or_shorter_than_predicted() {
        let end = "than the schedule predicts from measured op times";
        assert_eq!(against_prediction(1.069), format!("steps took 6.9 % longer {end}"));
        assert_eq!(against_prediction(0.95), format!("steps took 5.0 % less time {end}"));
    }
}
