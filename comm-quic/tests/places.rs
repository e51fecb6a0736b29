//! Places of a run: machines that come over slow links, and places that nobody takes.

#[path = "network/port.rs"]
mod port;
#[path = "network/relay.rs"]
mod relay;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use chimera_comm_quic::{
    Cluster, Event, Guest, Host, Key, PlaceOf, QuicRendezvous, Survival, Ticket, Wish, join,
};
use chimera_core::comm::{CommError, Rendezvous, all_gather};
use chimera_core::fault::Class;
use port::free_port;
use relay::Link;

const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a link to a port of this machine that delays each packet. Returns the port of its other end.
fn relay(port: u16, delay: Duration) -> u16 {
    let link = Link { delay, rate: f64::INFINITY, queue: f64::INFINITY, loses_one_of: 0 };
    link.open(port, &Arc::default())
}

/// The peer counts on a connection once it has taken it, so the other end must not give it up and
/// make another, which nobody takes any more.
#[test]
fn ranks_meet_over_a_link_with_a_round_trip_of_more_than_a_second() {
    let port = free_port();
    let far = relay(port, Duration::from_millis(550));
    let rank = |rank: u32, port: u16| {
        let rendezvous = format!("127.0.0.1:{port}");
        let cluster = Cluster { secret: "far away".into(), rank, n_ranks: 2, rendezvous };
        let mut comm = cluster.start(PATIENCE, |_| {}).expect("all ranks meet");
        let all = all_gather(&mut comm, &[rank as u8], Instant::now() + PATIENCE);
        assert_eq!(all.expect("all are there"), [[0], [1]]);
    };
    thread::scope(|scope| {
        scope.spawn(|| rank(0, port));
        scope.spawn(|| rank(1, far));
    });
}

/// A host and the ticket to it.
fn host(far: impl Fn(u16) -> u16) -> (Host, Ticket) {
    let (key, member) = (Key::random().expect("a key"), Key::random().expect("a key"));
    let public = key.public().expect("its half");
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let host = Host::open(at, key, &member, None, |_| {}).expect("it listens");
    let port = far(host.address().expect("bound").port());
    let addresses = vec![(Ipv4Addr::LOCALHOST, port).into()];
    (host, Ticket { host: public, join: member, expires: u64::MAX, addresses, relay: None })
}

fn no_files() -> PlaceOf {
    Arc::new(|_, _| Err("no files".into()))
}

/// Waits for one machine, in pieces that are shorter than the time that it takes to say its wish.
fn next(host: &mut Host) -> Guest {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "nobody came");
        if let Some(guest) = host.next(Duration::from_millis(5)).expect("it listens") {
            return guest;
        }
    }
}

#[test]
fn a_machine_is_heard_though_the_host_looks_up_meanwhile() {
    let (mut host, ticket) = host(|port| relay(port, Duration::from_millis(50)));
    thread::scope(|scope| {
        let wish = Wish { place: None, about: "far away".into() };
        let member = scope.spawn(|| join(&ticket, wish, PATIENCE, PATIENCE, |_| {}));
        let guest = next(&mut host);
        assert_eq!(guest.wish().about, "far away");
        let start = scope.spawn(|| host.start(vec![guest], "", Vec::new(), no_files(), PATIENCE));
        let seat = member.join().expect("no panic").expect("a place");
        let member = seat.connect(PATIENCE).expect("all ranks meet");
        let host = start.join().expect("no panic").expect("all ranks meet");
        drop((member, host));
    });
}

/// The user hears of a free place at once and again and again, and at last the run ends.
#[test]
fn a_place_that_nobody_takes_ends_the_run() {
    let (mut host, ticket) = host(|port| port);
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let tell = move |event: &Event<'_>| {
        let event = match event {
            Event::Missing { left, .. } => format!("free {}", left.is_some()),
            Event::GivesUp => "gives up".into(),
            _ => return,
        };
        heard.lock().expect("no panic").push(event);
    };
    let survival = Survival {
        replaces: true,
        patience: Duration::from_secs(2),
        remind: Duration::from_millis(200),
        valid: PATIENCE,
        until: Instant::now() + PATIENCE,
        fits: Arc::new(|_, _| Ok(())),
        tell: Arc::new(tell),
    };
    thread::scope(|scope| {
        let join = || join(&ticket, Wish::default(), PATIENCE, PATIENCE, |_| {});
        let member = scope.spawn(join);
        let guests = vec![next(&mut host)];
        let meetings = host.meetings((3, guests), "", Vec::new(), no_files(), survival);
        let mut meetings = meetings.expect("no files to read");
        let lost = |meetings: &mut QuicRendezvous| match meetings.meet() {
            Err(CommError::Aborted(fault)) => fault,
            _ => panic!("a place is free"),
        };
        let seat = member.join().expect("no panic").expect("a place");
        let member = scope.spawn(move || lost(&mut seat.meetings()));
        let fault = lost(&mut meetings);
        assert_eq!(fault.class, Class::PeerLost);
        assert!(fault.message.contains("nobody took the place of rank 2"), "{fault}");
        let fault = member.join().expect("no panic");
        assert!(fault.message.contains("nobody took a free place"), "{fault}");
    });
    let events = events.lock().expect("no panic");
    let (last, before) = events.split_last().expect("events");
    assert!(last == "gives up" && before.len() > 1, "{events:?}");
    assert!(before.iter().all(|event| event == "free true"), "{events:?}");
}
