//! The suite that every transport calls.
//!
//! [`run`] is called on every rank at once, each with its own end; it panics where the transport does
//! not do what [`Comm`] says. [`run_abort`] comes last, since it ends the transport's use.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use super::{Comm, CommError, Position, Tag, What};
use crate::effects::{Token, TokenKind};
use crate::fault::{Class, Fault};
use crate::ids::{BucketId, PipeId, Rank, StageId};
use crate::op::Span;

/// Checks messages and exchanges. `tensor` makes a tensor from a number, `number` reads it back.
pub fn run<T>(comm: &mut impl Comm<T>, tensor: impl Fn(u32) -> T, number: impl Fn(&T) -> u32) {
    let Suite { me, n } = Suite::of(comm);
    assert!(me.0 < n, "rank {me:?} of {n}");
    let all = || (0..n).map(Rank);
    let code = |from: Rank, to: Rank, i: u32| (from.0 * n + to.0) * 100 + i;

    // Everyone sends to everyone, itself included, before anyone takes: sends do not block.
    for to in all() {
        for i in 0..20 {
            comm.send(to, tag(0, i), tensor(code(me, to, i))).expect("send");
        }
    }
    // Tags are taken in any order, posted or not.
    for from in all() {
        for i in (0..20).rev() {
            if i % 2 == 0 {
                comm.post(from, tag(0, i)).expect("post");
            }
            let got = comm.take(from, tag(0, i), soon()).expect("take");
            assert_eq!(number(&got), code(from, me, i), "message {i} from {from}");
        }
    }

    // The same token of another step, and other kinds of message, are other messages.
    let (right, left) = (Rank((me.0 + 1) % n), Rank((me.0 + n - 1) % n));
    let bucket = BucketId(3);
    let others = [
        tag(1, 0),
        tag(2, 0),
        Tag { step: 1, what: What::Part { bucket, slice: 0 } },
        Tag { step: 1, what: What::Sum { bucket, slice: 0 } },
    ];
    for (i, tag) in (0..4).zip(others) {
        comm.send(right, tag, tensor(i)).expect("send");
    }
    for (i, tag) in (0..4).zip(others).rev() {
        let mut taken = None;
        let deadline = soon();
        while taken.is_none() && Instant::now() < deadline {
            taken = comm.try_take(left, tag).expect("try_take");
        }
        assert_eq!(taken.as_ref().map(&number), Some(i), "{tag:?} from {left}");
        assert!(comm.try_take(left, tag).expect("try_take").is_none(), "{tag:?} came twice");
    }

    // Exchanges keep their order and may differ in length.
    for round in 0..5u8 {
        let mine = vec![round; me.index() + usize::from(round)];
        let got = comm.exchange(&mine, soon()).expect("exchange");
        let want: Vec<_> = (0..n as usize).map(|r| vec![round; r + usize::from(round)]).collect();
        assert_eq!(got, want, "exchange {round}");
    }

    // Everyone learns where everyone is.
    let at = |rank: u32| Position::At { step: 3, instr: 7 * rank + 1 };
    comm.publish(Position::At { step: 2, instr: 9 });
    comm.publish(at(me.0));
    comm.exchange(&[], soon()).expect("exchange");
    let want: Vec<_> = (0..n).map(|rank| Some(at(rank))).collect();
    assert_eq!(comm.positions(soon()), want);
    comm.exchange(&[], soon()).expect("exchange");

    // What nobody sends does not come, and the error says what it was.
    let never = comm.take(left, tag(9, 9), Instant::now() + Duration::from_millis(20)).err();
    assert!(
        matches!(&never, Some(CommError::Timeout { from, what, .. }) if *from == left && what.contains("micro-batch 9")),
        "{never:?}"
    );
    comm.exchange(&[], soon()).expect("the last exchange");
}

/// Checks that an abort by the last rank ends every other rank's wait with its cause.
pub fn run_abort<T: Debug>(comm: &mut impl Comm<T>, tensor: impl Fn(u32) -> T) {
    let Suite { me, n } = Suite::of(comm);
    let last = Rank(n - 1);
    let cause = Fault::new(Class::NonFinite, last, "as an example");
    // The others say that they have nothing else to wait for.
    comm.send(last, tag(7, 7), tensor(0)).expect("send");
    if me == last {
        for from in (0..n).map(Rank) {
            comm.take(from, tag(7, 7), soon()).expect("take");
        }
        comm.abort(&cause);
        comm.abort(&Fault::new(Class::Io, last, "a later cause"));
    }
    let ended = comm.take(last, tag(8, 8), soon()).err();
    assert_eq!(ended, Some(CommError::Aborted(cause)), "{me}");
}

struct Suite {
    me: Rank,
    n: u32,
}

impl Suite {
    fn of<T>(comm: &impl Comm<T>) -> Suite {
        Suite { me: comm.rank(), n: comm.n_ranks() }
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn tag(step: u64, unit: u32) -> Tag {
    let (pipe, stage, span) = (PipeId(0), StageId(0), Span::one(unit));
    Tag { step, what: What::Token(Token { kind: TokenKind::Activation, pipe, stage, span }) }
}
