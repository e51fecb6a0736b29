//! Ports for hosts.

use std::net::{Ipv4Addr, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a free port that the system does not give to sockets that ask for any, as those of members
/// do: it would be taken before rank 0 has it, and the others would wait for rank 0.
pub(crate) fn free_port() -> u16 {
    static N_GIVEN: AtomicU32 = AtomicU32::new(0);
    loop {
        let nth =
            process::id().wrapping_mul(61).wrapping_add(N_GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = 20_000 + (nth % 12_000) as u16;
        if UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
