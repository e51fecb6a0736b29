//! A small training that compares runs: a GPT-2, a Llama or a BERT in f64 on the reference kernels.

pub(crate) mod exact;
pub(crate) mod faulty;
pub(crate) mod withheld;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use chimera_engine::comm::{Comm, Delayed, Tag, Threads};
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{Device, WeightFormat};
use chimera_engine::engine::{
    Job, NonFinite, Optimizer, Patience, Training, Worker, kfac_work, run_threads,
};
use chimera_engine::fault::Fault;
use chimera_engine::stage::{Data, Stage};
use chimera_models::model::{
    Architecture, BertStage, Cut, DecoderStage, Llama, Lora, ModelConfig, Tuning, cut,
};
use chimera_schedule::costs::{PerStage, UniformCosts, WithOwnWork};
use chimera_schedule::effects::{OwnWork, Pieces};
use chimera_schedule::ids::StageId;
use chimera_schedule::lower::{Lowering, Passes, Sync, fill, freeze, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Shape, find};
use chimera_schedule::timetable::Timetable;

use self::exact::Exact;

pub(crate) const N_STEPS: u64 = 5;

/// A run to compare: everything except the model and the size of the global batch.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) schedule: &'static str,
    pub(crate) shape: Shape,
    pub(crate) width: usize,
    pub(crate) micro_batch_size: usize,
    pub(crate) sync: Sync,
    pub(crate) optimizer: Optimizer,
    pub(crate) clip: Option<f64>,
    pub(crate) check_finite: bool,
    pub(crate) non_finite: NonFinite,
    pub(crate) shard_optimizer: bool,
    pub(crate) shard_gradients: bool,
    /// The most stages with whole weights at once, if weights are sharded; 0 if they are not.
    pub(crate) whole_stages: u32,
    /// Number of elements after which a new bucket of gradients begins.
    pub(crate) bucket_elements: usize,
    /// Number of ranks that add up gradients among themselves first.
    pub(crate) reduce_within: usize,
    pub(crate) architecture: Architecture,
    pub(crate) tied: bool,
    pub(crate) dropout: f64,
    /// Whether tokens see only their own document.
    pub(crate) has_documents: bool,
    /// Patterns of frozen parameters; empty if all are trained.
    pub(crate) freeze: &'static str,
    pub(crate) lora: Option<Lora>,
    pub(crate) frozen_weights: WeightFormat,
    pub(crate) passes: Passes,
    pub(crate) is_delayed: bool,
    /// Whether idle time is filled with K-FAC's work, and with empty work.
    pub(crate) is_filled: bool,
    pub(crate) patience: Duration,
}

impl Run {
    pub(crate) fn new(schedule: &'static str, shape: Shape) -> Run {
        Run {
            schedule,
            shape,
            width: 1,
            micro_batch_size: 2,
            sync: Sync::EagerOpt,
            optimizer: Optimizer::adamw(),
            clip: Some(0.5),
            check_finite: true,
            non_finite: NonFinite::Stop,
            shard_optimizer: false,
            shard_gradients: false,
            whole_stages: 0,
            bucket_elements: usize::MAX,
            reduce_within: 0,
            architecture: Architecture::GPT2,
            tied: false,
            dropout: 0.0,
            has_documents: false,
            freeze: "",
            lora: None,
            frozen_weights: WeightFormat::F32,
            passes: Passes::default(),
            is_delayed: false,
            is_filled: false,
            patience: Duration::from_secs(60),
        }
    }

    /// This training on one worker, with one micro-batch.
    pub(crate) fn alone(&self) -> Run {
        let samples = self.width * self.shape.n_micro_batches as usize * self.micro_batch_size;
        Run {
            micro_batch_size: samples,
            width: 1,
            passes: Passes::default(),
            is_filled: false,
            ..Run { schedule: "dapple", shape: Shape::new(1, 1), ..self.clone() }
        }
    }

    pub(crate) fn training(&self) -> Training {
        Training {
            seed: 7,
            steps: N_STEPS,
            optimizer: self.optimizer.clone(),
            lr: 1e-2,
            min_lr: 1e-3,
            warmup: 2,
            weight_decay: 0.1,
            clip: self.clip,
            check_finite: self.check_finite,
            non_finite: self.non_finite,
            shard_optimizer: self.shard_optimizer,
            shard_gradients: self.shard_gradients,
            shard_weights: self.whole_stages > 0,
            bucket_elements: self.bucket_elements,
            reduce_within: self.reduce_within,
            kfac_every: 2,
            ..Training::default()
        }
    }
}

/// The results of a run: losses and gradient norms by step, and the gradients and weights after the
/// last step of every program, by step and name.
#[derive(PartialEq, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) losses: Vec<f64>,
    pub(crate) norms: Vec<f64>,
    /// Bytes that the last step reported.
    pub(crate) bytes: u64,
    pub(crate) gradients: BTreeMap<(u64, String), Vec<f64>>,
    pub(crate) weights: BTreeMap<(u64, String), Vec<f64>>,
}

pub(crate) struct Digits;

/// Longer than the default number of slices, which does not divide it.
pub(crate) const CONTEXT: usize = 5;
const VOCAB: u32 = 5;

impl Data for Digits {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let id = |i: u64| ((step * 31 + sample * 7 + i * i * 3) % u64::from(VOCAB)) as u32;
        input.extend((0..CONTEXT as u64).map(id));
        target.extend((1..=CONTEXT as u64).map(id));
        Ok(())
    }

    fn n_targets(&self) -> usize {
        CONTEXT
    }
}

/// Digits, some of which are predicted from all others. Every third sample has padding.
struct Masked;

const SEQUENCE: usize = 10;
const PREDICTIONS: u64 = 2;

impl Data for Masked {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let id = |i: u64| ((step * 31 + sample * 7 + i * i * 3) % u64::from(VOCAB)) as u32;
        let length = if sample.is_multiple_of(3) { 7 } else { SEQUENCE as u32 };
        input.extend([length, 3 + sample as u32 % 3]);
        input.extend((0..PREDICTIONS).map(|i| 3 * i as u32 + step as u32 % 3));
        input.extend((0..SEQUENCE as u64).map(id));
        target.extend((0..PREDICTIONS).map(|i| id(i + 50)));
        target.push((sample % 2) as u32);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        PREDICTIONS as usize
    }

    fn target_len(&self) -> usize {
        PREDICTIONS as usize + 1
    }
}

pub(crate) fn config(tied: bool) -> ModelConfig {
    let (architecture, vocab) = (Architecture::GPT2, VOCAB as usize);
    ModelConfig {
        architecture,
        layers: 8,
        hidden: 4,
        heads: 2,
        context: CONTEXT,
        vocab,
        tied,
        llama: None,
        end_of_text: None,
    }
}

pub(crate) fn train(run: &Run) -> Result<Outcome, Fault> {
    let schedule = find(run.schedule).expect("known");
    let timetable = schedule.timetable(&run.shape).expect("fits");
    let timetable = frozen(run, timetable);
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    let passed = run.passes.apply(timetable, &Lowering::default(), &costs);
    train_timetable(run, &passed.expect("sound"))
}

/// Freezes the stages of which the run trains nothing.
pub(crate) fn frozen(run: &Run, timetable: Timetable) -> Timetable {
    let config = match run.architecture.name() {
        "bert" => bert_config(run),
        "llama" => llama_config(run),
        _ => gpt2_config(run),
    };
    let cuts = cuts(run, &config, timetable.placement.n_stages());
    let is_frozen = |cut: &Cut| config.params(cut).iter().all(|param| param.frozen);
    let frozen = (0..).map(StageId).zip(&cuts).filter(|(_, cut)| is_frozen(cut));
    freeze(timetable, &frozen.map(|(stage, _)| stage).collect::<Vec<_>>())
}

/// Cuts the model of a run, with its frozen parts.
pub(crate) fn cuts(run: &Run, config: &ModelConfig, n_stages: usize) -> Vec<Cut> {
    let freeze = run.freeze.parse().unwrap_or_default();
    let (lora, frozen_weights) = (run.lora.clone(), run.frozen_weights);
    let tuning = Tuning { freeze, lora, frozen_weights };
    let cuts = cut(config, config.context, n_stages).expect("cut").into_iter();
    cuts.map(|cut| Cut { tuning: tuning.clone(), ..cut }).collect()
}

/// Trains with a timetable, which may differ from the run's schedule.
pub(crate) fn train_timetable(run: &Run, timetable: &Timetable) -> Result<Outcome, Fault> {
    match run.architecture.name() {
        "bert" => train_stages(run, timetable, &Masked, bert(run, timetable)),
        "llama" => train_stages(run, timetable, &Digits, llama(run, timetable)),
        _ => train_stages(run, timetable, &Digits, gpt2(run, timetable)),
    }
}

pub(crate) fn train_stages<S: Stage<Tensor = Tensor, Item = u32>>(
    run: &Run,
    timetable: &Timetable,
    data: &dyn Data,
    stage: impl Fn(StageId) -> Result<S, Fault> + std::marker::Sync,
) -> Result<Outcome, Fault> {
    let outcomes = if run.is_delayed {
        let rank = |job: Job<'_>, comm: &mut _| body(job, Delayed::new(comm, jitter), &stage);
        ranks(run, timetable, data, rank)?
    } else {
        ranks(run, timetable, data, |job: Job<'_>, comm: &mut _| body(job, comm, &stage))?
    };
    Ok(merge(outcomes))
}

/// Makes the stages of a run.
pub(crate) type Stages<'s> =
    dyn Fn(StageId) -> Result<DecoderStage<Reference>, Fault> + std::marker::Sync + 's;

pub(crate) fn gpt2(
    run: &Run,
    timetable: &Timetable,
) -> impl Fn(StageId) -> Result<DecoderStage<Reference>, Fault> {
    let (rate, seed) = (run.dropout, run.training().seed);
    let config = gpt2_config(run);
    let cuts = cuts(run, &config, timetable.placement.n_stages());
    move |id| {
        let stage = DecoderStage::new(Reference, &config, CONTEXT, cuts[id.index()].clone());
        Ok(stage.expect("stage").with_dropout(rate, seed))
    }
}

fn gpt2_config(run: &Run) -> ModelConfig {
    ModelConfig { end_of_text: run.has_documents.then_some(2), ..config(run.tied) }
}

/// A Llama with grouped heads, biases and a window.
fn llama_config(run: &Run) -> ModelConfig {
    let window = Some(CONTEXT - 1);
    let llama = Llama {
        kv_heads: 1,
        head_dim: Some(4),
        mlp_hidden: 6,
        qkv_bias: true,
        window,
        ..Llama::usual(4, 2)
    };
    let architecture = Architecture::LLAMA;
    let end_of_text = run.has_documents.then_some(2);
    ModelConfig { architecture, llama: Some(llama), end_of_text, ..config(run.tied) }
}

fn llama(
    run: &Run,
    timetable: &Timetable,
) -> impl Fn(StageId) -> Result<DecoderStage<Reference>, Fault> {
    let config = llama_config(run);
    let (rate, seed) = (run.dropout, run.training().seed);
    let cuts = cuts(run, &config, timetable.placement.n_stages());
    move |id| {
        let stage = DecoderStage::new(Reference, &config, CONTEXT, cuts[id.index()].clone());
        Ok(stage.expect("stage").with_dropout(rate, seed))
    }
}

fn bert_config(run: &Run) -> ModelConfig {
    let (architecture, context) = (Architecture::BERT, SEQUENCE);
    ModelConfig { architecture, context, ..config(run.tied) }
}

fn bert(
    run: &Run,
    timetable: &Timetable,
) -> impl Fn(StageId) -> Result<BertStage<Reference>, Fault> {
    let config = bert_config(run);
    let (rate, seed) = (run.dropout, run.training().seed);
    let cuts = cuts(run, &config, timetable.placement.n_stages());
    move |id| {
        let (cut, predictions) = (cuts[id.index()].clone(), PREDICTIONS as usize);
        let stage = BertStage::new(Reference, &config, SEQUENCE, predictions, cut);
        Ok(stage.expect("stage").with_dropout(rate, seed))
    }
}

/// Runs `rank` on every rank of a GPT-2, over a transport of threads.
pub(crate) fn execute<T: Send, R: Send>(
    run: &Run,
    timetable: &Timetable,
    rank: impl Fn(Job<'_>, &mut Threads<T>, &Stages<'_>) -> Result<R, Fault> + std::marker::Sync,
) -> Result<Vec<R>, Fault> {
    let stage = gpt2(run, timetable);
    ranks(run, timetable, &Digits, |job, comm| rank(job, comm, &stage))
}

fn ranks<T: Send, R: Send>(
    run: &Run,
    timetable: &Timetable,
    data: &dyn Data,
    rank: impl Fn(Job<'_>, &mut Threads<T>) -> Result<R, Fault> + std::marker::Sync,
) -> Result<Vec<R>, Fault> {
    let n_stages = timetable.placement.n_stages();
    let training = run.training();
    let is_tied = run.tied && n_stages > 1;
    let how = Lowering {
        sync: run.sync,
        barrier: training.needs_barrier(),
        tied: if is_tied { vec![vec![StageId(0), StageId(n_stages as u16 - 1)]] } else { vec![] },
        whole_stages: run.whole_stages,
        ..Lowering::default()
    };
    let program = lower(timetable, &how).unwrap_or_else(|refusal| panic!("{run:?}: {refusal}"));
    let program = if run.is_filled { filled(&program, &how) } else { program };
    let stop = AtomicBool::new(false);
    let job = Job {
        program: &program,
        width: run.width,
        micro_batch_size: run.micro_batch_size,
        training: &training,
        data,
        patience: Patience { first_step: Duration::from_secs(60), later: run.patience },
        stop: &stop,
        own_work: None,
        epoch: Instant::now(),
    };
    let n_ranks = (run.width * timetable.placement.n_workers()) as u32;
    run_threads(n_ranks, |comm: &mut Threads<T>| rank(job, comm))
}

/// A program with pieces of all kinds in idle time.
fn filled(program: &Program, how: &Lowering) -> Program {
    let (mut works, _) = kfac_work(&[], 1.0);
    works[1].pieces = Pieces::Anytime(5);
    for pieces in [Pieces::OnBackward, Pieces::Anytime(2)] {
        works.push(OwnWork { name: "other".into(), pieces });
    }
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(program.units_per_micro());
    let takes = [0.3, 0.2, 0.1, 0.4].map(|takes| PerStage(vec![takes])).to_vec();
    fill(program, &works, how, &WithOwnWork::new(&costs, takes)).expect("sound")
}

/// Trains one rank, and keeps gradients and weights of every run.
pub(crate) fn body<S: Stage<Tensor = Tensor, Item = u32>, C: Comm<Tensor>>(
    job: Job<'_>,
    comm: C,
    stage: &(impl Fn(StageId) -> Result<S, Fault> + ?Sized),
) -> Result<Outcome, Fault> {
    // Values computed on the host would be rounded.
    if job.training.optimizer.preconditions() {
        body_on(job, Exact, comm, stage)
    } else {
        body_on(job, Reference, comm, stage)
    }
}

fn body_on<S: Stage<Tensor = Tensor, Item = u32>, D: Device<Tensor = Tensor>, C: Comm<Tensor>>(
    job: Job<'_>,
    device: D,
    comm: C,
    stage: &(impl Fn(StageId) -> Result<S, Fault> + ?Sized),
) -> Result<Outcome, Fault> {
    let mut worker = Worker::new(job, device, comm, stage)?;
    let mut outcome = Outcome::default();
    let stages = || (0..job.program.placement().n_stages()).map(|s| StageId(s as u16));
    let mut next = 0;
    while next < N_STEPS {
        for report in worker.run(next)? {
            outcome.losses.push(report.loss);
            outcome.norms.push(report.grad_norm);
            outcome.bytes = report.bytes();
            next = report.step + 1;
        }
        let step = next - 1;
        for (params, weights, grads) in stages().filter_map(|s| worker.held(s)) {
            for (param, (weight, grad)) in params.iter().zip(weights.iter().zip(grads)) {
                let key = (step, param.name.clone());
                if !grad.data.is_empty() {
                    outcome.gradients.insert(key.clone(), grad.data.clone());
                }
                if !weight.data.is_empty() {
                    outcome.weights.insert(key, weight.data.clone());
                }
            }
        }
    }
    Ok(outcome)
}

/// Merges the outcomes of all ranks. After every step they must agree to the bit on everything they
/// share.
fn merge(outcomes: Vec<Outcome>) -> Outcome {
    let mut all = Outcome::default();
    for outcome in outcomes {
        if all.losses.is_empty() {
            (all.losses, all.norms) = (outcome.losses.clone(), outcome.norms.clone());
            all.bytes = outcome.bytes;
        }
        assert_eq!((&all.losses, &all.norms), (&outcome.losses, &outcome.norms), "reports differ");
        for (mine, theirs) in
            [(&mut all.gradients, outcome.gradients), (&mut all.weights, outcome.weights)]
        {
            for (name, values) in theirs {
                let known = mine.entry(name.clone()).or_insert_with(|| values.clone());
                assert_eq!(*known, values, "replicas of {name:?} differ");
            }
        }
    }
    all
}

/// Delays of up to half a millisecond that let messages of different channels overtake each other.
fn jitter(tag: Tag) -> Duration {
    let text = format!("{tag:?}");
    Duration::from_micros(text.bytes().fold(17u64, |h, b| (h * 31 + u64::from(b)) % 509))
}
