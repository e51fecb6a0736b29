//! The time of stages and steps: from a measured profile, or from data sheets.

pub(super) mod hardware;
pub(super) mod own_times;
pub(super) mod predict;
pub(super) mod priced;
pub(super) mod rate;
pub(super) mod varied;
