//! A transport of tensors over a transport of bytes. Anything that carries frames between two ranks
//! implements the three functions of [`Wire`], and [`Framed`] does the rest.

mod process;

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use chimera_schedule::ids::Rank;

use super::mailbox::Mailbox;
use super::{
    AllReduce, Comm, CommError, Endpoint, Host, Liveness, Message, Position, Tag, Traffic,
};
use crate::fault::{Class, Fault};

/// Time between two looks for what other ranks have answered.
const TICK: Duration = Duration::from_millis(1);
/// Time for the last messages to all others when a run fails.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Carries frames of bytes between ranks: TCP, pipes, a message queue.
pub trait Wire: Send + Sync + 'static {
    /// Sends a frame to another rank. Frames arrive whole, each once, in any order.
    /// The call may block while the receiver's buffers are full, but must not depend on the
    /// receiver asking for the frame: each end reads continuously.
    ///
    /// # Errors
    /// [`ErrorKind::BrokenPipe`], [`ConnectionReset`](ErrorKind::ConnectionReset),
    /// [`ConnectionAborted`](ErrorKind::ConnectionAborted) and
    /// [`NotConnected`](ErrorKind::NotConnected) mean that the peer is gone. They are ignored,
    /// since [`recv`](Wire::recv) reports it. Any other error ends the run of the sending rank.
    fn send(&self, to: Rank, frame: &[u8]) -> io::Result<()>;

    /// Waits for the next frame of another rank. Called by one thread per peer. An error means that
    /// the peer will send nothing more; [`ErrorKind::InvalidData`] means that what it sent is no frame.
    fn recv(&self, from: Rank) -> io::Result<Vec<u8>>;

    /// Expects frames of up to `n_bytes`. A wire may refuse longer ones from then on.
    fn expect_frames(&self, _n_bytes: usize) {}

    /// Returns the links that were used since the last call, if it measures them.
    fn take_traffic(&self) -> Vec<(Rank, Traffic)> {
        Vec::new()
    }

    /// Waits until all frames have left this process, for at most `patience`. Called before the
    /// process may end. A wire whose frames the system sends after that needs nothing here.
    fn flush(&self, _patience: Duration) {}

    /// Ends every [`recv`](Wire::recv) of this rank, and those of its peers that wait for it.
    /// Called when the end is dropped.
    fn close(&self) {}
}

/// One rank's end of a transport over a [`Wire`]. Tensors are in host memory;
/// [`HostStaged`](super::HostStaged) carries those of a device.
pub struct Framed<W: Wire> {
    shared: Arc<Shared<W>>,
    /// By rank: number of control messages sent so far.
    n_bytes_sent: Vec<u64>,
}

struct Shared<W> {
    wire: W,
    rank: Rank,
    n_ranks: u32,
    mailbox: Mailbox<Host>,
    /// By rank: the last position known, always up to date for this rank.
    positions: Vec<AtomicU64>,
    /// By rank: whether the rank has answered the current query.
    answers: Vec<AtomicBool>,
    /// By rank: whether the rank's good-bye has arrived.
    has_left: Vec<AtomicBool>,
    is_stopping: AtomicBool,
}

impl<W: Wire> Framed<W> {
    /// Makes the end of `rank`, of `n_ranks`. Starts a thread per peer that reads its frames.
    pub fn new(wire: W, rank: Rank, n_ranks: u32) -> Framed<W> {
        let shared = Arc::new(Shared {
            wire,
            rank,
            n_ranks,
            mailbox: Mailbox::default(),
            positions: (0..n_ranks).map(|_| AtomicU64::new(Position::Start.to_bits())).collect(),
            answers: (0..n_ranks).map(|_| AtomicBool::new(false)).collect(),
            has_left: (0..n_ranks).map(|_| AtomicBool::new(false)).collect(),
            is_stopping: AtomicBool::new(false),
        });
        for from in shared.others() {
            let reader = Arc::clone(&shared);
            let started = thread::Builder::new().spawn(move || reader.read(from));
            if let Err(error) = started {
                let message =
                    format!("cannot start the thread that reads what {from} sends: {error}");
                shared.mailbox.abort(&Fault::new(Class::OutOfMemory, rank, message));
            }
        }
        Framed { shared, n_bytes_sent: vec![0; n_ranks as usize] }
    }

    fn send_message(&self, to: Rank, message: Message) -> Result<(), CommError> {
        if to == self.shared.rank {
            self.shared.take(to, message);
            return Ok(());
        }
        let frame = message.into_bytes().map_err(CommError::Failed)?;
        match self.shared.wire.send(to, &frame) {
            Err(error) if !is_gone(error.kind()) => {
                Err(CommError::Failed(format!("cannot send to {to}: {error}")))
            }
            // A peer that is gone is noticed when reading from it fails.
            _ => Ok(()),
        }
    }

    fn check_rank(&self, to: Rank) -> Result<(), CommError> {
        let n_ranks = self.shared.n_ranks;
        if to.0 < n_ranks {
            return Ok(());
        }
        Err(CommError::Failed(format!("{to} is not one of the {n_ranks} ranks")))
    }
}

fn is_gone(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected)
}

impl<W: Wire> Shared<W> {
    fn others(&self) -> impl Iterator<Item = Rank> + use<W> {
        let me = self.rank;
        (0..self.n_ranks).map(Rank).filter(move |rank| *rank != me)
    }

    fn tell_others(&self, message: Message) {
        let Ok(frame) = message.into_bytes() else { return }; // only tensors may be too long
        for to in self.others() {
            let _ = self.wire.send(to, &frame);
        }
    }

    /// Reads the frames of a rank until it ends.
    fn read(&self, from: Rank) {
        loop {
            let bytes = match self.wire.recv(from) {
                Ok(bytes) => bytes,
                Err(error) => {
                    let is_unreadable = error.kind() == ErrorKind::InvalidData;
                    return self.mailbox.end(from, is_unreadable.then(|| error.to_string()));
                }
            };
            match Message::from_bytes(&bytes) {
                Ok(message) => self.take(from, message),
                Err(reason) => return self.mailbox.end(from, Some(reason)),
            }
        }
    }

    fn take(&self, from: Rank, message: Message) {
        match self.mailbox.file(from, message) {
            Ok(Some(Message::Stop)) => self.is_stopping.store(true, Ordering::Relaxed),
            Ok(Some(Message::Ask(number))) => {
                let at = self.positions[self.rank.index()].load(Ordering::Relaxed);
                if let Ok(frame) = Message::Where(number, at).into_bytes() {
                    let _ = self.wire.send(from, &frame);
                }
            }
            Ok(Some(Message::Where(_, bits))) => {
                self.positions[from.index()].store(bits, Ordering::Relaxed);
                self.answers[from.index()].store(true, Ordering::Release);
            }
            Ok(Some(Message::Bye)) => self.has_left[from.index()].store(true, Ordering::Release),
            Ok(_) => {}
            Err(reason) => self.mailbox.end(from, Some(reason)),
        }
    }
}

impl<W: Wire> Liveness for Framed<W> {
    fn report_progress(&mut self, position: Position) {
        let mine = &self.shared.positions[self.shared.rank.index()];
        mine.store(position.to_bits(), Ordering::Relaxed);
    }

    fn query_progress(&mut self, deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        let shared = &self.shared;
        let has_answered = |rank: Rank| {
            rank == shared.rank || shared.answers[rank.index()].load(Ordering::Acquire)
        };
        shared.answers.iter().for_each(|answer| answer.store(false, Ordering::Relaxed));
        shared.tell_others(Message::Ask(0));
        loop {
            shared.mailbox.check()?;
            if shared.others().all(has_answered) || Instant::now() >= deadline {
                break;
            }
            thread::sleep(TICK);
        }
        let position = |rank: Rank| {
            let bits = shared.positions[rank.index()].load(Ordering::Relaxed);
            has_answered(rank).then(|| Position::from_bits(bits))
        };
        Ok((0..shared.n_ranks).map(Rank).map(position).collect())
    }

    fn request_stop(&mut self) {
        if !self.shared.is_stopping.swap(true, Ordering::Relaxed) {
            self.shared.tell_others(Message::Stop);
        }
    }

    fn stop_requested(&self) -> Option<bool> {
        Some(self.shared.is_stopping.load(Ordering::Relaxed))
    }
}

impl<W: Wire> Endpoint for Framed<W> {
    fn rank(&self) -> Rank {
        self.shared.rank
    }

    fn n_ranks(&self) -> u32 {
        self.shared.n_ranks
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        self.check_rank(to)?;
        let number = &mut self.n_bytes_sent[to.index()];
        *number += 1;
        let message = Message::Bytes(*number - 1, bytes);
        self.send_message(to, message)
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.shared.mailbox.try_take_bytes(from)
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.shared.mailbox.take_bytes(from, deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.shared.mailbox.abort(cause);
        self.shared.tell_others(Message::Abort(cause.clone()));
        self.shared.wire.flush(LAST_WORDS);
    }

    fn take_traffic(&mut self) -> Vec<(Rank, Traffic)> {
        self.shared.wire.take_traffic()
    }
}

impl<W: Wire> Comm<Host> for Framed<W> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Host) -> Result<(), CommError> {
        self.check_rank(to)?;
        self.send_message(to, Message::Tensor(tag, tensor))
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Host>, CommError> {
        self.shared.mailbox.try_take(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        self.shared.mailbox.take(from, tag, deadline)
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Host>> {
        None
    }
}

impl<W: Wire> Drop for Framed<W> {
    fn drop(&mut self) {
        self.shared.wire.close();
    }
}
