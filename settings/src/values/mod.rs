//! The types of the options' values, and their notation.

pub(super) mod byte_size;
pub(super) mod gate;
pub(super) mod layout;
pub(super) mod peer_values;
pub(super) mod recomputed;
pub(super) mod scaling;
pub mod schedules;
pub(super) mod speeds;
pub(super) mod survive;
pub(super) mod text_rows;
pub(super) mod transport;
pub(super) mod value;
pub(super) mod weights;
