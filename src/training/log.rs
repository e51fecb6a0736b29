//! What one rank tells of a run in a file of its own: what it holds, how each step went here, how it ended.

use std::fmt::Display;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write;
use std::time::SystemTime;

use chimera_core::analyze::{Event, Wait};
use chimera_core::engine::StepReport;
use chimera_core::fault::Fault;
use chimera_core::ids::{Rank, StageId};
use humantime::format_rfc3339_millis;

use super::trained::RankTrained;
use super::{Run, io_fault};
use crate::files::no_follow;

/// The log of a rank, if one is wanted.
pub(super) struct Log {
    out: Option<File>,
}

impl Log {
    /// Opens `rank.<rank>.log` in the folder that the settings name; a run that is resumed goes on with it.
    pub(super) fn open(run: &Run, rank: Rank) -> Result<Log, Fault> {
        let Some(folder) = &run.config().log else { return Ok(Log { out: None }) };
        let path = folder.join(format!("rank.{}.log", rank.0));
        let open = || {
            create_dir_all(folder)?;
            no_follow(OpenOptions::new().create(true).append(true)).open(&path)
        };
        let out = open().map_err(|e| Fault { rank, ..io_fault("log", &path, &e) })?;
        let mut log = Log { out: Some(out) };
        let placement = run.program().placement();
        let (group, worker) = placement.group_and_worker(rank);
        let stages: Vec<_> = placement.stages_of(worker).iter().map(StageId::to_string).collect();
        log.line(format_args!(
            "process {} is {rank}: {worker} of group {group}, {}, {}; step {} is next",
            std::process::id(),
            stages.join(" and "),
            run.program().schedule(),
            run.first_step()
        ));
        Ok(log)
    }

    /// Whether anybody reads it.
    pub(super) fn is_kept(&self) -> bool {
        self.out.is_some()
    }

    /// The steps of a run of the program, and what this rank waited for in it.
    pub(super) fn steps(&mut self, reports: &[StepReport], events: &[Event], waits: &[Wait]) {
        for StepReport { step, loss, step_s, .. } in reports {
            self.line(format_args!("step {step}: loss {loss:.6}, {step_s:.4} s"));
        }
        let seconds = |wait: &Wait| wait.end - wait.start;
        let waited: f64 = waits.iter().map(seconds).sum();
        let longest = waits.iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let longest = longest.map(|w| format!(", {:.4} s for {}", seconds(w), w.awaited));
        self.line(format_args!(
            "  here {} ops and sums, and {waited:.4} s of waiting{}",
            events.len(),
            longest.unwrap_or_default()
        ));
    }

    /// How the rank ended.
    pub(super) fn end(&mut self, ended: Result<&RankTrained, &Fault>) {
        match ended {
            Ok(trained) => self.line(match trained.last.as_ref().is_some_and(|last| last.stop) {
                true => "stopped on request",
                false => "all is trained",
            }),
            Err(fault) => self.line(fault),
        }
    }

    /// A line. One that cannot be written is no reason to end a training.
    pub(super) fn line(&mut self, text: impl Display) {
        if let Some(out) = &mut self.out {
            let _ = writeln!(out, "{} {text}", format_rfc3339_millis(SystemTime::now()));
        }
    }
}
