//! Transfers of stages that are pending after a change of the program.

use std::collections::{BTreeMap, BTreeSet};

use chimera_schedule::ids::StageId;

use crate::engine::state::held_stage::Held;
use crate::stage::Stage;

/// The stages that change their rank with the program, until all have arrived.
pub(crate) struct Moved<S: Stage> {
    /// Stages that this rank no longer holds, which may have to be sent to others.
    pub(crate) gone: BTreeMap<StageId, Held<S>>,
    /// Stages that this rank has yet to receive.
    pub(crate) lacking: BTreeSet<StageId>,
}

impl<S: Stage> Default for Moved<S> {
    fn default() -> Moved<S> {
        Moved { gone: BTreeMap::new(), lacking: BTreeSet::new() }
    }
}
