//! Reports of a rank: when things began and ended, what it did last, how long it waited.

pub(crate) mod flight_recorder;
pub(crate) mod timing;
pub(crate) mod wait_time;
