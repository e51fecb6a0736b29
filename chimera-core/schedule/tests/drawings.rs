//! Input → drawing: every schedule as in the papers' figures.

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::{PerStage, UniformCosts, WithOwnWork};
use chimera_schedule::effects::{OwnWork, Pieces};
use chimera_schedule::lower::{Lowering, Sync, fill, lower};
use chimera_schedule::render::text;
use chimera_schedule::schedule::{Scaling, Shape, find};

/// Draws the timetable executed as early as possible, where a backward takes `backward` forwards.
fn draw(schedule: &str, shape: Shape, backward: f64) -> String {
    let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
    let how = Lowering { sync: Sync::AtEnd, ..Lowering::default() };
    let program = lower(&timetable, &how).expect("proven");
    let costs = UniformCosts::new(1.0, backward, 0.0).per_units(program.units_per_micro());
    let timeline = simulate(&program, &costs);
    let window = match program.window().n_steps() {
        1 => String::new(),
        n => format!(", {n} steps"),
    };
    let versions: String = match program.weight_versions() {
        plain if plain.iter().all(|n| *n == 1) => String::new(),
        versions => format!(
            ", weight versions{}",
            versions.iter().map(|n| format!(" {n}")).collect::<String>()
        ),
    };
    let peaks: Vec<String> = program.peaks().iter().map(f64::to_string).collect();
    format!(
        "{schedule}, D = {}, N = {}{window}, B = {backward} F\n{}\nmakespan {}, bubble ratio {:.3}, peak {}{versions}",
        shape.depth,
        shape.n_micro_batches,
        text::timeline(&timeline).trim_end(),
        timeline.makespan(),
        timeline.bubble_ratio(),
        peaks.join(" "),
    )
}

macro_rules! drawings {
    ($($name:ident: $schedule:literal, $shape:expr, $backward:literal;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), draw($schedule, $shape, $backward));
        })*
    };
}

drawings! {
    gpipe: "gpipe", Shape::new(4, 4), 1.0;
    gpipe_real: "gpipe", Shape::new(4, 4), 2.0;
    dapple: "dapple", Shape::new(4, 8), 1.0;
    dapple_real: "dapple", Shape::new(4, 8), 2.0;
    seq1f1b: "seq1f1b", Shape { n_slices: 2, ..Shape::new(4, 4) }, 2.0;
    seq1f1b_of_four_slices: "seq1f1b", Shape::new(3, 2), 2.0;
    gems: "gems", Shape::new(4, 4), 1.0;
    gems_real: "gems", Shape::new(4, 3), 2.0;
    interleaved: "interleaved", Shape::new(4, 4), 2.0;
    dapple_three_in_turn: "dapple", Shape { n_in_turn: 3, ..Shape::new(4, 8) }, 2.0;
    zb_h1: "zb-h1", Shape::new(4, 8), 2.0;
    zb_h2: "zb-h2", Shape::new(4, 8), 2.0;
    zb_h2_few: "zb-h2", Shape::new(4, 3), 2.0;
    zb_v: "zb-v", Shape::new(4, 8), 2.0;
    zb_v_few: "zb-v", Shape::new(4, 3), 2.0;
    v_half: "v-half", Shape::new(4, 8), 2.0;
    v_half_of_three: "v-half", Shape::new(3, 6), 2.0;
    v_min: "v-min", Shape::new(4, 8), 2.0;
    v_min_of_three: "v-min", Shape::new(3, 6), 2.0;
    hanayo_one_wave: "hanayo", Shape { n_waves: 1, ..Shape::new(4, 4) }, 2.0;
    hanayo_two_waves: "hanayo", Shape::new(4, 4), 2.0;
    mixpipe: "mixpipe", Shape::new(4, 8), 2.0;
    mixpipe_more_in_flight: "mixpipe", Shape { in_flight: Some(4), ..Shape::new(4, 8) }, 2.0;
    mixpipe_of_three: "mixpipe", Shape::new(3, 5), 2.0;
    dualpipe: "dualpipe", Shape::new(4, 8), 2.0;
    dualpipe_of_eight: "dualpipe", Shape::new(8, 20), 2.0;
    dualpipe_v: "dualpipe-v", Shape::new(2, 5), 2.0;
    dualpipe_v_of_four: "dualpipe-v", Shape::new(4, 10), 2.0;
    pipedream: "pipedream", Shape { window: 2, ..Shape::new(4, 4) }, 2.0;
    pipedream_2bw: "pipedream-2bw", Shape { window: 2, ..Shape::new(4, 4) }, 2.0;
    pipeoptim: "pipeoptim", Shape { window: 2, ..Shape::new(3, 3) }, 2.0;
    timeprest: "timeprest", Shape { window: 3, ..Shape::new(3, 2) }, 2.0;
    chimera: "chimera", Shape::new(4, 4), 1.0;
    chimera_real: "chimera", Shape::new(4, 4), 2.0;
    chimera_of_six: "chimera", Shape::new(6, 6), 1.0;
    chimera_four_pipes: "chimera", Shape { n_pipes: 4, ..Shape::new(4, 4) }, 1.0;
    chimera_four_pipes_of_eight: "chimera", Shape { n_pipes: 4, ..Shape::new(8, 8) }, 1.0;
    chimera_one_micro_batch: "chimera", Shape::new(4, 1), 1.0;
    chimera_two_micro_batches: "chimera", Shape::new(4, 2), 2.0;
    chimera_direct: "chimera", Shape::new(4, 8), 1.0;
    chimera_direct_remainder: "chimera", Shape::new(4, 7), 2.0;
    chimera_doubling: "chimera", Shape { scaling: Scaling::Doubling, ..Shape::new(4, 8) }, 2.0;
    chimera_doubling_odd: "chimera", Shape { scaling: Scaling::Doubling, ..Shape::new(4, 12) }, 2.0;
    chimera_halving: "chimera", Shape { scaling: Scaling::Halving, ..Shape::new(4, 4) }, 2.0;
    chimera_halving_long: "chimera", Shape { scaling: Scaling::Halving, ..Shape::new(4, 8) }, 2.0;
}

/// Two of the caller's own works alternate in the idle time of Chimera. The first has a piece for
/// each backward.
#[test]
fn chimera_with_work() {
    let timetable = find("chimera").expect("known").timetable(&Shape::new(4, 4)).expect("fits");
    let how = Lowering { sync: Sync::AtEnd, ..Lowering::default() };
    let program = lower(&timetable, &how).expect("proven");
    let works = [("factors", Pieces::OnBackward), ("inverses", Pieces::Anytime(u32::MAX))]
        .map(|(name, pieces)| OwnWork { name: name.into(), pieces });
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let takes = vec![PerStage(vec![0.5]), PerStage(vec![1.0])];
    let costs = WithOwnWork::new(&costs, takes);
    let filled = fill(&program, &works, &how, &costs).expect("proven");
    let (before, after) = (simulate(&program, &costs), simulate(&filled, &costs));
    insta::assert_snapshot!(format!(
        "makespan {}, before {}\n{}",
        after.makespan(),
        before.makespan(),
        text::timeline(&after).trim_end()
    ));
}
