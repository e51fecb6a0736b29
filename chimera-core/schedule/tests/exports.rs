//! Golden files: schedules as PyTorch reads them.

use chimera_schedule::ids::PipeId;
use chimera_schedule::interchange::to_csv;
use chimera_schedule::schedule::{Shape, find};

fn csv(schedule: &str, shape: Shape, pipe: u16) -> String {
    let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
    to_csv(&timetable, PipeId(pipe)).expect("can be written")
}

macro_rules! exports {
    ($($name:ident: $schedule:literal, $shape:expr, $pipe:literal;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), csv($schedule, $shape, $pipe));
        })*
    };
}

exports! {
    gpipe: "gpipe", Shape::new(4, 4), 0;
    dapple: "dapple", Shape::new(4, 8), 0;
    gems_down: "gems", Shape::new(4, 4), 0;
    gems_up: "gems", Shape::new(4, 4), 1;
    interleaved: "interleaved", Shape::new(4, 8), 0;
    zb_h1: "zb-h1", Shape::new(4, 8), 0;
    chimera_down: "chimera", Shape::new(4, 8), 0;
    chimera_up: "chimera", Shape::new(4, 8), 1;
    chimera_second_down_of_four_pipes: "chimera", Shape { n_pipes: 4, ..Shape::new(4, 8) }, 1;
}
