//! Synchronization of memory between streams that run independently.
//!
//! A stream that reads waits for the last writer, and one that writes waits for all earlier users.
//! Each waits on the device, by an event, never on the host. Within one stream there is nothing to
//! wait for, and no event is made. Nor is one made for work that the stream [follows](follow)
//! already.

use std::sync::atomic::{AtomicU64, Ordering};

use chimera_core::device::Result;

/// A queue of work on a device.
pub(super) trait Line: Clone + PartialEq {
    /// A mark in the queue.
    type Event;

    /// Marks the work so far.
    fn record(&self) -> Result<Self::Event>;

    /// Makes work from here on begin after the mark.
    fn wait(&self, event: &Self::Event) -> Result<()>;

    /// Returns its position, and what it follows.
    fn position(&self) -> &Position;
}

/// The position of a line, counted by the number of times that others came to follow it, and the
/// part of another line's work that it follows.
pub(super) struct Position {
    /// Unique to this line.
    id: u64,
    stretch: AtomicU64,
    /// Id of the line that this one follows.
    followed: AtomicU64,
    /// The first stretch of that line that is not followed.
    until: AtomicU64,
}

impl Position {
    pub(super) fn new() -> Position {
        static N: AtomicU64 = AtomicU64::new(1); // 0 is nobody's
        let id = N.fetch_add(1, Ordering::Relaxed);
        let [stretch, followed, until] = [0; 3].map(AtomicU64::new);
        Position { id, stretch, followed, until }
    }

    fn stretch(&self) -> u64 {
        self.stretch.load(Ordering::Relaxed)
    }

    fn follows(&self, other: &Position, stretch: u64) -> bool {
        self.followed.load(Ordering::Relaxed) == other.id
            && stretch < self.until.load(Ordering::Relaxed)
    }
}

/// Makes later work of `line` follow all of `other`'s so far. A line follows one other line.
#[cfg(any(feature = "cuda", test))]
pub(super) fn follow<L: Line>(line: &L, other: &L) -> Result<()> {
    line.wait(&other.record()?)?;
    let (own, followed) = (line.position(), other.position());
    own.followed.store(followed.id, Ordering::Relaxed);
    own.until.store(followed.stretch.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    Ok(())
}

/// The uses of an allocation that others must wait for.
pub(super) struct Users<L: Line> {
    writer: Use<L>,
    readers: Vec<Use<L>>,
}

/// The last use by one line.
struct Use<L: Line> {
    by: L,
    /// The stretch of the line's work that contains it.
    stretch: u64,
    /// The event after it, recorded when another line needs it, or by [`Users::record_ready`].
    done: Option<L::Event>,
}

impl<L: Line> Use<L> {
    /// Returns a use by `line` at this point of its work.
    fn now(line: &L) -> Self {
        Self { by: line.clone(), stretch: line.position().stretch(), done: None }
    }

    /// Returns true if it comes before all work of `line` from here on.
    fn precedes(&self, line: &L) -> bool {
        self.by == *line || line.position().follows(self.by.position(), self.stretch)
    }

    /// Makes `line` wait for it.
    fn precede(&mut self, line: &L) -> Result<()> {
        if self.precedes(line) {
            return Ok(());
        }
        let done = match self.done.take() {
            Some(done) => done,
            None => self.by.record()?,
        };
        line.wait(self.done.insert(done))
    }
}

impl<L: Line> Users<L> {
    /// Creates the uses of memory that was allocated for `line`.
    pub(super) fn new(line: &L) -> Self {
        Self { writer: Use::now(line), readers: Vec::new() }
    }

    /// Orders a read by `line`. Call it before.
    pub(super) fn read(&mut self, line: &L) -> Result<()> {
        if let Some(reader) = self.readers.iter_mut().find(|reader| reader.by == *line) {
            *reader = Use::now(line);
            return Ok(());
        }
        self.writer.precede(line)?;
        // The writer's own reads come before its event, unless that is recorded already.
        if self.writer.by == *line && self.writer.done.is_none() {
            self.writer = Use::now(line)
        } else {
            self.readers.push(Use::now(line))
        }
        Ok(())
    }

    /// Orders a write by `line`. Call it before.
    pub(super) fn write(&mut self, line: &L) -> Result<()> {
        self.all_precede(line)?;
        self.writer = Use::now(line);
        self.readers.clear();
        Ok(())
    }

    /// Marks the last write as ready, if `line` follows it: others need not wait for later work.
    pub(super) fn record_ready(&mut self, line: &L) -> Result<()> {
        if self.writer.precedes(line) && self.writer.done.is_none() {
            self.writer.done = Some(line.record()?);
        }
        Ok(())
    }

    /// Returns true if `line` has no other line to wait for.
    pub(super) fn is_only(&self, line: &L) -> bool {
        self.writer.precedes(line) && self.readers.iter().all(|reader| reader.precedes(line))
    }

    /// Makes `line` wait for every use.
    pub(super) fn all_precede(&mut self, line: &L) -> Result<()> {
        self.writer.precede(line)?;
        self.readers.iter_mut().try_for_each(|reader| reader.precede(line))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    /// A line whose work knows, for each line, how much of that line's work comes before it.
    #[derive(Clone)]
    struct Clock {
        number: usize,
        clocks: Rc<RefCell<[[u64; 3]; 3]>>,
        position: Rc<Position>,
        n_marks: Rc<Cell<u32>>,
    }

    impl PartialEq for Clock {
        fn eq(&self, other: &Self) -> bool {
            self.number == other.number
        }
    }

    impl Line for Clock {
        type Event = [u64; 3];

        fn record(&self) -> Result<[u64; 3]> {
            self.n_marks.update(|n| n + 1);
            Ok(self.clocks.borrow()[self.number])
        }

        fn wait(&self, event: &[u64; 3]) -> Result<()> {
            let mine = &mut self.clocks.borrow_mut()[self.number];
            mine.iter_mut().zip(event).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
            Ok(())
        }

        fn position(&self) -> &Position {
            &self.position
        }
    }

    impl Clock {
        fn all() -> [Clock; 3] {
            let (clocks, n_marks) = (Rc::default(), Rc::default());
            std::array::from_fn(|number| Clock {
                number,
                clocks: Rc::clone(&clocks),
                position: Rc::new(Position::new()),
                n_marks: Rc::clone(&n_marks),
            })
        }

        /// Does some work. Returns its time and the work that comes before it.
        fn work(&self) -> (usize, [u64; 3]) {
            let mine = &mut self.clocks.borrow_mut()[self.number];
            mine[self.number] += 1;
            (self.number, *mine)
        }
    }

    /// Returns true if `first` is done when `then` begins.
    fn precedes(first: (usize, [u64; 3]), then: (usize, [u64; 3])) -> bool {
        first.1[first.0] <= then.1[first.0]
    }

    #[test]
    fn uses_that_conflict_are_ordered() {
        // Six steps, each a line that reads, writes, marks as ready or follows the next one.
        for program in 0..12u32.pow(6) {
            let lines = Clock::all();
            let mut users = Users::new(&lines[0]);
            let mut written = lines[0].work();
            let mut read = Vec::new();
            for step in 0..6 {
                let act = program / 12u32.pow(step) % 12;
                let line = &lines[act as usize % 3];
                match act / 3 {
                    0 => {
                        users.read(line).unwrap();
                        let now = line.work();
                        assert!(precedes(written, now), "program {program}: a read too early");
                        read.push(now);
                    }
                    1 => {
                        users.write(line).unwrap();
                        let now = line.work();
                        assert!(precedes(written, now), "program {program}: a write too early");
                        let after = |r: &(usize, [u64; 3])| precedes(*r, now);
                        assert!(read.iter().all(after), "program {program}: written while read");
                        written = now;
                        read.clear();
                    }
                    2 => users.record_ready(line).unwrap(),
                    _ => follow(line, &lines[(act as usize + 1) % 3]).unwrap(),
                }
            }
            let freeing = &lines[1];
            users.all_precede(freeing).unwrap();
            let now = freeing.work();
            assert!(read.iter().chain([&written]).all(|r| precedes(*r, now)), "freed while used");
        }
    }

    #[test]
    fn nobody_waits_for_what_comes_after_the_mark() {
        let [a, b, _] = Clock::all();
        let mut users = Users::new(&a);
        a.work();
        users.record_ready(&a).unwrap();
        a.work();
        users.read(&b).unwrap();
        assert_eq!(b.work().1, [1, 1, 0]);
    }

    /// The order in which a worker's queues run two overlapping pieces of work.
    #[test]
    fn who_follows_a_line_waits_for_none_of_its_earlier_work_again() {
        let [own, beside, _] = Clock::all();
        let mut weights = Users::new(&own);
        own.work();
        follow(&beside, &own).unwrap();
        weights.read(&beside).unwrap();
        let mut made = Users::new(&beside);
        beside.work();
        own.work();
        follow(&own, &beside).unwrap();
        follow(&beside, &own).unwrap();
        beside.work();
        made.read(&own).unwrap();
        weights.write(&own).unwrap();
        assert_eq!(
            (own.work().1, own.n_marks.get()),
            ([3, 1, 0], 3),
            "no mark but those of follow"
        );
        assert!(made.is_only(&own) && !made.is_only(&beside));
    }
}
