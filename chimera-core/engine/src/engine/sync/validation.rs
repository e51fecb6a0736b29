//! The history of windows without a border.

use serde::{Deserialize, Serialize};

/// Largest number of consecutive windows trained step by step from the start.
const MOST_CAREFUL: u32 = 32;

/// The history of windows whose updates do not wait; equal on all ranks, and checkpointed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct WindowHistory {
    n_repeated: u64,
    /// Number of windows still to be trained step by step, because of earlier repetitions.
    n_careful: u32,
    /// Number of windows to be trained step by step after the next repetition.
    next_careful: u32,
}

impl WindowHistory {
    /// Number of windows that were trained again.
    pub fn n_repeated(&self) -> u64 {
        self.n_repeated
    }

    /// Caps the numbers of careful windows, since a file may hold anything.
    pub(crate) fn restored(self) -> WindowHistory {
        WindowHistory {
            n_careful: self.n_careful.min(MOST_CAREFUL),
            next_careful: self.next_careful.min(MOST_CAREFUL),
            ..self
        }
    }

    /// Begins a window. Returns true if it is to be trained step by step from the start.
    pub(crate) fn begin(&mut self) -> bool {
        let is_careful = self.n_careful > 0;
        self.n_careful = self.n_careful.saturating_sub(1);
        is_careful
    }

    pub(crate) fn right(&mut self) {
        self.next_careful = 0;
    }

    /// Counts a window that is trained again.
    pub(crate) fn wrong(&mut self) {
        self.n_repeated += 1;
        self.n_careful = self.next_careful;
        self.next_careful = (2 * self.next_careful).clamp(1, MOST_CAREFUL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_windows_are_trained_with_care_after_each_wrong_one() {
        let mut validation = WindowHistory::default();
        let mut careful = Vec::new();
        for _ in 0..8 {
            let mut n = 0;
            while validation.begin() {
                n += 1;
            }
            careful.push(n);
            validation.wrong();
        }
        assert_eq!(careful, [0, 0, 1, 2, 4, 8, 16, 32]);
        assert_eq!(validation.n_repeated(), 8);
        while validation.begin() {}
        validation.right();
        validation.wrong();
        assert!(!validation.begin());
    }

    #[test]
    fn a_file_asks_for_no_more_careful_windows_than_there_can_be() {
        let said = WindowHistory { n_repeated: 7, n_careful: u32::MAX, next_careful: u32::MAX };
        let mut restored = said.restored();
        assert_eq!(restored.n_repeated(), 7);
        assert_eq!((0..100).filter(|_| restored.begin()).count(), 32);
    }
}
