//! The log of one rank, in a file of its own: what the rank holds, how long each step took, and how
//! it ended.

use std::fmt::Display;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write;
use std::path::{Path, PathBuf};
#[cfg(feature = "logs")]
use std::time::Duration;
use std::time::SystemTime;

use chimera_core::analyze::{Event, Wait};
use chimera_core::engine::StepReport;
use chimera_core::fault::Fault;
use chimera_core::ids::{Rank, StageId};
use chimera_core::program::Program;
use chimera_formats::files::{io_fault, no_follow};

/// The log of a rank, if one is wanted.
pub(crate) struct Log<'w> {
    out: Option<LogFile<'w>>,
}

/// The file, and the function to warn once if it can no longer be written.
struct LogFile<'w> {
    file: File,
    path: PathBuf,
    warn: Option<Box<Warn<'w>>>,
}

/// Called for problems that do not stop the training.
type Warn<'w> = dyn Fn(&str) + Send + Sync + 'w;

impl<'w> Log<'w> {
    /// Opens `rank.<rank>.log` in `folder`, if there is one; a run that resumes at step `first`
    /// appends to it. Calls `warn` if a line cannot be written.
    pub(crate) fn open(
        folder: Option<&Path>,
        program: &Program,
        rank: Rank,
        first: u64,
        warn: impl Fn(&str) + Send + Sync + 'w,
    ) -> Result<Log<'w>, Fault> {
        let Some(folder) = folder else { return Ok(Log { out: None }) };
        let path = folder.join(format!("rank.{}.log", rank.0));
        let open = || {
            create_dir_all(folder)?;
            no_follow(OpenOptions::new().create(true).append(true)).open(&path)
        };
        let file = open().map_err(|e| Fault { rank, ..io_fault("log", &path, &e) })?;
        let mut log = Log { out: Some(LogFile { file, path, warn: Some(Box::new(warn)) }) };
        let placement = program.placement();
        let (group, worker) = placement.group_and_worker(rank);
        let stages: Vec<_> = placement.stages_of(worker).iter().map(StageId::to_string).collect();
        log.line(format_args!(
            "process {} is {rank}: {worker} of pipeline {group}, {}, {}; step {} is next",
            std::process::id(),
            stages.join(" and "),
            program.schedule(),
            first
        ));
        Ok(log)
    }

    /// Returns true if the log is written anywhere.
    pub(crate) fn is_kept(&self) -> bool {
        self.out.is_some()
    }

    /// Logs the steps of one run of the program, and what this rank waited for in it.
    pub(crate) fn steps(&mut self, reports: &[StepReport], events: &[Event], waits: &[Wait]) {
        for StepReport { step, loss, has_targets, step_s, .. } in reports {
            if *has_targets {
                self.line(format_args!("step {step}: loss {loss:.6}, {step_s:.4} s"))
            } else {
                self.line(format_args!("step {step}: no targets, {step_s:.4} s"))
            }
        }
        let seconds = |wait: &Wait| wait.end - wait.start;
        let waited: f64 = waits.iter().map(seconds).sum();
        let longest = waits.iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let longest = longest.map(|w| format!(", longest {:.4} s for {}", seconds(w), w.awaited));
        self.line(format_args!(
            "  here {} ops and gradient reductions; waited {waited:.4} s{}",
            events.len(),
            longest.unwrap_or_default()
        ));
    }

    /// Logs how the rank ended: on request, with all steps trained, or with a fault.
    pub(crate) fn end(&mut self, on_request: Result<bool, &Fault>) {
        match on_request {
            Ok(true) => self.line("stopped on request"),
            Ok(false) => self.line("all is trained"),
            Err(fault) => self.line(fault),
        }
    }

    /// Writes a line. A failure does not end the training; the first one causes a warning.
    pub(crate) fn line(&mut self, text: impl Display) {
        let Some(LogFile { file, path, warn }) = &mut self.out else { return };
        let line = format!("{} {text}\n", time_of_day(SystemTime::now()));
        if let Err(error) = file.write_all(line.as_bytes())
            && let Some(warn) = warn.take()
        {
            let path = path.display();
            warn(&format!("{path}: lines of this log are missing: {error}; training goes on"));
        }
    }
}

#[cfg(feature = "logs")]
fn time_of_day(now: SystemTime) -> impl Display {
    humantime::format_rfc3339_millis(calendar_time(now))
}

/// Returns the nearest time from 1970 to 9999: `humantime` panics on others, which a wrong clock
/// can show.
#[cfg(feature = "logs")]
pub fn calendar_time(now: SystemTime) -> SystemTime {
    const SECONDS: u64 = 253_402_300_799;
    let last = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(SECONDS));
    now.max(SystemTime::UNIX_EPOCH).min(last.unwrap_or(now))
}

/// Returns the seconds since 1970, in a build without a calendar.
#[cfg(not(feature = "logs"))]
fn time_of_day(now: SystemTime) -> impl Display {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:.3}", since.as_secs_f64())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_log_that_cannot_be_written_is_told_once() {
        let told = Mutex::new(Vec::new());
        let warn = |problem: &str| told.lock().unwrap().push(problem.to_string());
        let path = PathBuf::from("/dev/full");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let mut log = Log { out: Some(LogFile { file, path, warn: Some(Box::new(&warn)) }) };
        log.line("one");
        log.line("two");
        drop(log);
        let told = told.into_inner().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("/dev/full: lines of this log are missing: "), "{told:?}");
    }
}

#[cfg(all(test, feature = "logs"))]
mod clock_tests {
    use super::*;

    #[test]
    fn a_clock_outside_of_the_calendar_is_shown_at_its_edge() {
        let century = Duration::from_secs(100 * 365 * 86_400);
        for (now, shown) in [
            (SystemTime::UNIX_EPOCH - century, "1970-01-01T00:00:00.000Z"),
            (SystemTime::UNIX_EPOCH + century * 99, "9999-12-31T23:59:59.000Z"),
            (SystemTime::UNIX_EPOCH, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(time_of_day(now).to_string(), shown);
        }
    }
}
