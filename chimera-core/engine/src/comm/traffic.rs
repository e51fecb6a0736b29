//! Measurements that a transport makes of the links between ranks.

/// Use of the link to another rank since the last query.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Traffic {
    /// Bytes sent, of tensors and of control data.
    pub sent_bytes: u64,
    /// Seconds in which sent bytes were under way: from the send to the receiver's confirmation.
    pub busy_s: f64,
    /// The shortest round trip so far, in seconds.
    pub round_trip_s: f64,
}
