//! Continuation of texts in a pipeline: groups of texts are the micro-batches of a program that only
//! goes forward, and each step adds a token to every text.

use std::io;
use std::mem::take;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use chimera_core::comm::{Comm, Endpoint, Host};
use chimera_core::device::DeviceError;
use chimera_core::engine::{Job, Patience, Training, Worker, handshake};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::layers::Layers;
use chimera_core::model::{DecoderStage, KvCache, decoder};
use chimera_core::stage::{Data, Micro, Output, Param, Stage};
use chimera_device::{AnyKernels, Devices, OpenDevice};
use rand_chacha::ChaCha8Rng;

use super::by_ranks::{in_threads, on_rank};
use super::sampling::{OVERFLOWS, Sampling, draws_of, next_id};
use super::staged::{Parts, Staged, no_backward};
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

/// A text that is being continued, as every rank knows it.
struct GrownText {
    ids: Vec<u32>,
    goes_on: bool,
}

/// The tokens of a step, each with the index of its text.
type DrawnTokens = Vec<(u32, u32)>;

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
        let vocab = model.config.vocab;
        for prompt in prompts {
            ensure!(!prompt.is_empty(), "the prompt is empty: give at least one token");
            if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
                anyhow::bail!("token id {id}, but the model's vocabulary has {vocab} ids");
            }
        }
        let context = model.config.context;
        let window = how.window.unwrap_or(context).clamp(1, context);
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
        mut comm: &mut dyn Comm<K::Tensor>,
    ) -> Result<Self::Output, Fault> {
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
        let mut worker = Worker::new(job, kernels.clone(), &mut *comm, |stage| {
            DecodedStage::new(self, kernels.clone(), stage, (&texts, &tokens))
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A stage that keeps the keys and values of its texts from step to step. The last one draws tokens.
struct DecodedStage<'a, 'd, K: Layers> {
    decoding: &'a Decoding<'d>,
    parts: Parts<K>,
    /// The stage for new tokens, if the model can keep keys and values.
    following: Option<DecoderStage<K>>,
    texts: Arc<Mutex<Vec<GrownText>>>,
    tokens: Arc<Mutex<DrawnTokens>>,
    /// By text.
    kept: Mutex<Vec<TextState<K::Tensor>>>,
}

/// The keys, values and draws that a stage keeps of a text.
struct TextState<T> {
    cache: KvCache<T>,
    rng: ChaCha8Rng,
}

/// The new tokens of a text that a stage computes: those that its cache lacks, or, beyond the window, all
/// of the window.
struct New {
    place: usize,
    ids: Vec<u32>,
    is_within: bool,
}

impl<'a, 'd, K: Layers> DecodedStage<'a, 'd, K> {
    fn new(
        decoding: &'a Decoding<'d>,
        kernels: K,
        stage: StageId,
        (texts, tokens): (&Arc<Mutex<Vec<GrownText>>>, &Arc<Mutex<DrawnTokens>>),
    ) -> Result<DecodedStage<'a, 'd, K>> {
        let parts = decoding.model.parts(kernels.clone(), stage)?;
        let following =
            decoder(kernels, decoding.model.config, decoding.window, parts.body.cut.clone())?;
        let kept =
            |place| TextState { cache: KvCache::new(), rng: draws_of(decoding.how.seed, place) };
        let kept = Mutex::new((0..decoding.prompts.len()).map(kept).collect());
        let (texts, tokens) = (Arc::clone(texts), Arc::clone(tokens));
        Ok(DecodedStage { decoding, parts, following, texts, tokens, kept })
    }

    /// Returns what is new of the texts of a group, those within the window first.
    fn new_of(&self, group: u64, kept: &[TextState<K::Tensor>]) -> Vec<New> {
        let texts = locked(&self.texts);
        let window = self.decoding.window;
        let n_groups = self.decoding.model.n_per_step() as usize;
        let of_group = texts.iter().enumerate().skip(group as usize).step_by(n_groups);
        let mut new: Vec<New> = of_group
            .filter(|(_, text)| text.goes_on)
            .map(|(place, GrownText { ids, .. })| {
                let is_within = self.following.is_some() && ids.len() <= window;
                let from = if is_within {
                    kept[place].cache.len()
                } else {
                    ids.len().saturating_sub(window)
                };
                New { place, ids: ids[from..].to_vec(), is_within }
            })
            .collect();
        new.sort_by_key(|new| !new.is_within);
        new
    }

    /// Runs the body on new tokens. Returns one row for each.
    fn rows(
        &self,
        w: &[K::Tensor],
        new: &[New],
        x: Option<K::Tensor>,
        kept: &mut [TextState<K::Tensor>],
    ) -> Result<K::Tensor, DeviceError> {
        let (body, kernels) = (&self.parts.body, &self.parts.body.kernels);
        let mut done = 0;
        let mut next = |n: usize| {
            done += n;
            x.as_ref().map(|x| kernels.rows(x, done - n, n)).transpose()
        };
        let mut rows = Vec::new();
        let within: Vec<&New> = new.iter().filter(|new| new.is_within).collect();
        if let Some(following) = self.following.as_ref().filter(|_| !within.is_empty()) {
            let ids: Vec<&[u32]> = within.iter().map(|new| new.ids.as_slice()).collect();
            let x = next(ids.iter().map(|ids| ids.len()).sum())?;
            let caches = within.iter().map(|new| take(&mut kept[new.place].cache)).collect();
            let (y, caches) = following.follow(w, &ids, x, caches)?;
            for (new, cache) in within.iter().zip(caches) {
                kept[new.place].cache = cache;
            }
            rows.push(y);
        }
        for New { ids, .. } in new.iter().filter(|new| !new.is_within) {
            rows.push(body.rows(w, ids, next(ids.len())?)?);
        }
        kernels.join(&rows.iter().collect::<Vec<_>>())
    }

    /// Draws the next token of each text from the rows of its new tokens.
    fn draw(
        &self,
        head: &[K::Tensor],
        new: &[New],
        rows: &K::Tensor,
        kept: &mut [TextState<K::Tensor>],
    ) -> Result<(), DeviceError> {
        let Some(piece) = &self.parts.head else { return Ok(()) };
        let mut end = 0;
        let last = new.iter().map(|new| {
            end += new.ids.len();
            piece.kernels.rows(rows, end - 1, 1)
        });
        let last = last.collect::<Result<Vec<_>, _>>()?;
        let config = self.decoding.model.config;
        // A pass through the head takes at most as many rows as a sample may have.
        for (new, rows) in new.chunks(config.context).zip(last.chunks(config.context)) {
            let rows = piece.kernels.join(&rows.iter().collect::<Vec<_>>())?;
            let logits = piece.logits(head, rows, new.len())?;
            for (New { place, .. }, logits) in new.iter().zip(logits.chunks_exact(config.vocab)) {
                let id = next_id(logits, self.decoding.how, &mut kept[*place].rng);
                let id = id.ok_or_else(|| piece.failed(OVERFLOWS.into()))?;
                locked(&self.tokens).push((*place as u32, id));
            }
        }
        Ok(())
    }
}

impl<K: Layers> Stage for DecodedStage<'_, '_, K> {
    type Tensor = K::Tensor;
    type Item = u32;
    type Saved = ();
    type Deferred = ();

    fn params(&self) -> &[Param] {
        &self.parts.params
    }

    fn forward(
        &self,
        w: &[K::Tensor],
        micro: &Micro<'_>,
        x: Option<K::Tensor>,
    ) -> Result<(Output<K::Tensor>, ()), DeviceError> {
        let mut kept = locked(&self.kept);
        let new = self.new_of(micro.sample, &kept);
        if new.is_empty() {
            // Nothing is left to say, but a message still goes to the next stage.
            let nothing = self.parts.body.kernels.zeros(&[1, 1])?;
            return Ok((Output::Activation(nothing), ()));
        }
        let rows = self.rows(self.parts.of_body(w), &new, x, &mut kept)?;
        self.draw(&self.parts.of_head(w), &new, &rows, &mut kept)?;
        Ok((Output::Activation(rows), ()))
    }

    fn needs_inputs(&self) -> bool {
        false
    }

    no_backward!();
}
