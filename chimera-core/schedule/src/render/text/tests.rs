use super::*;
use crate::analyze::Event;
use crate::ir::ids::{BucketId, PipeId, StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Op, Span};

/// The timeline of a picture with columns of `unit`, all of pipe 0 and stage 0.
fn drawn(picture: &str, unit: f64) -> Timeline {
    let mut timeline = Timeline::default();
    for (worker, line) in picture.lines().enumerate() {
        timeline.n_workers += 1;
        let mut at = 0.0;
        for block in line.split_whitespace().skip(1) {
            let label = block.trim_end_matches('-');
            let start = at;
            at += unit * (1 + (block.len() - label.len()).div_ceil(2)) as f64;
            if label != "." {
                let id = label.trim_end_matches('\'');
                let kind = if id == label { Kind::Forward } else { Kind::Backward };
                let op = Op::new(kind, PipeId(0), StageId(0), id.parse().unwrap());
                timeline.events.push(Event {
                    worker: WorkerId(worker as u16),
                    work: Work::Cell(op.into()),
                    start,
                    end: at,
                    after: None,
                });
            }
        }
    }
    timeline
}

const ONE_F_ONE_B: &str = "\
P0 0 1 . . 0'- . 1'-
P1 . 0 0'- 1 1'- . .
";

#[test]
fn columns_are_the_unit_of_time() {
    for unit in [1.0, 0.1, 1.0 / 3.0, 1e-6, 4096.0] {
        assert_eq!(timeline(&drawn(ONE_F_ONE_B, unit)), ONE_F_ONE_B);
    }
}

#[test]
fn an_op_of_many_columns_makes_a_scaled_drawing() {
    let picture = |columns: usize| format!("P0 0 1 0'{}\n", "-".repeat(2 * columns - 3));
    assert_eq!(timeline(&drawn(&picture(8), 0.25)), picture(8));
    let long = drawn(&picture(9), 0.25);
    assert_eq!(timeline(&long), scaled(&long, SCALED_WIDTH));
}

#[test]
fn works_have_distinct_marks() {
    let events = (0..2u8).map(|nth| Event {
        worker: WorkerId(0),
        work: Work::Cell(Op::new(Kind::Work(WorkId(nth)), PipeId(0), StageId(0), 0).into()),
        start: f64::from(nth),
        end: f64::from(nth) + 1.0,
        after: None,
    });
    let works = Timeline { n_workers: 1, events: events.collect() };
    assert_eq!(timeline(&works), "P0 0x 0y\n");
    let drawing = scaled(&works, 8);
    assert!(drawing.starts_with("P0 0xxx0yyy\n"), "{drawing}");
    assert!(drawing.contains(", x y work beside them;"), "{drawing}");
    assert_eq!(work_marks(["factors", "inverses"]), "x factors, y inverses");
}

#[test]
fn all_kinds_of_work() {
    let op = |kind, stage, unit| Op::new(kind, PipeId(0), StageId(stage), unit);
    let mut span = op(Kind::Forward, 0, 0);
    span.span = Span { start: 0, len: 2 };
    let pair = Cell::Pair(op(Kind::Forward, 0, 3), op(Kind::Backward, 2, 1));
    let work = [
        (Work::Cell(span.into()), 0.0, 1.0),
        (Work::Cell(op(Kind::Recompute, 2, 1).into()), 1.0, 2.0),
        (Work::Cell(op(Kind::BackwardInput, 2, 12).into()), 2.0, 3.0),
        (Work::Cell(pair), 3.0, 6.0),
        (Work::Reduce(BucketId(0)), 4.0, 6.0),
        (Work::Reduce(BucketId(1)), 5.0, 7.0),
        (Work::Cell(op(Kind::BackwardWeight, 0, 7).into()), 6.0, 7.0),
        (Work::Step(BucketId(0)), 7.0, 7.0),
        (Work::Step(BucketId(1)), 7.0, 8.0),
    ];
    let events =
        work.map(|(work, start, end)| Event { worker: WorkerId(0), work, start, end, after: None });
    let all = Timeline { n_workers: 1, events: events.to_vec() };
    assert_eq!(
        timeline(&all),
        "\
P0 a0-1 b1r  b12i a3+b1'-------- a7w  u1
 +                     g0+++g1+++++++
"
    );
}

#[test]
fn irregular_times_are_scaled() {
    let mut measured = drawn(ONE_F_ONE_B, 0.01);
    for (event, nth) in measured.events.iter_mut().zip(1..) {
        event.start += 1e-3 / f64::from(nth).sqrt();
    }
    assert_eq!(scaled(&measured, 0).lines().count(), 3);
    assert_eq!(
        scaled(&measured, 40),
        "\
P0 0---.1---.........0'=======....1'=======
P1 .....0---0'=======1---1'=======.........
- forward, = backward; + reduction, * update, . idle; total time 0.09
"
    );
    assert_eq!(timeline(&measured), scaled(&measured, SCALED_WIDTH));
}

#[test]
fn drawings_wider_than_the_screen_are_cut_into_bands() {
    let drawing = drawn(ONE_F_ONE_B, 1.0);
    let on = |width| timeline_on(&drawing, Screen { width: Some(width), ..Screen::PLAIN });
    assert_eq!(on(20), ONE_F_ONE_B);
    assert_eq!(
        on(13),
        "\
cells 1 to 5 of 9:
P0 0 1 . . 0'
P1 . 0 0'- 1
cells 6 to 9 of 9:
P0 - . 1'-
P1 1'- . .
"
    );
    assert!(on(1).lines().filter(|line| line.starts_with("P0 ")).count() == 9);
    let one_scaled =
        |width| scaled_on(&drawing, 40, Screen { width: Some(width), ..Screen::PLAIN });
    assert_eq!(one_scaled(43), scaled(&drawing, 40));
}

#[test]
fn work_is_painted_by_its_pipe() {
    let paint = |pipe: PipeId, text: &str| format!("<{}:{text}>", pipe.0);
    let painted = timeline_on(&drawn("P0 0 . 0'-\n", 1.0), Screen { width: None, paint: &paint });
    assert_eq!(painted, "P0 <0:0> . <0:0'->\n");
}

#[test]
fn senseless_times_are_drawn_somehow() {
    for (start, end) in [(0.0, f64::INFINITY), (f64::NAN, 1.0), (-5.0, -1.0), (3.0, 1.0)] {
        let mut timeline = drawn(ONE_F_ONE_B, 1.0);
        timeline.events[1].start = start;
        timeline.events[1].end = end;
        timeline.events[2].worker = WorkerId(9);
        assert!(super::timeline(&timeline).starts_with("P0 "));
    }
    assert_eq!(timeline(&Timeline::default()).lines().count(), 1);
}
