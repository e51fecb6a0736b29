//! A device's own queue, and one beside it for work that overlaps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use chimera_core::device::{Overlap, Result};

use super::Driver;

/// A queue of work, with the memory that only its work uses.
pub(super) struct Queue<D: Driver> {
    pub(super) driver: D,
    /// Arrival counters for sums by several blocks, and their size in bytes.
    pub(super) arrived: Mutex<Option<(Arc<D::Memory>, usize)>>,
}

/// Both queues of a device. The second is opened on first use.
pub(super) struct Queues<D: Driver> {
    own: Queue<D>,
    beside: OnceLock<Queue<D>>,
    is_beside: AtomicBool,
}

impl<D: Driver> Queue<D> {
    fn of(driver: D) -> Self {
        Self { driver, arrived: Mutex::default() }
    }
}

impl<D: Driver> Queues<D> {
    pub(super) fn of(driver: D) -> Self {
        let (beside, is_beside) = (OnceLock::new(), AtomicBool::new(false));
        Self { own: Queue::of(driver), beside, is_beside }
    }

    pub(super) fn driver(&self) -> &D {
        &self.own.driver
    }

    /// Returns the queue for new work.
    pub(super) fn now(&self) -> &Queue<D> {
        let beside = self.beside.get().filter(|_| self.is_beside.load(Ordering::Relaxed));
        beside.unwrap_or(&self.own)
    }

    /// Sends the first piece of work to the queue beside. It is launched first, so it need not wait
    /// for the launch of the second.
    pub(super) fn overlap(&self, piece: Overlap) -> Result<()> {
        let (own, beside) = (self.driver(), self.beside()?);
        match piece {
            Overlap::First => beside.follow(own)?,
            Overlap::Second => {}
            Overlap::Over => own.follow(beside)?,
        }
        self.is_beside.store(piece == Overlap::First, Ordering::Relaxed);
        Ok(())
    }

    fn beside(&self) -> Result<&D> {
        if self.beside.get().is_none() {
            let opened = Queue::of(self.own.driver.beside()?);
            let _ = self.beside.set(opened); // only this worker sets it
        }
        Ok(self.beside.get().map_or(&self.own.driver, |queue| &queue.driver))
    }
}
