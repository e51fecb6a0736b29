//! A transport with messages and gradient reductions that take the time given by their costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chimera_engine::comm::{AllReduce, Comm, CommError, Payload, Tag, Wrap};
use chimera_engine::device::reference::Tensor;
use chimera_schedule::analyze::timeline::{Event, Work};
use chimera_schedule::effects::Token;
use chimera_schedule::ids::{BucketId, Rank, WorkerId};
use chimera_schedule::program::Program;
use rustc_hash::FxHashMap;

use super::dated::Dated;
use super::pace::Pace;
use super::reductions::ReductionOrder;

/// Times of a rank's communication.
pub(super) trait Delays: Send {
    /// Time from the end of the op that makes a token to its arrival.
    fn message(&self, token: &Token) -> Duration;

    /// The part of a message's time that its sender is busy.
    fn occupies(&self, token: &Token) -> Duration;

    /// Time that the start of a reduction keeps each of its members busy.
    fn reduce_occupies(&self, bucket: BucketId) -> Duration;
}

/// Delays the values of tokens, counted from the ends of the ops that made them. Reduces over ranks
/// by itself: it takes the time of a reduction, without its arithmetic.
pub(super) struct Paced<'p, C, D> {
    inner: C,
    pace: Arc<Pace>,
    delays: D,
    program: &'p Program,
    reductions: ReductionOrder,
    /// Messages that have arrived but are not due.
    early: FxHashMap<(Rank, Tag), Dated<Tensor>>,
    /// Known start times of reductions, by number, bucket and member.
    started: FxHashMap<(u64, BucketId, Rank), Instant>,
    /// Gradients of reductions in progress.
    gradients: FxHashMap<Tag, Tensor>,
}

impl<'p, C: Comm<Dated<Tensor>>, D: Delays> Paced<'p, C, D> {
    pub(super) fn new(
        inner: C,
        pace: Arc<Pace>,
        delays: D,
        program: &'p Program,
        reductions: ReductionOrder,
    ) -> Paced<'p, C, D> {
        let (early, started, gradients) = Default::default();
        Paced { inner, pace, delays, program, reductions, early, started, gradients }
    }

    /// Returns the begin and end of a reduction, once all starts that it depends on are known; with
    /// a deadline, waits for them.
    fn times(
        &mut self,
        (number, bucket): (u64, BucketId),
        deadline: Option<Instant>,
    ) -> Result<Option<(Instant, Instant)>, CommError> {
        let Paced { inner, started, reductions, program, .. } = self;
        let update = |bucket: BucketId| u64::from(program.buckets()[bucket.index()].update);
        let of_window = number - update(bucket);
        reductions.times(bucket, &mut |bucket, member| {
            let number = of_window + update(bucket);
            if let Some(start) = started.get(&(number, bucket, member)) {
                return Ok(Some(*start));
            }
            let tag = Tag::new(number, Payload::Gradients { bucket, part: 0 });
            let told = match deadline {
                Some(deadline) => Some(inner.recv(member, tag, deadline)?),
                None => inner.try_recv(member, tag)?,
            };
            let Some(Dated { due, .. }) = told else { return Ok(None) };
            started.insert((number, bucket, member), due);
            Ok(Some(due))
        })
    }

    /// Finishes a reduction, and returns its gradients.
    fn reduced(&mut self, tag: Tag, bucket: BucketId, (begin, end): (Instant, Instant)) -> Tensor {
        if self.reductions.takes_time(bucket) {
            self.pace.note_reduction(bucket, begin, end);
        }
        self.gradients.remove(&tag).unwrap_or_else(|| Tensor::zeros(&[0]))
    }
}

impl<C: Comm<Dated<Tensor>>, D: Delays> Wrap for Paced<'_, C, D> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }
}

impl<C: Comm<Dated<Tensor>>, D: Delays> Comm<Tensor> for Paced<'_, C, D> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Tensor) -> Result<(), CommError> {
        let Payload::Token(token) = tag.payload() else {
            return self.inner.send(to, tag, Dated { tensor, due: Instant::now() });
        };
        let due = self.pace.now() + self.delays.message(&token);
        self.inner.send(to, tag, Dated { tensor, due })?;
        self.pace.occupy(self.delays.occupies(&token));
        Ok(())
    }

    /// Called only for the messages of reductions.
    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        let Payload::Sums { bucket, .. } = tag.payload() else {
            return Ok(self.inner.try_recv(from, tag)?.map(|dated| dated.tensor));
        };
        let times = self.times((tag.step(), bucket), None)?;
        let done = times.filter(|(_, end)| *end <= Instant::now());
        Ok(done.map(|times| self.reduced(tag, bucket, times)))
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Tensor, CommError> {
        let began = Instant::now();
        let timeout = || {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            Err(CommError::Timeout { from, what: tag.to_string(), waited: began.elapsed() })
        };
        match tag.payload() {
            Payload::Token(_) => {
                self.pace.wait_for(tag);
                let message = match self.early.remove(&(from, tag)) {
                    None => self.inner.recv(from, tag, deadline)?,
                    Some(early) => early,
                };
                if message.due > deadline {
                    self.early.insert((from, tag), message);
                    return timeout();
                }
                self.pace.receive(message.due);
                Ok(message.tensor)
            }
            Payload::Sums { bucket, .. } => {
                self.pace.wait_for(tag);
                match self.times((tag.step(), bucket), Some(deadline))? {
                    Some(times) if times.1 <= deadline => {
                        self.pace.receive(times.1);
                        Ok(self.reduced(tag, bucket, times))
                    }
                    _ => timeout(),
                }
            }
            _ => Ok(self.inner.recv(from, tag, deadline)?.tensor),
        }
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Tensor>> {
        Some(self)
    }
}

impl<C: Comm<Dated<Tensor>>, D: Delays> AllReduce<Tensor> for Paced<'_, C, D> {
    /// Announces this rank's start to all ranks with reductions that may wait for it.
    fn all_reduce(&mut self, _: &[Rank], tag: Tag, tensor: Tensor) -> Result<(), CommError> {
        let Payload::Sums { bucket, .. } = tag.payload() else { return Ok(()) };
        self.pace.occupy(self.delays.reduce_occupies(bucket));
        let (me, start) = (self.inner.rank(), self.pace.now());
        let told = Tag::new(tag.step(), Payload::Gradients { bucket, part: 0 });
        for listener in self.reductions.listeners(bucket) {
            if listener != me {
                let dated = Dated { tensor: Tensor::zeros(&[0]), due: start };
                self.inner.send(listener, told, dated)?;
            }
        }
        self.started.insert((tag.step(), bucket, me), start);
        self.gradients.insert(tag, tensor);
        Ok(())
    }
}

/// Converts the reductions of a rank to events, in seconds since `start`.
pub(super) fn events(
    reductions: &[(BucketId, Instant, Instant)],
    worker: WorkerId,
    start: Instant,
) -> impl Iterator<Item = Event> + '_ {
    let since = move |at: Instant| at.saturating_duration_since(start).as_secs_f64();
    reductions.iter().map(move |(bucket, begin, end)| {
        let (start, end) = (since(*begin), since(*end));
        Event { worker, work: Work::Reduce(*bucket), start, end, after: None }
    })
}
