//! Gradient reductions as flows: rings, trees, recursive halving, hierarchical.

use serde::{Deserialize, Serialize};

/// The algorithm of gradient reductions. All proceed in rounds. A round begins when every flow of
/// the previous one has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Collective {
    /// Each member sends shares to the next: bandwidth-optimal.
    #[default]
    Ring,
    /// A binomial tree to the first member and back: the fewest rounds.
    Tree,
    /// Recursive halving, then doubling (Rabenseifner, 2004).
    Halving,
    /// A ring inside each island, rings between equal positions of the islands, and back.
    Hierarchical,
}

impl Collective {
    /// The names of all algorithms.
    pub const ALL: [(&'static str, Collective); 4] = [
        ("ring", Collective::Ring),
        ("tree", Collective::Tree),
        ("halving", Collective::Halving),
        ("hierarchical", Collective::Hierarchical),
    ];
}

/// A send of a round: sender, receiver, and the part of all bytes.
pub(super) type Send = (usize, usize, f64);

/// Returns the rounds of a reduction over members on these `islands`, in order of ranks.
pub(super) fn rounds(algorithm: Collective, islands: &[usize]) -> Vec<Vec<Send>> {
    let all: Vec<usize> = (0..islands.len()).collect();
    match algorithm {
        _ if all.len() < 2 => Vec::new(),
        Collective::Ring => [ring(&all, 1.0), ring(&all, 1.0)].concat(),
        Collective::Tree => tree(all.len()),
        Collective::Halving => halving(all.len()),
        Collective::Hierarchical => hierarchical(islands),
    }
}

/// One way round a ring: each member sends a share to the next, n - 1 times.
fn ring(members: &[usize], part: f64) -> Vec<Vec<Send>> {
    let n = members.len();
    let send = |at: usize| (members[at], members[(at + 1) % n], part / n as f64);
    let round: Vec<Send> = (0..n).map(send).collect();
    vec![round; n.saturating_sub(1)]
}

fn tree(n: usize) -> Vec<Vec<Send>> {
    let mut up = Vec::new();
    let mut step = 1;
    while step < n {
        let senders = (step..n).step_by(2 * step);
        up.push(senders.map(|me| (me, me - step, 1.0)).collect::<Vec<Send>>());
        step *= 2;
    }
    let back = |round: &Vec<Send>| round.iter().map(|(a, b, part)| (*b, *a, *part)).collect();
    let down: Vec<Vec<Send>> = up.iter().rev().map(back).collect();
    [up, down].concat()
}

fn halving(n: usize) -> Vec<Vec<Send>> {
    let core = 1 << n.ilog2();
    let extras: Vec<Send> = (core..n).map(|me| (me, me - core, 1.0)).collect();
    let mut halve = Vec::new();
    let mut distance = core / 2;
    while distance > 0 {
        let part = distance as f64 / core as f64;
        halve.push((0..core).map(|me| (me, me ^ distance, part)).collect::<Vec<Send>>());
        distance /= 2;
    }
    let double: Vec<Vec<Send>> = halve.iter().rev().cloned().collect();
    let back: Vec<Send> = extras.iter().map(|(a, b, part)| (*b, *a, *part)).collect();
    let rounds = [vec![extras], halve, double, vec![back]].concat();
    rounds.into_iter().filter(|round| !round.is_empty()).collect()
}

fn hierarchical(islands: &[usize]) -> Vec<Vec<Send>> {
    let n_islands = islands.iter().max().map_or(0, |last| last + 1);
    let members = |island: usize| -> Vec<usize> {
        (0..islands.len()).filter(|at| islands[*at] == island).collect()
    };
    let mut islands: Vec<Vec<usize>> =
        (0..n_islands).map(members).filter(|members| !members.is_empty()).collect();
    islands.sort_by_key(|members| members[0]);
    let size = islands.first().map_or(0, Vec::len);
    if islands.iter().any(|island| island.len() != size) {
        let all: Vec<usize> = (0..islands.iter().map(Vec::len).sum()).collect();
        return [ring(&all, 1.0), ring(&all, 1.0)].concat();
    }
    let inside = together(islands.iter().map(|island| ring(island, 1.0)).collect());
    let position = |at: usize| -> Vec<usize> { islands.iter().map(|island| island[at]).collect() };
    let part = 1.0 / size as f64;
    let across = together((0..size).map(|at| ring(&position(at), part)).collect());
    [inside.clone(), across.clone(), across, inside].concat()
}

/// Puts rounds of rings of one size side by side.
fn together(rings: Vec<Vec<Vec<Send>>>) -> Vec<Vec<Send>> {
    let n_rounds = rings.first().map_or(0, Vec::len);
    (0..n_rounds).map(|at| rings.iter().flat_map(|ring| ring[at].clone()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds up what each member knows, round by round: after a reduction all know every member.
    /// With shares of the data this is the sum over each share, so whole sends stand for it.
    fn all_know(algorithm: Collective, islands: &[usize]) -> bool {
        let n = islands.len();
        let mut known: Vec<Vec<bool>> =
            (0..n).map(|me| (0..n).map(|m| m == me).collect()).collect();
        for round in rounds(algorithm, islands) {
            let before = known.clone();
            for (from, to, _) in round {
                for member in 0..n {
                    known[to][member] |= before[from][member];
                }
            }
        }
        known.iter().flatten().all(|knows| *knows)
    }

    #[test]
    fn every_member_gets_the_sum() {
        for n in 1..10 {
            let islands: Vec<usize> = (0..n).map(|at| at / 3).collect();
            for (name, algorithm) in Collective::ALL {
                assert!(all_know(algorithm, &islands), "{name} of {n}");
            }
        }
    }

    #[test]
    fn each_sends_about_twice_the_bytes() {
        let sent = |algorithm, islands: &[usize]| -> f64 {
            let all = rounds(algorithm, islands).concat();
            all.iter().filter(|(from, ..)| *from == 0).map(|(_, _, part)| part).sum()
        };
        let islands = [0, 0, 0, 0, 1, 1, 1, 1];
        assert_eq!(sent(Collective::Ring, &islands), 2.0 * 7.0 / 8.0);
        assert_eq!(sent(Collective::Halving, &islands), 2.0 * 7.0 / 8.0);
        assert_eq!(sent(Collective::Hierarchical, &islands), 2.0 * 3.0 / 4.0 + 2.0 * 1.0 / 8.0);
        assert_eq!(sent(Collective::Tree, &islands), 3.0);
    }
}
