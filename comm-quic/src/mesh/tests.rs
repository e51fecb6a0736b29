//! Connections of ranks that change whom they admit.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::net::runtime;
use crate::rendezvous::open;

/// The first bits of packets by which a server asks for a proof of the address, and of all packets of
/// handshakes (RFC 9000, 17.2).
const RETRY: u8 = 0xf0;
const LONG: u8 = 0xc0;

fn socket() -> (Socket, Member) {
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let socket = open(at, Key::random().expect("a key"), |_| {}).expect("a socket");
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
