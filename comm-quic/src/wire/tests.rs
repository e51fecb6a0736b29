//! Peers that have a place, and do not keep to the rules.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::time::Instant as Deadline;

use super::*;
use crate::dial::Member;
use crate::key::Key;
use crate::mesh::{self, Mesh, Socket};
use crate::net::runtime;
use crate::rendezvous::open;
use crate::tls::Purpose;

/// Connects two ranks, and returns their ends.
fn pair() -> [(Socket, Connection); 2] {
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let socket = || open(at, Key::random().expect("a key"), None, |_| {}).expect("a socket");
    let sockets = [socket(), socket()];
    let members = sockets.each_ref().map(|socket| {
        let addresses = vec![socket.endpoint.local_addr().expect("bound")];
        Member { key: socket.key.public().expect("its half"), addresses }
    });
    sockets.iter().for_each(|socket| {
        socket.admit(members.iter().map(|member| (member.key, Purpose::Rank)));
    });
    let [mut first, mut second] = sockets;
    let deadline = Deadline::now() + Duration::from_secs(60);
    let mesh = |me| Mesh { me: Rank(me), members: &members, host: None, meeting: 0 };
    let met = runtime().expect("threads").block_on(async {
        let both = (
            mesh::connect(&mut first, mesh(0), deadline),
            mesh::connect(&mut second, mesh(1), deadline),
        );
        tokio::join!(both.0, both.1)
    });
    let only =
        |met: Result<BTreeMap<Rank, Connection>, _>| met.ok().and_then(|mut all| all.pop_first());
    let [to_second, to_first] = [met.0, met.1].map(|met| only(met).expect("they meet").1);
    [(first, to_second), (second, to_first)]
}

/// Begins to read what the peer sends, with this much memory beyond one longest frame.
fn read(
    connection: &Connection,
    limit: usize,
    spare: usize,
) -> (Arc<Held>, mpsc::Receiver<io::Result<Vec<u8>>>) {
    let (sender, frames) = mpsc::channel(MAX_WAITING);
    let held = Arc::new(Held::new(spare, 8 << 20));
    let inbound = Inbound {
        sender,
        held: Arc::clone(&held),
        limit: Arc::new(AtomicUsize::new(limit)),
        n_read: AtomicU64::new(0),
        read: Notify::new(),
    };
    runtime().expect("threads").spawn(receive(connection.clone(), Arc::new(inbound)));
    (held, frames)
}

/// A member may not make a rank hold a part of a long message in each of its streams.
#[test]
fn parts_of_many_messages_are_refused_by_their_sender() {
    const LIMIT: usize = 1 << 20;
    const SPARE: usize = 3 << 20;
    let [(_first, honest), (_second, hostile)] = pair();
    let (_held, mut frames) = read(&honest, LIMIT, SPARE);
    runtime().expect("threads").block_on(async {
        let mut streams = Vec::new();
        let part = vec![1; LIMIT / 2];
        for nth in 0.. {
            let Ok(mut stream) = hostile.open_uni().await else { break };
            if stream.write_all(&part).await.is_err() {
                break;
            }
            streams.push(stream); // none of them ends
            assert!(nth < 1000, "it may have all of them in parts");
        }
        let refused = frames.recv().await.expect("a word").expect_err("no frame is whole");
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        assert_eq!(refused.to_string(), "parts of too many messages at a time");
        assert!(honest.close_reason().is_some(), "the peer is dropped");
    });
}

/// Frames of a rank that keeps to the rules arrive, however many it sends at once, and their peer waits
/// while they are not taken.
#[test]
fn a_peer_waits_while_its_frames_are_not_taken() {
    const LEN: usize = 2 << 20;
    const N: usize = 48;
    let [(_first, here), (_second, there)] = pair();
    let peers = BTreeMap::from([(Rank(0), there)]);
    let wire = QuicWire::new(None, peers, runtime().expect("threads").handle());
    let (held, mut frames) = read(&here, LEN, SPARE);
    for nth in 0..N {
        wire.send(Rank(0), &vec![nth as u8; LEN]).expect("it is there");
    }
    while held.has_room() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(frames.len() < N, "nobody took one");
    let mut seen: Vec<u8> = (0..N)
        .map(|_| {
            let frame = frames.blocking_recv().expect("a word").expect("a frame");
            held.take(frame.len());
            assert!(frame.len() == LEN && frame.iter().all(|byte| *byte == frame[0]));
            frame[0]
        })
        .collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..N as u8));
}
