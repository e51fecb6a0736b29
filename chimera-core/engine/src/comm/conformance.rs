//! The conformance suite for transports.
//!
//! Call [`run`] on every rank at once, each with its own end. It panics if the transport violates
//! the documentation of [`Comm`], [`Endpoint`](super::Endpoint) or [`Liveness`](super::Liveness).
//! Call [`run_abort`] or [`run_loss`] last, since the transport is of no use afterwards.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use chimera_schedule::effects::{Token, TokenKind};
use chimera_schedule::ids::{BucketId, PipeId, Rank, StageId};
use chimera_schedule::op::Span;

use super::{Comm, CommError, Host, Payload, Position, Tag, all_gather};
use crate::fault::{Class, Fault};

/// Numbers of elements around the limits of eager protocols, and one message of 64 MiB in f32.
const SIZES: [usize; 9] = [0, 1, 1000, 1008, 1024, 4097, 65_536, 3_000_001, 1 << 24];

/// Checks messages, control data and progress reports. `to` makes a tensor of numbers, and `from`
/// reads them back. They are integers below 256, which every element type represents.
pub fn run<T>(comm: &mut impl Comm<T>, to: impl Fn(Host) -> T, from: impl Fn(&T) -> Host) {
    let mut suite = Suite { me: comm.rank(), n: comm.n_ranks(), comm, to, from };
    assert!(suite.me.0 < suite.n, "{} of {}", suite.me, suite.n);
    suite.sends_do_not_block();
    suite.tags_are_told_apart();
    suite.sizes_and_shapes_arrive();
    suite.bytes_keep_their_order();
    suite.progress_is_known();
    suite.what_is_not_sent_does_not_come();
    suite.meet();
    suite.a_stop_is_passed_on();
    suite.meet();
}

/// Checks that an abort by the last rank ends every other rank's wait, with its cause.
pub fn run_abort<T: Debug>(comm: &mut impl Comm<T>, to: impl Fn(Host) -> T) {
    let (me, last) = (comm.rank(), Rank(comm.n_ranks() - 1));
    let cause = Fault::new(Class::NonFinite, last, "as an example");
    // The others report that they wait for nothing else.
    comm.send(last, tag(7, 7), to(number(0))).expect("send");
    if me == last {
        for from in (0..comm.n_ranks()).map(Rank) {
            comm.recv(from, tag(7, 7), soon()).expect("recv");
        }
        comm.abort(&cause);
        comm.abort(&Fault::new(Class::Io, last, "a later cause"));
    }
    let ended = comm.recv(last, tag(8, 8), soon()).err();
    assert_eq!(ended, Some(CommError::Aborted(cause.clone())), "{me}");
    let ended = comm.recv_bytes(last, soon()).err();
    assert_eq!(ended, Some(CommError::Aborted(cause.clone())), "{me}");
    let asked = comm.query_progress(soon());
    assert!(asked == Ok(Vec::new()) || asked == Err(CommError::Aborted(cause)), "{me}: {asked:?}");
}

/// Checks that the other ranks notice when the last rank leaves: the caller drops its end when this
/// returns. Messages sent before still arrive, and a wait for more names that rank.
pub fn run_loss<T: Debug>(mut comm: impl Comm<T>, to: impl Fn(Host) -> T) {
    let (me, last) = (comm.rank(), Rank(comm.n_ranks() - 1));
    if me == last {
        for peer in (0..last.0).map(Rank) {
            comm.send(peer, tag(7, 7), to(number(7))).expect("send");
        }
        return;
    }
    comm.recv(last, tag(7, 7), soon()).expect("what was sent before");
    let lost = comm.recv(last, tag(8, 8), soon()).err();
    assert!(matches!(&lost, Some(CommError::Lost { from, .. }) if *from == last), "{lost:?}");
    let lost = comm.recv_bytes(last, soon()).err();
    assert!(matches!(&lost, Some(CommError::Lost { from, .. }) if *from == last), "{lost:?}");
}

struct Suite<'c, C, To, From> {
    comm: &'c mut C,
    me: Rank,
    n: u32,
    to: To,
    from: From,
}

impl<T, C, To, From> Suite<'_, C, To, From>
where
    C: Comm<T>,
    To: Fn(Host) -> T,
    From: Fn(&T) -> Host,
{
    fn right(&self) -> Rank {
        Rank((self.me.0 + 1) % self.n)
    }

    fn left(&self) -> Rank {
        Rank((self.me.0 + self.n - 1) % self.n)
    }

    fn all(&self) -> impl Iterator<Item = Rank> + use<T, C, To, From> {
        (0..self.n).map(Rank)
    }

    /// Every rank sends to all, itself included, before any receives, in any order of tags.
    fn sends_do_not_block(&mut self) {
        let (me, n) = (self.me, self.n);
        let code = |from: Rank, to: Rank, i: u32| number((from.0 * n + to.0) * 20 + i);
        for to in self.all() {
            for i in 0..20 {
                self.comm.send(to, tag(0, i), (self.to)(code(me, to, i))).expect("send");
            }
        }
        for from in self.all() {
            for i in (0..20).rev() {
                let got = self.comm.recv(from, tag(0, i), soon()).expect("recv");
                assert_eq!((self.from)(&got), code(from, me, i), "message {i} from {from}");
            }
        }
    }

    /// All ranks learn that the last rank wants to stop, if the transport supports it; messages
    /// still arrive. The request stays in force, also when the suite runs again.
    fn a_stop_is_passed_on(&mut self) {
        if self.comm.stop_requested().is_none() {
            return;
        }
        if self.me.0 + 1 == self.n {
            self.comm.request_stop();
            self.comm.request_stop();
        }
        let deadline = soon();
        while self.comm.stop_requested() == Some(false) {
            assert!(Instant::now() < deadline, "{} gets no request to stop", self.me);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Messages that differ in step, kind or number are distinct.
    fn tags_are_told_apart(&mut self) {
        let (right, left, bucket) = (self.right(), self.left(), BucketId(3));
        let tags = [
            tag(1, 0),
            tag(2, 0),
            Tag::new(1, Payload::Gradients { bucket, part: 0 }),
            Tag::new(1, Payload::Sums { bucket, part: 0 }),
            Tag::new(1, Payload::Sums { bucket, part: 1 }),
            Tag::new(1, Payload::Sums { bucket: BucketId(4), part: 0 }),
            Tag::private(1, 1),
        ];
        for (i, tag) in (0..).zip(tags) {
            self.comm.send(right, tag, (self.to)(number(i))).expect("send");
        }
        for (i, tag) in (0..).zip(tags).collect::<Vec<_>>().into_iter().rev() {
            let (mut received, deadline) = (None, soon());
            while received.is_none() && Instant::now() < deadline {
                received = self.comm.try_recv(left, tag).expect("try_recv");
            }
            let received = received.as_ref().map(&self.from);
            assert_eq!(received, Some(number(i)), "{tag:?} from {left}");
            let again = self.comm.try_recv(left, tag).expect("try_recv");
            assert!(again.is_none(), "{tag:?} came twice");
        }
    }

    /// Sends empty, odd, large and multidimensional tensors, in both directions at once.
    fn sizes_and_shapes_arrive(&mut self) {
        let (me, right, left) = (self.me, self.right(), self.left());
        let value = |from: Rank, i: usize| ((from.index() * 31 + i) % 251) as f32;
        let shapes = SIZES.iter().map(|n| vec![*n, 1]).chain([vec![7], vec![2, 3, 5]]);
        for (nth, shape) in (0..).zip(shapes) {
            let n = shape.iter().product();
            let data = (0..n).map(|i| value(me, i)).collect();
            let sent =
                self.comm.send(right, tag(3, nth), (self.to)(Host::new(shape.clone(), data)));
            sent.expect("send");
            let received = self.comm.recv(left, tag(3, nth), soon()).expect("recv");
            let Host { shape: got, data, .. } = (self.from)(&received);
            assert_eq!((got, data.len()), (shape, n));
            assert!(data.iter().enumerate().all(|(i, x)| *x == value(left, i)), "{n} elements");
        }
    }

    /// Control data of one sender arrives in order, whatever its length; collectives rely on it.
    fn bytes_keep_their_order(&mut self) {
        let (me, right, left) = (self.me, self.right(), self.left());
        let bytes = |from: Rank, i: usize| vec![from.0 as u8 ^ i as u8; [70_001, 0, 5, 1, 900][i]];
        for i in 0..5 {
            self.comm.send_bytes(right, bytes(me, i)).expect("send_bytes");
        }
        let (mut received, deadline) = (None, soon());
        while received.is_none() && Instant::now() < deadline {
            received = self.comm.try_recv_bytes(left).expect("try_recv_bytes");
        }
        assert!(received == Some(bytes(left, 0)), "the first control data from {left}");
        for i in 1..5 {
            let got = self.comm.recv_bytes(left, soon()).expect("recv_bytes");
            assert!(got == bytes(left, i), "control data {i} from {left}");
        }
        for round in 0..5u8 {
            let mine = vec![round; me.index() + usize::from(round)];
            let got = all_gather(self.comm, &mine, soon()).expect("all_gather");
            let want = self.all().map(|r| vec![round; r.index() + usize::from(round)]);
            assert!(got.into_iter().eq(want), "all-gather {round}");
        }
    }

    /// Every rank learns the position of every other, if the transport supports it.
    fn progress_is_known(&mut self) {
        let at = |rank: Rank| Position::At { step: 3, instr: 7 * rank.0 + 1 };
        self.comm.report_progress(Position::At { step: 2, instr: 9 });
        self.comm.report_progress(at(self.me));
        self.meet();
        let known = self.comm.query_progress(soon()).expect("positions");
        let want: Vec<_> = self.all().map(|rank| Some(at(rank))).collect();
        assert!(known.is_empty() || known == want, "{known:?}");
        self.meet();
    }

    /// A wait ends at its deadline, and the error names the missing message.
    fn what_is_not_sent_does_not_come(&mut self) {
        let (left, deadline) = (self.left(), Instant::now() + Duration::from_millis(20));
        let never = self.comm.recv(left, tag(9, 9), deadline).err();
        assert!(
            matches!(&never, Some(CommError::Timeout { from, what, .. })
                if *from == left && what.contains("micro-batch 9")),
            "{never:?}"
        );
    }

    fn meet(&mut self) {
        all_gather(self.comm, &[], soon()).expect("all_gather");
    }
}

/// A one-row tensor that encodes `i`, to identify a message.
fn number(i: u32) -> Host {
    let digit = |n: u32| ((i >> n) & 0xff) as f32;
    Host::new([1, 3], vec![digit(0), digit(8), digit(16)])
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn tag(step: u64, unit: u32) -> Tag {
    let (kind, pipe, span) = (TokenKind::Activation, PipeId(0), Span::one(unit));
    let (stage, to) = (StageId(0), StageId(1));
    Tag::new(step, Payload::Token(Token { kind, pipe, stage, to, span }))
}
