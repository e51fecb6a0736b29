//! Work of one's own in the idle time of a step.

use super::slack::FreeWindow;
use crate::costs::is_shorter;
use crate::ids::WorkerId;

/// Work of one's own that comes in pieces, which workers do when they have nothing else to do: factors of a second-order
/// optimizer (Osawa et al., PipeFisher, MLSys 2023), or another training (PipeFill, FreeRide).
#[derive(Clone, PartialEq, Debug)]
pub struct OwnWork {
    /// What it is called.
    pub name: String,
    /// What a piece takes, in the unit of the costs.
    pub takes: f64,
}

/// A piece of work in a window of a worker.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WorkPiece {
    /// Who does it.
    pub worker: WorkerId,
    /// Its number among the works.
    pub work: usize,
    /// When it begins.
    pub from: f64,
    /// When it is done.
    pub to: f64,
}

/// Fills the [`windows`](super::windows) of each worker with pieces, so that the step takes no longer. A piece lies within one
/// window; what does not fit is left for the next step. The works take turns, each as long as one of its pieces fits.
///
/// # Panics
/// If a piece takes no time.
pub fn fill(windows: &[Vec<FreeWindow>], works: &[OwnWork]) -> Vec<WorkPiece> {
    assert!(works.iter().all(|work| work.takes > 0.0), "pieces that take no time fit without end");
    let mut pieces = Vec::new();
    for (worker, windows) in (0..).map(WorkerId).zip(windows) {
        let mut next = 0; // whose turn it is
        for window in windows {
            let mut from = window.from;
            let fits = |work: usize, from: f64| !is_shorter(window.to - from, works[work].takes);
            let turns = |next: usize| (next..works.len()).chain(0..next);
            while let Some(work) = turns(next).find(|work| fits(*work, from)) {
                let to = from + works[work].takes;
                pieces.push(WorkPiece { worker, work, from, to: to.min(window.to) });
                (from, next) = (to, (work + 1) % works.len());
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::{simulate, windows};
    use crate::costs::UniformCosts;
    use crate::lower::{Lowering, Sync, lower};
    use crate::schedule::{Shape, find};

    /// By worker: what pieces take together.
    fn filled(takes: &[f64]) -> Vec<f64> {
        let timetable = find("chimera").unwrap().timetable(&Shape::new(8, 8)).unwrap();
        let how = Lowering { sync: Sync::AtEnd, ..Lowering::default() };
        let program = lower(&timetable, &how).unwrap();
        let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0));
        let windows = windows(&program, &timeline);
        let work = |(n, takes): (usize, &f64)| OwnWork { name: n.to_string(), takes: *takes };
        let works: Vec<OwnWork> = takes.iter().enumerate().map(work).collect();
        let pieces = fill(&windows, &works);
        for piece in &pieces {
            let mut of_worker = windows[piece.worker.index()].iter();
            assert!(of_worker.any(|w| w.from <= piece.from && piece.to <= w.to), "{piece:?}");
        }
        let mut sums = vec![0.0; windows.len()];
        pieces.iter().for_each(|piece| sums[piece.worker.index()] += piece.to - piece.from);
        sums
    }

    /// Chimera with D = N = 8 leaves each worker twelve forwards of idle time.
    #[test]
    fn idle_time_takes_what_fits() {
        assert_eq!(filled(&[1.0]), [12.0; 8]);
        assert_eq!(filled(&[0.5]), [12.0; 8]);
        assert_eq!(filled(&[2.0]).into_iter().fold(f64::MAX, f64::min), 10.0);
        assert_eq!(filled(&[0.75]).into_iter().fold(f64::MAX, f64::min), 9.0);
        // Small pieces fill what large ones leave.
        assert_eq!(filled(&[2.0, 1.0]), [12.0; 8]);
        assert_eq!(filled(&[100.0]), [0.0; 8]);
    }

    #[test]
    fn works_take_turns() {
        let window = FreeWindow { from: 1.0, to: 5.5, free: 0.0 };
        let work = |name: &str, takes| OwnWork { name: name.into(), takes };
        let pieces = fill(&[vec![window]], &[work("a", 1.0), work("b", 1.5)]);
        let order: Vec<_> = pieces.iter().map(|piece| (piece.work, piece.from)).collect();
        assert_eq!(order, [(0, 1.0), (1, 2.0), (0, 3.5), (0, 4.5)]);
    }
}
