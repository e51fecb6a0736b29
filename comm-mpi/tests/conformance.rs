//! The suite of transports, as one of the ranks that `mpirun` starts: `cargo xtask mpi`.

use std::time::{Duration, Instant};

use chimera_backend_cuda::Candle;
use chimera_comm_mpi::Mpi;
use chimera_core::comm::{Comm, CommError, Host, HostStaged, Tag, What, conformance};
use chimera_core::fault::Class;
use chimera_core::ids::{BucketId, Rank};
use chimera_core::kernels::Kernels;

fn main() {
    let mut mpi =
        Mpi::start(Duration::from_secs(60), |warning| eprintln!("{warning}")).expect("MPI starts");
    let (me, n) = (mpi.rank(), mpi.n_ranks());
    assert!(n > 1, "this test is one of the ranks that mpirun starts: cargo xtask mpi");
    let tensor = |i: u32| Host { shape: vec![], data: vec![f32::from_bits(i)] };
    conformance::run(&mut mpi, tensor, |host| host.data[0].to_bits());
    large_messages_arrive_in_one_piece(&mut mpi);
    messages_proceed_while_nobody_asks(&mut mpi);
    large_exchanges(&mut mpi);
    staged(&mut mpi);
    sums_of_mpi(&mut mpi);
    nobody_is_lost(&mut mpi);
    conformance::run_abort(&mut mpi, tensor);
    let why = mpi.lookout().why_over();
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

fn tag(step: u64, slice: u32) -> Tag {
    Tag { step, what: What::Sum { bucket: BucketId(0), slice } }
}

/// Sizes around the limits of eager protocols and far beyond, in both directions at once.
fn large_messages_arrive_in_one_piece(mpi: &mut Mpi) {
    let (me, n) = (mpi.rank().0, mpi.n_ranks());
    let (right, left) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
    let sizes = [0, 1, 1000, 1008, 1024, 4096, 16_384, 65_536, 3_000_001];
    let value = |from: Rank, nth: usize, i: usize| (from.0 as usize * 31 + nth * 7 + i) as f32;
    for (nth, n) in sizes.into_iter().enumerate() {
        let data = (0..n).map(|i| value(Rank(me), nth, i)).collect();
        let host = Host { shape: vec![n, 1], data };
        mpi.send(right, tag(100, nth as u32), host).expect("send");
    }
    for (nth, n) in sizes.into_iter().enumerate().rev() {
        let host = mpi.take(left, tag(100, nth as u32), soon()).expect("take");
        assert_eq!((host.shape.as_slice(), host.data.len()), ([n, 1].as_slice(), n));
        assert!(host.data.iter().enumerate().all(|(i, x)| *x == value(left, nth, i)), "size {n}");
    }
}

/// A large message arrives while both its ranks only look for it, and never wait.
fn messages_proceed_while_nobody_asks(mpi: &mut Mpi) {
    let (me, n) = (mpi.rank().0, mpi.n_ranks());
    let (right, left) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
    let host = Host { shape: vec![1 << 20], data: vec![me as f32; 1 << 20] };
    mpi.exchange(&[], soon()).expect("exchange");
    mpi.send(right, tag(101, 0), host).expect("send");
    std::thread::sleep(Duration::from_millis(500));
    let taken = mpi.try_take(left, tag(101, 0)).expect("try_take");
    assert_eq!(taken.map(|host| host.data[7]), Some(left.0 as f32), "it waited to be asked for");
}

fn large_exchanges(mpi: &mut Mpi) {
    let (me, n) = (mpi.rank(), mpi.n_ranks());
    let part = |rank: Rank| vec![rank.0 as u8 + 1; rank.index() * 100_003 + 1];
    let got = mpi.exchange(&part(me), soon()).expect("exchange");
    assert_eq!(got, (0..n).map(|rank| part(Rank(rank))).collect::<Vec<_>>());
}

/// The same suite on the tensors of a device.
fn staged(mpi: &mut Mpi) {
    let kernels = Candle::cpu();
    let mut comm = HostStaged::new(kernels.clone(), &mut *mpi);
    let of = kernels.clone();
    let tensor = move |i: u32| of.upload(&[1, 2], &[i as f32, 0.5]).expect("a tensor");
    let number = move |tensor: &<Candle as Kernels>::Tensor| {
        assert_eq!(kernels.shape(tensor), [1, 2]);
        kernels.download(tensor).expect("values")[0] as u32
    };
    conformance::run(&mut comm, tensor, number);
}

/// Sums over all and over neighbours, for which the members alone meet, several under way, taken in another order.
fn sums_of_mpi(mpi: &mut Mpi) {
    let (me, n) = (mpi.rank(), mpi.n_ranks());
    let all: Vec<Rank> = (0..n).map(Rank).collect();
    let groups: Vec<Vec<Rank>> = all.chunks(2).map(<[Rank]>::to_vec).chain([all.clone()]).collect();
    let mine: Vec<_> = groups.into_iter().filter(|members| members.contains(&me)).collect();
    mpi.sums().open(&mine).expect("MPI makes communicators");
    let sizes = [1, 3000, 100_000];
    for (nth, size) in (0..).zip(sizes) {
        for (group, members) in (0..).zip(&mine) {
            assert!(mpi.has_sum(members));
            let data = (0..size).map(|i| (me.index() + i) as f32).collect();
            let host = Host { shape: vec![size], data };
            mpi.sum(members, tag(103 + group, nth), host).expect("a sum begins");
        }
    }
    for (nth, size) in (0..).zip(sizes).collect::<Vec<_>>().into_iter().rev() {
        for (group, members) in (0..).zip(&mine) {
            let sum = mpi.take(me, tag(103 + group, nth), soon()).expect("the sum");
            let ranks: usize = members.iter().map(|rank| rank.index()).sum();
            let want = |i: usize| (ranks + i * members.len()) as f32;
            assert_eq!((sum.shape.as_slice(), sum.data.len()), ([size].as_slice(), size));
            assert!(sum.data.iter().enumerate().all(|(i, x)| *x == want(i)), "{members:?}");
        }
    }
    assert!(!mpi.has_sum(&[me]));
}

/// Nobody has died, and a rank that sends nothing is late.
fn nobody_is_lost(mpi: &mut Mpi) {
    std::thread::sleep(Duration::from_millis(300));
    let next = Rank((mpi.rank().0 + 1) % mpi.n_ranks());
    let late = mpi.take(next, tag(102, 0), Instant::now() + Duration::from_millis(10));
    assert!(matches!(late, Err(CommError::Timeout { .. })), "{late:?}");
    assert_eq!(mpi.lookout().why_over(), None);
    mpi.exchange(&[], soon()).expect("exchange");
}
