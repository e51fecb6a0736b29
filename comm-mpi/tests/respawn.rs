//! A training whose ranks die and are replaced, run by each rank that `mpirun --with-ft ulfm`
//! starts: `cargo xtask mpi --ulfm` compares its results with an undisturbed training.
//!
//! `LEFT` is the folder for the results. `DEATHS` lists the deaths, separated by commas: `1@300`
//! kills rank 1 at its 300th transport call, and `2+400` kills rank 2 when it has been in the
//! meeting after a death for 400 ms. With `NARROW` the others continue without the dead.

use std::collections::BTreeMap;
use std::env;
use std::fs::{OpenOptions, create_dir_all, write};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chimera_backend_cpu::Candle;
use chimera_comm_mpi::{Mpi, MpiRendezvous};
use chimera_core::comm::{
    AllReduce, Comm, CommError, Endpoint, Host, Meeting, ProcessRendezvous, Rendezvous,
    StagedRendezvous, Tag, Wrap,
};
use chimera_core::costs::UniformCosts;
use chimera_core::device::Device;
use chimera_core::engine::Training;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::{Rank, StageId};
use chimera_core::lower::{Lowering, Passes, lower};
use chimera_core::model::{Architecture, DropoutRate, ModelConfig, cut, stage};
use chimera_core::program::Program;
use chimera_core::schedule::{Shape, find};
use chimera_core::stage::{Data, samples};
use chimera_core::trainer::{Trained, Trainer};
use nix::sys::signal::{Signal, raise};

const DEPTH: usize = 4;
const MODEL: ModelConfig = ModelConfig {
    architecture: Architecture::GPT2,
    layers: DEPTH,
    hidden: 8,
    heads: 2,
    context: 4,
    vocab: 11,
    tied: false,
    llama: None,
    end_of_text: None,
};

fn main() {
    let started = MpiRendezvous::start(Duration::from_secs(60), |warning| eprintln!("{warning}"));
    let Some(mut meetings) = started.unwrap_or_else(|error| {
        eprintln!("{error}");
        exit(1)
    }) else {
        return;
    };
    if env::var_os("NARROW").is_some() {
        meetings = meetings.without_replacements();
    }
    let left = PathBuf::from(env::var_os("LEFT").expect("LEFT is a folder"));
    create_dir_all(&left).expect("the folder");
    let rank = meetings.rank();
    let mut struck = Struck { inner: &mut meetings, deaths: Deaths::of(rank, &left), n_met: 0 };
    match train(&mut struck, rank, &left) {
        Ok(trained) => {
            leave(trained, rank, &left);
            meetings.leave().expect("all ranks leave");
        }
        Err(fault) => {
            eprintln!("{fault}");
            meetings.end_job(fault.class.code());
        }
    }
}

fn train(
    meetings: &mut impl Rendezvous<Dying<Mpi>>,
    rank: Rank,
    left: &Path,
) -> Result<Trained<<Candle as Device>::Tensor>, Fault> {
    let steps = env::var("STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let training = Training { seed: 1, steps, lr: 1e-2, ..Training::default() };
    let (program, device, tokens) = (program(), Candle::cpu(), tokens());
    let cuts = cut(&MODEL, MODEL.context, DEPTH).expect("as many parts as stages");
    let finished = |step| log(left, "steps", step);
    let trainer = Trainer::new(&program, &tokens).training(training);
    let observe = move |report: &chimera_core::engine::StepReport| finished(report.step);
    let trainer = trainer.on_step(&observe);
    let mut staged = StagedRendezvous { device: device.clone(), inner: meetings };
    trainer.on_rendezvous(&mut staged, device.clone(), |id: StageId| {
        let cut = cuts[id.index()].clone();
        stage(device.clone(), &MODEL, MODEL.context, DropoutRate::default(), cut)
            .map_err(|e| Fault::new(Class::Usage, rank, e.to_string()))
    })
}

fn program() -> Program {
    let shape = Shape::new(DEPTH, DEPTH as u32);
    let timetable = find("chimera").expect("a schedule").timetable(&shape).expect("a timetable");
    let how = Lowering { barrier: true, ..Lowering::default() };
    let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
    let timetable = Passes::default().apply(timetable, &how, &costs).expect("passes");
    lower(&timetable, &how).expect("a program")
}

/// Writes weights and losses, to the bit, and the number of transport calls.
fn leave(trained: Trained<<Candle as Device>::Tensor>, rank: Rank, left: &Path) {
    let device = Candle::cpu();
    let bits = |tensor| -> Vec<u32> {
        device.download(tensor).expect("values").iter().map(|x| x.to_bits()).collect()
    };
    let weights: BTreeMap<_, _> = trained.weights.iter().map(|(n, t)| (n, bits(t))).collect();
    let losses: BTreeMap<u64, u64> =
        trained.reports.iter().map(|report| (report.step, report.loss.to_bits())).collect();
    let calls = CALLS.load(Ordering::Relaxed);
    let all = serde_json::json!({ "weights": weights, "losses": losses, "calls": calls });
    write(left.join(format!("rank.{}.json", rank.0)), all.to_string()).expect("written");
}

/// Appends a number and the time to a file.
fn log(left: &Path, name: &str, number: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_micros();
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).open(left.join(name)).expect("a file");
    file.write_all(format!("{number} {now}\n").as_bytes()).expect("written");
}

/// Tokens that depend only on their position.
fn tokens() -> impl Data {
    let targets = MODEL.predictions(MODEL.context);
    samples(targets, |step, sample, input: &mut Vec<u32>, target: &mut Vec<u32>| {
        let token = |i: u64| ((step * 7 + sample * 3 + i * i) % MODEL.vocab as u64) as u32;
        let tokens: Vec<u32> = (0..MODEL.context as u64).map(token).collect();
        let (inputs, targets) = MODEL.sample(&tokens, token(MODEL.context as u64));
        input.extend(inputs);
        target.extend(targets);
    })
}

/// Number of transport calls so far.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The points at which this process dies.
#[derive(Clone)]
struct Deaths {
    /// Numbers of transport calls.
    at: Vec<u64>,
    /// Times in the first meeting after a death.
    in_meeting: Vec<Duration>,
    me: Rank,
    left: PathBuf,
}

impl Deaths {
    /// The deaths of a process that has a rank. A file records that it has died, so that its
    /// replacement lives.
    fn of(me: Rank, left: &Path) -> Deaths {
        let all = if died(me, left).exists() {
            String::new()
        } else {
            env::var("DEATHS").unwrap_or_default()
        };
        let mine = |sign| -> Vec<u64> {
            let pairs = all.split(',').filter_map(|death| death.split_once(sign));
            let mine = pairs.filter(|(rank, _)| rank.parse() == Ok(me.0));
            mine.map(|(_, number)| number.parse().expect("a number")).collect()
        };
        let in_meeting = mine('+').into_iter().map(Duration::from_millis).collect();
        Deaths { at: mine('@'), in_meeting, me, left: left.to_owned() }
    }

    /// Counts a call, and may kill the process.
    fn count(&self) {
        let call = 1 + CALLS.fetch_add(1, Ordering::Relaxed);
        if self.at.contains(&call) {
            self.die();
        }
    }

    fn die(&self) {
        write(died(self.me, &self.left), "").expect("written");
        log(&self.left, "deaths", self.me.0.into());
        raise(Signal::SIGKILL).expect("killed");
    }
}

fn died(rank: Rank, left: &Path) -> PathBuf {
    left.join(format!("died.{}", rank.0))
}

/// A meeting place with transports that kill this process.
struct Struck<'m> {
    inner: &'m mut MpiRendezvous,
    deaths: Deaths,
    n_met: usize,
}

impl Rendezvous<Dying<Mpi>> for Struck<'_> {
    fn meet(&mut self) -> Result<Option<Meeting<Dying<Mpi>>>, CommError> {
        self.n_met += 1;
        for after in self.deaths.in_meeting.iter().copied().filter(|_| self.n_met == 2) {
            let deaths = self.deaths.clone();
            thread::spawn(move || {
                thread::sleep(after);
                deaths.die();
            });
        }
        let met = self.inner.meet()?;
        Ok(met.map(|Meeting { comm, is_first, present }| {
            let comm = Dying { inner: comm, deaths: self.deaths.clone() };
            Meeting { comm, is_first, present }
        }))
    }
}

/// A transport that kills this process at one of its calls.
struct Dying<C> {
    inner: C,
    deaths: Deaths,
}

impl<C: Endpoint> Wrap for Dying<C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut C {
        self.deaths.count();
        &mut self.inner
    }
}

impl<C: Comm<Host>> Comm<Host> for Dying<C> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Host) -> Result<(), CommError> {
        self.inner_mut().send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Host>, CommError> {
        self.inner_mut().try_recv(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        self.inner_mut().recv(from, tag, deadline)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<Host>> {
        self.inner.reducer(members)
    }
}
