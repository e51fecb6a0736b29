//! Ranks that come to a meeting to replace dead ones, and the reasons to refuse them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use chimera_engine::comm::{AllReduce, Comm, CommError, Meeting, Payload, Rendezvous, Tag, Wrap};
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::engine::Training;
use chimera_engine::fault::{Class, Fault};
use chimera_engine::trainer::Trainer;
use chimera_schedule::ids::Rank;
use chimera_schedule::lower::{Lowering, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Shape, find};
use chimera_testkit::simulated::{self, Berth, Death, End, Plan, Simulated};

use crate::training::{Digits, Run, gpt2};

const N_RANKS: u32 = 4;

fn run() -> Run {
    Run { width: 2, ..Run::new("1f1b", Shape::new(2, 3)) }
}

fn program() -> Program {
    let timetable = find("1f1b").expect("known").timetable(&run().shape).expect("fits");
    lower(&timetable, &Lowering { barrier: true, ..Lowering::default() }).expect("proven")
}

/// Lets only `dying` die, half way through a training that then ends. Returns the faults of all
/// ranks.
fn refused(dying: Rank, trained: impl Fn(Vec<Death>) -> Simulated<()>) -> Vec<Fault> {
    let undisturbed = trained(Vec::new());
    assert!(undisturbed.outcomes.iter().all(Result::is_ok), "{undisturbed:?}");
    let call = undisturbed.calls[dying.index()] / 2;
    let ran = trained(vec![Death { rank: dying, call }]);
    assert_eq!(ran.n_meetings, 2);
    ran.outcomes.into_iter().map(|outcome| outcome.expect_err("refused")).collect()
}

/// A process that restarts with another learning rate would train its replica of a stage
/// differently.
#[test]
fn a_rank_that_takes_a_dead_ones_place_must_train_the_same() {
    let (run, program) = (run(), program());
    let timetable = find("1f1b").expect("known").timetable(&run.shape).expect("fits");
    let training = Training { steps: 3, ..run.training() };
    let other = Training { lr: 2.0 * training.lr, ..training.clone() };
    let [same, other] = [training, other]
        .map(|training| Trainer::new(&program, &Digits).training(training).width(run.width));
    for dying in [Rank(0), Rank(3)] {
        let faults = refused(dying, |deaths| {
            let n_lives = AtomicU32::new(0);
            let plan = Plan { seed: 1, deaths, ..Plan::default() };
            simulated::run(N_RANKS, &plan, |berth| {
                let is_again = berth.rank() == dying && n_lives.fetch_add(1, Ordering::Relaxed) > 0;
                let trainer = if is_again { &other } else { &same };
                trainer.on_rendezvous(berth, Reference, gpt2(&run, &timetable)).map(|_| ())
            })
        });
        for fault in faults {
            assert_eq!((fault.class, fault.class.code()), (Class::Mismatch, 10), "{fault}");
            let lines: Vec<_> = fault.message.lines().collect();
            let [first, lr] = lines[..] else { panic!("{fault}") };
            assert_eq!(first, "the ranks do not train the same:");
            assert!(lr.starts_with("  lr: rank"), "{fault}");
            let alone = format!("{dying} = ");
            assert_eq!(lr.matches(&alone).count(), 1, "{fault}");
        }
    }
}

/// A meeting place with transports that cut off the copies for a rank's neighbour.
struct Cutting<'b> {
    berth: &'b mut Berth<Tensor>,
    giver: Rank,
}

struct Cut {
    end: End<Tensor>,
    is_giver: bool,
}

impl Rendezvous<Cut> for Cutting<'_> {
    fn meet(&mut self) -> Result<Option<Meeting<Cut>>, CommError> {
        let is_giver = self.berth.rank() == self.giver;
        let met = self.berth.meet()?;
        Ok(met.map(|Meeting { comm, is_first, present }| Meeting {
            comm: Cut { end: comm, is_giver },
            is_first,
            present,
        }))
    }
}

impl Wrap for Cut {
    type Inner = End<Tensor>;

    fn inner(&self) -> &End<Tensor> {
        &self.end
    }

    fn inner_mut(&mut self) -> &mut End<Tensor> {
        &mut self.end
    }
}

impl Comm<Tensor> for Cut {
    fn send(&mut self, to: Rank, tag: Tag, mut tensor: Tensor) -> Result<(), CommError> {
        if self.is_giver && matches!(tag.payload(), Payload::Shadow { .. }) {
            tensor.data.pop();
            tensor.shape = vec![tensor.data.len()];
        }
        self.end.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        self.end.try_recv(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Tensor, CommError> {
        self.end.recv(from, tag, deadline)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<Tensor>> {
        self.end.reducer(members)
    }
}

/// A neighbour's copy for a dead rank is compared with the state it should have before it is used.
#[test]
fn a_copy_of_another_shape_is_refused() {
    let (run, program) = (run(), program());
    let timetable = find("1f1b").expect("known").timetable(&run.shape).expect("fits");
    let dying = Rank(1);
    let sharded = Training { steps: 4, shard_optimizer: true, shadow_every: 1, ..run.training() };
    let trainer = Trainer::new(&program, &Digits).training(sharded).width(run.width);
    let faults = refused(dying, |deaths| {
        let plan = Plan { seed: 1, deaths, ..Plan::default() };
        simulated::run(N_RANKS, &plan, |berth| {
            let mut meetings = Cutting { berth, giver: dying };
            trainer.on_rendezvous(&mut meetings, Reference, gpt2(&run, &timetable)).map(|_| ())
        })
    });
    for fault in faults {
        // The next rank had kept it.
        let expected = (Class::Mismatch, dying, Some(Rank(2)));
        assert_eq!((fault.class, fault.rank, fault.peer), expected, "{fault}");
        assert!(
            fault.message.contains(" of shape [") && fault.message.contains(", not ["),
            "{fault}"
        );
    }
}
