//! What is under way between ranks where their program has changed.

use std::collections::{BTreeMap, BTreeSet};

use chimera_schedule::ids::StageId;

use crate::engine::state::held_stage::Held;
use crate::stage::Stage;

/// The stages that are not where they were before the program changed, until all of them have come.
pub(crate) struct Moved<S: Stage> {
    /// Stages that this rank holds no more, which others may have to be given.
    pub(crate) gone: BTreeMap<StageId, Held<S>>,
    /// Stages that this rank is yet to be given.
    pub(crate) lacking: BTreeSet<StageId>,
}

impl<S: Stage> Default for Moved<S> {
    fn default() -> Moved<S> {
        Moved { gone: BTreeMap::new(), lacking: BTreeSet::new() }
    }
}
