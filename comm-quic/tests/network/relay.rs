//! A link between a machine and a host: it passes packets on after a delay, and may lose some.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// The way that packets take in both directions.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) delay: Duration,
    /// Bytes per second.
    pub(crate) rate: f64,
    /// Bytes that wait for the link at most. Packets beyond are dropped.
    pub(crate) queue: f64,
    /// One packet of this many is lost at random; 0 for no loss.
    pub(crate) loses_one_of: u64,
}

impl Link {
    /// Opens the link to a port of this machine, for one client. Returns the port of its other end.
    /// Counts the packets that a full queue drops.
    pub(crate) fn open(self, port: u16, n_dropped: &Arc<AtomicU64>) -> u16 {
        let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let (near, far) = (Arc::new(socket()), Arc::new(socket()));
        far.connect((Ipv4Addr::LOCALHOST, port)).expect("a peer");
        let at = near.local_addr().expect("bound").port();
        let client = Arc::new(Mutex::new(None));
        let (from, back) = ((Arc::clone(&near), Arc::clone(&client)), Arc::clone(&far));
        self.carry(
            Arc::clone(n_dropped),
            move |packet| receive(&from.0, &from.1, packet),
            move |packet| {
                let _ = back.send(packet);
            },
        );
        self.carry(
            Arc::clone(n_dropped),
            move |packet| far.recv(packet).ok(),
            move |packet| {
                if let Some(client) = *client.lock().expect("no panic") {
                    let _ = near.send_to(packet, client);
                }
            },
        );
        at
    }

    /// Passes packets of one direction on.
    fn carry(
        self,
        n_dropped: Arc<AtomicU64>,
        receive: impl Fn(&mut [u8]) -> Option<usize> + Send + 'static,
        send: impl Fn(&[u8]) + Send + 'static,
    ) {
        let (sender, queue) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
        thread::spawn(move || {
            let (mut packet, mut free, mut state) = ([0; 1 << 16], Instant::now(), 1);
            loop {
                // The system may report that a packet before was refused.
                let Some(n) = receive(&mut packet) else { continue };
                if self.loses_one_of > 0 && random(&mut state).is_multiple_of(self.loses_one_of) {
                    continue;
                }
                let now = Instant::now();
                free = free.max(now);
                if (free - now).as_secs_f64() * self.rate > self.queue {
                    n_dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                free += Duration::from_secs_f64(n as f64 / self.rate);
                if sender.send((free + self.delay, packet[..n].to_vec())).is_err() {
                    return;
                }
            }
        });
        thread::spawn(move || {
            for (at, packet) in queue {
                sleep(at.saturating_duration_since(Instant::now()));
                send(&packet);
            }
        });
    }
}

fn receive(
    socket: &UdpSocket,
    client: &Mutex<Option<SocketAddr>>,
    packet: &mut [u8],
) -> Option<usize> {
    let (n, from) = socket.recv_from(packet).ok()?;
    *client.lock().expect("no panic") = Some(from);
    Some(n)
}

/// The next number of a sequence that looks random (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
