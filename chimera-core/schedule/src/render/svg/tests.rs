use super::sheet::DIGIT;
use super::*;
use crate::analyze::Event;
use crate::ir::ids::{BucketId, PipeId, StageId, WorkId, WorkerId};
use crate::ir::op::{Kind, Op};

fn busy(n_workers: u16, n_events: u32, lasts: f64) -> Timeline {
    let events = (0..n_workers).flat_map(|worker| {
        (0..n_events).map(move |nth| Event {
            worker: WorkerId(worker),
            work: Work::Cell(Op::new(Kind::Forward, PipeId(0), StageId(worker), nth).into()),
            start: f64::from(nth) * lasts,
            end: f64::from(nth + 1) * lasts,
            after: None,
        })
    });
    Timeline { n_workers: usize::from(n_workers), events: events.collect() }
}

#[test]
fn links_that_flows_share_have_rows() {
    use crate::analyze::links::Loaded;
    use crate::lower::{Lowering, lower};
    use crate::schedule::{Shape, find};

    let timetable = find("1f1b").unwrap().timetable(&Shape::new(2, 2)).unwrap();
    let program = lower(&timetable, &Lowering::default()).unwrap();
    let loaded = |n_flows, used| Loaded { from: 0.0, to: 1.0, n_flows, used };
    let load = |name: &str, n_flows, used| LinkLoad {
        name: name.into(),
        is_contended: n_flows > 1,
        loaded: vec![loaded(n_flows, used)],
    };
    let loads = [load("a > b", 3, 0.5), load("b > c", 1, 1.0)];
    let drawing = on_links(&program, &busy(2, 4, 0.5), "on links", &loads);
    assert!(drawing.contains("a &gt; b") && !drawing.contains("b &gt; c"));
    assert!(drawing.contains("3 flow(s), 50 % of the bandwidth: 0 to 1"), "{drawing}");
    assert_eq!(
        on_links(&program, &busy(2, 4, 0.5), "t", &[]),
        step(&program, &busy(2, 4, 0.5), "t")
    );
}

#[test]
fn every_block_has_its_place_and_label() {
    let drawing = timeline(&busy(2, 4, 0.5), "two");
    let block = r#"<rect x="277.00" y="92.00" width="220.00" height="28.00" rx="2.50" class="d0F"><title>F(pipe 0, stage 1, micro-batch 1): 0.5 to 1</title></rect>"#;
    assert!(drawing.contains(block), "{drawing}");
    assert!(drawing.contains("2 workers · makespan 2 · bubble ratio 0.0 %"));
    assert_eq!(drawing.matches(r#"class="mid dark""#).count(), 8);
}

/// Font sizes of the labels in a drawing.
fn label_sizes(drawing: &str) -> Vec<f64> {
    let labels = drawing.lines().filter_map(|line| line.split_once("font-size=\""));
    let sizes = labels.filter_map(|(_, rest)| rest.split_once('"')?.0.parse().ok());
    sizes.collect()
}

#[test]
fn a_label_is_as_large_as_its_block_has_room_for() {
    let sizes = label_sizes(&timeline(&busy(1, 240, 1.0), "two and three digits"));
    assert_eq!(sizes.len(), 240, "none is left out");
    assert!(sizes[0] > 12.0 && sizes[50] < sizes[0] && sizes[200] < sizes[50], "{sizes:?}");
    for (nth, size) in sizes.iter().enumerate() {
        let width = (WIDEST * WIDTH - LEFT - MARGIN) / 240.0 - 1.0;
        assert!(nth.to_string().len() as f64 * DIGIT * size <= width, "{nth}: {size}");
    }
    assert!(label_sizes(&timeline(&busy(1, 700, 1.0), "too many")).len() < 700);
}

#[test]
fn the_legend_names_own_works() {
    let mut works = busy(1, 1, 1.0);
    for nth in 0..2 {
        let op = Op::new(Kind::Work(WorkId(nth)), PipeId(0), StageId(0), 0);
        let start = 1.0 + f64::from(nth);
        works.events.push(Event {
            worker: WorkerId(0),
            work: Work::Cell(op.into()),
            start,
            end: start + 1.0,
            after: None,
        });
    }
    let unnamed = timeline(&works, "works");
    assert_eq!(unnamed.matches(">work beside the training<").count(), 1, "{unnamed}");
    let named = drawing(&[("works", &works)], vec!["a<b".into(), "inverses".into()], &[]);
    for name in [">work: a&lt;b<", ">work: inverses<"] {
        assert!(named.contains(name), "{name}: {named}");
    }
    assert!(!named.contains("work beside the training<"), "{named}");
}

#[test]
fn panels_share_the_scale_of_time() {
    let (long, short) = (busy(1, 4, 1.0), busy(1, 2, 1.0));
    let drawing = stack(&[("long", &long), ("short", &short)]);
    assert_eq!(drawing.matches(r#"width="220.00""#).count(), 6);
    assert!(drawing.contains("<title>long; short</title>"));
}

#[test]
fn titles_are_escaped() {
    let drawing = timeline(&busy(1, 1, 1.0), "</title><script>\"&\u{1b}");
    assert!(drawing.contains("<title>&lt;/title&gt;&lt;script&gt;&quot;&amp;</title>"));
    assert!(!drawing.contains("<script>"));
}

#[test]
fn size_does_not_grow_with_the_number_of_events() {
    let few = timeline(&busy(4, 2_000, 1.0), "few").len();
    let many = timeline(&busy(4, 200_000, 1.0), "many").len();
    assert!(many < 2 * few, "{few} bytes, {many} bytes");
}

#[test]
fn reductions_that_overlap_lie_in_lanes() {
    let mut both = busy(1, 4, 1.0);
    for bucket in 0..2 {
        both.events.push(Event {
            worker: WorkerId(0),
            work: Work::Reduce(BucketId(bucket)),
            start: f64::from(bucket),
            end: 3.0,
            after: None,
        });
    }
    let drawing = timeline(&both, "sums");
    for y in ["89.00", "96.00"] {
        assert!(drawing.contains(&format!(r#"y="{y}""#)), "{drawing}");
    }
}

#[test]
fn senseless_times_leave_no_nan() {
    for (start, end) in [(0.0, f64::INFINITY), (f64::NAN, 1.0), (-5.0, -1.0), (3.0, 1.0)] {
        let mut timeline = busy(1, 3, 1.0);
        (timeline.events[1].start, timeline.events[1].end) = (start, end);
        let drawing = super::timeline(&timeline, "senseless");
        assert!(!drawing.contains("\"NaN") && !drawing.contains("\"inf"), "{drawing}");
    }
    assert!(timeline(&Timeline::default(), "empty").ends_with("</svg>\n"));
}
