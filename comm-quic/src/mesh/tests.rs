//! Connections of ranks that change whom they admit.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::net::runtime;
use crate::rendezvous::open;
use crate::{Host, PlaceOf, Ticket, Wish, join};

/// The first bits of packets by which a server asks for a proof of the address, and of all packets of
/// handshakes (RFC 9000, 17.2).
const RETRY: u8 = 0xf0;
const LONG: u8 = 0xc0;

fn socket() -> (Socket, Member) {
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let socket = open(at, Key::random().expect("a key"), None, |_| {}).expect("a socket");
    let addresses = vec![socket.endpoint.local_addr().expect("bound")];
    let member = Member { key: socket.key.public().expect("its half"), addresses };
    (socket, member)
}

/// Passes packets on to a peer, and collects the names that clients give their connections. Calls
/// `at_first` before it passes on the first `RETRY`.
fn between(peer: SocketAddr, at_first: impl FnOnce() + Send + 'static) -> (SocketAddr, Names) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let at = socket.local_addr().expect("bound");
    let names = Names::default();
    let (seen, mut at_first) = (Arc::clone(&names), Some(at_first));
    thread::spawn(move || {
        let (mut packet, mut client) = ([0; 1 << 16], None);
        while let Ok((n, from)) = socket.recv_from(&mut packet) {
            let packet = &packet[..n];
            if from != peer {
                client = Some(from);
                seen.lock().expect("no panic").extend(name(packet));
            } else if packet[0] & RETRY == RETRY {
                at_first.take().into_iter().for_each(|at_first| at_first());
            }
            let to = if from == peer { client } else { Some(peer) };
            let _ = to.map(|to| socket.send_to(packet, to));
        }
    });
    (at, names)
}

/// Connection ids that clients have chosen.
type Names = Arc<Mutex<BTreeSet<Vec<u8>>>>;

/// Returns the source connection id of a packet of a handshake.
fn name(packet: &[u8]) -> Option<Vec<u8>> {
    let (n, rest) = packet.get(5..)?.split_first()?;
    let (n, rest) = rest.get(usize::from(*n)..)?.split_first()?;
    let name = rest.get(..usize::from(*n))?;
    (packet[0] & LONG == LONG).then(|| name.to_vec())
}

/// A rank may be reached by one that has heard of the meeting earlier.
#[test]
fn a_proof_of_an_address_holds_after_a_change_of_those_admitted() {
    let ((mut first, mut host), (mut second, member)) = (socket(), socket());
    let keys = [(host.key, Purpose::Rank), (member.key, Purpose::Rank)];
    let (asked, is_asked) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let (at, names) = between(host.addresses[0], move || {
        let _ = asked.send(());
        let _ = goes_on.recv();
    });
    host.addresses = vec![at];
    let members = [host, member];
    let meet = |socket: &mut Socket, me: u32| {
        let mesh = Mesh { me: Rank(me), members: &members, host: None, meeting: 1 };
        let deadline = Instant::now() + Duration::from_secs(60);
        runtime().expect("threads").block_on(connect(socket, mesh, deadline))
    };
    first.admit(keys);
    thread::scope(|scope| {
        let second = scope.spawn(|| meet(&mut second, 1));
        is_asked.recv().expect("a first packet");
        first.admit(keys);
        go_on.send(()).expect("it waits");
        let met = (meet(&mut first, 0), second.join().expect("no panic"));
        assert!(met.0.is_ok() && met.1.is_ok(), "they do not meet");
    });
    assert_eq!(names.lock().expect("no panic").len(), 1, "it had to begin anew");
}

/// Ranks that are connected with a member do not go on while it may not have reached another one.
#[test]
fn a_member_that_is_lost_while_all_connect_ends_the_start() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (key, member) = (Key::random().expect("a key"), Key::random().expect("a key"));
    let public = key.public().expect("its half");
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let mut host = Host::open(at, key, &member, None, |_| {}).expect("it listens");
    let at = host.address().expect("bound");
    let addresses = vec![at];
    let ticket = Ticket { host: public, join: member, expires: u64::MAX, addresses, relay: None };
    thread::scope(|scope| {
        let join = || join(&ticket, Wish::default(), PATIENCE, PATIENCE, |_| {});
        let joined = [(); 2].map(|()| scope.spawn(join));
        let guests =
            joined.iter().map(|_| host.next(PATIENCE).expect("it listens").expect("a guest"));
        let guests = guests.collect();
        let no_files: PlaceOf = Arc::new(|_, _| Err("no files".into()));
        let started =
            scope.spawn(|| host.start(guests, "", Vec::new(), no_files, PATIENCE).map(drop));
        let mut seats = joined.map(|seat| seat.join().expect("no panic").expect("a place"));
        seats.sort_by_key(|seat| seat.rank);
        let [first, last] = seats;
        let first = scope.spawn(|| first.connect(PATIENCE).map(drop));
        let (purpose, addresses) = (Purpose::Rank, &[at]);
        let to = Dial { peer: public, purpose, meeting: 0, addresses, by_relay: false };
        let Socket { endpoint, key, .. } = &last.socket;
        let dialled = dial(endpoint, key, to, Instant::now() + PATIENCE);
        let dialled = runtime().expect("threads").block_on(dialled);
        assert!(dialled.is_ok(), "the host takes the connection");
        last.files.host.close(5u8.into(), b"gone");
        let why =
            [started, first].map(|rank| rank.join().expect("no panic").expect_err("one is gone"));
        assert!(why.iter().all(|why| why.to_string().contains("rank 2 has left")), "{why:?}");
    });
}
