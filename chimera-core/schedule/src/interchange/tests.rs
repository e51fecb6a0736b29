//! Round trips and files that must be refused.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::form::MAX_COUNT;
use super::json::*;
use crate::costs::UniformCosts;
use crate::ir::graph::StageGraph;
use crate::ir::ids::{PipeId, Rank, StageId};
use crate::ir::op::{Cell, Kind, Op, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::ir::update::Update;
use crate::lower::{Lowering, lower, narrow};
use crate::schedule::{MAX_DEPTH, Shape, find};

const GOOD: &str = r#"{
  "schedule": "gpipe",
  "depth": 2,
  "stages": 2,
  "pipes": 1,
  "micro_batches": 1,
  "placement": [
    [0, 1]
  ],
  "rows": [
    [{"kind":"F","pipe":0,"stage":0,"micro_batches":[0]}, {"kind":"B","pipe":0,"stage":0,"micro_batches":[0]}],
    [{"pair":[{"kind":"F","pipe":0,"stage":1,"micro_batches":[0]},{"kind":"B","pipe":0,"stage":1,"micro_batches":[0]}]}]
  ]
}
"#;

fn refusal(json: &str) -> String {
    from_json(json.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_row_stands_on_a_line() {
    let timetable = from_json(GOOD.as_bytes()).unwrap();
    assert_eq!(timetable.n_ops(), 4);
    assert_eq!(to_json(&timetable), GOOD);
}

#[test]
fn one_wrong_thing_is_named() {
    for (from, to, reason) in [
        ("\"depth\": 2", "\"depth\": 3", "rows: 2 entries, but depth is 3"),
        ("\"depth\": 2", "\"depth\": 65536", "depth: 65536 is not in 1 to 65535"),
        (
            "\"depth\": 2",
            "\"depth\": -2",
            "depth: -2 is not a whole number from 1 to 65535 at line 3 column 13",
        ),
        ("\"depth\": 2", "\"depth\": NaN", "expected value at line 3 column 12"),
        ("\"depth\": 2", "\"depth\": 2.5", "depth: 2.5 is not a whole number from 1 to 65535"),
        ("\"depth\": 2", "\"depth\": 2, \"depth\": 2", "duplicate field `depth`"),
        ("\"depth\"", "\"dpeth\"", "unknown field `dpeth`, expected one of `schedule`, `depth`"),
        ("\"pipes\": 1", "\"pipes\": 0", "pipes: 0 is not in 1 to 65535"),
        ("\"stages\": 2", "\"stages\": 3", "placement[0]: 2 entries, but stages is 3"),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"graph\": {\"sources\": [0], \"edges\": [[1, 0]], \"losses\": [1]}",
            "graph: the edge from stage 1 to stage 0 goes back",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"graph\": {\"sources\": [0], \"edges\": [[0, 2]], \"losses\": [1]}",
            "graph: stage 2 does not exist: there are 2 stages",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"graph\": {\"sources\": [0], \"edges\": [], \"losses\": [0, 1]}",
            "graph: nothing reaches stage 1",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"graph\": {\"sources\": [0], \"edges\": [[0, 1]]}",
            "missing field `losses`",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"graph\": {\"sources\": [0], \"edges\": [[0, 70000]], \"losses\": [1]}",
            "stage: 70000 is not a whole number from 0 to 65535",
        ),
        ("\"pipes\": 1", "\"pipes\": 1, \"graph\": null", "invalid type: null"),
        ("\"pipes\": 1", "\"pipes\": 1, \"graph\": [[0], [], [1]]", "expected an object"),
        ("[0, 1]", "[0, 2]", "placement[0][1]: worker 2 is not below 2 (depth)"),
        ("[0, 1]", "[0, 70000]", "worker: 70000 is not a whole number from 0 to 65535 at line 8"),
        ("\"micro_batches\": 1", "\"micro_batches\": 0", "micro_batches: 0 is less than 1"),
        (
            "\"micro_batches\": 1",
            "\"micro_batches\": 4000000000",
            "4000000000 at 2 stages are more than",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"selective\": [[0, 2]]",
            "selective[0]: stage 2 is not below 2 (stages)",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"selective\": [[0, 1], [0, 1]]",
            "selective[1]: does not follow the one before",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"selective\": [[0, 1]]",
            "selective[0]: nothing of this stage is recomputed",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"counted_stages\": 3",
            "counted_stages: 3 is not in 1 to 2 (stages)",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"counted_stages\": 0",
            "counted_stages: 0 is not a whole number from 1 to 65535",
        ),
        ("\"pipes\": 1", "\"pipes\": 1, \"counted_stages\": null", "invalid type: null"),
        ("\"pipe\":0", "\"pipe\":-1", "pipe: -1 is not a whole number from 0 to 65535 at line"),
        (
            "es\":[0]",
            "es\":[4294967296]",
            "micro-batch: 4294967296 is not a whole number from 0 to 4294967295",
        ),
        ("\"pipes\": 1", "\"pipes\": 1, \"unit\": 0.7", "unit: 0.7 is not 1, 0.5"),
        ("\"pipes\": 1", "\"pipes\": 1, \"unit\": 1e-300", "another 1/k, with k up to 65536"),
        ("\"pipes\": 1", "\"pipes\": 1, \"unit\": null", "invalid type: null"),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"steps\": 1",
            "steps: a schedule with a flush has one step",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"update\": \"stash\"",
            "steps: is missing, and `update` needs it",
        ),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"update\": \"double-buffer\", \"steps\": 2",
            "steps: 2 does not divide micro_batches, 1",
        ),
        ("\"pipes\": 1", "\"pipes\": 1, \"update\": \"stash\", \"steps\": 0", "steps: 0 does"),
        (
            "\"pipes\": 1",
            "\"pipes\": 1, \"update\": \"never\"",
            "unknown variant `never`, expected one of `flush`, `each-step`, `stash`, `double-buffer`, `newest`, `predicted`",
        ),
        ("\"stage\":1", "\"stage\":9", "rows[1][0]: stage 9 is not below 2 (stages)"),
        ("\"pipe\":0", "\"pipe\":1", "rows[0][0]: pipe 1 is not below 1 (pipes)"),
        (
            "\"kind\":\"F\"",
            "\"kind\":\"X\"",
            "unknown kind `X`: choose one of F, B, I, W, R, O, L, K, T",
        ),
        ("\"kind\":\"F\"", "\"kind\":\"F\\u001b\"", "unknown kind `F\u{fffd}`"),
        ("\"kind\":\"F\",", "", "a cell has `kind`, `pipe`, `stage` and `micro_batches`"),
        ("es\":[0]", "es\":[1]", "rows[0][0]: micro-batch 1 is not below 1"),
        ("es\":[0]", "es\":[4294967295]", "micro-batch 4294967295 is not below 1"),
        ("es\":[0]", "es\":[4294967295,0]", "micro-batch 0 does not follow"),
        ("es\":[0]", "es\":[]", "`micro_batches` is empty: an op has one or more"),
        ("es\":[0]", "es\":[0,2]", "micro-batch 2 does not follow"),
        ("es\":[0]", "es\":0", "expected micro-batch ids"),
        ("{\"pair\":[", "{\"pair\":[[],", "expected an object"),
        ("{\"pair\":[", "{\"stage\":0,\"pair\":[", "or only `pair`"),
        ("{\"pair\":[", "{\"pair\":[]},{\"pair\":[", "a list of two has no entry at line"),
        (
            "{\"pair\":[",
            "{\"pair\":[{\"kind\":\"F\",\"pipe\":0,\"stage\":1,\"micro_batches\":[0]}]},{\"pair\":[",
            "a list of two has only one entry at line",
        ),
        ("]}]}", "]},{}]}", "a list of two has more than two entries at line"),
        ("gpipe", "\\u0000", "schedule: has more than 256 bytes or control characters"),
        ("gpipe", "g\u{202e}pipe", "such as those that change the direction of text"),
        ("gpipe", "g\\u2067pipe", "such as those that change the direction of text"),
        ("]\n}", "]\n} x", "trailing characters"),
    ] {
        let bad = GOOD.replacen(from, to, 1);
        assert_ne!(bad, GOOD, "{from}");
        let refusal = refusal(&bad);
        assert!(refusal.contains(reason), "{to}: {refusal}");
    }
}

#[test]
fn hostile_files_are_refused() {
    let deep = GOOD.replace("[0, 1]", &"[".repeat(1 << 20));
    let many = GOOD.replace("[0, 1]", &vec!["[]"; MAX_COUNT + 1].join(","));
    let empty_cells = GOOD.replace("{\"kind\"", &("{},".repeat(1 << 20) + "{\"kind\""));
    let long_key = GOOD.replace("depth", &"d".repeat(1 << 20));
    let ids: Vec<String> = (0..70_000).map(|id| id.to_string()).collect();
    let long_span = GOOD.replacen("es\":[0]", &format!("es\":[{}]", ids.join(",")), 1);
    for bad in [&deep, &many, &empty_cells, &long_key, &long_span] {
        assert!(refusal(bad).len() < 400);
    }
    for bad in ["", "null", "[]", "{}", "\"\"", "1", "{\"rows\":", "\u{feff}{}"] {
        refusal(bad);
    }
    assert!(refusal(r#"["x",1,1,1,1,1.0,[[0]],[[]]]"#).contains("expected an object"));
    assert!(matches!(from_json(&vec![b' '; MAX_BYTES + 1]), Err(ReadError::TooLong)));
    assert!(from_json(b"\xff\xfe").is_err());
}

#[test]
fn every_truncation_is_refused() {
    for end in 0..GOOD.trim_end().len() {
        refusal(&GOOD[..end]);
    }
}

fn any_op(depth: u16, n_pipes: u16, n_units: u32) -> impl Strategy<Value = Op> {
    let kind = prop::sample::select(Kind::ALL.to_vec());
    (kind, 0..n_pipes, 0..depth, 0..n_units, 1..4u16).prop_map(move |(kind, p, s, start, len)| Op {
        kind,
        pipe: PipeId(p),
        stage: StageId(s),
        span: Span { start, len: len.min((n_units - start) as u16) },
    })
}

fn any_timetable() -> impl Strategy<Value = Timetable> {
    (1..4u16, 1..3u16, 1..5u32, 1..4u32).prop_flat_map(|(half, f, n, units)| {
        let depth = 2 * half;
        let op = move || any_op(depth, 2 * f, n * units);
        let cell =
            prop_oneof![op().prop_map(Cell::One), (op(), op()).prop_map(|(a, b)| Cell::Pair(a, b))];
        let len = (n * units) as usize;
        let row = prop::collection::vec(cell, len..2 * len);
        let rows = prop::collection::vec(row, usize::from(depth));
        let update = prop::sample::select(vec![
            Update::Flush,
            Update::EachStep { n_steps: n },
            Update::Stash { n_steps: n },
            Update::DoubleBuffer { n_steps: 1 },
        ]);
        let any = (rows, ".{0,20}", update, any::<bool>(), any::<[bool; 2]>());
        any.prop_map(move |(rows, name, update, on_demand, [is_graph, is_sliced])| Timetable {
            schedule: name.chars().filter(|c| !is_unprintable(*c)).collect(),
            placement: Placement::mirrored(usize::from(depth), usize::from(f)),
            graph: skipping(usize::from(depth), is_graph),
            n_micro_batches: n,
            micro_batches_of: Vec::new(),
            units_per_micro: units,
            is_sliced: is_sliced && units > 1,
            update,
            selective: recomputed(&rows)
                .filter(|(_, stage)| stage.0 % 2 == depth / 2 % 2)
                .collect(),
            on_demand,
            frozen: Vec::new(),
            rows,
        })
    })
}

/// The timetable of a job that lost ranks is read back, with the same micro-batches in its peaks.
#[test]
fn a_narrowed_timetable_is_read_back_with_its_peaks() {
    for (schedule, n_micro_batches) in [("gems", 5), ("chimera", 8)] {
        let shape = Shape::new(8, n_micro_batches);
        let whole = find(schedule).unwrap().timetable(&shape).unwrap();
        let left = narrow(&whole, 1, &[Rank(6)], &UniformCosts::EQUAL).unwrap();
        let read = from_json(to_json(&left).as_bytes()).unwrap();
        assert_eq!(read, left);
        let [of_read, of_left] =
            [read, left].map(|t| lower(&t, &Lowering::default()).unwrap().peaks().to_vec());
        assert_eq!(of_read, of_left);
    }
}

/// The message must have the true length of the file.
#[test]
fn a_file_that_is_too_long_is_refused_with_the_limit() {
    let long = from_json(&vec![b' '; MAX_BYTES + 1]).unwrap_err().to_string();
    assert_eq!(long, "the file has more than 64 MiB, the most that is read");
}

/// Every timetable that schedules can make is read back, and a few bytes never allocate much
/// memory.
#[test]
fn as_many_workers_stages_and_pipes_are_read_as_are_made() {
    let deep = find("dapple").unwrap().timetable(&Shape::new(MAX_DEPTH, 1)).unwrap();
    let chunks = Shape { n_chunks: 1 << 14, ..Shape::new(2, 2) };
    let long = find("interleaved").unwrap().timetable(&chunks).unwrap();
    let sliced = find("seq1f1b").unwrap().timetable(&Shape { n_slices: 100, ..Shape::new(2, 2) });
    let most = Shape { n_slices: 1 << 16, ..Shape::new(1, 1) };
    let most = find("seq1f1b").unwrap().timetable(&most);
    for timetable in [deep, long, sliced.unwrap(), most.unwrap()] {
        assert_eq!(from_json(to_json(&timetable).as_bytes()).unwrap(), timetable);
    }
    let n = 1 << 15;
    let lists = |list: String| vec![list; n].join(",");
    let op = |kind| format!(r#"{{"kind":"{kind}","pipe":0,"stage":0,"micro_batches":[0]}}"#);
    let many = format!(
        r#"{{"schedule":"x","depth":{n},"stages":1,"pipes":{n},"micro_batches":1,
            "placement":[{}],"rows":[[{},{}],{}]}}"#,
        lists("[0]".into()),
        op("F"),
        op("B"),
        vec!["[]"; n - 1].join(","),
    );
    let many = from_json(many.as_bytes()).unwrap();
    assert_eq!(lower(&many, &Lowering::default()).unwrap().peaks()[0], 1.0);
}

/// A chain, or a chain with an edge from the first to the last stage and a loss at every other
/// stage.
fn skipping(n_stages: usize, is_graph: bool) -> StageGraph {
    let last = n_stages as u16 - 1;
    let edges: Vec<_> = (0..last).map(|s| (s, s + 1)).chain([(0, last)]).collect();
    let losses: Vec<_> = (0..=last).filter(|stage| (last - stage).is_multiple_of(2)).collect();
    if is_graph && n_stages > 2 {
        StageGraph::new(n_stages, &[0], &edges, &losses).expect("a graph")
    } else {
        StageGraph::chain(n_stages)
    }
}

fn recomputed(rows: &[Vec<Cell>]) -> impl Iterator<Item = (PipeId, StageId)> + use<> {
    let ops = rows.iter().flatten().flat_map(Cell::ops);
    let stages: BTreeSet<_> =
        ops.filter(|op| op.kind == Kind::Recompute).map(|op| (op.pipe, op.stage)).collect();
    stages.into_iter()
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(timetable in any_timetable()) {
        let json = to_json(&timetable);
        prop_assert_eq!(from_json(json.as_bytes()).unwrap(), timetable);
    }

    #[test]
    fn no_byte_makes_it_panic(at in 0..GOOD.len(), byte: u8) {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] = byte;
        let _ = from_json(&bytes);
    }
}
