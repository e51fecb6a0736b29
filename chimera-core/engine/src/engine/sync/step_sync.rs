//! The results of step syncs so far, and whether the last gradient is used.

use crate::engine::sync::agreement::Agreed;

/// The agreements of the ranks so far.
#[derive(Default)]
pub(crate) struct StepSync {
    agreed: Option<Agreed>,
    /// The records on which the conclusion is based, by rank.
    records: Vec<Vec<u8>>,
    /// The reason that the current step makes no update, if it makes none.
    skipped: Option<String>,
    /// Number of steps that made no update.
    n_skipped: u64,
    n_skipped_in_a_row: u64,
    /// Whether the last program that was begun is left unfinished.
    is_discarded: bool,
}

impl StepSync {
    /// Returns true if there has been no step sync yet.
    pub(crate) fn is_first(&self) -> bool {
        self.agreed.is_none()
    }

    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    pub(crate) fn records(&self) -> &[Vec<u8>] {
        &self.records
    }

    /// The reason that the current step makes no update, if it makes none.
    pub(crate) fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    pub(crate) fn n_skipped(&self) -> u64 {
        self.n_skipped
    }

    /// Number of consecutive steps without an update, up to the last one.
    pub(crate) fn n_skipped_in_a_row(&self) -> u64 {
        self.n_skipped_in_a_row
    }

    /// Returns true if the last program that was begun is left unfinished.
    pub(crate) fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// Leaves the current program unfinished.
    pub(crate) fn discard(&mut self) {
        self.is_discarded = true;
    }

    /// Resumes a training that has skipped `n_skipped` steps.
    pub(crate) fn restore(&mut self, n_skipped: u64) {
        self.n_skipped = n_skipped;
    }

    /// Records the sync of a step that makes its update.
    pub(crate) fn update(&mut self, agreed: Agreed, records: Vec<Vec<u8>>) {
        (self.agreed, self.records) = (Some(agreed), records);
        (self.skipped, self.n_skipped_in_a_row) = (None, 0);
    }

    /// Records the sync of a program that was not finite, and is trained again.
    pub(crate) fn repeat(&mut self, agreed: Agreed, records: Vec<Vec<u8>>) {
        (self.agreed, self.records) = (Some(agreed), records);
    }

    /// Returns true if everything was finite in the last program.
    pub(crate) fn is_sound(&self) -> bool {
        self.agreed.as_ref().is_none_or(|agreed| agreed.culprit.is_none())
    }

    /// Counts a step that makes no update.
    pub(crate) fn count_skipped(&mut self) {
        self.skipped = None;
        self.n_skipped += 1;
        self.n_skipped_in_a_row += 1;
    }

    /// Records the sync of a step that makes no update, with the reason.
    pub(crate) fn skip(&mut self, agreed: Agreed, records: Vec<Vec<u8>>, why: String) {
        (self.agreed, self.records, self.skipped) = (Some(agreed), records, Some(why));
    }

    /// Adopts the state of another rank: its agreement and records, the reason for skipping the
    /// step if it was skipped, and the numbers of skipped steps, in total and in a row.
    pub(crate) fn take(
        &mut self,
        agreed: Option<Agreed>,
        records: Vec<Vec<u8>>,
        skipped: Option<String>,
        (n_skipped, n_skipped_in_a_row): (u64, u64),
    ) {
        let is_discarded = false;
        *self = StepSync { agreed, records, skipped, n_skipped, n_skipped_in_a_row, is_discarded };
    }
}
