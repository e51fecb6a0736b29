//! The critical path of a step: the work that would have to be shorter for the step to be shorter.

use crate::formats::trace::{Slice, TracedRun};

/// Returns the numbers of the slices on the critical path, from the last one back to the first.
///
/// The work before a slice is what ended last of: the work before it on its rank, and the makers of
/// the messages that it begins with. A slice that begins a while after these waited for the work of
/// any rank that ended last, such as the gradients that an update needs.
pub(super) fn critical_path(run: &TracedRun) -> Vec<usize> {
    let slices = &run.slices;
    let (start, end) = run.span();
    let slack = 1e-3 * (end - start);
    let mut path: Vec<usize> = Vec::new();
    let mut next = latest(slices, |_| true);
    while let Some(nth) = next {
        path.push(nth);
        let slice = &slices[nth];
        let is_before =
            |other: &Slice| other.end <= slice.start + slack && other.start < slice.start;
        let makers = run
            .arrows
            .iter()
            .filter(|arrow| arrow.to.0 == slice.rank && (arrow.to.1 - slice.start).abs() <= slack);
        let makers: Vec<(u32, f64)> = makers.map(|arrow| arrow.from).collect();
        let is_maker = |other: &Slice| {
            let made = |(rank, at): &(u32, f64)| {
                other.rank == *rank && other.start <= *at && *at <= other.end + slack
            };
            other.is_busy && makers.iter().any(made)
        };
        let is_own = |other: &Slice| other.rank == slice.rank && other.is_busy;
        let cause = latest(slices, |other| is_before(other) && (is_own(other) || is_maker(other)));
        let is_close = cause.is_some_and(|cause| slices[cause].end >= slice.start - 10.0 * slack);
        next = if is_close { cause } else { latest(slices, is_before) };
    }
    path
}

/// Returns the number of the slice among these that ends last.
fn latest(slices: &[Slice], is_one: impl Fn(&Slice) -> bool) -> Option<usize> {
    let all = slices.iter().enumerate().filter(|(_, slice)| is_one(slice));
    all.max_by(|(_, a), (_, b)| a.end.total_cmp(&b.end)).map(|(nth, _)| nth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::trace::Arrow;

    fn slice(rank: u32, start: f64, end: f64) -> Slice {
        Slice {
            rank,
            kind: "forward".into(),
            start,
            end,
            is_busy: true,
            lane: 0,
            name: "F0".into(),
            ops: Vec::new(),
        }
    }

    /// Rank 1 begins with a message of rank 0, and an update of rank 0 waits for rank 1.
    #[test]
    fn the_path_follows_messages_and_what_ended_last() {
        let slices = vec![
            slice(0, 0.0, 1.0),
            slice(0, 1.0, 2.0),
            slice(1, 1.1, 4.0),
            slice(1, 0.0, 0.5),
            slice(0, 4.5, 5.0),
        ];
        let arrows = vec![Arrow { from: (0, 0.9), to: (1, 1.1) }];
        let run = TracedRun { slices, arrows, ..TracedRun::default() };
        assert_eq!(critical_path(&run), [4, 2, 0]);
        assert_eq!(critical_path(&TracedRun::default()), [0; 0]);
    }
}
