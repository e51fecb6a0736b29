//! The conformance suite of transports, run by each rank that `mpirun` starts: `cargo xtask mpi`.

use std::time::{Duration, Instant};

use chimera_backend_cpu::Candle;
use chimera_comm_mpi::Mpi;
use chimera_core::comm::{
    AllReduce, Comm, CommError, Endpoint, Host, HostStaged, Process, Tag, all_gather, conformance,
};
use chimera_core::device::Device;
use chimera_core::fault::Class;
use chimera_core::ids::Rank;

fn main() {
    let mut mpi =
        Mpi::start(Duration::from_secs(60), |warning| eprintln!("{warning}")).expect("MPI starts");
    let (me, n) = (mpi.rank(), mpi.n_ranks());
    assert!(n > 1, "this test is one of the ranks that mpirun starts: cargo xtask mpi");
    mpi.control().expect_tensors(1 << 24); // the longest message of the suite
    conformance::run(&mut mpi, |host| host, Host::clone);
    messages_proceed_while_nobody_asks(&mut mpi);
    large_all_gathers(&mut mpi);
    staged(&mut mpi);
    sums_of_mpi(&mut mpi);
    nobody_is_lost(&mut mpi);
    conformance::run_abort(&mut mpi, |host| host);
    let why = mpi.control().why_over();
    assert!(
        matches!(&why, Some(CommError::Aborted(cause)) if cause.class == Class::NonFinite),
        "{why:?}"
    );
    mpi.close(Duration::from_secs(30)).expect("all ranks leave");
    if me == Rank(0) {
        println!("{n} ranks conform ({})", Mpi::library());
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn tag(channel: u8, number: u64) -> Tag {
    Tag::private(channel, number)
}

/// A large message arrives while both its ranks only poll for it, and never wait.
fn messages_proceed_while_nobody_asks(mpi: &mut Mpi) {
    let (me, n) = (mpi.rank().0, mpi.n_ranks());
    let (right, left) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
    let host = Host::new([1 << 20], vec![me as f32; 1 << 20]);
    all_gather(mpi, &[], soon()).expect("all_gather");
    mpi.send(right, tag(101, 0), host).expect("send");
    std::thread::sleep(Duration::from_millis(500));
    let received = mpi.try_recv(left, tag(101, 0)).expect("try_recv");
    assert_eq!(received.map(|host| host.data[7]), Some(left.0 as f32), "it waited to be asked for");
}

fn large_all_gathers(mpi: &mut Mpi) {
    let (me, n) = (mpi.rank(), mpi.n_ranks());
    let part = |rank: Rank| vec![rank.0 as u8 + 1; rank.index() * 100_003 + 1];
    let got = all_gather(mpi, &part(me), soon()).expect("all_gather");
    assert_eq!(got, (0..n).map(|rank| part(Rank(rank))).collect::<Vec<_>>());
}

/// Runs the suite on the tensors of a device.
fn staged(mpi: &mut Mpi) {
    let kernels = Candle::cpu();
    let mut comm = HostStaged::new(kernels.clone(), &mut *mpi);
    let of = kernels.clone();
    let to = move |host: Host| of.upload(&host.shape, &host.data).expect("a tensor");
    let from = move |tensor: &<Candle as Device>::Tensor| {
        Host::new(kernels.shape(tensor), kernels.download(tensor).expect("values"))
    };
    conformance::run(&mut comm, to, from);
}

/// Sums over all ranks and over neighbours. Only members meet, several sums are in flight, and they
/// are received in another order.
fn sums_of_mpi(mpi: &mut Mpi) {
    let (me, n) = (mpi.rank(), mpi.n_ranks());
    let all: Vec<Rank> = (0..n).map(Rank).collect();
    let groups: Vec<Vec<Rank>> = all.chunks(2).map(<[Rank]>::to_vec).chain([all.clone()]).collect();
    let mine: Vec<_> = groups.into_iter().filter(|members| members.contains(&me)).collect();
    mpi.control().open_sums(&mine).expect("MPI makes communicators");
    let sizes = [1, 3000, 100_000];
    for (nth, size) in (0..).zip(sizes) {
        for (group, members) in (0..).zip(&mine) {
            assert!(mpi.reducer(members).is_some());
            let data = (0..size).map(|i| (me.index() + i) as f32).collect();
            let host = Host::new([size], data);
            mpi.all_reduce(members, tag(103 + group, nth), host).expect("a sum begins");
        }
    }
    for (nth, size) in (0..).zip(sizes).collect::<Vec<_>>().into_iter().rev() {
        for (group, members) in (0..).zip(&mine) {
            let sum = mpi.recv(me, tag(103 + group, nth), soon()).expect("the sum");
            let ranks: usize = members.iter().map(|rank| rank.index()).sum();
            let want = |i: usize| (ranks + i * members.len()) as f32;
            assert_eq!((sum.shape.as_slice(), sum.data.len()), ([size].as_slice(), size));
            assert!(sum.data.iter().enumerate().all(|(i, x)| *x == want(i)), "{members:?}");
        }
    }
    assert!(mpi.reducer(&[me]).is_none());
}

/// Nobody has died, and a rank that sends nothing causes a timeout.
fn nobody_is_lost(mpi: &mut Mpi) {
    std::thread::sleep(Duration::from_millis(300));
    let next = Rank((mpi.rank().0 + 1) % mpi.n_ranks());
    let late = mpi.recv(next, tag(102, 0), Instant::now() + Duration::from_millis(10));
    assert!(matches!(late, Err(CommError::Timeout { .. })), "{late:?}");
    assert_eq!(mpi.control().why_over(), None);
    all_gather(mpi, &[], soon()).expect("all_gather");
}
