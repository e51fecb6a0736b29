//! A device that computes on another one and records each call: its name, its extents and its time.
//!
//! A stage runs on it as on any other device. The layers that the stage calls, and their extents,
//! are thus known for any stage, without a formula that has to follow the models. On [`Counted`], a
//! device that computes nothing, they are known before anything runs.
//!
//! [`Counted`]: crate::device::Counted

mod device;
mod layers;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Attention, Mask};
use crate::device::{Clock, Device, Result};

/// A device that records its calls. Clones share one record.
#[derive(Clone)]
pub struct Recorded<D> {
    device: D,
    notes: Arc<Mutex<Notes>>,
}

/// A recorded call.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Name of the layer.
    pub layer: &'static str,
    /// Extents of the call. For large ones, the work is proportional to their product.
    pub extents: Vec<usize>,
    /// Duration of the call.
    pub seconds: f64,
}

#[derive(Default)]
struct Notes {
    calls: Vec<Call>,
    /// Clock of an asynchronous device, with a mark before and after each call.
    clock: Option<Box<dyn Clock>>,
}

impl<D: Device> Recorded<D> {
    /// Records the calls on `device`.
    ///
    /// # Errors
    /// If the device has a clock and cannot open it.
    pub fn new(device: D) -> Result<Recorded<D>> {
        let notes = Notes { calls: Vec::new(), clock: device.clock()? };
        Ok(Recorded { device, notes: Arc::new(Mutex::new(notes)) })
    }

    /// Waits for all calls, and returns those since the last time.
    ///
    /// # Errors
    /// If the device fails.
    pub fn take(&self) -> Result<Vec<Call>> {
        let mut notes = self.notes();
        let mut calls = std::mem::take(&mut notes.calls);
        if let Some(clock) = &mut notes.clock {
            let ages = clock.ages()?;
            for (call, ages) in calls.iter_mut().zip(ages.chunks_exact(2)) {
                call.seconds = ages[0] - ages[1];
            }
        }
        Ok(calls)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self) {
        if let Some(clock) = &mut self.notes().clock {
            clock.mark();
        }
    }

    fn call<R>(
        &self,
        layer: &'static str,
        extents: &[usize],
        act: impl FnOnce(&D) -> Result<R>,
    ) -> Result<R> {
        self.mark();
        let start = Instant::now();
        let result = act(&self.device)?;
        let seconds = start.elapsed().as_secs_f64();
        self.mark();
        self.notes().calls.push(Call { layer, extents: extents.to_vec(), seconds });
        Ok(result)
    }

    /// Rows and features of a matrix.
    fn matrix(&self, x: &D::Tensor) -> [usize; 2] {
        let shape = self.device.shape(x);
        let rows = shape.first().copied().unwrap_or(1);
        [rows, shape.iter().skip(1).product()]
    }

    fn n_elements<'t>(&self, tensors: impl IntoIterator<Item = &'t D::Tensor>) -> usize {
        tensors.into_iter().map(|t| self.device.shape(t).iter().product::<usize>()).sum()
    }

    /// Heads of all samples, rows per sample, keys visible to each row, and features per head.
    fn attention_extents(&self, qkv: &D::Tensor, by: &Attention<'_>) -> [usize; 4] {
        let [rows, width] = self.matrix(qkv);
        let visible = match by.mask {
            Mask::Window(keys) => keys.min(by.context),
            Mask::Causal | Mask::Documents(_) | Mask::Lengths(_) => by.context,
        };
        [rows / by.context.max(1) * by.heads, by.context, visible, by.head_dim(width)]
    }

    /// Extents of attention in which only the last rows query: with as many queries and scores.
    fn slice_extents(&self, qkv: &D::Tensor, first: usize, by: &Attention<'_>) -> [usize; 4] {
        let [parts, context, visible, dim] = self.attention_extents(qkv, by);
        let n = context - first;
        // A causal sample of n rows has n (n + 1) / 2 scores, and n more per earlier row.
        let longer = 1 + 2 * first / (n + 1);
        [parts * longer, n, visible.min(n), dim]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Counted;
    use crate::device::reference::Reference;
    use crate::layers::{Attend, Layers, Layout, Linear};

    #[test]
    fn calls_are_the_same_whether_anything_is_computed_or_not() {
        fn calls<D: Layers>(device: D) -> Vec<(&'static str, Vec<usize>)> {
            let device = Recorded::new(device).expect("a device");
            let x = device.zeros(&[4, 6]).expect("zeros");
            let w = device.zeros(&[6, 18]).expect("zeros");
            let qkv = device.linear(&x, &w, Layout::InOut, None, None).expect("a product");
            device.attention(&qkv, &Attention::causal(3, 2)).expect("attention");
            let calls = device.take().expect("calls");
            assert_eq!(device.take().expect("calls"), []);
            assert!(calls.iter().all(|call| call.seconds >= 0.0));
            calls.into_iter().map(|call| (call.layer, call.extents)).collect()
        }
        let counted = calls(Counted::new(4));
        assert_eq!(counted, calls(Reference));
        let [.., (product, of), (attention, heads)] = &counted[..] else { panic!("{counted:?}") };
        assert_eq!((*product, &of[..]), ("linear", &[4, 6, 18][..]));
        assert_eq!((*attention, &heads[..]), ("attention", &[6, 2, 2, 2][..]));
    }
}
