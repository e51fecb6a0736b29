//! Bytes of every rank, for every rank.

use std::time::Instant;

use super::{CommError, Endpoint};
use crate::ids::Rank;

/// Gives `bytes` to every rank and returns those of all ranks, by rank. All ranks call it in the same order.
///
/// Bruck's algorithm (IEEE Trans. Parallel Distrib. Syst. 8, 1997): in each of ⌈log₂ P⌉ rounds a rank sends what
/// it knows to one rank and receives from one other, so a rank has as many messages and connections as there are
/// rounds, and no more.
///
/// # Errors
/// If the other ranks' bytes have not come by `deadline`, or cannot come any more. A rank that waits for another one
/// may itself be waited for: which rank is to blame, [`Liveness`](super::Liveness) tells.
pub fn all_gather(
    comm: &mut (impl Endpoint + ?Sized),
    bytes: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, CommError> {
    let (me, n_ranks) = (comm.rank().0, comm.n_ranks());
    // Those of this rank, of the next one, and so on, round and round.
    let mut known = vec![bytes.to_vec()];
    while (known.len() as u32) < n_ranks {
        let distance = known.len() as u32;
        let n = distance.min(n_ranks - distance);
        comm.send_bytes(Rank((me + n_ranks - distance) % n_ranks), pack(&known[..n as usize]))?;
        let from = Rank((me + distance) % n_ranks);
        let packed = comm.recv_bytes(from, deadline)?;
        let parts = unpack(&packed, n as usize).ok_or_else(|| CommError::Unreadable {
            from,
            reason: format!("{} bytes that are not those of {n} rank(s)", packed.len()),
        })?;
        known.extend(parts);
    }
    known.rotate_right(me as usize);
    Ok(known)
}

/// Each part with its length before it.
fn pack(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        packed.extend((part.len() as u64).to_le_bytes());
        packed.extend(part);
    }
    packed
}

/// The parts of which [`pack`] made these bytes, if they are `n`.
fn unpack(mut packed: &[u8], n: usize) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::with_capacity(n);
    for _ in 0..n {
        let (length, rest) = packed.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (part, rest) = rest.split_at_checked(length)?;
        parts.push(part.to_vec());
        packed = rest;
    }
    packed.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::comm::{Liveness, Threads, threads};
    use crate::fault::Fault;

    /// Counts to whom a rank sends.
    struct Counting {
        inner: Threads<()>,
        receivers: Vec<Rank>,
    }

    impl Liveness for Counting {}

    impl Endpoint for Counting {
        fn rank(&self) -> Rank {
            self.inner.rank()
        }
        fn n_ranks(&self) -> u32 {
            self.inner.n_ranks()
        }
        fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
            self.receivers.push(to);
            self.inner.send_bytes(to, bytes)
        }
        fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
            self.inner.try_recv_bytes(from)
        }
        fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
            self.inner.recv_bytes(from, deadline)
        }
        fn abort(&mut self, cause: &Fault) {
            self.inner.abort(cause);
        }
    }

    /// What each rank got of two gathers, and to how many ranks it sent in the first.
    fn gathered(n: u32) -> Vec<(Vec<Vec<u8>>, usize)> {
        let part = |rank: u32, round: usize| vec![rank as u8; rank as usize % 5 + round];
        let member = |inner: Threads<()>| {
            let rank = inner.rank().0;
            let mut comm = Counting { inner, receivers: Vec::new() };
            let deadline = Instant::now() + Duration::from_secs(60);
            let all = all_gather(&mut comm, &part(rank, 0), deadline).expect("gathered");
            let n_messages = comm.receivers.len();
            let again = all_gather(&mut comm, &part(rank, 1), deadline).expect("gathered");
            assert!(again.into_iter().eq((0..n).map(|rank| part(rank, 1))));
            (all, n_messages)
        };
        thread::scope(|scope| {
            let start = |comm| {
                let stack = thread::Builder::new().stack_size(64 << 10);
                stack.spawn_scoped(scope, move || member(comm)).expect("a thread")
            };
            let members: Vec<_> = threads(n).into_iter().map(start).collect();
            members.into_iter().map(|member| member.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn all_ranks_get_all_parts_in_few_messages() {
        for n in [1, 2, 3, 4, 5, 7, 8, 13, 64, 256, 1024] {
            let want: Vec<_> = (0..n).map(|rank| vec![rank as u8; rank as usize % 5]).collect();
            for (all, n_messages) in gathered(n) {
                assert_eq!(n_messages as u32, n.next_power_of_two().ilog2(), "{n} ranks");
                assert!(all == want, "{n} ranks");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_of_so_many_ranks_are_refused() {
        let packed = pack(&[vec![1, 2], vec![]]);
        assert_eq!(unpack(&packed, 2), Some(vec![vec![1, 2], vec![]]));
        for other in [&packed[..17], &[&packed[..], &[0]].concat(), &[0xff; 8]] {
            assert_eq!(unpack(other, 2), None);
        }
        assert_eq!(unpack(&packed, 1), None);
    }
}
