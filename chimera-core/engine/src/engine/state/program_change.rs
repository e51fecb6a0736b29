//! What is under way between ranks where their program has changed.

use std::collections::{BTreeMap, BTreeSet};

use chimera_schedule::ids::StageId;

use super::held::Held;
use crate::stage::Stage;

/// The stages that are not where they were before the program changed, until all of them have come.
pub(super) struct Moved<S: Stage> {
    /// Stages that this rank holds no more, which others may have to be given.
    pub(super) gone: BTreeMap<StageId, Held<S>>,
    /// Stages that this rank is yet to be given.
    pub(super) lacking: BTreeSet<StageId>,
}

impl<S: Stage> Default for Moved<S> {
    fn default() -> Moved<S> {
        Moved { gone: BTreeMap::new(), lacking: BTreeSet::new() }
    }
}
