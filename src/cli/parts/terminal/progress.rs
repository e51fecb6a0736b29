//! Progress of a training run on the terminal.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use chimera_core::notation::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::parts::terminal::console::{count, duration, fixed, warn};
use crate::observe::{Best, Metrics, TimeLeft};
use crate::run::Run;

/// Number of lines about steps in a whole run.
const N_LINES: u64 = 30;
/// Interval between drawings of a bar without steps.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// Returns a bar that counts `what`, drawn if standard error is a terminal.
pub(crate) fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(what);
    style(&bar, "{bar:30} {pos}/{len} {msg}, {elapsed}");
    keep_drawing(&bar);
    bar
}

/// Redraws a bar regularly until it is finished, unless it is hidden or the system refuses a
/// thread.
pub(crate) fn keep_drawing(bar: &ProgressBar) {
    if bar.is_hidden() {
        return;
    }
    let bar = bar.downgrade();
    // The bar's own ticker would panic without a thread.
    let _ = thread::Builder::new().spawn(move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            thread::sleep(TICK);
        }
    });
}

fn style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// Does `work`, and meanwhile shows `what` and the elapsed time on a terminal.
pub(crate) fn spin<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new_spinner().with_message(what);
    style(&bar, "{spinner} {msg}, {elapsed}");
    keep_drawing(&bar);
    let done = work();
    bar.finish_and_clear();
    done
}

/// The output of a training beside warnings and errors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Volume {
    /// Nothing.
    Quiet,
    /// Lines about the beginning, some steps, and the end.
    Normal,
    /// Also a line about every step.
    Verbose,
}

/// Prints to standard output, or to standard error if the former is used for JSON.
pub(crate) struct Say {
    pub(crate) to_stderr: bool,
    pub(crate) volume: Volume,
}

impl Say {
    /// Prints a line. If the reader is gone, the training continues.
    pub(crate) fn line(&self, text: &str) {
        if self.volume == Volume::Quiet {
            return;
        }
        let _ = if self.to_stderr {
            writeln!(std::io::stderr(), "{text}")
        } else {
            writeln!(std::io::stdout(), "{text}")
        };
    }
}

/// Progress of steps: a bar on a terminal, and permanent lines about some of them.
pub(crate) struct Progress<'s> {
    say: &'s Say,
    bar: ProgressBar,
    n_steps: u64,
    first_step: u64,
    /// Steps from one line to the next; 0 for no lines.
    every: u64,
    left: Mutex<TimeLeft>,
    /// The bar's message about the last step.
    last: Mutex<String>,
}

impl<'s> Progress<'s> {
    /// Begins with `step`, which is not the run's first step if another rank has reported the steps
    /// before.
    pub(crate) fn new(run: &Run, step: u64, say: &'s Say) -> Progress<'s> {
        let target = if say.volume != Volume::Quiet && std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let (n_steps, first_step) = (run.config().training.steps, run.first_step());
        let bar = ProgressBar::with_draw_target(Some(n_steps), target);
        bar.set_position(step);
        style(&bar, "{bar:30} {pos}/{len} {msg}");
        let every = n_steps.div_ceil(N_LINES).max(1);
        let (left, last) = (Mutex::default(), Mutex::default());
        Progress { say, bar, n_steps, first_step, every, left, last }
    }

    pub(crate) fn step(&self, metrics: &Metrics, best: Option<Best>) {
        let Metrics { step, loss, tokens_per_s, .. } = *metrics;
        let is_last = step + 1 == self.n_steps;
        let left = self.left(step + 1, metrics.step_s);
        if step.is_multiple_of(self.every) || is_last {
            let left = match &left {
                Some(left) if self.bar.is_hidden() => format!("  {left}"),
                _ => String::new(),
            };
            let line = step_line(metrics, self.n_steps.to_string().len()) + &left;
            self.line(&line);
        }
        if let Some(line) = validation_line(metrics, best) {
            self.line(&line);
        }
        let left = left.map_or(String::new(), |left| format!(", {left}"));
        let message = format!("{} {tokens_per_s:.0} tokens/s{left}", loss_of(loss));
        self.bar.set_message(message.clone());
        self.bar.inc(1);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = message;
    }

    /// Shows the progress within the current step, after the message about the last one.
    pub(crate) fn within(&self, done: &str) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.bar.set_message(if last.is_empty() { done.into() } else { format!("{last}, {done}") });
    }

    /// Returns the first step that the run trains.
    pub(crate) fn first_step(&self) -> u64 {
        self.first_step
    }

    /// Returns true if standard error is a terminal, with a bar on it.
    pub(crate) fn has_bar(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Prints a permanent line.
    pub(crate) fn line(&self, text: &str) {
        self.bar.suspend(|| self.say.line(text));
    }

    /// Returns the time that is left after `n_done` steps, of which the last took `step_s`; `None`
    /// at the end.
    fn left(&self, n_done: u64, step_s: f64) -> Option<String> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.add(step_s);
        let seconds = left.of(self.n_steps.checked_sub(n_done).filter(|n| *n > 0)?)?;
        Some(format!("{} left", duration(seconds)))
    }

    pub(crate) fn warn(&self, problem: &str) {
        self.bar.suspend(|| warn(problem));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Formats the loss of a step, or the reason why it has none.
pub(crate) fn loss_of(loss: Option<f64>) -> String {
    loss.map_or("no targets".into(), |loss| format!("loss {}", fixed(loss, 4)))
}

/// Formats the metrics of a step, with `width` digits for its number.
fn step_line(metrics: &Metrics, width: usize) -> String {
    let mfu = metrics.mfu.map_or(String::new(), |mfu| format!("  mfu {:.0}%", 100.0 * mfu));
    format!(
        "step {:>width$}  {}  norm {}  lr {:.1e}  {:>5} tok  {:>5.0} tok/s  {:>4.0} ms{mfu}  bubble {:.0}%  {}",
        metrics.step,
        loss_of(metrics.loss),
        fixed(metrics.grad_norm, 3),
        metrics.lr,
        count(metrics.tokens_seen),
        metrics.tokens_per_s,
        metrics.step_s * 1e3,
        100.0 * metrics.bubble_ratio,
        size(metrics.max_rank_bytes as f64),
    )
}

/// Describes the validation loss, if there is one, and the `best` so far.
fn validation_line(metrics: &Metrics, best: Option<Best>) -> Option<String> {
    let (loss, n_steps) = (metrics.validation_loss?, metrics.step + 1);
    let perplexity = metrics.perplexity.map(|p| format!("  perplexity {}", fixed(p, 2)));
    let best = match best {
        Some(best) if best.n_steps == n_steps => "  best so far".to_string(),
        Some(Best { n_steps, loss }) => format!("  best {} after {n_steps} steps", fixed(loss, 4)),
        None => String::new(),
    };
    let loss = fixed(loss, 4);
    Some(format!(
        "after {n_steps} steps: validation loss {loss}{}{best}",
        perplexity.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::outside::OnDisk;
    use crate::settings::Layers;

    fn metrics() -> Metrics {
        let line = r#"{"step":36,"loss":2.7937,"grad_norm":0.247,"lr":0.00053,"tokens":4096,
            "tokens_seen":151552,"step_s":1.184,"tokens_per_s":3459.4,"bubble_ratio":0.258,
            "bytes":98031616,"max_rank_bytes":25690112,"mfu":0.347,"validation_loss":2.5,"perplexity":12.18}"#;
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn a_step_is_told_in_a_line_of_a_terminal() {
        let line = step_line(&metrics(), 3);
        assert_eq!(
            line,
            "step  36  loss 2.7937  norm 0.247  lr 5.3e-4   152k tok   3459 tok/s  1184 ms  mfu 35%  \
             bubble 26%  24.5 MiB"
        );
        assert!(line.len() < 110 && "  99 min left".len() + line.len() < 125);
    }

    /// Rank 0 has died after 90 of 100 steps, and this process has trained two more in a second each.
    #[test]
    fn what_is_left_follows_from_the_steps_since_a_takeover() {
        let line = "--schedule 1f1b --depth 2 --layers 2 --hidden 8 --heads 2 --context 8 --micro-batches 4 --steps 100 \
                    --threads 1";
        let config = Layers::parse(line).unwrap().resolve(&OnDisk).unwrap();
        let (run, say) =
            (Run::prepare(config).unwrap(), Say { to_stderr: true, volume: Volume::Normal });
        let progress = Progress::new(&run, 90, &say);
        assert_eq!(progress.bar.position(), 90);
        assert_eq!(progress.left(91, 1.0).as_deref(), Some("9 s left"));
        assert_eq!(progress.left(92, 1.0).as_deref(), Some("8 s left"));
        assert_eq!(progress.left(100, 1.0), None);
    }

    #[test]
    fn numbers_that_explode_stay_short() {
        let metrics =
            Metrics { loss: Some(1.5e9), grad_norm: 27_340_184_899_267_048.0, ..metrics() };
        let line = step_line(&metrics, 3);
        assert!(line.contains("loss 1.50e9  norm 2.73e16  "), "{line}");
        let none = Metrics { loss: Some(f64::NAN), grad_norm: f64::INFINITY, ..metrics };
        assert!(step_line(&none, 3).contains("loss NaN  norm inf  "));
    }

    #[test]
    fn a_step_without_targets_has_no_loss() {
        let none = Metrics { loss: None, grad_norm: 0.0, ..metrics() };
        assert!(step_line(&none, 3).contains("step  36  no targets  norm 0.000  "));
        let json = serde_json::to_string(&none).unwrap();
        assert!(!json.contains("\"loss\""), "{json}");
        assert_eq!(serde_json::from_str::<Metrics>(&json).unwrap().loss, None);
        // NaN is a different case.
        let unsound = serde_json::to_string(&Metrics { loss: Some(f64::NAN), ..none }).unwrap();
        let loss = serde_json::from_str::<Metrics>(&unsound).unwrap().loss;
        assert!(loss.is_some_and(f64::is_nan), "{unsound}");
    }

    #[test]
    fn a_validation_loss_stands_beside_the_best_so_far() {
        let told = |best| validation_line(&metrics(), best).unwrap();
        let now = "after 37 steps: validation loss 2.5000  perplexity 12.18";
        assert_eq!(told(Some(Best { n_steps: 37, loss: 2.5 })), format!("{now}  best so far"));
        assert_eq!(
            told(Some(Best { n_steps: 20, loss: 2.25 })),
            format!("{now}  best 2.2500 after 20 steps")
        );
        assert_eq!(validation_line(&Metrics { validation_loss: None, ..metrics() }, None), None);
    }
}
