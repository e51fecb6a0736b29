//! Decides when to save checkpoints, and saves those of ranks that are threads, which stop only for
//! the copy to the host.

use std::collections::BTreeMap;
use std::mem::take;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chimera_core::engine::Snapshot;
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;

use super::{Manifest, Share, Store};

/// Saves a run when that is due. It belongs to the run, so a save that ranks have begun outlives them.
pub struct Saver {
    store: Store,
    every: u64,
    warn: Warn,
    threads: Mutex<Threads>,
}

/// A function that is called with problems that do not stop the training.
pub(super) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// The saving by ranks that are threads of this process: one share with the parts of all.
struct Threads {
    share: Share,
    /// Parts copied so far, until all ranks have copied theirs.
    parts: BTreeMap<Rank, Vec<Snapshot>>,
}

/// The state of the training between two programs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct State {
    /// The step that the last program began with. If programs before it ended in skipped steps, the first of those.
    pub began: u64,
    /// Number of steps that were trained.
    pub step: u64,
    /// Whether all steps were trained.
    pub is_done: bool,
    /// Whether the run ends here.
    pub is_last: bool,
    /// Whether the last step made no update.
    pub is_skipped: bool,
}

impl State {
    /// Returns the step where the next state [began](State::began). A checkpoint that is due on a
    /// skipped step stays due until a step makes an update.
    pub fn next_began(&self) -> u64 {
        if self.is_skipped { self.began } else { self.step }
    }
}

impl Saver {
    /// Returns a saver that saves into `store` whenever another multiple of `every` steps is done, and at the
    /// end. With 0 it only saves a run that is stopped. Calls `warn` for saves that fail before the last one.
    pub fn new(store: Store, every: u64, warn: impl Fn(&str) + Send + Sync + 'static) -> Saver {
        let warn: Warn = Arc::new(warn);
        let share = Share::of(Rank(0), store.clone(), Arc::clone(&warn));
        let threads = Mutex::new(Threads { share, parts: BTreeMap::new() });
        Saver { store, every, warn, threads }
    }

    /// Returns true if the state is to be saved; the same on all ranks. Nothing is saved while
    /// steps are being skipped: sound checkpoints would be replaced by weights that may be lost.
    pub fn is_due(&self, state: &State) -> bool {
        let is_time = |every| state.step / every > state.began / every && !state.is_skipped;
        match self.every {
            0 => state.is_last && !state.is_done,
            every => state.is_last || is_time(every),
        }
    }

    /// Takes the part of one of `n_ranks` ranks, which may be empty, once the previous save is done.
    /// All ranks wait for it; otherwise ranks that carried on would mistake a slow disk for a lost
    /// peer. The last rank starts the writer. `part` gets the rank's part of the previous save.
    pub fn save(
        &self,
        state: &State,
        manifest: impl FnOnce() -> Manifest,
        n_ranks: usize,
        rank: Rank,
        part: impl FnOnce(Vec<Snapshot>) -> Result<Vec<Snapshot>, Fault>,
    ) -> Result<(), Fault> {
        let spent = self.threads().share.spent(rank.index(), None)?;
        let part = part(spent)?; // ranks copy at the same time
        let mut threads = self.threads();
        threads.parts.insert(rank, part);
        if threads.parts.len() < n_ranks {
            return Ok(());
        }
        let parts = take(&mut threads.parts).into_values().collect();
        threads.share.begin(None, state, manifest(), parts)
    }

    /// Returns the share of a rank that is a process.
    pub fn share(&self, rank: Rank) -> Share {
        Share::of(rank, self.store.clone(), Arc::clone(&self.warn))
    }

    /// Returns the store that it saves into.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Warns of another problem that does not stop the training.
    pub fn tell(&self, problem: &str) {
        (self.warn)(problem);
    }

    /// Waits for the last save of ranks that are threads, if there was one, and returns its path.
    pub fn finish(&self) -> Result<Option<PathBuf>, Fault> {
        self.threads().share.finish(None)?.transpose()
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the steps after which a checkpoint is due, for programs of `n` steps each. Programs
    /// that end at a step in `skipped` make no update.
    fn due(every: u64, n: u64, skipped: &[u64]) -> Vec<u64> {
        let folder = tempfile::TempDir::new().unwrap();
        let saver = Saver::new(Store::of(folder.path()), every, |_| ());
        let (mut began, mut all) = (0, Vec::new());
        for step in (n..=24).step_by(n as usize) {
            let is_skipped = skipped.contains(&step);
            let state = State { began, step, is_done: false, is_last: false, is_skipped };
            if saver.is_due(&state) {
                all.push(step);
            }
            began = state.next_began();
        }
        all
    }

    #[test]
    fn a_checkpoint_that_is_due_on_a_skipped_step_follows_the_next_sound_one() {
        assert_eq!(due(10, 1, &[]), [10, 20]);
        assert_eq!(due(10, 1, &[9, 19]), [10, 20]);
        assert_eq!(due(10, 1, &[10, 11, 20]), [12, 21]);
        assert_eq!(due(10, 4, &[12]), [16, 20]);
        assert_eq!(due(2, 1, &[2, 3, 4, 5]), [6, 8, 10, 12, 14, 16, 18, 20, 22, 24]);
    }
}
