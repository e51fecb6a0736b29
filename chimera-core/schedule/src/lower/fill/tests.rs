use proptest::prelude::*;

use super::*;
use crate::costs::{PerStage, StageCosts, UniformCosts, WithOwnWork};
use crate::ir::update::Update;
use crate::lower::{Lowering, Sync, lower};
use crate::schedule::{SCHEDULES, Shape, find};

fn work(name: &str, pieces: Pieces) -> OwnWork {
    OwnWork { name: name.into(), pieces }
}

/// A program without work and with it, and the timeline of the second. Works are of any time or on
/// backwards, with these times.
fn filled(program: &Program, works: &[(Pieces, f64)], costs: &StageCosts) -> (Program, Timeline) {
    let own: Vec<OwnWork> = works.iter().map(|(pieces, _)| work("work", *pieces)).collect();
    let takes = works.iter().map(|(_, takes)| PerStage(vec![*takes])).collect();
    let costs = WithOwnWork::new(costs, takes);
    let filled = fill(program, &own, &Lowering::default(), &costs).expect("sound");
    let timeline = simulate(&filled, &costs);
    (filled, timeline)
}

fn program(name: &str, shape: &Shape, sync: Sync) -> Option<Program> {
    let timetable = find(name).expect("known").timetable(shape).ok()?;
    Some(lower(&timetable, &Lowering { sync, ..Lowering::default() }).expect("sound"))
}

fn uniform(program: &Program, message: f64) -> StageCosts {
    let stage = UniformCosts::new(1.0, 2.0, message).per_units(program.units_per_micro);
    StageCosts::new(vec![stage; program.placement.n_stages()])
}

/// The total time of pieces by worker.
fn in_work(timeline: &Timeline) -> Vec<f64> {
    let mut sums = vec![0.0; timeline.n_workers];
    for event in &timeline.events {
        if matches!(event.work, Work::Cell(Cell::One(Op { kind: Kind::Work(_), .. }))) {
            sums[event.worker.index()] += event.end - event.start;
        }
    }
    sums
}

/// Chimera with D = N = 8 leaves each worker twelve forwards of idle time.
#[test]
fn idle_time_takes_what_fits() {
    let program = program("chimera", &Shape::new(8, 8), Sync::AtEnd).expect("fits");
    let costs = uniform(&program, 0.0);
    let makespan = simulate(&program, &costs).makespan();
    let filled = |takes: &[f64]| {
        let works: Vec<_> = takes.iter().map(|takes| (Pieces::Anytime(u32::MAX), *takes)).collect();
        let (_, timeline) = filled(&program, &works, &costs);
        assert_eq!(timeline.makespan(), makespan);
        in_work(&timeline)
    };
    assert_eq!(filled(&[1.0]), [12.0; 8]);
    assert_eq!(filled(&[0.5]), [12.0; 8]);
    assert_eq!(filled(&[2.0]).into_iter().fold(f64::MAX, f64::min), 10.0);
    assert_eq!(filled(&[0.75]).into_iter().fold(f64::MAX, f64::min), 9.0);
    // Small pieces fill the gaps of large ones.
    assert_eq!(filled(&[2.0, 1.0]), [12.0; 8]);
    assert_eq!(filled(&[100.0]), [0.0; 8]);
}

#[test]
fn works_take_turns_and_have_their_number() {
    let program = program("gpipe", &Shape::new(2, 2), Sync::AtEnd).expect("fits");
    let works = [(Pieces::Anytime(u32::MAX), 1.0), (Pieces::Anytime(1), 0.5)];
    let (filled, _) = filled(&program, &works, &uniform(&program, 0.0));
    let pieces = |row: &Vec<Instr>| -> Vec<u8> {
        let work = |instr: &Instr| match instr {
            Instr::Run(Cell::One(Op { kind: Kind::Work(work), .. })) => Some(work.0),
            _ => None,
        };
        row.iter().filter_map(work).collect()
    };
    // The first worker idles for three forwards in the middle, the second for one at the start and
    // two at the end.
    assert_eq!(filled.rows.iter().map(pieces).collect::<Vec<_>>(), [[0, 1, 0], [0, 1, 0]]);
}

#[test]
#[should_panic(expected = "a program is filled once")]
fn a_filled_program_is_not_filled_again() {
    let program = program("gpipe", &Shape::new(2, 2), Sync::AtEnd).expect("fits");
    let works = [(Pieces::Anytime(1), 0.5)];
    let (once, _) = filled(&program, &works, &uniform(&program, 0.0));
    filled(&once, &works, &uniform(&program, 0.0));
}

/// With any schedule, any start of sums, and any time of messages and pieces, pieces of any time do
/// not make the step longer, and no further piece fits.
#[test]
fn the_step_is_as_long_as_it_was() {
    for schedule in SCHEDULES {
        for (depth, n) in [(2, 4), (4, 4), (4, 6), (4, 8), (5, 10)] {
            for (sync, message, takes) in
                [(Sync::AtEnd, 0.0, 0.3), (Sync::Eager, 0.7, 0.25), (Sync::EagerOpt, 0.1, 1.0)]
            {
                let shape = Shape { window: 2, ..Shape::new(depth, n) };
                let Some(program) = program(schedule.name(), &shape, sync) else { continue };
                let costs = uniform(&program, message);
                let makespan = simulate(&program, &costs).makespan();
                let (filled, timeline) =
                    filled(&program, &[(Pieces::Anytime(u32::MAX), takes)], &costs);
                let name = schedule.name();
                let off = (timeline.makespan() - makespan).abs();
                assert!(off < 1e-9 * makespan, "{name} {depth} {n}: {off} of {makespan}");
                let costs = WithOwnWork::new(&costs, vec![PerStage(vec![takes])]);
                for (worker, events) in (0..).map(WorkerId).zip(timeline.rows()) {
                    let events = (&events[..], timeline.makespan());
                    let row = IdleRow::new(&filled, &costs, worker, events);
                    let longest = row.idle.iter().map(|idle| idle.to - idle.from);
                    let longest = longest.fold(0.0, f64::max);
                    assert!(longest < takes, "{name} {depth} {n}: idle for {longest}");
                }
            }
        }
    }
}

/// Checks pieces on backwards: there is one for each, after it, and before the sum of its stage.
/// Returns the first violation.
fn violated(program: &Program) -> Option<String> {
    let n_units = program.n_micro_batches * program.units_per_micro;
    let mut done = std::collections::BTreeMap::new();
    for (w, row) in program.rows.iter().enumerate() {
        let mut shown = std::collections::BTreeSet::new();
        let mut summed = Vec::new();
        for instr in row {
            match instr {
                Instr::Reduce(bucket) => {
                    summed.extend(&program.buckets[bucket.index()].stages);
                }
                Instr::Run(cell) => {
                    for op in cell.ops() {
                        for unit in op.span.units() {
                            let of = (op.pipe, op.stage, unit);
                            if op.kind.adds_gradient() {
                                shown.insert(of);
                            }
                            if op.kind == Kind::Work(WorkId(0)) {
                                if !shown.contains(&of) || summed.contains(&op.stage) {
                                    return Some(format!("{op} of worker {w}"));
                                }
                                *done.entry((op.stage, unit)).or_insert(0) += 1;
                            }
                        }
                    }
                }
                _ => {}
            }
        }
    }
    let wanted = program.placement.n_stages() * n_units as usize;
    let is_once = done.len() == wanted && done.values().all(|n| *n == 1);
    (!is_once).then(|| format!("{done:?}"))
}

#[test]
fn each_backward_has_its_piece_before_the_sum() {
    for schedule in SCHEDULES {
        for (depth, n) in [(2, 4), (4, 8), (5, 10)] {
            let sync = if n == 8 { Sync::Eager } else { Sync::EagerOpt };
            let Some(program) = program(schedule.name(), &Shape::new(depth, n), sync) else {
                continue;
            };
            if program.window.update() != Update::Flush {
                continue;
            }
            let costs = uniform(&program, 0.2);
            let works = [(Pieces::OnBackward, 0.1), (Pieces::Anytime(7), 0.4)];
            let (filled, timeline) = filled(&program, &works, &costs);
            assert_eq!(violated(&filled), None, "{}", schedule.name());
            let before = simulate(&program, &costs).makespan();
            let n_pieces = n * program.units_per_micro * program.placement.n_stages() as u32;
            let all = 0.1 * f64::from(n_pieces);
            assert!(timeline.makespan() <= before + all + 1e-9, "{}", schedule.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// A program with edited pieces is refused, or runs each of them at an allowed place.
    #[test]
    fn edited_pieces_are_refused_or_right(
        which in 0..3usize, what in 0..4u8, w in 0..4usize, piece: usize, at: usize, to in 0..4usize,
    ) {
        let name = ["chimera", "zb-h1", "1f1b"][which];
        let program = program(name, &Shape::new(4, 4), Sync::Eager).expect("fits");
        let works = [(Pieces::OnBackward, 0.5), (Pieces::Anytime(3), 0.5)];
        let (mut edited, _) = filled(&program, &works, &uniform(&program, 0.0));
        let is_piece = |instr: &Instr| {
            matches!(instr, Instr::Run(Cell::One(Op { kind: Kind::Work(_), .. })))
        };
        let pieces: Vec<usize> =
            (0..edited.rows[w].len()).filter(|at| is_piece(&edited.rows[w][*at])).collect();
        let from = pieces[piece % pieces.len()];
        let Instr::Run(Cell::One(mut op)) = edited.rows[w][from] else { unreachable!() };
        match what {
            0 => drop(edited.rows[w].remove(from)),
            1 => {
                let place = at % edited.rows[w].len();
                edited.rows[w].insert(place, Instr::Run(op.into()));
            }
            2 => {
                let moved = edited.rows[w].remove(from);
                let place = at % edited.rows[to].len();
                edited.rows[to].insert(place, moved);
            }
            _ => {
                match at % 4 {
                    0 => op.stage.0 = (op.stage.0 + 1) % 5,
                    1 => op.pipe.0 = (op.pipe.0 + 1) % 3,
                    2 => op.span.start += 1,
                    _ => op.kind = Kind::Work(WorkId((at / 4 % 3) as u8)),
                }
                edited.rows[w][from] = Instr::Run(op.into());
            }
        }
        if check::prove(&edited, None).is_ok() {
            prop_assert_eq!(violated(&edited), None);
        }
    }
}
