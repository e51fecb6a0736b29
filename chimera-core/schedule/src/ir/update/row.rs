//! The table of the rules of updates.

use super::Update;

impl Update {
    /// The row of the rule: the only place that asks which rule it is.
    pub fn row(self) -> UpdateRow {
        let (per, forward, backward) = match self {
            Update::Flush => (Per::Window, Reads::Own, Reads::Own),
            Update::EachStep { .. } => (Per::Step, Reads::Own, Reads::Own),
            Update::Stash { .. } => (Per::MicroBatch, Reads::Newest, Reads::OfForward),
            Update::DoubleBuffer { .. } => (Per::Step, Reads::Previous, Reads::OfForward),
            // An update comes right after its own backwards, so these find their own version.
            Update::Newest { .. } => (Per::Step, Reads::Newest, Reads::Own),
            Update::Predicted { .. } => (Per::MicroBatch, Reads::Predicted, Reads::Own),
        };
        UpdateRow { per, forward, backward }
    }

    /// Returns true if weights may change between a forward and its backward.
    pub fn is_asynchronous(self) -> bool {
        self.row().forward != Reads::Own
    }

    /// Returns true if steps are synchronous, and have no border between them.
    pub fn is_borderless(self) -> bool {
        self.row().per == Per::Step && !self.is_asynchronous()
    }
}

/// The meaning of an [`Update`]: the gradients of an update, and the versions of the weights that its
/// passes read. Proof, lowering and engine ask for these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpdateRow {
    /// The micro-batches whose gradients make one update.
    pub per: Per,
    /// The version that a forward reads.
    pub forward: Reads,
    /// The version that its backward reads.
    pub backward: Reads,
}

impl UpdateRow {
    /// Number of versions before the newest one that later passes may read.
    pub fn n_previous(self) -> u32 {
        u32::from(self.forward == Reads::Previous)
    }

    /// Returns true if all passes of a micro-batch read the same version.
    pub fn reads_one_version(self) -> bool {
        self.keeps_versions() || self.forward == self.backward
    }

    /// Returns true if the version that a forward reads is kept until its backward.
    pub fn keeps_versions(self) -> bool {
        self.backward == Reads::OfForward
    }
}

/// The micro-batches whose gradients make one update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Per {
    /// All micro-batches.
    Window,
    /// The micro-batches of a step.
    Step,
    /// One micro-batch.
    MicroBatch,
}

/// The version of the weights that a pass reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// The one that the update of its own gradients changes.
    Own,
    /// The one before that.
    Previous,
    /// The newest one that its worker has.
    Newest,
    /// The one that its forward read, which a token keeps until this op.
    OfForward,
    /// A prediction of [`Own`](Reads::Own), from the newest one.
    Predicted,
}
