//! Ranks that meet at a relay, since the ticket has no address of the host.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use chimera_comm_quic::{
    Host as QuicHost, Key, Limits, Pass, PlaceOf, Quic, Relay, RelayAddress, RelayKey, Ticket,
    Wish, join,
};
use chimera_core::comm::{Comm, Host, Process, Tag, conformance};
use chimera_core::ids::Rank;

const PATIENCE: Duration = Duration::from_secs(60);
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Starts a relay, which ends with this process.
fn relay(n_members: usize) -> RelayAddress {
    let limits = Limits { n_sessions: 16, n_members, rate: 1e9 };
    let key = RelayKey::random().expect("a key");
    let relay = Relay::open(ANY, key, limits).expect("it listens");
    let at = relay.address().expect("bound");
    thread::spawn(|| relay.run(|event| eprintln!("{event:?}")));
    RelayAddress { at, key }
}

/// Opens a host with a session at a relay, and the ticket, which only has the relay.
fn host(relay: &Pass) -> Result<(QuicHost, Ticket), String> {
    let (key, member) = (Key::random().expect("a key"), Key::random().expect("a key"));
    let host = key.public().expect("its half");
    let ticket = Ticket {
        host,
        join: member.clone(),
        expires: u64::MAX,
        addresses: Vec::new(),
        relay: Some(*relay),
    };
    let opened = QuicHost::open(ANY, key, &member, Some(relay), |_| {});
    opened.map(|host| (host, ticket)).map_err(|e| e.to_string())
}

fn no_files() -> PlaceOf {
    Arc::new(|_, _| Err("no files".into()))
}

#[test]
fn it_conforms_through_a_relay() {
    let relay = relay(8);
    let (mut host, ticket) = host(&relay.pass().expect("a pass")).expect("it listens");
    let ticket: Ticket = ticket.to_string().parse().expect("its own ticket");
    let run = |mut comm: Quic| {
        comm.control().expect_tensors(1 << 24);
        conformance::run(&mut comm, |host| host, Host::clone);
        assert_eq!(comm.control().why_over(), None);
        comm.close(PATIENCE).expect("all ranks leave");
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let seat = join(&ticket, Wish::default(), PATIENCE, PATIENCE, |_| {});
                run(seat.expect("a place").connect(PATIENCE).expect("all ranks meet"));
            });
        }
        let next = || host.next(PATIENCE).expect("it listens").expect("a guest");
        let guests: Vec<_> = std::iter::repeat_with(next).take(2).collect();
        assert!(guests.iter().all(|guest| guest.address().starts_with("relayed ")));
        run(host.start(guests, "", Vec::new(), no_files(), PATIENCE).expect("all ranks meet"));
    });
}

#[test]
fn a_host_says_why_it_has_no_relay() {
    let relay = relay(1);
    let pass = relay.pass().expect("a pass");
    let (_first, _) = host(&pass).expect("it listens");
    let full = host(&pass).err().expect("it is full");
    assert!(full.contains("has as many members as it takes"), "{full}");
    let other = RelayAddress { key: RelayKey::derived("another"), ..relay };
    let refused = host(&other.pass().expect("a pass")).err().expect("another key");
    assert!(refused.contains("its key is another one"), "{refused}");
    let silent = UdpSocket::bind(ANY).expect("a socket");
    let at = silent.local_addr().expect("bound");
    let none = RelayAddress { at, ..relay };
    let refused = host(&none.pass().expect("a pass")).err().expect("no relay");
    assert!(refused.contains("no answer: is `chimera relay` running there?"), "{refused}");
}

/// Sends messages from the host to a member. Returns MB/s.
fn rate(relay: &RelayAddress, is_direct: bool) -> f64 {
    const N_ELEMENTS: usize = 1 << 20;
    const N: u64 = 48;
    let (mut host, mut ticket) = host(&relay.pass().expect("a pass")).expect("it listens");
    if is_direct {
        ticket.addresses = vec![host.address().expect("bound")];
    }
    thread::scope(|scope| {
        let member = scope.spawn(|| {
            let seat = join(&ticket, Wish::default(), PATIENCE, PATIENCE, |_| {}).expect("a place");
            let mut comm = seat.connect(PATIENCE).expect("all ranks meet");
            let mut take = |nth| {
                comm.recv(Rank(0), Tag::private(1, nth), Instant::now() + PATIENCE)
                    .expect("a message");
            };
            take(0);
            let began = Instant::now();
            (1..=N).for_each(take);
            let took = began.elapsed().as_secs_f64();
            comm.close(PATIENCE).expect("all ranks leave");
            (N_ELEMENTS * size_of::<f32>()) as f64 * N as f64 / took / 1e6
        });
        let guests = vec![host.next(PATIENCE).expect("it listens").expect("a guest")];
        let started = host.start(guests, "", Vec::new(), no_files(), PATIENCE);
        let mut comm = started.expect("all ranks meet");
        for nth in 0..=N {
            let message = Host::new([N_ELEMENTS], vec![0.0; N_ELEMENTS]);
            comm.send(Rank(1), Tag::private(1, nth), message).expect("send");
        }
        comm.close(PATIENCE).expect("all ranks leave");
        member.join().expect("no panic")
    })
}

/// Prints the rates of messages of 4 MB on the loopback, in turns:
/// `cargo test --release -p chimera-comm-quic --test relay -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn rates_through_a_relay() {
    let relay = relay(8);
    for _ in 0..5 {
        let [direct, relayed] = [true, false].map(|is_direct| rate(&relay, is_direct));
        println!("direct {direct:.0} MB/s, through a relay {relayed:.0} MB/s");
    }
}
