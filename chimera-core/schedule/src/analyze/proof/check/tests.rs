use super::*;
use crate::analyze::proof::refusal::Savings;
use crate::costs::UniformCosts;
use crate::lower::{Lowering, lower, offload};
use crate::schedule::{Shape, find};

fn program(barrier: bool) -> Program {
    let timetable = find("chimera").expect("known").timetable(&Shape::new(4, 6));
    let how = Lowering { barrier, ..Lowering::default() };
    lower(&timetable.expect("fits"), &how).expect("proven")
}

fn is_synchronisation(instr: &Instr) -> bool {
    !matches!(instr, Instr::Run(_) | Instr::Send(..) | Instr::Recv(..))
}

/// An asynchronous schedule on three workers, over three steps of three micro-batches.
pub(in crate::analyze::proof) fn window(schedule: &str) -> Program {
    let timetable = find(schedule).expect("known");
    let timetable = timetable.timetable(&Shape { window: 3, ..Shape::new(3, 3) });
    lower(&timetable.expect("fits"), &Lowering::default()).expect("proven")
}

#[test]
fn synchronisation_that_lacks_or_repeats_something_is_refused() {
    let asynchronous = ["pipedream", "pipedream-2bw"].map(window);
    for whole in [true, false].map(program).into_iter().chain(asynchronous) {
        for (w, row) in whole.rows.iter().enumerate() {
            for at in (0..row.len()).filter(|at| is_synchronisation(&row[*at])) {
                let mut lacking = whole.clone();
                let instr = lacking.rows[w].remove(at);
                assert!(prove(&lacking, None).is_err(), "worker {w} without {instr:?}");
                if instr == Instr::Agree {
                    continue;
                }
                for again in [at, row.len()] {
                    let mut repeating = whole.clone();
                    repeating.rows[w].insert(again, instr);
                    let proof = prove(&repeating, None);
                    assert!(proof.is_err(), "worker {w} with {instr:?} again at {again}");
                }
            }
        }
    }
}

#[test]
fn a_barrier_makes_updates_wait_for_the_agreement() {
    let mut early = program(true);
    let row = &mut early.rows[2];
    let agree = row.iter().position(|i| *i == Instr::Agree).expect("an agreement");
    row.swap(agree, agree + 1);
    let refusal = prove(&early, None).err().expect("the update comes too early");
    assert!(refusal.to_string().contains("comes before the agreement"), "{refusal}");
}

/// The step sync is about the norm of all sums.
#[test]
fn a_barrier_puts_sums_before_the_agreement() {
    let whole = program(true);
    let last = (0..).map(BucketId).zip(&whole.buckets).max_by_key(|(_, bucket)| bucket.order);
    let (last, bucket) = last.expect("buckets");
    let mut late = whole.clone();
    for member in &bucket.members {
        let row = &mut late.rows[member.index()];
        row.retain(|instr| !matches!(instr, Instr::Reduce(b) | Instr::Await(b) if *b == last));
        let agree = row.iter().position(|i| *i == Instr::Agree).expect("an agreement");
        row.splice(agree + 1..agree + 1, [Instr::Reduce(last), Instr::Await(last)]);
    }
    let refusal = prove(&late, None).err().expect("the sum comes too late");
    let hint = "the agreement comes before a gradient reduction that it needs";
    assert!(refusal.to_string().contains(hint), "{refusal}");
}

#[test]
fn a_memory_limit_marks_the_cell_that_exceeds_it() {
    let timetable = find("gpipe").expect("known").timetable(&Shape::new(2, 5)).expect("fits");
    let how = Lowering { max_peak: Some(3.0), ..Lowering::default() };
    let refusal = lower(&timetable, &how).expect_err("gpipe holds five");
    assert_eq!(refusal.at, Some((WorkerId(0), 3)));
    assert!(refusal.to_string().contains("more than the limit of 3"), "{refusal}");
}

/// Only saved activations that both halves of a split backward still need can be moved.
#[test]
fn a_refused_memory_limit_names_what_cannot_be_moved() {
    let timetable = find("zb-h1").expect("known").timetable(&Shape::new(4, 8)).expect("fits");
    let how = Lowering { max_peak: Some(1.0), ..Lowering::default() };
    let moved = offload(timetable, &how, &UniformCosts::EQUAL).expect("sound");
    let refusal = lower(&moved, &how).expect_err("weight work is put off");
    assert!(refusal.to_string().contains("; 1 of them cannot be moved: "), "{refusal}");
    let Reason::Memory { savings, .. } = refusal.reason else { panic!("{refusal}") };
    assert_eq!(savings, Savings { offloads: true, ..Savings::default() });
}
