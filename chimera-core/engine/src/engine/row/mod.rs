//! A rank's row: the machine that runs its instructions, op by op.

pub(crate) mod discard;
pub(crate) mod eviction;
pub(crate) mod faults;
pub(crate) mod machine;
pub(crate) mod offloading;
pub(crate) mod ops;
pub(crate) mod own_work;
pub(crate) mod ranges;
pub(crate) mod record;
pub(crate) mod shape_checks;
pub(crate) mod shared_updates;
pub(crate) mod slices;
pub(crate) mod turns;
pub(crate) mod value;
pub(crate) mod waits;
