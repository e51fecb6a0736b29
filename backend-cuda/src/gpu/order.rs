//! Who may use memory when, on streams that run on their own.
//!
//! A stream that reads waits for the last writer, one that writes waits for everybody before it; each waits
//! on the device, by an event, never on the host. Within one stream there is nothing to wait for, and then
//! no event is made.

use chimera_core::device::Result;

/// A queue of work on a device.
pub(super) trait Line: Clone + PartialEq {
    /// A mark in the queue.
    type Event;

    /// Marks the work so far.
    fn record(&self) -> Result<Self::Event>;

    /// Work from here on begins after the mark.
    fn wait(&self, event: &Self::Event) -> Result<()>;
}

/// The uses of an allocation that others must wait for.
pub(super) struct Users<L: Line> {
    writer: Use<L>,
    readers: Vec<Use<L>>,
}

/// The last use by one line.
struct Use<L: Line> {
    by: L,
    /// After it; made when somebody first asks, or by [`Users::record_ready`].
    done: Option<L::Event>,
}

impl<L: Line> Use<L> {
    /// Makes `line` wait for it.
    fn precede(&mut self, line: &L) -> Result<()> {
        if self.by == *line {
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
    /// Of memory that `line` was given.
    pub(super) fn new(line: &L) -> Self {
        Self { writer: Use { by: line.clone(), done: None }, readers: Vec::new() }
    }

    /// Before `line` reads.
    pub(super) fn read(&mut self, line: &L) -> Result<()> {
        if let Some(reader) = self.readers.iter_mut().find(|reader| reader.by == *line) {
            reader.done = None;
            return Ok(());
        }
        self.writer.precede(line)?;
        // The writer's own reads come before its mark unless there is one already.
        if self.writer.by != *line || self.writer.done.is_some() {
            self.readers.push(Use { by: line.clone(), done: None });
        }
        Ok(())
    }

    /// Before `line` writes.
    pub(super) fn write(&mut self, line: &L) -> Result<()> {
        self.all_precede(line)?;
        self.writer = Use { by: line.clone(), done: None };
        self.readers.clear();
        Ok(())
    }

    /// Marks what `line` wrote as ready, so that others need not wait for what it does next.
    pub(super) fn record_ready(&mut self, line: &L) -> Result<()> {
        if self.writer.by == *line && self.writer.done.is_none() {
            self.writer.done = Some(line.record()?);
        }
        Ok(())
    }

    /// Whether no other line than `line` has to be waited for.
    #[cfg(feature = "cuda")] // the tests of the order free nothing
    pub(super) fn is_only(&self, line: &L) -> bool {
        self.writer.by == *line && self.readers.iter().all(|reader| reader.by == *line)
    }

    /// Makes `line` wait for every use.
    pub(super) fn all_precede(&mut self, line: &L) -> Result<()> {
        self.writer.precede(line)?;
        self.readers.iter_mut().try_for_each(|reader| reader.precede(line))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// A line whose work knows, for each line, how much of its work comes before.
    #[derive(Clone)]
    struct Clock {
        number: usize,
        clocks: Rc<RefCell<[[u64; 3]; 3]>>,
    }

    impl PartialEq for Clock {
        fn eq(&self, other: &Self) -> bool {
            self.number == other.number
        }
    }

    impl Line for Clock {
        type Event = [u64; 3];

        fn record(&self) -> Result<[u64; 3]> {
            Ok(self.clocks.borrow()[self.number])
        }

        fn wait(&self, event: &[u64; 3]) -> Result<()> {
            let mine = &mut self.clocks.borrow_mut()[self.number];
            mine.iter_mut().zip(event).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
            Ok(())
        }
    }

    impl Clock {
        /// Does some work; returns its time and what comes before it.
        fn work(&self) -> (usize, [u64; 3]) {
            let mine = &mut self.clocks.borrow_mut()[self.number];
            mine[self.number] += 1;
            (self.number, *mine)
        }
    }

    /// Whether `first` is done when `then` begins.
    fn precedes(first: (usize, [u64; 3]), then: (usize, [u64; 3])) -> bool {
        first.1[first.0] <= then.1[first.0]
    }

    #[test]
    fn uses_that_conflict_are_ordered() {
        // All programs of six steps: who, and whether it reads, writes or marks as ready.
        for program in 0..9u32.pow(6) {
            let clocks = Rc::new(RefCell::new([[0; 3]; 3]));
            let lines: [Clock; 3] =
                std::array::from_fn(|number| Clock { number, clocks: clocks.clone() });
            let mut users = Users::new(&lines[0]);
            let mut written = lines[0].work();
            let mut read = Vec::new();
            for step in 0..6 {
                let act = program / 9u32.pow(step) % 9;
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
                    _ => users.record_ready(line).unwrap(),
                }
            }
            let freeing = Clock { number: 1, clocks };
            users.all_precede(&freeing).unwrap();
            let now = freeing.work();
            assert!(read.iter().chain([&written]).all(|r| precedes(*r, now)), "freed while used");
        }
    }

    #[test]
    fn nobody_waits_for_what_comes_after_the_mark() {
        let clocks = Rc::new(RefCell::new([[0; 3]; 3]));
        let [a, b] = [0, 1].map(|number| Clock { number, clocks: clocks.clone() });
        let mut users = Users::new(&a);
        a.work();
        users.record_ready(&a).unwrap();
        a.work();
        users.read(&b).unwrap();
        assert_eq!(b.work().1, [1, 1, 0]);
    }
}
