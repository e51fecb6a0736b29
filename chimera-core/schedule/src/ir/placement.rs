//! Placement: the worker of each stage of each pipe.

mod opposite;

use crate::ir::ids::{PipeId, Rank, StageId, WorkerId};

/// `(pipe, stage) -> worker`, as one list of workers per pipe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    n_workers: usize,
    pipes: Vec<Vec<WorkerId>>,
    /// Number of stages of a pipe that count as one micro-batch of saved activations; `None` for
    /// all stages that a worker holds.
    counted: Option<usize>,
}

impl Placement {
    /// A placement from the worker of each stage of each pipe.
    ///
    /// Returns `None` unless there is at least one pipe, all pipes have the same number of stages
    /// (at least one), every worker is below `n_workers`, and no count exceeds 65,535.
    pub fn new(n_workers: usize, pipes: Vec<Vec<WorkerId>>) -> Option<Placement> {
        let n_stages = pipes.first()?.len();
        let sound = n_stages > 0
            && pipes.iter().all(|p| p.len() == n_stages)
            && pipes.iter().flatten().all(|w| w.index() < n_workers)
            && n_workers.max(n_stages).max(pipes.len()) <= usize::from(u16::MAX);
        sound.then_some(Placement { n_workers, pipes, counted: None })
    }

    /// Counts saved activations like `whole`, a placement of which this is a part: the stages that
    /// a worker of `whole` holds are one micro-batch.
    pub(crate) fn counted_as(self, whole: &Placement) -> Placement {
        let of_pipe = |pipe: &Vec<WorkerId>| {
            let held = |worker: &WorkerId| pipe.iter().filter(|other| *other == worker).count();
            pipe.iter().map(held).max()
        };
        let counted = whole.counted.or_else(|| whole.pipes.iter().filter_map(of_pipe).max());
        Placement { counted, ..self }
    }

    /// Counts the saved activations of `n_stages` stages of a pipe as one micro-batch.
    pub(crate) fn counting(self, n_stages: usize) -> Placement {
        Placement { counted: Some(n_stages), ..self }
    }

    /// Number of stages of a pipe that count as one micro-batch of saved activations; `None` for
    /// all stages that a worker holds.
    pub(crate) fn counted_stages(&self) -> Option<usize> {
        self.counted
    }

    /// Number of stages of a pipe that count as one micro-batch of saved activations, on a worker
    /// that holds `n_held` of them.
    pub(crate) fn counted(&self, n_held: usize) -> usize {
        self.counted.unwrap_or(n_held)
    }

    /// One pipe, stage `s` on worker `s`.
    ///
    /// # Panics
    /// If `depth` is 0 or exceeds 65,535.
    pub fn line(depth: usize) -> Placement {
        Placement::of(depth, vec![(0..depth).collect()])
    }

    /// One pipe of `chunks * depth` stages, stage `c` on worker `c mod depth` (Megatron-LM).
    ///
    /// # Panics
    /// If `depth` or `chunks` is 0 or their product exceeds 65,535.
    pub fn interleaved(depth: usize, chunks: usize) -> Placement {
        Placement::of(depth, vec![(0..depth * chunks).map(|c| c % depth).collect()])
    }

    /// One pipe of `chunks * depth` stages in a snake: stage `c` in round `r = c / depth` is on
    /// worker `c mod depth` if `r` is even, else on `depth - 1 - c mod depth` (Hanayo; a V with two
    /// chunks).
    ///
    /// # Panics
    /// If `depth` or `chunks` is 0 or their product exceeds 65,535.
    pub fn wave(depth: usize, chunks: usize) -> Placement {
        let worker = |c: usize| match c / depth % 2 {
            0 => c % depth,
            _ => depth - 1 - c % depth,
        };
        Placement::of(depth, vec![(0..depth * chunks).map(worker).collect()])
    }

    /// `f` pipes down and `f` pipes up (Chimera, section 3.6): down pipe `i` has stage `s` on
    /// worker `(i*D/f + s) mod D`, up pipe `i` on worker `(i*D/f + D-1-s) mod D`. Down pipes come
    /// first.
    ///
    /// # Panics
    /// If `depth` or `f` is 0 or `depth` exceeds 65,535.
    pub fn mirrored(depth: usize, f: usize) -> Placement {
        let down = |i: usize| (0..depth).map(|s| (i * depth / f + s) % depth).collect();
        let up = |i: usize| (0..depth).map(|s| (i * depth / f + depth - 1 - s) % depth).collect();
        Placement::of(depth, (0..f).map(down).chain((0..f).map(up)).collect())
    }

    fn of(depth: usize, pipes: Vec<Vec<usize>>) -> Placement {
        let worker = |pipe: Vec<usize>| pipe.into_iter().map(|w| WorkerId(w as u16)).collect();
        match Placement::new(depth, pipes.into_iter().map(worker).collect()) {
            Some(placement) => placement,
            None => panic!("{depth} workers are none or too many"),
        }
    }

    /// The worker that holds `stage` of `pipe`.
    pub fn worker(&self, pipe: PipeId, stage: StageId) -> WorkerId {
        self.pipes[pipe.index()][stage.index()]
    }

    /// The rank of `worker` of a pipeline group.
    pub fn rank(&self, group: usize, worker: WorkerId) -> Rank {
        Rank((group * self.n_workers) as u32 + u32::from(worker.0))
    }

    /// The pipeline group of a rank, and its worker within the group.
    pub fn group_and_worker(&self, rank: Rank) -> (usize, WorkerId) {
        let worker = rank.index() % self.n_workers;
        (rank.index() / self.n_workers, WorkerId(worker as u16))
    }

    /// Number of workers of the pipeline group, D.
    pub fn n_workers(&self) -> usize {
        self.n_workers
    }

    /// Number of ranks of a job of `width` groups.
    pub fn n_ranks(&self, width: usize) -> usize {
        // a width that is too large for any job has too many ranks
        width.saturating_mul(self.n_workers)
    }

    /// Number of stages, S.
    pub fn n_stages(&self) -> usize {
        self.pipes[0].len()
    }

    /// Number of pipes.
    pub fn n_pipes(&self) -> usize {
        self.pipes.len()
    }

    /// The worker of each stage, pipe by pipe.
    pub fn pipes(&self) -> &[Vec<WorkerId>] {
        &self.pipes
    }

    /// The distinct workers that hold `stage`, in order of the first pipe that puts it there.
    pub fn replicas(&self, stage: StageId) -> Vec<WorkerId> {
        let mut seen = vec![false; self.n_workers];
        let holders = self.pipes.iter().map(|pipe| pipe[stage.index()]);
        holders.filter(|w| !std::mem::replace(&mut seen[w.index()], true)).collect()
    }

    /// The ranks that hold `stage` in a job of `width` groups, by group and then as
    /// [`replicas`](Placement::replicas).
    pub fn holders(&self, width: usize, stage: StageId) -> Vec<Rank> {
        let workers = self.replicas(stage);
        let of = |group| workers.iter().map(move |worker| self.rank(group, *worker));
        (0..width).flat_map(of).collect()
    }

    /// The distinct stages that `worker` holds, ascending.
    pub fn stages_of(&self, worker: WorkerId) -> Vec<StageId> {
        (0..self.n_stages())
            .filter(|&s| self.pipes.iter().any(|pipe| pipe[s] == worker))
            .map(|s| StageId(s as u16))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_turns_at_both_ends() {
        let wave = Placement::wave(3, 3);
        let workers: Vec<u16> = wave.pipes()[0].iter().map(|w| w.0).collect();
        assert_eq!(workers, [0, 1, 2, 2, 1, 0, 0, 1, 2]);
        assert_eq!(Placement::wave(3, 1), Placement::line(3));
    }
}
