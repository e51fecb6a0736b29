//! Moves of saved activations: the memory of workers, the time of moves, and the unchanged bits.

use std::time::Duration;

use chimera_engine::device::reference::Reference;
use chimera_engine::engine::{Patience, Training};
use chimera_engine::trainer::Trainer;
use chimera_models::model::Architecture;
use chimera_schedule::analyze::{Link, Network, NetworkCosts, Timeline, Work, simulate, slack};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::ids::Rank;
use chimera_schedule::interchange::{from_json, to_json};
use chimera_schedule::lower::{Lowering, Moves, Passes, bpipe, lower, offload};
use chimera_schedule::op::{Cell, Kind, Op};
use chimera_schedule::program::Program;
use chimera_schedule::render::text;
use chimera_schedule::schedule::{SCHEDULES, Shape, find};
use chimera_schedule::timetable::Timetable;
use chimera_testkit::simulated::{self, Death, Plan};
use proptest::prelude::*;

use crate::training::{Digits, Run, gpt2, train, train_timetable};

fn timetable(schedule: &str, shape: &Shape) -> Timetable {
    find(schedule).expect("known").timetable(shape).unwrap_or_else(|unfit| panic!("{unfit}"))
}

fn costs(timetable: &Timetable, transfer: f64) -> UniformCosts {
    UniformCosts { transfer, ..UniformCosts::new(1.0, 2.0, 0.0) }
        .per_units(timetable.units_per_micro)
}

fn proven(timetable: &Timetable) -> Program {
    lower(timetable, &Lowering::default()).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn limited(most: f64) -> Lowering {
    Lowering { max_peak: Some(most), ..Lowering::default() }
}

fn peak(program: &Program) -> f64 {
    program.peaks().iter().copied().fold(0.0, f64::max)
}

/// Transfers up to (F + B) / 2 take no time, and no worker holds more than `ceil((D + 2) / 2)`
/// micro-batches.
#[test]
fn pairs_of_workers_hold_as_much_as_bpipe_says_in_the_time_of_1f1b() {
    for depth in 2..=16u32 {
        for n in [1, depth - 1, depth, depth + 1, 2 * depth, 3 * depth] {
            for transfer in [0.0, 0.5, 1.0, 1.5] {
                let plain = timetable("1f1b", &Shape::new(depth as usize, n));
                let costs = costs(&plain, transfer);
                let program = proven(&bpipe(plain, &costs).expect("sound"));
                let most = f64::from((depth + 2).div_ceil(2));
                let case = format!("D {depth}, N {n}, {transfer}");
                assert!(peak(&program) <= most, "{case}: {:?}", program.peaks());
                let makespan = simulate(&program, &costs).makespan();
                assert_eq!(makespan, f64::from(3 * (n + depth - 1)), "{case}");
            }
        }
    }
}

#[test]
fn a_longer_transfer_costs_time() {
    let plain = timetable("1f1b", &Shape::new(8, 16));
    let costs = costs(&plain, 2.0);
    let program = proven(&bpipe(plain, &costs).expect("sound"));
    assert_eq!(simulate(&program, &costs).makespan(), 69.0 + 4.0);
}

/// Without times there is no order by time, but memory is still shared.
#[test]
fn ops_that_take_no_time_have_moves_in_a_safe_order() {
    let free = UniformCosts::new(0.0, 0.0, 0.0);
    for schedule in ["1f1b", "seq1f1b", "interleaved", "pipedream", "pipedream-2bw"] {
        for depth in [4, 8] {
            let plain = timetable(schedule, &Shape::new(depth, 2 * depth as u32));
            let [timed, free] = [costs(&plain, 0.0), free].map(|costs| {
                let moved = bpipe(plain.clone(), &costs);
                peak(&proven(&moved.unwrap_or_else(|refusal| panic!("{refusal}"))))
            });
            assert_eq!(free, timed, "{schedule} {depth}");
        }
    }
}

/// One worker, which can only wait for its own moves.
#[test]
fn moves_that_a_worker_does_itself_are_not_hidden() {
    let plain = timetable("gpipe", &Shape::new(1, 6));
    let hidden = costs(&plain, 0.5);
    let own = UniformCosts { transfer_occupies: 0.5, ..hidden };
    let program = proven(&offload(plain, &limited(3.0), &hidden).expect("sound"));
    let timeline = simulate(&program, &own);
    let moves = timeline.events.iter().filter(|event| matches!(event.work, Work::Move(_)));
    let n_moves = moves.count();
    assert_eq!((n_moves, timeline.makespan()), (8, 18.0 + 0.5 * 8.0));
    assert!(simulate(&program, &hidden).makespan() < 22.0);
    assert!(slack(&program, &timeline, &own).concat().iter().all(|slack| *slack == 0.0));
}

/// Workers 0 and 3, and 1 and 2, keep each other's activations.
#[test]
fn a_move_to_another_worker_takes_its_bytes_over_their_link() {
    let plain = timetable("1f1b", &Shape::new(4, 6));
    let free = costs(&plain, 0.0);
    let program = proven(&bpipe(plain, &free).expect("sound"));
    for (ranks_per_node, takes) in [(4, 0.25 + 0.5), (2, 1.0 + 8.0 * 0.125)] {
        let network = Network {
            ranks_per_node,
            inside: Link { alpha: 0.25, beta: 0.0625 },
            between: Link { alpha: 1.0, beta: 0.125 },
            adapters: 1,
            ..Network::free(4)
        };
        let costs = NetworkCosts::of_messages(free, network, program.placement(), 1, &[0.0; 4])
            .with_saved(&[8.0; 4]);
        let timeline = simulate(&program, &costs);
        let moves = timeline.events.iter().filter(|event| matches!(event.work, Work::Move(_)));
        let took: Vec<f64> = moves.map(|event| event.end - event.start).collect();
        assert!(!took.is_empty() && took.iter().all(|took| *took == takes), "{took:?}");
    }
}

#[test]
fn moves_are_drawn_below_their_workers() {
    let plain = timetable("1f1b", &Shape::new(4, 5));
    let costs = costs(&plain, 1.0);
    let program = proven(&bpipe(plain, &costs).expect("sound"));
    insta::assert_snapshot!(text::timeline(&simulate(&program, &costs)));
}

/// As much is moved as a limit requires, except for deferred weight work.
#[test]
fn a_host_takes_what_a_limit_leaves_no_room_for() {
    for schedule in SCHEDULES {
        let plain = timetable(schedule.name(), &Shape::new(4, 8));
        if plain.has(Kind::BackwardWeight) || plain.update.is_asynchronous() {
            continue;
        }
        let (costs, before) = (costs(&plain, 0.25), proven(&plain));
        let most = (peak(&before) / 2.0).ceil().max(2.0);
        let moved = offload(plain, &limited(most), &costs).expect("sound");
        let program = lower(&moved, &limited(most));
        let program = program.unwrap_or_else(|refusal| panic!("{}: {refusal}", schedule.name()));
        assert!(peak(&program) <= most, "{}: {:?}", schedule.name(), program.peaks());
    }
}

/// Deferred weight work cannot go to the host: it is not put off where there is no room for it.
#[test]
fn a_limit_is_kept_to_with_weight_halves_as_well() {
    for schedule in ["1f1b", "gpipe", "interleaved", "chimera", "zb-h1", "dapple"] {
        for depth in [2, 4, 8] {
            let plain = timetable(schedule, &Shape::new(depth, 2 * depth as u32));
            for (most, transfer) in [(1.0, 0.5), (2.0, 0.0), (2.0, 1.0), (3.0, 0.5), (5.0, 2.0)] {
                let costs = costs(&plain, transfer);
                let applied = |split_backward| {
                    let passes =
                        Passes { split_backward, moves: Moves::Offload, ..Passes::default() };
                    let moved = passes.apply(plain.clone(), &limited(most), &costs);
                    let program = proven(&moved.expect("sound"));
                    (peak(&program), simulate(&program, &costs).makespan())
                };
                let ((whole, makespan), (split, split_makespan)) = (applied(false), applied(true));
                let case = format!("{schedule}, D {depth}, {most}, {transfer}");
                assert!(split <= whole.max(most), "{case}: {split}, whole {whole}");
                assert!(
                    split_makespan <= makespan + 1e-9,
                    "{case}: {split_makespan}, whole {makespan}"
                );
            }
        }
    }
}

#[test]
fn a_host_takes_what_costs_no_time() {
    for (transfer, most) in [(0.5, 2.0), (1.5, 3.0), (100.0, 8.0)] {
        let plain = timetable("1f1b", &Shape::new(8, 16));
        let costs = costs(&plain, transfer);
        let program = proven(&offload(plain, &Lowering::default(), &costs).expect("sound"));
        assert_eq!(simulate(&program, &costs).makespan(), 69.0, "{transfer}");
        assert!(peak(&program) <= most, "{transfer}: {:?}", program.peaks());
    }
}

/// Whatever the time of moves, a worker never holds more than was proven.
#[test]
fn no_worker_ever_holds_more_than_is_proven() {
    for transfer in [0.1, 0.7, 3.0, 20.0] {
        for (schedule, n) in [("1f1b", 20), ("gpipe", 9), ("zb-h2", 12), ("interleaved", 12)] {
            let plain = timetable(schedule, &Shape::new(6, n));
            let costs = costs(&plain, transfer);
            let most = (peak(&proven(&plain)) / 2.0).ceil();
            let paired = bpipe(plain.clone(), &UniformCosts::EQUAL).expect("sound");
            let hosted = offload(plain, &limited(most), &UniformCosts::EQUAL).expect("sound");
            for program in [paired, hosted].map(|moved| proven(&moved)) {
                let held = held(&program, &simulate(&program, &costs));
                let within =
                    held.iter().zip(program.peaks()).all(|(held, peak)| held <= &(peak + 1e-6));
                assert!(within, "{schedule}, {transfer}: {held:?}, {:?}", program.peaks());
            }
        }
    }
}

/// The peak of each worker in schedules with one unit per stage, by the times of a simulation.
fn held(program: &Program, timeline: &Timeline) -> Vec<f64> {
    let n_workers = timeline.n_workers;
    let share = n_workers as f64 / program.placement().n_stages() as f64;
    let mut changes: Vec<Vec<(f64, f64)>> = vec![Vec::new(); n_workers];
    for event in &timeline.events {
        let mut change = |worker: usize, at: f64, by: f64| changes[worker].push((at, by * share));
        let worker = event.worker.index();
        match event.work {
            Work::Cell(cell) => cell.ops().for_each(|op| match op.kind {
                Kind::Forward => change(worker, event.start, 1.0),
                Kind::Backward | Kind::BackwardWeight => change(worker, event.end, -1.0),
                _ => {}
            }),
            Work::Move(op) => {
                let (from, to) = program.move_of(&op);
                from.into_iter().for_each(|from| change(from.index(), event.end, -1.0));
                to.into_iter().for_each(|to| change(to.index(), event.start, 1.0));
            }
            _ => {}
        }
    }
    let most = |mut changes: Vec<(f64, f64)>| {
        changes.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
        let mut now = 0.0;
        changes.iter().fold(0.0f64, |most, (_, by)| {
            now += by;
            most.max(now)
        })
    };
    changes.into_iter().map(most).collect()
}

#[test]
fn moves_survive_as_json() {
    let plain = timetable("1f1b", &Shape::new(4, 6));
    let costs = costs(&plain, 1.0);
    for moved in [bpipe(plain.clone(), &costs), offload(plain, &limited(2.0), &costs)] {
        let moved = moved.expect("sound");
        assert!(moved.has(Kind::Offload));
        assert_eq!(from_json(to_json(&moved).as_bytes()).expect("reads"), moved);
    }
}

#[test]
fn an_unsafe_move_is_refused_with_its_row() {
    let plain = timetable("1f1b", &Shape::new(4, 6));
    let mut moved = bpipe(plain.clone(), &costs(&plain, 1.0)).expect("sound");
    let reload = |cell: &Cell| cell.ops().any(|op| op.kind == Kind::Reload);
    let mut late = moved.clone();
    let at = late.rows[0].iter().position(reload).expect("a move back");
    let back = late.rows[0].remove(at);
    late.rows[0].push(back);
    let refusal = lower(&late, &Lowering::default()).expect_err("too late").to_string();
    assert!(refusal.contains('^'), "{refusal}");
    moved.rows[0].retain(|cell| !reload(cell));
    let refusal = lower(&moved, &Lowering::default()).expect_err("nothing comes back").to_string();
    let hint = "has O (offload) on stage 0, but no L (reload): activations that are moved away are moved back";
    assert!(refusal.contains("worker 0, cell ") && refusal.contains(hint), "{refusal}");
    assert!(refusal.contains('^'), "{refusal}");
    let mut away = plain;
    let op = away.rows[2][0].ops().next().expect("an op");
    away.rows[2].insert(1, chimera_schedule::op::Op { kind: Kind::Keep, ..op }.into());
    let refusal = lower(&away, &Lowering::default()).expect_err("its own").to_string();
    assert!(refusal.contains("is for another worker than worker 2"), "{refusal}");
}

#[test]
fn moving_activations_changes_no_bit() {
    for (schedule, shape) in [
        ("1f1b", Shape::new(4, 6)),
        ("gpipe", Shape::new(2, 5)),
        ("zb-h2", Shape::new(4, 8)),
        ("interleaved", Shape::new(2, 4)),
        ("chimera", Shape::new(4, 8)),
        ("seq1f1b", Shape { n_slices: 2, ..Shape::new(2, 3) }),
        ("pipedream-2bw", Shape::new(4, 6)),
    ] {
        for architecture in [Architecture::GPT2, Architecture::LLAMA, Architecture::BERT] {
            if schedule == "seq1f1b" && architecture == Architecture::BERT {
                continue; // it has no slices
            }
            let run = Run { architecture, ..Run::new(schedule, shape) };
            let plain = train(&run).expect("trains");
            for moves in [Moves::Bpipe, Moves::Offload] {
                let passes = Passes { moves, ..run.passes };
                let moved = train(&Run { passes, ..run.clone() }).expect("trains");
                let is_equal = (&moved.losses, &moved.norms) == (&plain.losses, &plain.norms)
                    && moved.gradients == plain.gradients
                    && moved.weights == plain.weights;
                assert!(is_equal, "{moves:?} {run:?}");
            }
        }
    }
}

/// Ranks that wait for moves, directly or not, continue without a rank that stalls.
#[test]
fn a_rank_that_stalls_beside_moves_is_evicted() {
    let run = Run { width: 2, ..Run::new("1f1b", Shape::new(4, 6)) };
    let plain = timetable("1f1b", &run.shape);
    let moved = bpipe(plain.clone(), &costs(&plain, 1.0)).expect("sound");
    let program = lower(&moved, &Lowering { barrier: true, ..Lowering::default() }).expect("sound");
    let training = Training { steps: 2, ..run.training() };
    // on this transport, a timeout under a second is a single check
    let patience = Duration::from_secs(3);
    let trainer = Trainer::new(&program, &Digits).training(training).width(run.width);
    let trainer = trainer.patience(Patience { first_step: patience, later: patience });
    let trained = |stalls: Vec<Death>| {
        let plan = Plan { seed: 1, stalls, ..Plan::default() };
        let ran = simulated::run(8, &plan, |berth| {
            trainer.on_rendezvous(berth, Reference, gpt2(&run, &moved))
        });
        let outcomes: Result<Vec<_>, _> = ran.outcomes.into_iter().collect();
        (outcomes.expect("survived"), ran.calls)
    };
    let (undisturbed, calls) = trained(Vec::new());
    for (rank, eighth) in [(0, 3), (1, 5), (2, 4), (3, 2), (3, 3), (7, 6)] {
        let call = calls[rank] * eighth / 8;
        let (survived, _) = trained(vec![Death { rank: Rank(rank as u32), call }]);
        for (survived, undisturbed) in survived.iter().zip(&undisturbed) {
            assert!(survived.weights == undisturbed.weights, "{rank} {call}");
        }
    }
}

#[test]
fn steps_without_a_border_move_the_same() {
    let passes = Passes { free_border: Some(3), ..Passes::default() };
    for width in [1, 2] {
        let run = Run { clip: None, passes, width, ..Run::new("1f1b", Shape::new(4, 6)) };
        let plain = train(&run).expect("trains");
        for moves in [Moves::Bpipe, Moves::Offload] {
            let passes = Passes { moves, ..passes };
            let moved = train(&Run { passes, ..run.clone() }).expect("trains");
            assert!(moved.weights == plain.weights, "{moves:?} {width}");
        }
    }
}

#[test]
fn bytes_fall_as_micro_batches_do() {
    let run = Run { tied: false, ..Run::new("gpipe", Shape::new(1, 8)) };
    let plain = timetable("gpipe", &run.shape);
    let all = train_timetable(&run, &plain).expect("trains").bytes;
    let hosted = offload(plain, &limited(4.0), &UniformCosts::EQUAL).expect("sound");
    let half = train_timetable(&run, &hosted).expect("trains").bytes;
    let run = Run { shape: Shape::new(1, 4), ..run };
    let expected = train(&run).expect("trains").bytes;
    assert!(half < all && half == expected, "{all}, {half}, {expected}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Timetables with moves that are edited once are refused or train to the same losses, to the
    /// bit.
    #[test]
    fn edited_moves_are_refused_or_train_the_same(
        (schedule, depth, n) in (prop::sample::select(vec!["1f1b", "gpipe"]), 2usize..=4, 3u32..=6),
        is_paired in any::<bool>(),
        edit in 0usize..4,
        (w, i, j) in (0usize..8, 0usize..64, 0usize..64),
    ) {
        let run = Run { clip: None, ..Run::new(schedule, Shape::new(depth, n)) };
        let plain = timetable(schedule, &run.shape);
        let costs = costs(&plain, 1.0);
        let moved = if is_paired {
bpipe(plain.clone(), &costs)
} else {
offload(plain.clone(), &limited(2.0), &costs)
};
        let mut edited = moved.expect("sound");
        let row = &mut edited.rows[w % depth];
        let n_cells = row.len();
        match edit {
            0 => row.swap(i % n_cells, (i + 1) % n_cells),
            1 => row.swap(i % n_cells, j % n_cells),
            2 => _ = row.remove(i % n_cells),
            _ => {
                let cell = row.remove(i % n_cells);
                row.insert(j % n_cells, cell);
            }
        }
        if lower(&edited, &Lowering::default()).is_err() {
            return Ok(());
        }
        let (edited, plain) = (train_timetable(&run, &edited), train_timetable(&run, &plain));
        let (edited, plain) = (edited.expect("trains"), plain.expect("trains"));
        for (a, b) in edited.losses.iter().zip(&plain.losses) {
            prop_assert!((a - b).abs() <= 1e-9 * b.abs(), "{:?} {:?}", edited.losses, plain.losses);
        }
    }

    /// Activations that another worker keeps, with moves at any places, train to the same losses if
    /// the order is safe.
    #[test]
    fn moves_at_any_places_are_refused_or_train_the_same(
        (depth, n, owner) in (2usize..=3, 3u32..=6, 0usize..3),
        moves in prop::collection::vec(prop::array::uniform5(0usize..99), 1..=2),
    ) {
        let run = Run { clip: None, ..Run::new("gpipe", Shape::new(depth, n)) };
        let plain = timetable("gpipe", &run.shape);
        let moved = kept_elsewhere(&plain, owner % depth, &moves);
        if let Err(refusal) = lower(&moved, &Lowering::default()) {
            let refusal = refusal.to_string();
            prop_assert!(!refusal.contains("a second time"), "{refusal}");
            return Ok(());
        }
        let [moved, plain] = [&moved, &plain].map(|moves| train_timetable(&run, moves));
        prop_assert_eq!(moved.expect("trains").losses, plain.expect("trains").losses);
    }
}

/// A timetable in which the next worker keeps some activations of `owner`. Numbers select the
/// activations, and the places of the moves of both workers.
pub(crate) fn kept_elsewhere(plain: &Timetable, owner: usize, moves: &[[usize; 5]]) -> Timetable {
    let mut moved = plain.clone();
    let keeper = (owner + 1) % plain.rows.len();
    let is_forward = |op: &Op| op.kind == Kind::Forward;
    let forwards: Vec<Op> =
        plain.rows[owner].iter().flat_map(Cell::ops).filter(is_forward).collect();
    for (nth, [which, out, back, kept, returned]) in moves.iter().enumerate() {
        // Each number selects a different op.
        let op = forwards[(2 * which + nth) % (forwards.len() & !1)];
        for (worker, kinds, [i, j]) in [
            (owner, [Kind::Offload, Kind::Reload], [out, back]),
            (keeper, [Kind::Keep, Kind::Return], [kept, returned]),
        ] {
            let row = &mut moved.rows[worker];
            let [first, second] = kinds.map(|kind| Cell::from(Op { kind, ..op }));
            let i = i % (row.len() + 1);
            row.insert(i, first);
            row.insert(i + 1 + j % (row.len() - i), second);
        }
    }
    moved
}

/// A move waits for room where activations are taken in, and again where they come back.
#[test]
fn a_unit_waits_for_memory_at_both_ends_of_its_move() {
    let run = Run { clip: None, ..Run::new("gpipe", Shape::new(2, 6)) };
    let plain = timetable("gpipe", &run.shape);
    for moves in [
        [[4, 8, 1, 10, 9], [4, 11, 7, 12, 3]],
        [[5, 10, 7, 10, 0], [11, 10, 6, 10, 5]],
        [[11, 10, 11, 9, 2], [5, 8, 4, 8, 9]],
    ] {
        let moved = kept_elsewhere(&plain, 1, &moves);
        proven(&moved);
        let [moved, plain] = [&moved, &plain].map(|moves| train_timetable(&run, moves));
        assert_eq!(moved.expect("trains").losses, plain.expect("trains").losses);
    }
}
