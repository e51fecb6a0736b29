use chimera_schedule::collective::{MOST_DIRECT, Plan};

use super::*;
use crate::comm::{AllReduce, Delayed, Endpoint, Threads, Wrap, threads};
use crate::device::reference::{Reference, Tensor};

const SHAPES: [&[usize]; 5] = [&[3000, 3], &[5], &[1100], &[40, 30, 2], &[0, 3]];

/// A member's tensors, with such values that another order of addition gives other bits.
fn parts(member: u32) -> Vec<Tensor> {
    let value = |i: usize| ((i as f64 + 0.1) * f64::from(member + 1)).sin() / (1.0 + i as f64);
    let of = |shape: &&[usize]| {
        let data = (0..shape.iter().product()).map(value).collect();
        Tensor::new(shape, data)
    };
    SHAPES.iter().map(of).collect()
}

/// The sums on all members, with delayed messages.
fn reduced(n: u32, layout: BucketLayout, is_bf16: bool) -> Vec<Vec<Option<Tensor>>> {
    let layout = (Arc::new(layout), is_bf16);
    let delay = |tag: Tag| Duration::from_millis(format!("{tag:?}").len() as u64 * 7 % 20);
    let member = |comm| {
        let mut comm = Delayed::new(comm, delay);
        let rank: Rank = comm.rank();
        // in another order than that of ranks
        let members = (1..n).chain([0]).map(Rank).collect();
        let (device, bucket, layout) = (&Reference, (BucketId(3), 0), layout.clone());
        let parts = parts(rank.0);
        let sum = Reduction::start(device, &mut comm, 7, bucket, members, layout, parts);
        let mut sum = sum.expect("started");
        for _ in 0..3 {
            sum.poll(device, &mut comm).expect("no rank fails");
            std::thread::sleep(Duration::from_millis(3));
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        sum.wait(device, &mut comm, deadline).expect("no rank fails");
        sum.finish(device).expect("no rank fails")
    };
    std::thread::scope(|scope| {
        let members = threads(n).into_iter().map(|comm| scope.spawn(move || member(comm)));
        let members: Vec<_> = members.collect();
        members.into_iter().map(|m| m.join().expect("no panic")).collect()
    })
}

fn shapes() -> Vec<Vec<usize>> {
    SHAPES.iter().map(|shape| shape.to_vec()).collect()
}

fn plus(mut sum: Vec<Tensor>, parts: Vec<Tensor>) -> Vec<Tensor> {
    for (sum, part) in sum.iter_mut().zip(&parts) {
        Reference.accumulate(sum, part).expect("the reference never fails");
    }
    sum
}

/// The expected sum: in the order of members, or, beyond the largest number that reduces directly,
/// along the tree over them. `rounded` is applied to each part, and to each sum of a round.
fn expected(n: u32, rounded: fn(Vec<Tensor>) -> Vec<Tensor>) -> Vec<Tensor> {
    added((1..n).chain([0]).map(|member| rounded(parts(member))).collect(), rounded)
}

/// The sum of these terms, one of each member.
fn added(mut terms: Vec<Vec<Tensor>>, rounded: fn(Vec<Tensor>) -> Vec<Tensor>) -> Vec<Tensor> {
    let n = terms.len();
    if n > MOST_DIRECT {
        let core = 1 << n.ilog2();
        for extra in terms.split_off(core).into_iter().enumerate() {
            let (partner, part) = extra;
            terms[partner] = rounded(plus(terms[partner].clone(), part));
        }
        while terms.len() > 1 {
            let upper = terms.split_off(terms.len() / 2);
            terms = terms.into_iter().zip(upper).map(|(a, b)| rounded(plus(a, b))).collect();
        }
    }
    rounded(terms.into_iter().reduce(plus).expect("members"))
}

fn in_bf16(tensors: Vec<Tensor>) -> Vec<Tensor> {
    let round = |tensor: &Tensor| {
        let flat = bf16::round(&Reference, tensor).expect("the reference never fails");
        Tensor::new(&Reference.shape(tensor), flat.data)
    };
    tensors.iter().map(round).collect()
}

#[test]
fn sums_have_the_bits_of_one_order_or_tree() {
    for n in [1, 2, 3, 4, 5, 8, 9, 13, 16, 33] {
        let expected = expected(n, |whole| whole);
        for sums in reduced(n, BucketLayout::shared(shapes(), Plan::flat(n as usize)), false) {
            let sums: Vec<_> = sums.into_iter().flatten().collect();
            assert!(sums == expected, "{n} members");
        }
        let owners = [0, 1, 2, 3, 4].map(|tensor| (tensor * 5 + 1) % n as usize);
        let kept =
            reduced(n, BucketLayout::owned(shapes(), &owners, Plan::flat(n as usize)), false);
        for (tensor, expected) in expected.iter().enumerate().filter(|(t, _)| *t < 4) {
            let mut sums = kept.iter().filter_map(|sums| sums[tensor].as_ref());
            assert!(sums.next() == Some(expected) && sums.next().is_none(), "{n} members");
        }
    }
}

/// Members of a group add up in their order, and then the groups add their sums.
#[test]
fn groups_add_up_before_they_exchange_sums() {
    for (n_groups, size) in [(2, 2), (3, 2), (2, 4), (9, 2)] {
        let n = n_groups * size;
        let plan = Plan::in_groups((0..n).map(|member| member / size));
        let terms: Vec<_> = (1..n as u32).chain([0]).map(parts).collect();
        let of_groups = terms.chunks(size).map(|of| of.iter().cloned().reduce(plus).expect("some"));
        let expected = added(of_groups.collect(), |whole| whole);
        for sums in reduced(n as u32, BucketLayout::shared(shapes(), plan), false) {
            let sums: Vec<_> = sums.into_iter().flatten().collect();
            assert!(sums == expected, "{n_groups} groups of {size}");
        }
        let owners = [0, 1, 2, 3, 4].map(|tensor| (tensor * 5 + 1) % n);
        let kept = reduced(n as u32, BucketLayout::owned(shapes(), &owners, plan), false);
        for (tensor, expected) in expected.iter().enumerate().filter(|(t, _)| *t < 4) {
            let mut sums = kept.iter().filter_map(|sums| sums[tensor].as_ref());
            assert!(sums.next() == Some(expected) && sums.next().is_none(), "{n} members");
        }
    }
}

#[test]
fn parts_and_sums_in_bf16_are_the_same_for_all() {
    for n in [2, 3, 8, 9, 13] {
        let expected = expected(n, in_bf16);
        for sums in reduced(n, BucketLayout::shared(shapes(), Plan::flat(n as usize)), true) {
            let sums: Vec<_> = sums.into_iter().flatten().collect();
            assert!(sums == expected, "{n} members");
        }
    }
}

/// A transport that reduces by itself, but not empty buffers, which some cannot reduce.
struct Reducing(Threads<Tensor>);

impl Wrap for Reducing {
    type Inner = Threads<Tensor>;

    fn inner(&self) -> &Threads<Tensor> {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut Threads<Tensor> {
        &mut self.0
    }
}

impl Comm<Tensor> for Reducing {
    fn send(&mut self, _: Rank, tag: Tag, _: Tensor) -> Result<(), CommError> {
        panic!("a message of {tag:?}")
    }

    fn try_recv(&mut self, _: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        panic!("a wait for {tag:?}")
    }

    fn recv(&mut self, _: Rank, tag: Tag, _: Instant) -> Result<Tensor, CommError> {
        panic!("a wait for {tag:?}")
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Tensor>> {
        Some(self)
    }
}

impl AllReduce<Tensor> for Reducing {
    fn all_reduce(&mut self, _: &[Rank], _: Tag, tensor: Tensor) -> Result<(), CommError> {
        panic!("an all-reduce of {:?}", tensor.shape)
    }
}

/// A stage may have no parameters, or parameters without elements.
#[test]
fn a_bucket_without_elements_is_not_all_reduced() {
    for shapes in [vec![], vec![vec![0, 3]], vec![vec![0], vec![2, 0]]] {
        for n in [2, 3, 9] {
            for comm in threads(n) {
                let mut comm = Reducing(comm);
                let parts: Vec<_> = shapes.iter().map(|shape| Tensor::zeros(shape)).collect();
                let layout = Arc::new(BucketLayout::shared(shapes.clone(), Plan::flat(n as usize)));
                let members = (0..n).map(Rank).collect();
                let (bucket, own) = ((BucketId(0), 0), parts.clone());
                let how = (layout, false);
                let sum = Reduction::start(&Reference, &mut comm, 0, bucket, members, how, own);
                let mut sum = sum.expect("started");
                let deadline = Instant::now() + Duration::from_secs(60);
                sum.wait(&Reference, &mut comm, deadline).expect("nothing to wait for");
                let sums: Vec<_> =
                    sum.finish(&Reference).expect("sums").into_iter().flatten().collect();
                assert!(sums == parts, "{shapes:?}");
            }
        }
    }
}
