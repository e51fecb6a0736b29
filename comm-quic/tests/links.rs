//! Throughput over links that lose packets, at random or because a queue is full.

#[path = "network/port.rs"]
mod port;
#[path = "network/relay.rs"]
mod relay;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use chimera_comm_quic::{Cluster, Quic};
use chimera_core::comm::{Comm, Host, Process, Tag};
use chimera_core::ids::Rank;
use port::free_port;
use relay::Link;

const PATIENCE: Duration = Duration::from_secs(120);
/// Elements of a message, and messages: 4 MB.
const N_ELEMENTS: usize = 1 << 18;
const N_MESSAGES: u64 = 4;
const BYTES: f64 = (N_ELEMENTS * 4) as f64 * N_MESSAGES as f64;

/// Sends messages over a link. Returns the seconds from the first byte to the last.
fn send_over(far: u16, port: u16) -> f64 {
    let rank = |rank: u32, port: u16| -> Quic {
        let rendezvous = format!("127.0.0.1:{port}");
        let cluster = Cluster { secret: "a slow link".into(), rank, n_ranks: 2, rendezvous };
        let comm = cluster.start(PATIENCE, |_| {}).expect("all ranks meet");
        comm.control().expect_tensors(N_ELEMENTS);
        comm
    };
    thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut comm = rank(0, port);
            let deadline = Instant::now() + PATIENCE;
            comm.recv(Rank(1), Tag::private(1, 0), deadline).expect("the beginning");
            let began = Instant::now();
            for nth in 1..=N_MESSAGES {
                comm.recv(Rank(1), Tag::private(1, nth), deadline).expect("a message");
            }
            let took = began.elapsed().as_secs_f64();
            comm.close(PATIENCE).expect("all ranks leave");
            took
        });
        let mut comm = rank(1, far);
        comm.send(Rank(0), Tag::private(1, 0), Host::new([1], vec![0.0])).expect("send");
        for nth in 1..=N_MESSAGES {
            let message = Host::new([N_ELEMENTS], vec![0.0; N_ELEMENTS]);
            comm.send(Rank(0), Tag::private(1, nth), message).expect("send");
        }
        comm.close(PATIENCE).expect("all ranks leave");
        receiver.join().expect("no panic")
    })
}

/// Returns the share of a link's rate that is used, and the packets that its queue drops.
fn used(link: Link) -> (f64, u64) {
    let (port, n_dropped) = (free_port(), Arc::default());
    let far = link.open(port, &n_dropped);
    let seconds = send_over(far, port);
    (BYTES / seconds / link.rate, n_dropped.load(Ordering::Relaxed))
}

/// 16 Mbit/s with a round trip of 100 ms. Cubic alone uses a twentieth of it.
#[test]
fn random_losses_leave_most_of_the_rate() {
    let link = Link { delay: Duration::from_millis(50), rate: 2e6, queue: 4e5, loses_one_of: 50 };
    let (share, _) = used(link);
    assert!(share > 0.5, "{share:.2} of the rate");
}

/// The queue holds 40 ms, and 10 ms, which is too short to be seen in the round trip.
#[test]
fn a_full_queue_slows_the_sender() {
    for queue in [8e4, 2e4] {
        let delay = Duration::from_millis(25);
        let (share, n_dropped) = used(Link { delay, rate: 2e6, queue, loses_one_of: 0 });
        let n_packets = BYTES / 1200.0;
        let lost = n_dropped as f64 / n_packets;
        assert!(share > 0.4 && lost < 0.2, "{share:.2} of the rate, {lost:.3} of the packets lost");
    }
}
