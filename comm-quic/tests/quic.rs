//! The conformance suite of transports over QUIC, and peers that do not belong here.

#[path = "network/port.rs"]
mod port;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use chimera_comm_quic::{Cluster, Event, Quic};
use chimera_core::comm::{
    Comm, CommError, Endpoint, Host, Meeting, Process, ProcessRendezvous, Rendezvous, Tag,
    all_gather, conformance,
};
use chimera_core::fault::Class;
use chimera_core::ids::Rank;
use port::free_port;

const PATIENCE: Duration = Duration::from_secs(60);

/// One test at a time: each moves hundreds of megabytes through two cores.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cluster(secret: &str, rank: u32, n_ranks: u32, port: u16) -> Cluster {
    Cluster { secret: secret.into(), rank, n_ranks, rendezvous: format!("127.0.0.1:{port}") }
}

/// Runs `act` on each rank with its end.
fn on_ranks(n: u32, act: impl Fn(Quic) + Sync) {
    let _alone = alone();
    let port = free_port();
    thread::scope(|scope| {
        for rank in 0..n {
            let (act, cluster) = (&act, cluster("a secret", rank, n, port));
            scope.spawn(move || {
                let comm = cluster.start(PATIENCE, |warning| eprintln!("{warning}"));
                act(comm.expect("all ranks meet"));
            });
        }
    });
}

#[test]
fn it_conforms() {
    for n in [1, 2, 3] {
        on_ranks(n, |mut comm| {
            comm.control().expect_tensors(1 << 24); // the longest message of the suite
            conformance::run(&mut comm, |host| host, Host::clone);
            assert_eq!(comm.control().why_over(), None);
            conformance::run_abort(&mut comm, |host| host);
            let why = comm.control().why_over();
            assert!(
                matches!(&why, Some(CommError::Aborted(cause)) if cause.class == Class::NonFinite),
                "{why:?}"
            );
            comm.close(PATIENCE).expect("all ranks leave");
        });
    }
}

#[test]
fn an_end_that_is_gone_is_known() {
    on_ranks(3, |comm| conformance::run_loss(comm, |host| host));
}

#[test]
fn a_large_message_does_not_hold_up_a_small_one() {
    on_ranks(2, |mut comm| {
        let (me, other) = (comm.rank().0, Rank(1 - comm.rank().0));
        comm.control().expect_tensors(1 << 24);
        let host = |n: usize| Host::new([n], vec![me as f32; n]);
        let mut n_first = 0;
        for nth in 0..5 {
            let deadline = Instant::now() + PATIENCE;
            if me == 0 {
                comm.send(other, Tag::private(1, nth), host(1 << 24)).expect("send");
                comm.send(other, Tag::private(2, nth), host(1)).expect("send");
                comm.recv(other, Tag::private(3, nth), deadline).expect("the answer");
                continue;
            }
            comm.recv(other, Tag::private(2, nth), deadline).expect("the small one");
            let large = comm.try_recv(other, Tag::private(1, nth)).expect("try_recv");
            n_first += u32::from(large.is_none()); // on a busy machine this may be seen late
            let wait = |comm: &mut Quic| comm.recv(other, Tag::private(1, nth), deadline);
            large.map_or_else(|| wait(&mut comm), Ok).expect("the large one");
            comm.send(other, Tag::private(3, nth), host(1)).expect("send");
        }
        assert!(me == 0 || n_first > 0, "the small one always came last");
        comm.close(PATIENCE).expect("all ranks leave");
    });
}

#[test]
fn a_message_longer_than_expected_is_refused_with_its_sender() {
    on_ranks(2, |mut comm| {
        let (me, other) = (comm.rank(), Rank(1 - comm.rank().0));
        if me == Rank(0) {
            let too_long = Host::new([17 << 20], vec![0.0; 17 << 20]); // 68 MiB
            comm.send(other, Tag::private(1, 0), too_long).expect("send");
            let lost = comm.recv(other, Tag::private(1, 0), Instant::now() + PATIENCE);
            assert!(matches!(&lost, Err(CommError::Lost { from: Rank(1), .. })), "{lost:?}");
            return;
        }
        let refused = comm.recv(other, Tag::private(1, 0), Instant::now() + PATIENCE);
        let refused = refused.expect_err("too long").to_string();
        assert!(refused.contains("rank 0") && refused.contains("more than 67108864"), "{refused}");
    });
}

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(warning: &str) {
    WARNINGS.lock().expect("no panic").push(warning.into());
}

/// Strangers with other secrets, garbage, a rank that is there already and half a handshake do not
/// keep a run from its start, and do not disturb it.
#[test]
fn hostile_peers_are_named_and_dropped() {
    let _alone = alone();
    let port = free_port();
    let short = Duration::from_secs(2);
    thread::scope(|scope| {
        let host = scope.spawn(|| cluster("right", 0, 3, port).start(PATIENCE, keep));
        let first = scope.spawn(|| cluster("right", 1, 3, port).start(PATIENCE, keep));
        thread::sleep(Duration::from_millis(300));
        let wrong = cluster("wrong", 2, 3, port).start(short, keep);
        let wrong = wrong.err().expect("another secret").to_string();
        assert!(wrong.contains("cannot join the host at"), "{wrong}");
        let twice = cluster("right", 1, 3, port).start(PATIENCE, keep);
        let twice = twice.err().expect("it is there").to_string();
        assert!(twice.contains("rank 1 is already there"), "{twice}");
        let other = cluster("right", 2, 4, port).start(PATIENCE, keep);
        let other = other.err().expect("another run").to_string();
        assert!(other.contains("it expects 4 ranks, and rank 0 3"), "{other}");
        garbage(port, 1000);
        let second = scope.spawn(|| cluster("right", 2, 3, port).start(PATIENCE, keep));
        let all = [host, first, second];
        let mut all = all.map(|rank| rank.join().expect("no panic").expect("all ranks meet"));
        garbage(port, 1000);
        let late = cluster("right", 1, 3, port).start(short, keep);
        assert!(late.is_err(), "nobody joins a run that has begun");
        thread::scope(|scope| {
            for comm in &mut all {
                scope.spawn(|| {
                    comm.control().expect_tensors(1 << 24);
                    conformance::run(comm, |host| host, Host::clone);
                    comm.close(PATIENCE).expect("all ranks leave");
                });
            }
        });
    });
    let warnings = WARNINGS.lock().expect("no panic").join("\n");
    assert!(warnings.contains("refused 127.0.0.1:"), "{warnings}");
    assert!(warnings.contains("rank 1 is already there"), "{warnings}");
}

/// Sends `n` packets from sockets of their own: noise, and beginnings of handshakes that look right.
fn garbage(port: u16, n: usize) {
    for i in 0..n {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let mut packet: Vec<u8> = (0..1200).map(|k| (i * 31 + k * 7) as u8).collect();
        if i % 2 == 0 {
            // A first packet of QUIC 1, with two connection ids of eight bytes.
            packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
            packet[14] = 8;
        }
        socket.send_to(&packet, (Ipv4Addr::LOCALHOST, port)).expect("sent");
    }
}

/// A relay that lets a machine ask, and keeps most answers from it: its handshakes stay half done.
fn half_handshakes(port: u16, from: Ipv4Addr) -> u16 {
    let inner = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let outer = UdpSocket::bind((from, 0)).expect("a socket");
    outer.connect((Ipv4Addr::LOCALHOST, port)).expect("a peer");
    outer.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let at = inner.local_addr().expect("bound").port();
    thread::spawn(move || {
        let mut packet = [0; 2048];
        while let Ok((n, client)) = inner.recv_from(&mut packet) {
            let _ = outer.send(&packet[..n]);
            // The proof of the address comes through, and is short; the rest of a handshake is not.
            while let Ok(n) = outer.recv(&mut packet) {
                if n < 300 {
                    let _ = inner.send_to(&packet[..n], client);
                }
            }
        }
    });
    at
}

/// Whoever has proven its address may hold some handshakes open, but not those of other machines.
#[test]
fn half_handshakes_do_not_hold_up_a_member() {
    let _alone = alone();
    let port = free_port();
    thread::scope(|scope| {
        let host = scope.spawn(|| cluster("right", 0, 2, port).start(PATIENCE, |_| {}));
        thread::sleep(Duration::from_millis(300));
        let relay = half_handshakes(port, Ipv4Addr::new(127, 0, 0, 2));
        let strangers: Vec<_> = (0..32)
            .map(|_| {
                let stranger = cluster("right", 1, 2, relay);
                scope.spawn(move || stranger.start(Duration::from_secs(4), |_| {}))
            })
            .collect();
        thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        let member = cluster("right", 1, 2, port).start(PATIENCE, |_| {}).expect("a place");
        let host = host.join().expect("no panic").expect("all ranks meet");
        assert!(began.elapsed() < Duration::from_secs(20), "it was held up");
        drop((member, host));
        for stranger in strangers {
            assert!(stranger.join().expect("no panic").is_err(), "half a handshake is none");
        }
    });
}

/// Two meetings: a member is gone after the first, and another takes its place in the second.
#[test]
fn ranks_meet_again_with_a_newcomer() {
    let _alone = alone();
    let port = free_port();
    let meetings = |rank: u32| {
        let cluster = cluster("again", rank, 3, port);
        let tell = Arc::new(|_: &Event<'_>| {});
        cluster.meetings(PATIENCE, true, tell, |_| {}).expect("a place")
    };
    // Says who is there, and waits for the others' words.
    let talk = |meeting: &mut Meeting<Quic>, word: u8| -> Vec<Vec<u8>> {
        let comm = &mut meeting.comm;
        let deadline = Instant::now() + PATIENCE;
        all_gather(comm, &[word], deadline).expect("all are there")
    };
    thread::scope(|scope| {
        let stays = |rank: u32| {
            let mut meetings = meetings(rank);
            let mut first = meetings.meet().expect("a meeting").expect("it goes on");
            assert!(first.is_first);
            assert_eq!(talk(&mut first, rank as u8), [[0], [1], [2]]);
            let lost = first.comm.recv_bytes(Rank(2), Instant::now() + PATIENCE);
            assert!(matches!(lost, Err(CommError::Lost { from: Rank(2), .. })), "{lost:?}");
            drop(first);
            let mut second = meetings.meet().expect("a meeting").expect("it goes on");
            assert!(!second.is_first);
            assert_eq!(second.present, [0, 1, 2].map(Rank));
            assert_eq!(talk(&mut second, rank as u8), [[0], [1], [9]]);
            drop(second);
            meetings.leave().expect("all leave");
        };
        let others = [0, 1].map(|rank| scope.spawn(move || stays(rank)));
        {
            let mut meetings = meetings(2);
            let mut first = meetings.meet().expect("a meeting").expect("it goes on");
            talk(&mut first, 2);
        } // dies: its connections end
        let mut newcomer = meetings(2);
        let mut second = newcomer.meet().expect("a meeting").expect("it goes on");
        talk(&mut second, 9);
        drop(second);
        newcomer.leave().expect("all leave");
        others.into_iter().for_each(|other| other.join().expect("no panic"));
    });
}
