//! Round trips and files that must be refused.

mod messages;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::interchange::form::MAX_COUNT;
use crate::interchange::json::{MAX_BYTES, ReadError};
use crate::ir::ids::StageId;
use crate::ir::op::{Kind, Span};
use crate::lower::{Lowering, lower};
use crate::schedule::{SCHEDULES, Scaling, Shape, find};

const GOOD: &str = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n";

fn read(text: &str) -> Result<Timetable, ReadError> {
    from_csv(text.as_bytes(), "mine")
}

fn refusal(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn csv(schedule: &str, shape: Shape, pipe: u16) -> Result<String, String> {
    let timetable = find(schedule).unwrap().timetable(&shape).unwrap();
    to_csv(&timetable, PipeId(pipe)).map_err(|e| e.to_string())
}

#[test]
fn a_timetable_that_is_read_is_written_again_and_proven() {
    let timetable = read(GOOD).unwrap();
    assert_eq!((timetable.n_micro_batches, timetable.placement.n_stages()), (2, 2));
    assert_eq!(to_csv(&timetable, PipeId(0)).unwrap(), GOOD);
    lower(&timetable, &Lowering::default()).unwrap();
}

#[test]
fn files_of_spreadsheets_and_pytorch_are_read() {
    let same = read(GOOD).unwrap();
    for text in [
        "\u{feff}0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1I1,1W1\r\n",
        ",0F0,0F1,,,0B0,0B1,\n,,1F0,1B0,1F1,1I1,1W1",
        "\"0F0\",\"0F1\",0B0,0B1,\"\"\n 1F0 ,\t1B0,1F1,\" 1I1 \",1W1\n",
        "00F0,0F01,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n",
        "\u{a0}0F0,0F1\u{a0},\u{3000},0B0,0B1\r\r\n1F0,1B0,1F1,1I1,1W1\u{a0}\n\u{a0}",
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n\n \t\r\n\n",
    ] {
        assert_eq!(read(text).unwrap(), same, "{text}");
    }
}

#[test]
fn a_pair_is_one_cell() {
    let text = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n";
    let timetable = read(text).unwrap();
    let op = |kind, unit| Op { kind, pipe: PipeId(0), stage: StageId(0), span: Span::one(unit) };
    assert_eq!(timetable.rows[0][1], Cell::Pair(op(Kind::Forward, 1), op(Kind::Backward, 0)));
    assert_eq!(to_csv(&timetable, PipeId(0)).unwrap(), text);
    assert_eq!(read("0F0,( 0F1 ; 0B0 )OVERLAP_F_B,0B1\n").unwrap(), timetable);
}

#[test]
fn one_wrong_thing_is_named_with_row_and_column() {
    for (from, to, refused) in [
        ("0F1", "0F1junk", "row 1 (rank 0), column 2: `0F1junk`: something follows the action"),
        ("0F1", "0F1 0B0", "row 1 (rank 0), column 2: `0F1 0B0`: something follows"),
        ("0B0", "0BW0", "row 1 (rank 0), column 3: `0BW0`: unknown type: choose F, B, I or W"),
        ("0B0", "0b0", "column 3: `0b0`: unknown type"),
        ("0B0", "0R0", "column 3: `0R0`: unknown type"),
        ("0B0", "0", "column 3: `0`: unknown type"),
        ("0B0", "0SEND_F0", "row 1 (rank 0), column 4: 0B1 needs 0RECV_B1 before it"),
        (
            "1B0",
            "1B",
            "row 2 (rank 1), column 2: `1B`: the micro-batch is missing: write stage, type",
        ),
        ("1B0", "B0", "column 2: `B0`: the stage is missing"),
        ("1B0", "-1B0", "`-1B0`: the stage is missing"),
        ("1B0", "+1B0", "`+1B0`: the stage is missing"),
        ("1B0", "1B-0", "`1B-0`: unknown type"),
        ("1B0", "1 B0", "`1 B0`: unknown type"),
        ("1B0", "\u{661}B0", "`\u{661}B0`: the stage is missing"),
        ("1B0", "1B4294967295", "`1B4294967295`: the micro-batch is too large"),
        ("1B0", "1B99999999999999999999999", "the micro-batch is too large"),
        ("1B0", "70000B0", "the stage is too large"),
        ("1B0", "65535B0", "row 2 (rank 1), column 2: stage 65535 is not below 65535"),
        ("1B0", "99999999999999999999B0", "the stage is too large"),
        ("1B0", "1B0\u{1b}[31m", "`1B0\u{fffd}[31m`: something follows"),
        ("1B0", "1B\0", "`1B\u{fffd}`: unknown type"),
        ("1F1", "\"1F1", "`\"1F1`: the stage is missing"),
        ("1F1", "1F1\r1B1", "something follows"),
        ("1B0", "(1F1;1B0", "the `)` is missing"),
        ("1B0", "(1F1;1B0)", "a pair ends in `)OVERLAP_F_B`"),
        ("1B0", "(1F1;1B0)OVERLAP_F_Bx", "a pair ends in"),
        ("1B0", "(1F1)OVERLAP_F_B", "a pair has two actions"),
        ("1B0", "(1F1;1B0;1B1)OVERLAP_F_B", "a pair has two actions"),
        ("1B0", "(1F1;1W0)OVERLAP_F_B", "a pair is of one F and one B or I"),
        ("1B0", "(1F1;)OVERLAP_F_B", "the stage is missing"),
        ("1B0", "((1F1;1B0)OVERLAP_F_B;1W0)OVERLAP_F_B", "a pair ends in"),
        (
            "1B0",
            "0B0",
            "row 2 (rank 1), column 2: stage 0 is on rank 0 already, at row 1 (rank 0), column 1; a \
             stage is on one rank, and a bidirectional schedule has one file per direction",
        ),
        ("1B0", "3B0", "row 2 (rank 1), column 2: stage 2 is on no rank, but 3 is"),
        ("0B1", "0B0", "row 1 (rank 0), column 4: a second 0B0"),
        ("1B0", "1W1", "row 2 (rank 1), column 5: a second 1W1"),
        ("0F0", "# mine", "row 1 (rank 0), column 1: `# mine`: the file has no comments"),
        ("0F0,0F1", "0F0;0F1", "column 1: `0F0;0F1`: something follows the action: one"),
        ("0B0", "0b0", "column 3: `0b0`: unknown type: choose F, B, I or W, in capitals"),
        ("0B0", "None", "column 3: `None`: the stage is missing"),
        ("1B0", "1B7", "row 2 (rank 1), column 2: micro-batch 7 has no forward"),
        ("1F1", "1F0", "row 2 (rank 1), column 3: a second 1F0"),
        ("0F1", "0F0", "row 1 (rank 0), column 2: a second 0F0"),
        ("1F1", "", "row 2 (rank 1), column 6: 1F1 is missing: each of the micro-batches 0 to 1"),
        (
            "0F1",
            "0F4000000000",
            "row 1 (rank 0), column 5: 0F1 is missing: each of the micro-batches",
        ),
        ("0F0,0F1,0B0,0B1\n", "\n", "row 1 (rank 0), column 1: the row has no action"),
        ("0B1\n1F0", "0B1\n\n1F0", "row 2 (rank 1), column 1: the row has no action"),
        ("1W1\n", "1W1\n,\n", "row 3 (rank 2), column 2: the row has no action"),
    ] {
        let bad = GOOD.replacen(from, to, 1);
        assert_ne!(bad, GOOD, "{from}");
        let refusal = refusal(&bad);
        assert!(refusal.contains(refused), "{to}: {refusal}");
    }
}

#[test]
fn timetables_that_csv_cannot_express_are_refused() {
    let halving = Shape { scaling: Scaling::Halving, ..Shape::new(4, 4) };
    assert_eq!(
        csv("chimera", halving, 0).unwrap_err(),
        "chimera cannot be written as PyTorch's CSV: its micro-batches are cut into 2; JSON holds every \
         timetable"
    );
    assert!(
        csv("chimera", Shape::new(4, 1), 1).unwrap_err().contains("no micro-batch goes through")
    );
    let mut timetable = read(GOOD).unwrap();
    timetable.rows[0].remove(3);
    let row = &mut timetable.rows[0];
    let Cell::One(op) = row[2] else { panic!("{row:?}") };
    row[2] = Op { span: Span { len: 2, ..op.span }, ..op }.into();
    assert!(to_csv(&timetable, PipeId(0)).unwrap_err().reason.contains("several micro-batches"));
    timetable.rows[0][2] = Op { kind: Kind::Recompute, ..op }.into();
    assert!(to_csv(&timetable, PipeId(0)).unwrap_err().reason.contains("cannot express R("));
    timetable.rows[0][2] = Cell::Pair(op, op);
    assert!(to_csv(&timetable, PipeId(0)).unwrap_err().reason.contains("a forward and a backward"));
    timetable.rows[0].clear();
    assert!(
        to_csv(&timetable, PipeId(0)).unwrap_err().reason.contains("worker 0 has nothing to do")
    );
}

#[test]
fn hostile_files_are_refused() {
    for bad in ["", "\n", ",", "\u{feff}", "null", "{}", "0B0", "0W0", "(", ")"] {
        refusal(bad);
    }
    let refusal_of = |bytes: &[u8]| from_csv(bytes, "x").unwrap_err().to_string();
    let at = refusal_of(b"0F0,0B0\n1F0,1B0,\xff");
    assert!(at.starts_with("row 2 (rank 1), column 3: the file is not UTF-8"), "{at}");
    let utf16 = refusal_of(b"\xff\xfe0\0F\x000\0");
    assert!(utf16.starts_with("row 1 (rank 0), column 1: the file is not UTF-8"), "{utf16}");
    assert!(matches!(from_csv(&vec![b' '; MAX_BYTES + 1], "x"), Err(ReadError::TooLong)));
    let many_rows: String = (0..=MAX_COUNT).map(|row| format!("{row}F0,{row}B0\n")).collect();
    assert!(refusal(&many_rows).contains("row 65536 (rank 65535), column 1: more than 65535 rows"));
    for long in ["0", "F", "(", "\"", ","] {
        assert!(refusal(&long.repeat(1 << 20)).len() < 300);
    }
    assert!(refusal(&"0F0,".repeat((1 << 22) + 1)).contains("more than 4194304 actions"));
}

#[test]
fn truncations_are_refused_here_or_by_the_proof() {
    let first_row = GOOD.find('\n').unwrap(); // complete by itself: the schedule of one worker
    for end in (0..GOOD.trim_end().len()).filter(|end| !(first_row..first_row + 2).contains(end)) {
        let proven = read(&GOOD[..end]).is_ok_and(|t| lower(&t, &Lowering::default()).is_ok());
        assert!(!proven, "{end} bytes");
    }
}

/// Timetables of one pipe with all forwards, in any order.
fn any_timetable() -> impl Strategy<Value = Timetable> {
    (1..5usize, 1..3usize, 1..5u32).prop_flat_map(|(depth, chunks, n)| {
        let placement = crate::ir::placement::Placement::interleaved(depth, chunks);
        let row = move |worker| {
            let stages = placement_stages(depth, chunks, worker);
            let op = |kind, stage, m| Op { kind, pipe: PipeId(0), stage, span: Span::one(m) };
            let cells: Vec<Cell> = stages
                .into_iter()
                .flat_map(|stage| {
                    (0..n).flat_map(move |m| {
                        let back = op(Kind::Backward, stage, m);
                        let halves = [Kind::BackwardInput, Kind::BackwardWeight];
                        let halves = halves.map(|kind| Cell::One(op(kind, stage, n - 1 - m)));
                        let forward = op(Kind::Forward, stage, m);
                        let first = match m % 2 {
                            0 => Cell::One(forward),
                            _ => Cell::Pair(forward, back),
                        };
                        [first].into_iter().chain(halves)
                    })
                })
                .collect();
            Just(cells).prop_shuffle()
        };
        let rows: Vec<_> = (0..depth).map(row).collect();
        rows.prop_map(move |rows| Timetable::new("mine", placement.clone(), n, rows))
    })
}

fn placement_stages(depth: usize, chunks: usize, worker: usize) -> Vec<StageId> {
    (0..chunks).map(|c| StageId((c * depth + worker) as u16)).collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(timetable in any_timetable()) {
        let csv = to_csv(&timetable, PipeId(0)).unwrap();
        prop_assert_eq!(read(&csv).unwrap(), timetable);
    }

    #[test]
    fn no_byte_makes_it_panic(at in 0..GOOD.len(), byte: u8) {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] = byte;
        let _ = from_csv(&bytes, "x");
    }

    /// Accepted text can be written, and reads back the same.
    #[test]
    fn accepted_text_has_one_meaning(text in "(([01][FBIW][01],?){1,5}\n){1,3}") {
        if let Ok(timetable) = read(&text) {
            let csv = to_csv(&timetable, PipeId(0)).unwrap();
            prop_assert_eq!(read(&csv).unwrap(), timetable);
        }
    }
}

fn comms(schedule: &str, shape: Shape) -> Result<String, String> {
    let timetable = find(schedule).unwrap().timetable(&shape).unwrap();
    let program = lower(&timetable, &Lowering::default()).unwrap();
    to_comms_csv(&program).map_err(|e| e.to_string())
}

#[test]
fn messages_stand_in_the_one_order() {
    assert_eq!(
        comms("1f1b", Shape::new(2, 2)).unwrap(),
        "0F0,0SEND_F0,0F1,0WAIT_SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1,\
         0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0WAIT_SEND_F1\n\
         1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1WAIT_SEND_B0,1SEND_B1,\
         1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B1\n"
    );
    let refusal = comms("pipedream", Shape::new(2, 2)).unwrap_err();
    assert!(refusal.contains("updates weights while micro-batches are on their way"), "{refusal}");
}

#[test]
fn pipes_are_virtual_stages() {
    assert_eq!(
        comms("chimera", Shape::new(2, 2)).unwrap(),
        "0F0,0SEND_F0,3RECV_F1,0RECV_B0,3F1,3B1,0WAIT_SEND_F0,3SEND_B1,0B0,\
         3REDUCE_GRAD,3WAIT_REDUCE_GRAD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,3WAIT_SEND_B1\n\
         1RECV_F0,2F1,2SEND_F1,1F0,1B0,2WAIT_SEND_F1,1SEND_B0,2RECV_B1,2B1,\
         1REDUCE_GRAD,1WAIT_REDUCE_GRAD,2REDUCE_GRAD,2WAIT_REDUCE_GRAD,1WAIT_SEND_B0\n"
    );
    let halving = Shape { scaling: Scaling::Halving, ..Shape::new(4, 8) };
    assert!(comms("chimera", halving).unwrap_err().contains("are cut into 2"));
    let mut together = read("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n").unwrap();
    for row in &mut together.rows {
        let Cell::One(op) = row.remove(1) else { panic!("{row:?}") };
        row[0] = Op { span: Span { start: 0, len: 2 }, ..op }.into();
    }
    let refusal = to_comms_csv(&lower(&together, &Lowering::default()).unwrap()).unwrap_err();
    assert!(refusal.reason.contains("several micro-batches at once"), "{refusal}");
}

/// PyTorch's messages have no tags, so the peer must receive in the order in which they are sent.
#[test]
fn messages_between_two_ranks_are_received_as_they_are_sent() {
    let shapes = [Shape::new(4, 8), Shape::new(4, 5), Shape::new(3, 6), Shape::new(2, 1)];
    let four_pipes = Shape { n_pipes: 4, ..Shape::new(4, 8) };
    let mut n_tried = 0;
    for (schedule, shape) in SCHEDULES
        .iter()
        .flat_map(|s| shapes.iter().chain([&four_pipes]).map(move |shape| (s, shape)))
    {
        let Ok(timetable) = schedule.timetable(shape) else { continue };
        let program = lower(&timetable, &Lowering::default()).unwrap();
        let Ok(csv) = to_comms_csv(&program) else { continue };
        n_tried += 1;
        let places: Vec<usize> =
            program.placement().pipes().iter().flatten().map(|worker| worker.index()).collect();
        // Messages in flight by sender and receiver: direction, sending stage, micro-batch.
        let mut sent = BTreeMap::new();
        let mut received = BTreeMap::new();
        for (rank, row) in csv.lines().enumerate() {
            for action in row.split(',') {
                let Some((stage, what)) = action.split_once(['S', 'R']) else { continue };
                let Ok(stage) = stage.parse::<usize>() else { continue };
                let (message, is_forward) = match what.split_once('_') {
                    Some((word, message)) if ["END", "ECV"].contains(&word) => {
                        (message, message.starts_with('F'))
                    }
                    _ => continue,
                };
                let (from, to) = match (what.starts_with("END"), is_forward) {
                    (true, true) => (stage, stage + 1),
                    (true, false) => (stage, stage - 1),
                    (false, true) => (stage - 1, stage),
                    (false, false) => (stage + 1, stage),
                };
                let (on, side) =
                    if what.starts_with("END") { (from, &mut sent) } else { (to, &mut received) };
                assert_eq!(places[on], rank, "{}: {action}", program.schedule());
                let all: &mut Vec<_> = side.entry((places[from], places[to])).or_default();
                all.push((from, message.to_string()));
            }
        }
        assert!(sent == received, "{} at {shape:?}", program.schedule());
    }
    assert!(n_tried > 30, "{n_tried}");
}
