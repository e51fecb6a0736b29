//! Peers that do not keep to the rules.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope, sleep};
use std::time::Duration;

use chimera::quic::{Key, Ticket, Wish, join};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Machines with wrong keys that connect at a time.
const N_WRONG: usize = 48;
/// Machines with the ticket whose handshakes stay half, or are slow.
const N_HALF: usize = 16;
const N_SLOW: usize = 8;
/// Time that each of them tries.
const TRIES: Duration = Duration::from_secs(3);
/// Packets of noise between two pauses, and their length.
const BURST: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// Packets that are kept for a replay.
const N_KEPT: usize = 1 << 10;
/// Packets of a machine that pass a slow link at once, and the time between later ones.
const AT_ONCE: usize = 5;
const SLOW: Duration = Duration::from_millis(900);

/// Numbers of attacks so far.
#[derive(Default)]
pub(super) struct Attack {
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    noise: AtomicU64,
    wrong: AtomicU64,
    half: AtomicU64,
    slow: AtomicU64,
}

/// Attacks that end when this is dropped.
pub(super) struct Begun(Arc<AtomicBool>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let Counts { noise, wrong, half, slow } = &*self.counts;
        write!(
            f,
            "{} packets of noise and {} replays, {} wrong keys, {} half and {} slow handshakes",
            number(noise),
            number(&N_REPLAYED),
            number(wrong),
            number(half),
            number(slow)
        )
    }
}

impl Attack {
    /// Begins to attack the host of a ticket and its relay.
    pub(super) fn begin<'s>(&'s self, scope: &'s Scope<'s, '_>, ticket: &Ticket) -> Begun {
        let is_over = Arc::new(AtomicBool::new(false));
        let at = ticket.addresses[0];
        let relay = ticket.relay.map(|relay| relay.address());
        for (seed, to) in [at].into_iter().chain(relay).enumerate() {
            let (counts, is_over) = (Arc::clone(&self.counts), Arc::clone(&is_over));
            scope.spawn(move || noise(to, seed as u64, &counts.noise, &is_over));
        }
        let half = Ticket {
            addresses: vec![passing(at, [127, 0, 0, 2], half)],
            relay: None,
            ..ticket.clone()
        };
        let slow = Ticket {
            addresses: vec![passing(at, [127, 0, 0, 3], slow())],
            relay: None,
            ..ticket.clone()
        };
        for (n, ticket, count) in [
            (N_HALF, half, (|c| &c.half) as fn(&Counts) -> &AtomicU64),
            (N_SLOW, slow, |c| &c.slow),
        ] {
            for _ in 0..n {
                let (counts, is_over) = (Arc::clone(&self.counts), Arc::clone(&is_over));
                let ticket = ticket.clone();
                scope.spawn(move || again(&is_over, count(&counts), || ticket.clone()));
            }
        }
        for nth in 0..N_WRONG {
            let (counts, is_over) = (Arc::clone(&self.counts), Arc::clone(&is_over));
            let ticket = ticket.clone();
            scope.spawn(move || again(&is_over, &counts.wrong, || wrong(&ticket, nth)));
        }
        Begun(is_over)
    }
}

/// Asks for a place with one ticket after the other.
fn again(is_over: &AtomicBool, count: &AtomicU64, ticket: impl Fn() -> Ticket) {
    while !is_over.load(Ordering::Relaxed) {
        let joined = join(&ticket(), Wish::default(), TRIES, TRIES, |_| {});
        assert!(joined.is_err(), "a hostile peer has a place");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A ticket of another run at the same host, or of another host, or with a session only.
fn wrong(ticket: &Ticket, nth: usize) -> Ticket {
    let random = Key::random().expect("a key");
    match nth % 3 {
        0 => Ticket { join: random, ..ticket.clone() },
        1 => Ticket { host: random.public().expect("its half"), ..ticket.clone() },
        _ => Ticket { join: random, addresses: Vec::new(), ..ticket.clone() },
    }
}

/// Sends random packets, some of which look like those of QUIC or of a relay.
fn noise(to: SocketAddr, seed: u64, count: &AtomicU64, is_over: &AtomicBool) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut packet = [0; 1500];
    while !is_over.load(Ordering::Relaxed) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        for _ in 0..BURST {
            let n = random.random_range(1..packet.len());
            random.fill_bytes(&mut packet[..n]);
            match random.random_range(0..3) {
                0 => packet[0] = random.random_range(0..8), // the kinds of a relay
                1 if n > 16 => {
                    // A first packet of QUIC 1, with two connection ids of eight bytes.
                    packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
                    packet[14] = 8;
                }
                _ => {}
            }
            let _ = socket.send_to(&packet[..n], to);
        }
        count.fetch_add(BURST as u64, Ordering::Relaxed);
        sleep(PAUSE);
    }
}

/// A packet of a machine, or of the host.
pub(super) enum Way {
    There,
    Back,
}

/// Opens a link to a host, from another address of this machine. Passes a packet on as often as `times`
/// says.
fn passing(
    host: SocketAddr,
    from: [u8; 4],
    times: impl FnMut(Way, &[u8]) -> usize + Send + 'static,
) -> SocketAddr {
    let inner = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let outer = UdpSocket::bind((Ipv4Addr::from(from), 0)).expect("a socket");
    outer.connect(host).expect("a peer");
    let at = inner.local_addr().expect("bound");
    let times = Arc::new(std::sync::Mutex::new(times));
    let client = Arc::new(std::sync::Mutex::new(None));
    let (inner, outer) = (Arc::new(inner), Arc::new(outer));
    let (near, far) = (Arc::clone(&inner), Arc::clone(&outer));
    let (times_there, last) = (Arc::clone(&times), Arc::clone(&client));
    // Both threads end with the process: they hold nothing but sockets.
    thread::spawn(move || {
        let mut packet = [0; 2048];
        loop {
            let Ok((n, from)) = near.recv_from(&mut packet) else { continue };
            *last.lock().expect("no panic") = Some(from);
            let n_times = times_there.lock().expect("no panic")(Way::There, &packet[..n]);
            for _ in 0..n_times {
                let _ = far.send(&packet[..n]);
            }
        }
    });
    thread::spawn(move || {
        let mut packet = [0; 2048];
        loop {
            let Ok(n) = outer.recv(&mut packet) else { continue };
            let n_times = times.lock().expect("no panic")(Way::Back, &packet[..n]);
            if let Some(client) = *client.lock().expect("no panic") {
                for _ in 0..n_times {
                    let _ = inner.send_to(&packet[..n], client);
                }
            }
        }
    });
    at
}

/// Keeps most answers back, so handshakes stay half done.
fn half(way: Way, packet: &[u8]) -> usize {
    usize::from(matches!(way, Way::There) || packet.len() < 300)
}

/// Lets the first packets of machines pass, and later ones slowly.
fn slow() -> impl FnMut(Way, &[u8]) -> usize + Send {
    let (mut n, mut last) = (0, std::time::Instant::now());
    move |way, _| {
        if matches!(way, Way::Back) {
            return 1;
        }
        n += 1;
        if n > AT_ONCE && last.elapsed() < SLOW {
            return 0;
        }
        last = std::time::Instant::now();
        1
    }
}

/// Packets that were replayed.
static N_REPLAYED: AtomicU64 = AtomicU64::new(0);

/// Opens a link to a host that sends every packet twice, and old ones again from its own and from
/// another address.
pub(super) fn replaying(host: SocketAddr) -> SocketAddr {
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let (mut kept, mut nth) = (Vec::<Vec<u8>>::new(), 0);
    passing(host, [127, 0, 0, 1], move |way, packet| {
        nth += 1;
        if matches!(way, Way::Back) {
            return 2;
        }
        if kept.len() < N_KEPT {
            kept.push(packet.to_vec());
        }
        let _ = stranger.send_to(&kept[nth * 31 % kept.len()], host);
        N_REPLAYED.fetch_add(2, Ordering::Relaxed);
        2
    })
}
