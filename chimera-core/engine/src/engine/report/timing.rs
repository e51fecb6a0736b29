//! Start and end of everything on a rank: by the host's clock, or by that of an asynchronous
//! device, on which an op is done long after the call that requests it.

use std::fmt::Display;
use std::time::Instant;

use chimera_schedule::analyze::timeline::{Awaited, Event, Wait, Work};
use chimera_schedule::ids::{Rank, WorkerId};

use crate::device::{Clock, KernelRun, Result};
use crate::engine::report::flight_recorder::{Did, Doing, FlightRecorder};
use crate::engine::report::load::Waits;

/// The timeline of a rank in one step, in seconds since the job's epoch.
#[derive(Clone, PartialEq, Debug)]
pub struct StepTimeline {
    /// Start and end of everything that the rank did.
    pub events: Vec<Event>,
    /// Waits of the rank.
    pub waits: Vec<Wait>,
    /// Kernels of the rank, if they are timed.
    pub kernels: Vec<KernelRun>,
}

/// Times of one rank, in seconds since the job's epoch.
pub(crate) struct Timing {
    epoch: Instant,
    marks: Marks,
    pub(crate) events: Vec<Event>,
    pub(crate) waits: Vec<Wait>,
    /// Kernels of the device, while they are timed.
    pub(crate) kernels: Vec<KernelRun>,
    times_kernels: bool,
    /// By the host's clock.
    pub(crate) recent: FlightRecorder,
    /// Seconds of compute since the last report.
    busy_s: f64,
    /// Entries that have only the host's times so far.
    unsettled: Vec<Unsettled>,
    pub(crate) since: Since,
    /// Waits since the last step sync, by the host's clock.
    pub(crate) waits_so_far: Waits,
}

/// The marks on a device's clock, if it has one.
#[derive(Default)]
struct Marks {
    clock: Option<Box<dyn Clock>>,
    n: usize,
    /// Times of marks as reported by the clock, from mark number `first_told` on.
    told: Vec<f64>,
    first_told: usize,
}

/// Time since the last step sync.
pub(crate) struct Since {
    pub(crate) start: Instant,
    /// Seconds of copying the state to the host.
    pub(crate) copy_s: f64,
}

impl Since {
    /// Starts counting now.
    pub(crate) fn now() -> Since {
        Since { start: Instant::now(), copy_s: 0.0 }
    }

    /// Excludes the time since `began` from the step.
    pub(crate) fn leave_out(&mut self, began: Instant) {
        self.start += began.elapsed();
    }
}

/// A point in time; by the device's clock, when it reaches this point of its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    host_s: f64,
    mark: usize,
}

struct Unsettled {
    start: Moment,
    end: Moment,
    of: Of,
    is_compute: bool,
}

/// The subject of a start and an end.
enum Of {
    /// An event, by its index.
    Event(usize),
    /// A wait, by its index.
    Wait(usize),
    /// Not kept.
    Other,
}

impl Timing {
    pub(crate) fn new(epoch: Instant, clock: Option<Box<dyn Clock>>) -> Timing {
        Timing {
            epoch,
            marks: Marks { clock, ..Marks::default() },
            events: Vec::new(),
            waits: Vec::new(),
            kernels: Vec::new(),
            times_kernels: false,
            recent: FlightRecorder::default(),
            busy_s: 0.0,
            unsettled: Vec::new(),
            since: Since::now(),
            waits_so_far: Waits::default(),
        }
    }

    /// Clears the timeline, and counts from another epoch from here on.
    pub(crate) fn restart(&mut self, epoch: Instant) {
        self.clear();
        self.epoch = epoch;
    }

    /// Turns timing of kernels on or off for the runs to come, as far as the device supports it.
    pub(crate) fn time_kernels(&mut self, is_on: bool) {
        self.times_kernels = is_on;
    }

    /// Begins a run of the program, at a step.
    pub(crate) fn begin_run(&mut self, step: u64) {
        self.begin_range(&format_args!("step {step}"));
        self.switch_kernels(true);
    }

    /// Ends a run. Kernels until the next run belong to no step.
    pub(crate) fn end_run(&mut self) {
        self.switch_kernels(false);
        self.end_range();
    }

    fn switch_kernels(&mut self, is_on: bool) {
        if let Some(clock) = self.marks.clock.as_mut().filter(|_| self.times_kernels) {
            clock.time_kernels(is_on);
        }
    }

    /// Opens a named range around the work requested of the device, for profilers.
    pub(crate) fn begin_range(&mut self, name: &dyn Display) {
        if let Some(clock) = &mut self.marks.clock {
            clock.begin_range(name);
        }
    }

    pub(crate) fn end_range(&mut self) {
        if let Some(clock) = &mut self.marks.clock {
            clock.end_range();
        }
    }

    /// Clears events, waits and kernels. Compute that has no device times yet still counts.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.waits.clear();
        self.kernels.clear();
        self.unsettled.iter_mut().for_each(|unsettled| unsettled.of = Of::Other);
        self.marks.forget();
    }

    pub(crate) fn now(&mut self) -> Moment {
        let mark = self.marks.mark();
        Moment { host_s: self.epoch.elapsed().as_secs_f64(), mark }
    }

    /// Records work that is done now.
    pub(crate) fn worked(&mut self, step: u64, worker: WorkerId, work: Work, start: Moment) {
        let end = self.now();
        let is_compute = !matches!(work, Work::Reduce(_));
        let (from, to) = (start.host_s, end.host_s);
        self.recent.add(Did { step, what: Doing::Work(work), start: from, end: to });
        self.add(start, end, Of::Event(self.events.len()), is_compute);
        self.events.push(Event { worker, work, start: from, end: to, after: None });
    }

    /// Records a wait that ends now, for messages of a rank or for all.
    pub(crate) fn waited(
        &mut self,
        step: u64,
        worker: WorkerId,
        (awaited, sender): (Awaited, Option<Rank>),
        start: Moment,
    ) {
        let end = self.now();
        let (from, to) = (start.host_s, end.host_s);
        if awaited != Awaited::Agreement {
            self.waits_so_far.add(sender, to - from);
        }
        self.recent.add(Did { step, what: Doing::Wait(awaited), start: from, end: to });
        self.add(start, end, Of::Wait(self.waits.len()), false);
        self.waits.push(Wait { worker, awaited, start: from, end: to });
    }

    /// Records compute that is not an event.
    pub(crate) fn computed(&mut self, start: Moment) {
        let end = self.now();
        self.add(start, end, Of::Other, true);
    }

    fn add(&mut self, start: Moment, end: Moment, of: Of, is_compute: bool) {
        if self.marks.clock.is_some() {
            self.unsettled.push(Unsettled { start, end, of, is_compute });
        } else if is_compute {
            self.busy_s += end.host_s - start.host_s;
        }
    }

    /// Waits until the device has done all work so far, and takes its times.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let Some(clock) = self.marks.clock.as_mut().filter(|_| !self.unsettled.is_empty()) else {
            return Ok(());
        };
        let ages = clock.ages()?;
        let now = self.epoch.elapsed().as_secs_f64();
        if self.times_kernels {
            let since = |run: KernelRun| KernelRun { start: now + run.start, ..run };
            self.kernels.extend(clock.kernels()?.into_iter().map(since));
        }
        self.marks.told.extend(ages.into_iter().map(|age| now - age));
        for Unsettled { start, end, of, is_compute } in std::mem::take(&mut self.unsettled) {
            let (start, end) = (self.marks.time(start), self.marks.time(end));
            if is_compute {
                self.busy_s += end - start;
            }
            match of {
                Of::Event(at) => (self.events[at].start, self.events[at].end) = (start, end),
                Of::Wait(at) => (self.waits[at].start, self.waits[at].end) = (start, end),
                Of::Other => {}
            }
        }
        Ok(())
    }

    /// Seconds of compute, as far as settled, since the last call.
    pub(crate) fn take_busy_s(&mut self) -> f64 {
        std::mem::take(&mut self.busy_s)
    }
}

impl Marks {
    /// Marks this point of the device's work; returns the number of the mark.
    fn mark(&mut self) -> usize {
        if let Some(clock) = &mut self.clock {
            clock.mark();
            self.n += 1;
        }
        self.n.saturating_sub(1)
    }

    fn forget(&mut self) {
        self.first_told += self.told.len();
        self.told.clear();
    }

    /// Returns the clock's time of a moment, or the host's if the clock has not reported it.
    fn time(&self, moment: Moment) -> f64 {
        let told = moment.mark.checked_sub(self.first_told).and_then(|at| self.told.get(at));
        told.copied().unwrap_or(moment.host_s)
    }
}

#[cfg(test)]
mod tests {
    use chimera_schedule::ids::BucketId;

    use super::*;

    const ME: WorkerId = WorkerId(0);
    const STEP: Work = Work::Step(BucketId(0));

    /// A device that takes a second from one mark to the next.
    #[derive(Default)]
    struct Seconds {
        n_open: usize,
    }

    impl Clock for Seconds {
        fn mark(&mut self) {
            self.n_open += 1;
        }

        fn ages(&mut self) -> Result<Vec<f64>> {
            let n = std::mem::take(&mut self.n_open);
            Ok((0..n).rev().map(|age| age as f64).collect())
        }

        fn kernels(&mut self) -> Result<Vec<KernelRun>> {
            Ok(vec![KernelRun { name: "gelu".into(), start: -2.0, seconds: 1.0, flops: 0.0 }])
        }
    }

    fn near(got: f64, expected: f64) -> bool {
        (got - expected).abs() < 0.5
    }

    #[test]
    fn a_device_that_works_on_its_own_tells_the_times() {
        let mut timing = Timing::new(Instant::now(), Some(Box::new(Seconds::default())));
        let [early, start] = [(); 2].map(|()| timing.now());
        timing.worked(0, ME, STEP, start);
        let start = timing.now();
        timing.waited(0, ME, (Awaited::Agreement, None), start);
        timing.worked(0, ME, Work::Reduce(BucketId(0)), early);
        assert!(timing.events[0].end < 0.5 && timing.take_busy_s() == 0.0, "not yet");
        timing.settle().unwrap();
        let of = |event: &Event| [event.start, event.end];
        let [[a, b], [c, d]] = [of(&timing.events[0]), of(&timing.events[1])];
        assert!(near(a, -4.0) && near(b, -3.0) && near(c, -5.0) && near(d, 0.0), "{a} {b} {c} {d}");
        assert!(near(timing.waits[0].start, -2.0) && near(timing.waits[0].end, -1.0));
        assert!(near(timing.take_busy_s(), 1.0), "sums run beside compute");
    }

    #[test]
    fn compute_of_the_last_run_counts_when_its_time_is_known() {
        let mut timing = Timing::new(Instant::now(), Some(Box::new(Seconds::default())));
        let start = timing.now();
        timing.settle().unwrap();
        timing.worked(0, ME, STEP, start);
        timing.clear();
        let start = timing.now();
        timing.worked(1, ME, STEP, start);
        timing.settle().unwrap();
        assert_eq!(timing.events.len(), 1);
        assert!(near(timing.events[0].start, -1.0) && near(timing.events[0].end, 0.0));
        assert!(near(timing.take_busy_s(), 2.0), "both count");
    }

    #[test]
    fn kernels_are_on_the_clock_of_the_ops_where_they_are_timed() {
        let mut timing = Timing::new(Instant::now(), Some(Box::new(Seconds::default())));
        for is_timed in [false, true] {
            timing.clear();
            timing.time_kernels(is_timed);
            let start = timing.now();
            timing.worked(0, ME, STEP, start);
            timing.settle().unwrap();
            assert_eq!(timing.kernels.len(), usize::from(is_timed));
        }
        assert!(near(timing.kernels[0].start, -2.0) && near(timing.events[0].start, -1.0));
    }

    #[test]
    fn without_a_clock_the_host_s_times_are_those() {
        let mut timing = Timing::new(Instant::now(), None);
        let start = timing.now();
        timing.worked(0, ME, STEP, start);
        let Event { start, end, .. } = timing.events[0];
        timing.settle().unwrap();
        assert_eq!(timing.take_busy_s(), end - start);
        assert_eq!((timing.events[0].start, timing.take_busy_s()), (start, 0.0));
    }
}
