//! Conversion of errors on a rank to the fault that ends the run.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use chimera_schedule::analyze::{HangReport, Need};
use chimera_schedule::ids::{BucketId, Rank};

use crate::comm::{Comm, CommError, Endpoint, Liveness, Position};
use crate::device::{Device, DeviceError};
use crate::engine::reduce::reduction::ReduceError;
use crate::engine::row::eviction::{ANSWER, evict_stalled};
use crate::engine::state::rank_state::{StageOn, State};
use crate::fault::{Class, Fault};

/// Time after which a rank that makes progress is at another position.
const MOMENT: Duration = Duration::from_millis(100);

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> State<'_, S, D, C> {
    pub(crate) fn at(&self, fault: Fault, op: impl ToString) -> Fault {
        Fault {
            step: fault.step.or(Some(self.steps.first)),
            op: fault.op.or(Some(op.to_string())),
            ..fault
        }
    }

    /// The fault for data that cannot be read.
    pub(crate) fn unreadable(&self, step: u64, reason: &io::Error) -> Fault {
        let fault = Fault::new(Class::Io, self.comm.rank(), reason.to_string());
        Fault { step: Some(step), ..fault }
    }

    pub(crate) fn on_device<T>(
        &self,
        op: impl ToString,
        result: Result<T, DeviceError>,
    ) -> Result<T, Fault> {
        result.map_err(|e| self.explained(self.at(e.into_fault(self.comm.rank()), op)))
    }

    pub(crate) fn on_wire<T>(
        &self,
        op: impl ToString,
        result: Result<T, CommError>,
    ) -> Result<T, Fault> {
        result.map_err(|e| match e {
            CommError::Aborted(cause) => cause,
            e => self.explained(self.at(e.into_fault(self.comm.rank()), op)),
        })
    }

    /// Adds the memory that the rank holds, if the fault is that it has none left.
    fn explained(&self, mut fault: Fault) -> Fault {
        if fault.class == Class::OutOfMemory {
            let mut held = self.state_bytes().to_vec();
            let by_need = self.job.training.shard_gradients;
            let what = if by_need { "activations and gradients" } else { "saved activations" };
            held.retain(|(what, _)| !by_need || *what != "gradients");
            held.push((what, self.steps.activations.held));
            held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
            let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
            let held = held.iter().map(|(what, bytes)| format!("{what} {:.1} MiB", mib(*bytes)));
            let held = held.collect::<Vec<_>>().join(", ");
            fault.message += &format!(
                "; this rank holds {held}. Choose recompute full, a smaller micro-batch-size, more workers, or \
                 shard-optimizer"
            );
        }
        fault
    }

    /// Like [`on_wire`](State::on_wire), for a wait for `need`: a timeout is diagnosed.
    pub(crate) fn on_wait<T>(
        &mut self,
        op: impl ToString,
        need: Need,
        result: Result<T, CommError>,
    ) -> Result<T, Fault> {
        let Err(CommError::Timeout { from, waited, .. }) = result else {
            return self.on_wire(op, result);
        };
        let (program, step, by) = (self.job.program, self.steps.first, self.comm.rank());
        let asked = self.positions().and_then(|earlier| {
            self.comm.pause(MOMENT);
            Ok((earlier, self.positions()?))
        });
        let (earlier, positions) = match asked {
            Ok(asked) => asked,
            Err(cause) => return self.on_wire(op, Err(cause)),
        };
        let report = HangReport { program, step, positions, earlier };
        let diagnosis = report.diagnosis(by, from, need);
        let mut is_evicted = false;
        if report.stands_still(&diagnosis) && self.comm.evictor(diagnosis.rank).is_some() {
            match evict_stalled(&mut self.comm, diagnosis.rank, &report.positions, waited) {
                Ok(is_done) => is_evicted = is_done,
                Err(cause) => return self.on_wire(op, Err(cause)),
            }
        }
        let explained = |fault: Fault| Fault {
            peer: Some(diagnosis.rank),
            message: format!("{}{diagnosis}", fault.message),
            ..fault
        };
        self.on_wire(op, result).map_err(|fault| evicted(explained(fault), is_evicted, waited))
    }

    fn positions(&mut self) -> Result<Vec<Option<Position>>, CommError> {
        let mut positions = self.comm.query_progress(Instant::now() + ANSWER)?;
        positions.resize(self.comm.n_ranks() as usize, None);
        Ok(positions)
    }

    /// Refuses a received tensor of another shape than the stage expects.
    pub(crate) fn check_shape(
        &self,
        from: Rank,
        expected: Option<Vec<usize>>,
        what: impl fmt::Display,
        tensor: &S::Tensor,
    ) -> Result<(), Fault> {
        let got = self.device.shape(tensor);
        match expected.filter(|expected| *expected != got) {
            None => Ok(()),
            Some(expected) => {
                let fault = shape_fault(self.comm.rank(), from, &what, &expected, &got);
                Err(self.at(fault, what))
            }
        }
    }

    pub(crate) fn on_sum<T>(
        &mut self,
        bucket: BucketId,
        result: Result<T, ReduceError>,
    ) -> Result<T, Fault> {
        let op = format!("reduction of {bucket}");
        match result {
            Ok(sums) => Ok(sums),
            Err(ReduceError::Comm(error, need)) => self.on_wait(op, need, Err(error)),
            Err(ReduceError::Device(error)) => self.on_device(op, Err(error)),
            Err(ReduceError::Shape { from, what, expected, got }) => {
                Err(self.at(shape_fault(self.comm.rank(), from, &what, &expected, &got), op))
            }
        }
    }
}

/// Turns `fault`, which names a stalled rank, into an eviction that the others survive, if the rank
/// was evicted after being observed for as long as it was `waited` for.
pub(crate) fn evicted(fault: Fault, is_evicted: bool, waited: Duration) -> Fault {
    if !is_evicted {
        return fault;
    }
    let still = waited.as_secs_f64();
    let message = format!("{}; evicted after {still:.1} s more without progress", fault.message);
    Fault { class: Class::Evicted, message, ..fault }
}

pub(crate) fn shape_fault(
    rank: Rank,
    from: Rank,
    what: &dyn fmt::Display,
    expected: &[usize],
    got: &[usize],
) -> Fault {
    let message = format!(
        "{from} sent {what} of shape {got:?}, not {expected:?}: it trains another model or schedule"
    );
    Fault { peer: Some(from), ..Fault::new(Class::Mismatch, rank, message) }
}
