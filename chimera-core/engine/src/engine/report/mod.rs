//! Reports of a rank: its timeline, its last activities, and its waits.

pub(crate) mod flight_recorder;
pub(crate) mod load;
pub(crate) mod timing;
pub(crate) mod wait_time;
