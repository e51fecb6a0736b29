use super::*;
use crate::costs::UniformCosts;
use crate::lower::{Lowering, bpipe, lower, offload};
use crate::schedule::{Shape, find};

fn program(schedule: &str, shape: Shape) -> Program {
    let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
    lower(&timetable, &Lowering::default()).expect("proven")
}

/// All ranks of one group, each with one of these instructions as its next.
fn scene<'p>(program: &'p Program, at: &[Option<&str>]) -> HangReport<'p> {
    let find = |(row, at): (&Vec<Instr>, &Option<&str>)| {
        let words = (*at)?;
        let is_it = |instr: &Instr| format!("{instr:?}").starts_with(words);
        let instr = row.iter().position(is_it).unwrap_or_else(|| panic!("{words}: {row:#?}"));
        Some(Position::At { step: 4, instr: instr as u32 })
    };
    let positions: Vec<_> = program.rows().iter().zip(at).map(find).collect();
    HangReport { program, step: 4, earlier: positions.clone(), positions }
}

/// Rank 0 of 1F1B on three workers waits for the gradient of its last micro-batch.
fn waits_in_line(last: [Option<&str>; 2]) -> Diagnosis {
    let program = program("dapple", Shape::new(3, 3));
    let need = "Recv(gradient(pipe 0, stage 1, micro-batch 1)";
    let scene = scene(&program, &[Some(need), last[0], last[1]]);
    let Some(Instr::Recv(token, _)) = scene.instr(Rank(0)) else { panic!("no receive") };
    scene.diagnosis(Rank(0), Rank(1), Need::Token(token))
}

#[test]
fn a_rank_in_compute_is_stalled() {
    let diagnosis = waits_in_line([Some("Run(B(pipe 0, stage 1, micro-batch 1))"), None]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Stalled, Rank(1)));
    assert_eq!(
        diagnosis.to_string(),
        "; rank 1 last finished F(pipe 0, stage 1, micro-batch 2) and is in \
         B(pipe 0, stage 1, micro-batch 1): stalled in compute"
    );
}

/// Between steps a rank may write files, so standing still there is no reason to evict it.
#[test]
fn a_rank_at_an_instruction_makes_no_progress() {
    let program = program("dapple", Shape::new(2, 2));
    let at = |instr| Some(Position::At { step: 4, instr });
    let stands_still = |row_1: Option<Position>| {
        let positions = vec![at(0), row_1];
        let report =
            HangReport { program: &program, step: 4, earlier: positions.clone(), positions };
        let diagnosis = report.diagnosis(Rank(0), Rank(1), Need::Other);
        assert_eq!(diagnosis.rank, Rank(1));
        report.stands_still(&diagnosis)
    };
    let end = program.rows()[1].len() as u32;
    let is_run = |instr: &Instr| matches!(instr, Instr::Run(_));
    let op = program.rows()[1].iter().position(is_run).expect("an op") as u32;
    assert!(stands_still(None) && stands_still(at(op)));
    assert!(!stands_still(at(end)) && !stands_still(Some(Position::Start)));
}

#[test]
fn a_chain_of_waits_ends_at_the_first_that_does_not_advance() {
    let waits = Some("Recv(gradient(pipe 0, stage 2, micro-batch 1)");
    let diagnosis = waits_in_line([waits, Some("Run(B(pipe 0, stage 2, micro-batch 1))")]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Stalled, Rank(2)));
    assert_eq!(
        diagnosis.to_string(),
        ", which waits for gradient(pipe 0, stage 2, micro-batch 1) from rank 2; rank 2 last finished \
         F(pipe 0, stage 2, micro-batch 1) and is in B(pipe 0, stage 2, micro-batch 1): stalled in compute"
    );
}

#[test]
fn a_silent_rank_is_known_by_its_messages() {
    let waits = Some("Recv(gradient(pipe 0, stage 2, micro-batch 1)");
    let diagnosis = waits_in_line([waits, None]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Silent, Rank(2)));
    assert!(
        diagnosis.to_string().ends_with(
            "; rank 2 does not answer and is known to have finished \
             B(pipe 0, stage 2, micro-batch 0): stopped, or out of reach"
        ),
        "{diagnosis}"
    );
}

#[test]
fn a_sent_message_is_lost() {
    let is_past = Some("Run(B(pipe 0, stage 1, micro-batch 2))");
    let diagnosis = waits_in_line([is_past, Some("Agree")]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Lost, Rank(1)));
    assert!(
        diagnosis.to_string().starts_with("; rank 1 sent it and last finished "),
        "{diagnosis}"
    );
}

/// Workers 0 and 3 keep activations for each other. Worker 3 waits for memory that its moves free
/// once worker 0, which is computing, has handled its own.
#[test]
fn a_rank_that_waits_for_its_moves_is_not_blamed() {
    let timetable = find("1f1b").expect("known").timetable(&Shape::new(4, 6)).expect("fits");
    let moved = bpipe(timetable, &UniformCosts::new(1.0, 2.0, 0.0)).expect("sound");
    let program = lower(&moved, &Lowering::default()).expect("proven");
    let at = [
        Some("Run(B(pipe 0, stage 0, micro-batch 2))"),
        Some("Recv(gradient(pipe 0, stage 2, micro-batch 5)"),
        Some("Recv(gradient(pipe 0, stage 3, micro-batch 5)"),
        Some("Take(memory that a move frees for activations(pipe 0, stage 3, micro-batch 5)"),
    ];
    let scene = scene(&program, &at);
    let Some(Instr::Recv(token, _)) = scene.instr(Rank(1)) else { panic!("no receive") };
    let diagnosis = scene.diagnosis(Rank(1), Rank(2), Need::Token(token));
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Stalled, Rank(0)), "{diagnosis}");
    let words = diagnosis.to_string();
    let chain = ", which waits for gradient(pipe 0, stage 3, micro-batch 5) from rank 3, which waits for \
                 offloaded activations(pipe 0, stage 0, micro-batch 5) from rank 0; rank 0 last finished ";
    assert!(words.starts_with(chain) && words.ends_with(": stalled in compute"), "{words}");
}

/// Activations that a host keeps need no other rank.
#[test]
fn a_rank_that_does_not_move_what_it_could_is_stalled() {
    let timetable = find("gpipe").expect("known").timetable(&Shape::new(2, 6)).expect("fits");
    let how = Lowering { max_peak: Some(3.0), ..Lowering::default() };
    let moved = offload(timetable, &how, &UniformCosts::new(1.0, 2.0, 0.0)).expect("sound");
    let program = lower(&moved, &how).expect("proven");
    let take = program.rows()[0].iter().find(|instr| matches!(instr, Instr::Take(_)));
    let take = format!("{:?}", take.expect("a wait for memory"));
    let scene =
        scene(&program, &[Some(&take), Some("Recv(activation(pipe 0, stage 0, micro-batch 3)")]);
    let Some(Instr::Recv(token, _)) = scene.instr(Rank(1)) else { panic!("no receive") };
    let diagnosis = scene.diagnosis(Rank(1), Rank(0), Need::Token(token));
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Stalled, Rank(0)), "{diagnosis}");
    assert!(diagnosis.to_string().ends_with(": stalled in a move of activations"), "{diagnosis}");
}

#[test]
fn a_silent_rank_holds_up_sent_messages() {
    let diagnosis = waits_in_line([Some("Run(B(pipe 0, stage 1, micro-batch 2))"), None]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Silent, Rank(2)));
    let words = diagnosis.to_string();
    let held_up = "; rank 1 sent it, which is lost, or held up on the way; rank 2 does not answer ";
    assert!(words.starts_with(held_up), "{words}");
}

#[test]
fn a_silent_rank_holds_up_senders() {
    let sends = Some("Send(gradient(pipe 0, stage 1, micro-batch 0)");
    let diagnosis = waits_in_line([sends, None]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Silent, Rank(2)));
    let words = diagnosis.to_string();
    let held_up = "is sending gradient(pipe 0, stage 1, micro-batch 0), which is held up; rank 2 does not answer";
    assert!(words.contains(held_up), "{words}");
}

#[test]
fn a_lost_message_further_off_is_found() {
    let waits = Some("Recv(gradient(pipe 0, stage 2, micro-batch 1)");
    let diagnosis = waits_in_line([waits, Some("Agree")]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Lost, Rank(2)));
}

/// With short timeouts, no cycle is reported while a message is in flight.
#[test]
fn a_message_of_the_asking_rank_can_be_lost_too() {
    let waits = Some("Recv(activation(pipe 0, stage 0, micro-batch 2)");
    let diagnosis = waits_in_line([waits, Some("Agree")]);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Lost, Rank(0)));
    assert!(diagnosis.to_string().contains(" from rank 0; rank 0 sent it and "), "{diagnosis}");
}

#[test]
fn ranks_that_wait_for_each_other_are_a_bug() {
    let program = program("chimera", Shape::new(2, 2));
    // This is impossible within a program, so rank 0 waits for something else.
    let scene = scene(&program, &[Some("Run("), Some("Recv(activation")]);
    let diagnosis = scene.diagnosis(Rank(0), Rank(1), Need::Other);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Cycle, Rank(0)));
    assert!(
        diagnosis.to_string().contains(" from rank 0; so they wait for each other"),
        "{diagnosis}"
    );
}

/// In a sum and in the step sync everyone waits for the last.
#[test]
fn the_last_to_begin_a_sum_is_found() {
    let program = program("chimera", Shape::new(2, 2));
    let waits = Some("Await(bucket 0)");
    for (other, kind) in [
        (Some("Run(B(pipe 0, stage 1, micro-batch 0))"), Kind::Stalled),
        (None, Kind::Silent),
        (Some("Agree"), Kind::Lost),
    ] {
        let scene = scene(&program, &[waits, other]);
        let diagnosis = scene.diagnosis(Rank(0), Rank(1), Need::Part(BucketId(0)));
        assert_eq!((diagnosis.kind, diagnosis.rank), (kind, Rank(1)), "{diagnosis}");
    }
    let agrees = scene(&program, &[Some("Agree"), waits]);
    let diagnosis = agrees.diagnosis(Rank(0), Rank(1), Need::Record);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Lost, Rank(1)));
    assert!(diagnosis.to_string().ends_with("which all have sent: lost on the way"), "{diagnosis}");
}

#[test]
fn a_rank_that_goes_on_is_slow() {
    let program = program("dapple", Shape::new(2, 2));
    let mut scene = scene(&program, &[Some("Recv("), Some("Run(B(")]);
    scene.earlier[1] = Some(Position::At { step: 4, instr: 0 });
    let diagnosis = scene.diagnosis(Rank(0), Rank(1), Need::Other);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Slow, Rank(1)));
    assert!(diagnosis.to_string().ends_with(": slow, but it goes on"), "{diagnosis}");
}

/// Between two steps all wait for all. If one rank is silent, even a rank that waits itself is
/// waited for.
#[test]
fn a_silent_rank_keeps_all_waiting_between_steps() {
    let program = program("dapple", Shape::new(3, 3));
    let done =
        |rank: usize| Some(Position::At { step: 4, instr: program.rows()[rank].len() as u32 });
    let positions = vec![done(0), done(1), None];
    let scene = HangReport { program: &program, step: 4, earlier: positions.clone(), positions };
    let diagnosis = scene.diagnosis(Rank(0), Rank(1), Need::Other);
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Silent, Rank(2)), "{diagnosis}");
    assert!(diagnosis.to_string().starts_with(
        ", which waits for something outside of the program from rank 2; rank 2 does not answer"
    ));
}

/// Rank 0 finished an exchange before the first step, in which the silent rank still keeps rank 1.
#[test]
fn a_silent_rank_keeps_others_from_the_first_step() {
    let program = program("dapple", Shape::new(3, 3));
    let at = Some(Position::At { step: 4, instr: 0 });
    let positions = vec![at, Some(Position::Start), None];
    let scene = HangReport { program: &program, step: 4, earlier: positions.clone(), positions };
    let mut received = program.rows()[0].iter();
    let Some(Instr::Recv(token, _)) = received.find(|instr| matches!(instr, Instr::Recv(..)))
    else {
        panic!("no receive")
    };
    let diagnosis = scene.diagnosis(Rank(0), Rank(1), Need::Token(*token));
    assert_eq!((diagnosis.kind, diagnosis.rank), (Kind::Silent, Rank(2)), "{diagnosis}");
}

#[test]
fn ranks_outside_of_the_step_are_described_as_such() {
    let program = program("dapple", Shape::new(2, 2));
    let mut scene = scene(&program, &[Some("Recv("), Some("Recv(")]);
    for (position, words) in [
        (Position::Start, "; rank 1 has not begun its first step: stalled between steps"),
        (
            Position::At { step: 3, instr: 99 },
            "; rank 1 is still in step 3, or after it: stalled between steps",
        ),
    ] {
        scene.positions[1] = Some(position);
        scene.earlier[1] = Some(position);
        let diagnosis = scene.diagnosis(Rank(0), Rank(1), Need::Other);
        assert_eq!((diagnosis.kind, diagnosis.to_string().as_str()), (Kind::Stalled, words));
    }
}

/// If the transport does the all-reduce, a rank receives the sum from itself.
#[test]
fn a_sum_of_the_transport_waits_for_ranks_that_have_not_begun_it() {
    let program = program("chimera", Shape::new(2, 2));
    let Some(Instr::Await(bucket)) =
        program.rows()[0].iter().find(|instr| matches!(instr, Instr::Await(_))).copied()
    else {
        panic!("no sum")
    };
    let diagnosis = |other| {
        let scene = scene(&program, &[Some("Await"), other]);
        scene.diagnosis(Rank(0), Rank(0), Need::Sum(bucket))
    };
    let silent = diagnosis(None);
    assert_eq!((silent.kind, silent.rank), (Kind::Silent, Rank(1)));
    assert!(
        silent.to_string().starts_with(", which waits for its part of the gradient reduction of"),
        "{silent}"
    );
    let busy = diagnosis(Some("Run(F(pipe 0, stage 1, micro-batch 0))"));
    assert_eq!((busy.kind, busy.rank), (Kind::Stalled, Rank(1)));
}
