//! The time that stages and steps take: by a measured profile, or by data sheets.

pub(super) mod hardware;
pub(super) mod predict;
pub(super) mod priced;
pub(super) mod varied;
