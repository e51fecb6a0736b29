//! The conformance suites find the faults that they should: each fault below is one that a backend
//! could have, in an otherwise correct device.

#[path = "conformance/faulty_device.rs"]
mod faulty_device;
#[path = "conformance/faulty_layers.rs"]
mod faulty_layers;

use std::num::NonZero;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::thread;

use chimera_engine::device::Result;
use chimera_engine::device::conformance::Case;
use chimera_engine::device::reference::Tensor;
use chimera_engine::layers::{Activation, Attention, Dropout, Mask};
use chimera_engine::{device, layers};
use chimera_models::model::{Cut, DropoutRate, Preset, stage};

#[test]
fn faults_are_caught() {
    use Fault::*;
    let faults = [
        (Nothing, &[][..]),
        (VecReversed, &["upload", "upload_words", "offload"]),
        (CopyOverwrites, &["download_into", "upload_words"]),
        (CopiesSwapped, &["download_all", "offload"]),
        (FetchedLate, &["fetch"]),
        (ImportEmpty, &["import"]),
        (MarkLost, &["clock"]),
        (TooFewThreads, &["import", "zeros", "reshape", "accumulate"]),
        (ZerosShared, &["zeros", "cross_entropy"]),
        (JoinAliases, &["join"]),
        (NanLost, &["squared_norms"]),
        (Overwrites, &["embedding_dw", "linear_dw", "layer_norm_dw", "rms_norm_dw", "head"]),
        (BiasForgotten, &["linear"]),
        (LayoutIgnored, &["linear_dx"]),
        (WritesResidual, &["linear", "layer_norm_dx"]),
        (VarianceCancels, &["layer_norm"]),
        (SecondCallDiffers, &["activation"]),
        (WrongShape, &["activation_dx"]),
        (OneGelu, &["activation", "activation_dx", "gated", "gated_dx"]),
        (EpsilonForgotten, &["rms_norm"]),
        (TurnsForward, &["rotary"]),
        (CounterWraps, &["dropout"]),
        (SamplesMixed, &["attention", "grouped_attention", "attention_slice"]),
        (PaddingSeen, &["attention", "attention_dx"]),
        (WindowIgnored, &["grouped_attention", "grouped_attention_dx", "attention_after"]),
        (DocumentsJoined, &[ATTENTIONS, &["attention_slice", "attention_slice_dx"]].concat()),
        (WeightsStay, ATTENTIONS),
        (WeightsWrap, ATTENTIONS),
        (ExponentialOverflows, &["cross_entropy"]),
        (IgnoredCounts, &["cross_entropy"]),
        (TailForgotten, &["adamw", "lamb", "sgd"]),
        (OthersForgotten, &["adamw", "lamb", "sgd"]),
        (TrustIgnored, &["lamb"]),
        (ZeroNormStays, &["lamb"]),
        (MomentumLost, &["sgd"]),
        (ProductOfOne, &["product"]),
        (IterationOfTwoTerms, &["newton_schulz"]),
    ];
    let left = Mutex::new(faults.into_iter());
    let next = || left.lock().unwrap().next();
    let check = || {
        while let Some((fault, cases)) = next() {
            assert_eq!(failing(fault), cases, "{fault:?}");
        }
    };
    thread::scope(|scope| {
        let n = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..n {
            scope.spawn(check);
        }
    });
}

/// Cases that drop weights of attention.
const ATTENTIONS: &[&str] =
    &["attention", "attention_dx", "grouped_attention", "grouped_attention_dx"];

#[test]
fn operands_that_are_rows_are_tried_everywhere() {
    let whole = ["upload", "download_all", "fetch", "import", "clock"];
    let every = cases().into_iter().map(|case| case.name);
    let expected: Vec<_> = every.filter(|name| !whole.contains(name)).collect();
    assert_eq!(failing(Fault::RowsFromTheStart), expected);
}

/// The suite tests the layers that such a device has, and a Llama is refused on it before any step.
#[test]
fn a_device_may_lack_the_layers_of_a_llama() {
    let device = Faulty { fault: Fault::LlamaAbsent, calls: Arc::default() };
    let tried = layers::conformance::cases_of(&device);
    assert_eq!(layers::conformance::cases::<Faulty>().len() - tried.len(), 9);
    let config = &Preset::named("llama-tiny").expect("a preset").config;
    let made = stage(device, config, 8, DropoutRate::default(), Cut::whole(config));
    let refusal = made.err().expect("it is refused").to_string();
    assert!(refusal.contains("has no kernels for a Llama: choose another device"), "{refusal}");
}

/// Cases of both suites.
fn cases() -> Vec<Case<Faulty>> {
    device::conformance::cases().into_iter().chain(layers::conformance::cases()).collect()
}

/// The cases that find the fault.
fn failing(fault: Fault) -> Vec<&'static str> {
    let calls = Arc::default();
    let device = Faulty { fault, calls };
    let passes =
        |case: &Case<Faulty>| case.check(&device, |x| x).is_ok_and(|worst| worst.error <= 1e-5);
    let failing = cases().into_iter().filter(|case| !passes(case));
    failing.map(|case| case.name).collect()
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Nothing,
    VecReversed,
    CopyOverwrites,
    CopiesSwapped,
    FetchedLate,
    ImportEmpty,
    MarkLost,
    TooFewThreads,
    ZerosShared,
    RowsFromTheStart,
    JoinAliases,
    NanLost,
    Overwrites,
    BiasForgotten,
    LayoutIgnored,
    WritesResidual,
    VarianceCancels,
    SecondCallDiffers,
    WrongShape,
    OneGelu,
    EpsilonForgotten,
    TurnsForward,
    WindowIgnored,
    LlamaAbsent,
    CounterWraps,
    SamplesMixed,
    PaddingSeen,
    DocumentsJoined,
    WeightsStay,
    WeightsWrap,
    ExponentialOverflows,
    IgnoredCounts,
    TailForgotten,
    OthersForgotten,
    TrustIgnored,
    ZeroNormStays,
    MomentumLost,
    ProductOfOne,
    IterationOfTwoTerms,
}

#[derive(Clone)]
struct Faulty {
    fault: Fault,
    calls: Arc<AtomicU32>,
}

/// Memory that clones share, as on a device.
type Shared = Arc<Mutex<Tensor>>;

fn share(tensor: Tensor) -> Shared {
    Arc::new(Mutex::new(tensor))
}

fn read(shared: &Shared) -> Tensor {
    shared.lock().unwrap().clone()
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Calls `add` on copies of the accumulators, then writes them back.
    fn add<const N: usize>(
        &self,
        into: [&Shared; N],
        add: impl FnOnce([&mut Tensor; N]) -> Result<()>,
    ) -> Result<()> {
        let mut sums = into.map(read);
        if self.has(Fault::Overwrites) {
            sums = sums.map(|sum| Tensor::zeros(&sum.shape));
        }
        add(sums.each_mut())?;
        for (into, sum) in into.iter().zip(sums) {
            *into.lock().unwrap() = sum;
        }
        Ok(())
    }
}

impl Faulty {
    /// Replaces one GELU by the other: they differ by no more than 5e-4.
    fn function(&self, f: Activation) -> Activation {
        match f {
            Activation::Gelu if self.has(Fault::OneGelu) => Activation::GeluTanh,
            f => f,
        }
    }

    /// Faulty attention: without padding, to `all` rows, without dropout of weights, or with other
    /// drops.
    fn seen<'m>(&self, by: &Attention<'m>, all: &'m [u32]) -> Attention<'m> {
        let mask = match by.mask {
            Mask::Window(_) if self.has(Fault::WindowIgnored) => Mask::Causal,
            Mask::Lengths(_) if self.has(Fault::PaddingSeen) => Mask::Lengths(all),
            Mask::Documents(_) if self.has(Fault::DocumentsJoined) => Mask::Causal,
            mask => mask,
        };
        let dropout = by.dropout.filter(|_| !self.has(Fault::WeightsStay));
        let dropout =
            dropout.map(|by| if self.has(Fault::WeightsWrap) { self.wrapped(&by) } else { by });
        Attention { mask, dropout, ..*by }
    }

    /// Dropout as if the counter's upper word kept its first value.
    fn wrapped(&self, by: &Dropout) -> Dropout {
        let wraps = by.first > 1 << 31;
        // The element at which the counter's lower word would be zero again.
        let first = if wraps { u64::from(by.first as u32).wrapping_sub(1 << 32) } else { by.first };
        Dropout { first, ..*by }
    }

    /// Calls `update` for each tensor, with a flag that its weights are zeros, its weights, its
    /// gradient and its moments.
    fn update<'t, const N: usize>(
        &self,
        tensors: impl Iterator<Item = (&'t Shared, &'t Shared, [&'t Shared; N])>,
        update: impl Fn(bool, &mut Tensor, &Tensor, [&mut Tensor; N]) -> Result<()>,
    ) -> Result<()> {
        let n = if self.has(Fault::OthersForgotten) { 1 } else { usize::MAX };
        for (w, g, moments) in tensors.take(n) {
            let mut after = read(w);
            let mut moments = moments.map(|moment| moment.lock().unwrap());
            let is_zero = after.data.iter().all(|w| *w == 0.0);
            let moments = moments.each_mut().map(|moment| &mut **moment);
            update(is_zero, &mut after, &read(g), moments)?;
            let mut w = w.lock().unwrap();
            if self.has(Fault::TailForgotten) {
                let whole_blocks = w.data.len() / 8 * 8;
                after.data[whole_blocks..].copy_from_slice(&w.data[whole_blocks..]);
            }
            *w = after;
        }
        Ok(())
    }
}
