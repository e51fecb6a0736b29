//! What all ranks concluded at the end of a program, and whether its gradient is used.

use crate::engine::sync::agreement::Agreed;

/// What ranks agreed on so far.
#[derive(Default)]
pub(crate) struct StepSync {
    agreed: Option<Agreed>,
    /// What it was concluded from, by rank.
    records: Vec<Vec<u8>>,
    /// Why the step under way makes no update, if it does not.
    skipped: Option<String>,
    /// Steps that made none.
    n_skipped: u64,
    n_skipped_in_a_row: u64,
    /// Whether the last program that was begun is left unfinished.
    is_discarded: bool,
}

impl StepSync {
    /// Whether ranks have not agreed on anything yet.
    pub(crate) fn is_first(&self) -> bool {
        self.agreed.is_none()
    }

    /// The last agreement.
    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// What every rank said in the last sync that was taken, by rank.
    pub(crate) fn records(&self) -> &[Vec<u8>] {
        &self.records
    }

    /// Why the step under way makes no update, if it does not.
    pub(crate) fn skipped(&self) -> Option<&str> {
        self.skipped.as_deref()
    }

    /// Steps that made no update.
    pub(crate) fn n_skipped(&self) -> u64 {
        self.n_skipped
    }

    /// Steps that made no update, the last ones in a row.
    pub(crate) fn n_skipped_in_a_row(&self) -> u64 {
        self.n_skipped_in_a_row
    }

    /// Whether the last program that was begun is left unfinished.
    pub(crate) fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// Leaves the program under way unfinished.
    pub(crate) fn discard(&mut self) {
        self.is_discarded = true;
    }

    /// Goes on from a training that skipped so many steps.
    pub(crate) fn restore(&mut self, n_skipped: u64) {
        self.n_skipped = n_skipped;
    }

    /// Takes a step that makes its update.
    pub(crate) fn update(&mut self, agreed: Agreed, records: Vec<Vec<u8>>) {
        (self.agreed, self.records) = (Some(agreed), records);
        (self.skipped, self.n_skipped_in_a_row) = (None, 0);
    }

    /// Takes a program in which something was not finite, and whose steps are trained again.
    pub(crate) fn repeat(&mut self, agreed: Agreed, records: Vec<Vec<u8>>) {
        (self.agreed, self.records) = (Some(agreed), records);
    }

    /// Whether everything was finite in the last program.
    pub(crate) fn is_sound(&self) -> bool {
        self.agreed.as_ref().is_none_or(|agreed| agreed.culprit.is_none())
    }

    /// Counts a step that makes none.
    pub(crate) fn count_skipped(&mut self) {
        self.skipped = None;
        self.n_skipped += 1;
        self.n_skipped_in_a_row += 1;
    }

    /// Takes a step that makes no update, for this reason.
    pub(crate) fn skip(&mut self, agreed: Agreed, records: Vec<Vec<u8>>, why: String) {
        (self.agreed, self.records, self.skipped) = (Some(agreed), records, Some(why));
    }

    /// Takes what another rank has concluded: from these records, of a step that was skipped for this reason, after so many
    /// that were, in all and in a row.
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
