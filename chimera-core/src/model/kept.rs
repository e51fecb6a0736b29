//! Saved activations, whole or what selective recomputation keeps of them.

/// Saved activations of a stage, of which [`Stage::select`](crate::stage::Stage::select) makes a selection.
#[derive(Debug)]
pub enum Kept<W, S> {
    /// All that the backward pass needs.
    Whole(W),
    /// What the rest can be made from.
    Selected(S),
}

/// The engine restores what it selected before a backward pass, so the other variant is a bug.
impl<W, S> Kept<W, S> {
    pub(super) fn whole(self) -> W {
        match self {
            Kept::Whole(saved) => saved,
            Kept::Selected(_) => panic!("saved activations were selected and not restored"),
        }
    }

    pub(super) fn selected(self) -> S {
        match self {
            Kept::Selected(selected) => selected,
            Kept::Whole(_) => panic!("saved activations were not selected"),
        }
    }
}
