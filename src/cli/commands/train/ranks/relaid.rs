//! Runs that stop between two steps to continue with another layout.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use chimera_core::engine::StepReport;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;

use crate::run::{Run, Trained};

/// The reason by which members know that the run goes on.
const REASON: &str = "the run goes on with another layout";

/// Watches the steps of a run on the rank that leads.
pub(crate) trait Balance: Sync {
    /// Takes the folder of the run.
    fn begun(&self, folder: &Path);

    /// Takes the report of a step. Returns true if the run is to stop and continue with another
    /// layout.
    fn look(&self, run: &Run, report: &StepReport) -> bool;
}

/// The part of a rank in a run whose layout may be made again.
#[derive(Default)]
pub(super) struct Relaying<'t> {
    balance: Option<&'t dyn Balance>,
    /// Whether this process continues after a stop to make the layout again.
    goes_on: bool,
    is_due: AtomicBool,
}

impl<'t> Relaying<'t> {
    /// A rank that leads.
    #[cfg(feature = "quic")]
    pub(super) fn by(balance: &'t dyn Balance) -> Relaying<'t> {
        Relaying { balance: Some(balance), goes_on: true, is_due: AtomicBool::new(false) }
    }

    /// Another rank.
    #[cfg(feature = "quic")]
    pub(super) fn member(goes_on: bool) -> Relaying<'t> {
        Relaying { balance: None, goes_on, is_due: AtomicBool::new(false) }
    }

    pub(super) fn begun(&self, folder: &Path) {
        self.balance.iter().for_each(|balance| balance.begun(folder));
    }

    /// Takes the report of a step. Returns true if the run is to stop.
    pub(super) fn look(&self, run: &Run, report: &StepReport) -> bool {
        let is_due = !self.is_due.load(Ordering::Relaxed)
            && self.balance.is_some_and(|balance| balance.look(run, report));
        self.is_due.fetch_or(is_due, Ordering::Relaxed);
        is_due
    }

    /// Ends a run that continues with another layout, unless its user has stopped it too.
    ///
    /// # Errors
    /// The reason of the stop, or the reason why there is no checkpoint.
    pub(super) fn stop(&self, run: &Run, trained: &Trained, is_signalled: bool) -> Result<()> {
        let is_whole = trained.n_steps == run.config().training.steps;
        if !self.is_due.load(Ordering::Relaxed) || is_whole || is_signalled {
            return Ok(());
        }
        let again = || Fault::new(Class::Requeue, Rank(0), REASON);
        Err(trained.unwritten.clone().unwrap_or_else(again).into())
    }

    /// Returns true if this process goes on after an error of the run.
    pub(super) fn goes_on_after(&self, error: &anyhow::Error) -> bool {
        self.goes_on && is_relaid(error)
    }
}

/// Returns true if a run has stopped to continue with another layout.
pub(crate) fn is_relaid(error: &anyhow::Error) -> bool {
    let fault = error.downcast_ref::<Fault>();
    fault.is_some_and(|fault| fault.class == Class::Requeue && fault.message == REASON)
}
