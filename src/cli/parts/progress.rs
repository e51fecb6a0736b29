//! What a training run says on the terminal.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::observe::Metrics;
use crate::run::Run;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::parts::console::warn;

/// Lines about steps that a whole run prints.
const N_LINES: u64 = 30;
/// Between two drawings of what has no steps.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// A bar of `what` is counted, where standard error is a terminal.
pub(crate) fn bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

/// Does `work`, and shows meanwhile on a terminal what is done, and for how long.
pub(crate) fn spin<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let bar = ProgressBar::new_spinner().with_message(what);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    let done = work();
    bar.finish_and_clear();
    done
}

/// Standard output, or standard error where that is taken by JSON.
pub(crate) struct Say {
    pub(crate) to_stderr: bool,
}

impl Say {
    /// A reader that has gone away does not end the training.
    pub(crate) fn line(&self, text: &str) {
        let _ = if self.to_stderr {
            writeln!(std::io::stderr(), "{text}")
        } else {
            writeln!(std::io::stdout(), "{text}")
        };
    }
}

/// Lines about steps: a bar on a terminal, and about thirty lines that stay.
pub(crate) struct Progress<'s> {
    say: &'s Say,
    bar: ProgressBar,
    n_steps: u64,
    every: u64,
}

impl<'s> Progress<'s> {
    pub(crate) fn new(run: &Run, say: &'s Say) -> Progress<'s> {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let n_steps = run.config().steps;
        let bar = ProgressBar::with_draw_target(Some(n_steps), target);
        bar.set_position(run.first_step());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta} left") {
            bar.set_style(style);
        }
        Progress { say, bar, n_steps, every: n_steps.div_ceil(N_LINES).max(1) }
    }

    pub(crate) fn step(&mut self, metrics: &Metrics) {
        let Metrics { step, loss, tokens_per_s, .. } = *metrics;
        let mfu = metrics.mfu.map_or(String::new(), |mfu| format!("  mfu {mfu:.3}"));
        let line = format!(
            "step {step:>5}  loss {loss:.4}  grad norm {:.3}  lr {:.2e}  {tokens_per_s:>6.0} tokens/s{mfu}  \
             bubble {:.3}  {:>5.0} MiB",
            metrics.grad_norm,
            metrics.lr,
            metrics.bubble_ratio,
            metrics.bytes as f64 / f64::from(1u32 << 20),
        );
        let is_last = step + 1 == self.n_steps;
        if step.is_multiple_of(self.every) || is_last {
            self.bar.suspend(|| self.say.line(&line));
        }
        if let Some(loss) = metrics.validation_loss {
            let perplexity = metrics.perplexity.map(|p| format!("  perplexity {p:.2}"));
            let perplexity = perplexity.unwrap_or_default();
            let line = format!("step {step:>5}  validation loss {loss:.4}{perplexity}");
            self.bar.suspend(|| self.say.line(&line));
        }
        self.bar.set_message(format!("loss {loss:.4} {tokens_per_s:.0} tokens/s"));
        self.bar.inc(1);
    }

    pub(crate) fn warn(&self, problem: &str) {
        self.bar.suspend(|| warn(problem));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
