//! All-gather of bytes.

use std::time::Instant;

use chimera_schedule::ids::Rank;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CommError, Endpoint};

/// Sends `bytes` to every rank and returns those of all ranks, indexed by rank. All ranks must make
/// these calls in the same order.
///
/// Uses Bruck's algorithm (IEEE Trans. Parallel Distrib. Syst. 8, 1997): in each of ⌈log₂ P⌉ rounds
/// a rank sends what it knows to one rank and receives from one other. A rank therefore has as many
/// messages and connections as there are rounds.
///
/// # Errors
/// If another rank's bytes have not arrived by `deadline`, or can no longer arrive. The rank waited
/// for may itself be waiting for another one; [`Liveness`](super::Liveness) finds the rank to
/// blame.
pub fn all_gather(
    comm: &mut (impl Endpoint + ?Sized),
    bytes: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, CommError> {
    let (me, n_ranks) = (comm.rank().0, comm.n_ranks());
    // The bytes of this rank, of the next one, and so on, cyclically.
    let mut known = vec![bytes.to_vec()];
    while (known.len() as u32) < n_ranks {
        let distance = known.len() as u32;
        let n = distance.min(n_ranks - distance);
        send(comm, Rank((me + n_ranks - distance) % n_ranks), &known[..n as usize])?;
        let parts = recv(comm, Rank((me + distance) % n_ranks), n as usize, deadline)?;
        known.extend(parts);
    }
    known.rotate_right(me as usize);
    Ok(known)
}

/// Sends a value to every rank, as JSON, and returns those of all ranks, indexed by rank.
///
/// # Errors
/// The errors of [`all_gather`], and [`CommError::Unreadable`] if a rank sends something else.
pub fn all_gather_json<T: Serialize + DeserializeOwned>(
    comm: &mut (impl Endpoint + ?Sized),
    own: &T,
    deadline: Instant,
) -> Result<Vec<T>, CommError> {
    let own = serde_json::to_vec(own).map_err(|e| CommError::Failed(e.to_string()))?;
    let all = all_gather(comm, &own, deadline)?;
    let read = |(from, bytes): (u32, &Vec<u8>)| {
        let unreadable = |error: serde_json::Error| CommError::Unreadable {
            from: Rank(from),
            reason: error.to_string(),
        };
        serde_json::from_slice(bytes).map_err(unreadable)
    };
    (0..).zip(&all).map(read).collect()
}

/// The longest message; many ranks' bytes together may exceed the limit of a transport.
const MESSAGE: usize = 16 << 20;
const LENGTH: usize = size_of::<u64>();

/// Sends parts, in as many messages as needed.
fn send(comm: &mut (impl Endpoint + ?Sized), to: Rank, parts: &[Vec<u8>]) -> Result<(), CommError> {
    pack(parts).chunks(MESSAGE).try_for_each(|chunk| comm.send_bytes(to, chunk.to_vec()))
}

fn recv(
    comm: &mut (impl Endpoint + ?Sized),
    from: Rank,
    n: usize,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, CommError> {
    let mut packed = comm.recv_bytes(from, deadline)?;
    while length(&packed).is_some_and(|(length, rest)| (rest.len() as u64) < length) {
        let more = comm.recv_bytes(from, deadline)?;
        if more.is_empty() {
            break; // no more bytes will follow
        }
        packed.extend(more);
    }
    unpack(&packed, n).ok_or_else(|| CommError::Unreadable {
        from,
        reason: format!("{} bytes that are not those of {n} rank(s)", packed.len()),
    })
}

/// Packs parts into bytes: the total length, then each part preceded by its length.
fn pack(parts: &[Vec<u8>]) -> Vec<u8> {
    let n: usize = parts.iter().map(|part| LENGTH + part.len()).sum();
    let mut packed = Vec::with_capacity(LENGTH + n);
    packed.extend((n as u64).to_le_bytes());
    for part in parts {
        packed.extend((part.len() as u64).to_le_bytes());
        packed.extend(part);
    }
    packed
}

/// Unpacks the parts that [`pack`] packed; `None` unless there are exactly `n`.
fn unpack(packed: &[u8], n: usize) -> Option<Vec<Vec<u8>>> {
    let (_, mut rest) = length(packed).filter(|(length, rest)| rest.len() as u64 == *length)?;
    let mut parts = Vec::with_capacity(n);
    for _ in 0..n {
        let (length, behind) = length(rest)?;
        let (part, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
        parts.push(part.to_vec());
        rest = behind;
    }
    rest.is_empty().then_some(parts)
}

/// Splits off the length at the start of some bytes.
fn length(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*length), rest))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::comm::{Liveness, Threads, threads};
    use crate::fault::Fault;

    /// Records the receivers of a rank's messages.
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

    /// The results of two gathers by rank, and the number of receivers in the first.
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

    /// All parts together are longer than one message.
    #[test]
    fn long_parts_come_in_several_messages() {
        let part = |rank: Rank| vec![rank.0 as u8; MESSAGE / 3 * (1 + rank.index())];
        thread::scope(|scope| {
            for mut comm in threads::<()>(5) {
                scope.spawn(move || {
                    let (own, deadline) =
                        (part(comm.rank()), Instant::now() + Duration::from_secs(60));
                    let all = all_gather(&mut comm, &own, deadline).expect("gathered");
                    assert!(all.into_iter().eq((0..5).map(|rank| part(Rank(rank)))));
                });
            }
        });
    }

    #[test]
    fn bytes_that_are_not_of_so_many_ranks_are_refused() {
        let packed = pack(&[vec![1, 2], vec![]]);
        assert_eq!(unpack(&packed, 2), Some(vec![vec![1, 2], vec![]]));
        for other in [&packed[..25], &[&packed[..], &[0]].concat(), &[0xff; 8], &[1; 5]] {
            assert_eq!(unpack(other, 2), None);
        }
        assert_eq!(unpack(&packed, 1), None);
    }
}
