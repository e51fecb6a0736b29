//! Continuation of texts in a pipeline: groups of texts are the micro-batches of a program that only
//! goes forward, and each step adds a token to every text.

use std::io;
use std::mem::take;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use chimera_core::comm::{Comm, Endpoint, Host};
use chimera_core::engine::{Job, Patience, Training, Worker, handshake};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::layers::Layers;
use chimera_core::stage::Data;
use chimera_device::{AnyKernels, Devices, OpenDevice};

use super::check_prompt;
use super::decoded::{Decoded, DrawnTokens, GrownText, locked};
use super::sampling::Sampling;
use super::staged::Staged;
use crate::run::by_ranks::{in_threads, on_rank};
use crate::run::{OnTransport, PATIENCE};

/// A receiver of tokens, which rank 0 calls with the index of a text and its next token. It returns true if
/// the text goes on.
pub type Drawn<'d> = dyn FnMut(usize, u32) -> Result<bool> + Send + 'd;

/// A continuation of several texts by a model on all workers of a program.
pub struct Decoding<'d> {
    model: Staged<'d>,
    prompts: &'d [&'d [u32]],
    count: usize,
    how: &'d Sampling,
    window: usize,
    drawn: Mutex<&'d mut Drawn<'d>>,
}

impl<'d> Decoding<'d> {
    /// Prepares to continue each prompt by at most `count` tokens. The draws of a text are those of
    /// [`sample_all`](super::CausalLm::sample_all).
    ///
    /// # Errors
    /// If a prompt is empty, or has an id that the model does not know.
    pub fn new(
        model: Staged<'d>,
        prompts: &'d [&'d [u32]],
        count: usize,
        how: &'d Sampling,
        drawn: &'d mut Drawn<'d>,
    ) -> Result<Decoding<'d>> {
        for prompt in prompts {
            check_prompt(model.config, prompt)?;
        }
        let window = how.window_of(model.config.context);
        Ok(Decoding { model, prompts, count, how, window, drawn: Mutex::new(drawn) })
    }

    /// Continues the texts with a thread for each rank, which computes with `threads` threads.
    ///
    /// # Errors
    /// If a rank or its device fails, or the model overflows.
    pub fn in_threads<K: AnyKernels>(
        &self,
        devices: &Devices<K>,
        threads: usize,
    ) -> Result<Vec<Vec<u32>>> {
        Ok(in_threads(devices, threads, self)?.swap_remove(0))
    }

    /// Continues the texts as the rank of `comm`, which computes with `threads` threads. Every rank gets
    /// the texts.
    ///
    /// # Errors
    /// If a rank or its device fails, or if ranks do not continue the same texts.
    pub fn on_rank<K: AnyKernels>(
        &self,
        device: &OpenDevice<K>,
        comm: &mut dyn Comm<Host>,
        threads: usize,
    ) -> Result<Vec<Vec<u32>>, Fault> {
        on_rank(device, comm, threads, self)
    }

    /// Returns the model that continues the texts.
    pub fn model(&self) -> &Staged<'d> {
        &self.model
    }

    /// The most elements of a tensor that ranks send each other.
    pub fn longest_tensor(&self) -> usize {
        let n_texts = self.prompts.len().div_ceil(self.model.n_per_step() as usize);
        n_texts * self.model.config.context * self.model.config.hidden
    }

    /// Returns what all ranks must have in common.
    fn fields(&self) -> Vec<(String, String)> {
        let of = |name: &str, value: String| (name.to_string(), value);
        vec![
            of("program", self.model.program.fingerprint()),
            of("width", self.model.width.to_string()),
            of("prompts", format!("{:?}", self.prompts)),
            of("tokens", self.count.to_string()),
            of("sampling", format!("{:?}", self.how)),
        ]
    }

    /// Gives the tokens of a step to the caller, on rank 0. Returns a byte for each text: 1 if it goes on.
    fn take(
        &self,
        tokens: &DrawnTokens,
        texts: &[GrownText],
        rank: Rank,
    ) -> Result<Vec<u8>, Fault> {
        let mut go_on: Vec<u8> = texts.iter().map(|text| u8::from(text.goes_on)).collect();
        if rank != Rank(0) {
            return Ok(go_on);
        }
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, id) in tokens {
            let goes_on = drawn(*place as usize, *id)
                .map_err(|error| Fault::new(Class::Usage, rank, format!("{error:#}")))?;
            go_on[*place as usize] = u8::from(goes_on);
        }
        Ok(go_on)
    }
}

impl OnTransport for &Decoding<'_> {
    type Output = Vec<Vec<u32>>;

    fn on<K: Layers>(
        self,
        kernels: K,
        comm: &mut dyn Comm<K::Tensor>,
    ) -> Result<Self::Output, Fault> {
        let texts = self.go_on(kernels, &mut *comm);
        if let Err(fault) = &texts {
            comm.abort(fault);
        }
        texts
    }
}

impl Decoding<'_> {
    /// Adds tokens to all texts until their ends, as one rank.
    fn go_on<K: Layers>(
        &self,
        kernels: K,
        mut comm: &mut dyn Comm<K::Tensor>,
    ) -> Result<Vec<Vec<u32>>, Fault> {
        let (rank, model) = (comm.rank(), &self.model);
        handshake(&mut comm, &self.fields(), Instant::now() + PATIENCE)?;
        let training =
            Training { steps: self.count as u64, check_finite: false, ..Training::default() };
        let stop = AtomicBool::new(false);
        let job = Job {
            program: model.program,
            width: model.width,
            micro_batch_size: 1,
            training: &training,
            data: &Groups,
            patience: Patience::default(),
            stop: &stop,
            own_work: None,
            epoch: Instant::now(),
        };
        let text = |prompt: &&[u32]| GrownText { ids: prompt.to_vec(), goes_on: true };
        let texts = Arc::new(Mutex::new(self.prompts.iter().map(text).collect::<Vec<_>>()));
        let tokens = Arc::new(Mutex::new(DrawnTokens::new()));
        let of = (model, self.how, self.window);
        let mut worker = Worker::new(job, kernels.clone(), &mut *comm, |stage| {
            Decoded::new(of, kernels.clone(), stage, (&texts, &tokens))
                .map_err(|error| Fault::new(Class::Usage, rank, format!("{error:#}")))
        })?;
        for step in 0..self.count as u64 {
            worker.run(step)?;
            let own: Vec<u8> = take(&mut *locked(&tokens))
                .iter()
                .flat_map(|(place, id)| [place.to_le_bytes(), id.to_le_bytes()].concat())
                .collect();
            let mut new: DrawnTokens =
                worker.all_gather("tokens", &own)?.iter().flat_map(|bytes| read(bytes)).collect();
            new.sort_unstable();
            let mut texts = locked(&texts);
            for (place, id) in &new {
                if let Some(text) = texts.get_mut(*place as usize) {
                    text.ids.push(*id);
                }
            }
            let own = self.take(&new, &texts, rank)?;
            let all = worker.all_gather("texts that go on", &own)?;
            let decided = all.first().map_or(&[][..], Vec::as_slice);
            for (text, goes_on) in texts.iter_mut().zip(decided) {
                text.goes_on = *goes_on == 1;
            }
            if texts.iter().all(|text| !text.goes_on) {
                break;
            }
        }
        drop(worker);
        let mut texts = locked(&texts);
        Ok(texts.iter_mut().map(|text| take(&mut text.ids)).collect())
    }
}

/// Reads the tokens of a rank.
fn read(bytes: &[u8]) -> impl Iterator<Item = (u32, u32)> + '_ {
    bytes.chunks_exact(8).filter_map(|pair| {
        let (place, id) = pair.split_at(4);
        Some((u32::from_le_bytes(place.try_into().ok()?), u32::from_le_bytes(id.try_into().ok()?)))
    })
}

/// Samples without numbers: stages know the texts of a micro-batch.
struct Groups;

impl Data for Groups {
    fn sample(&self, _: u64, _: u64, _: &mut Vec<u32>, _: &mut Vec<u32>) -> io::Result<()> {
        Ok(())
    }

    fn n_targets(&self) -> usize {
        1
    }

    fn target_len(&self) -> usize {
        0
    }
}
