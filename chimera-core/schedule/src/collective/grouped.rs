//! Reductions in two levels: inside groups of members, such as nodes, then between the groups.
//!
//! With `g` members in each of `m` groups, a member first sends a `g`-th of its data to each other
//! member of its group, and adds up the `g`-th that it keeps. Then the members with equal positions
//! in their groups reduce their `g`-th, as [`rounds`] of `m` members. Finally each sends its sums to
//! its group. So `2 (m - 1) / m` times the data of one member per group goes between groups.

use std::ops::Range;

use super::{MOST_DIRECT, Part, Round, Transfer, n_core, rounds, segments, waves_of};

/// The plan by which some members reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Number of groups, m.
    n_groups: usize,
    /// Consecutive members of a group, g; 1 if all reduce at once.
    size: usize,
}

impl Plan {
    /// A plan in which all members reduce at once.
    pub fn flat(n_members: usize) -> Plan {
        Plan { n_groups: n_members, size: 1 }
    }

    /// The plan for members of these groups. They reduce at once unless there are several groups of
    /// the same size: two to [`MOST_DIRECT`] consecutive members.
    pub fn in_groups(groups: impl IntoIterator<Item = usize>) -> Plan {
        let group_of: Vec<usize> = groups.into_iter().collect();
        let n_members = group_of.len();
        let size = group_of.iter().take_while(|group| **group == group_of[0]).count().max(1);
        let is_even = n_members.is_multiple_of(size);
        let groups: Vec<&[usize]> = group_of.chunks(size).collect();
        let is_whole = |group: &&[usize]| group.iter().all(|of| *of == group[0]);
        let is_cut = groups.windows(2).all(|pair| pair[0][0] != pair[1][0]);
        let is_grouped = (2..=MOST_DIRECT).contains(&size) && size < n_members;
        if is_grouped && is_even && is_cut && groups.iter().all(is_whole) {
            Plan { n_groups: groups.len(), size }
        } else {
            Plan::flat(n_members)
        }
    }

    /// Number of members.
    pub fn n_members(&self) -> usize {
        self.n_groups * self.size
    }

    /// The members by the position of their segments in the buffer.
    pub fn segments(&self) -> Vec<usize> {
        let of_groups = segments(self.n_groups);
        let member = |at: usize| of_groups.iter().map(move |group| group * self.size + at);
        (0..self.size).flat_map(member).collect()
    }

    /// Returns true if a member adds. Each other member has a partner that adds for it.
    pub fn adds(&self, member: usize) -> bool {
        member / self.size < n_core(self.n_groups)
    }

    /// Number of members that add.
    pub fn n_adding(&self) -> usize {
        n_core(self.n_groups) * self.size
    }

    /// The rounds of member `me`. If owners keep the sums, none are sent back.
    pub fn rounds(&self, me: usize, keeps_sums: bool) -> Vec<Round> {
        let Plan { n_groups, size } = *self;
        let (group, at) = (me / size, me % size);
        let between = rounds(n_groups, group, keeps_sums);
        if size == 1 {
            return between;
        }
        let peer = |at: usize| group * size + at;
        let shard = |at: usize| at * n_groups..(at + 1) * n_groups;
        // Each sends to the next member first, so that not all send to one at once.
        let others = || (1..size).map(|behind| (at + behind) % size);
        let given = |other: usize| Part { peer: peer(other), segments: shard(other) };
        let own = |other: usize| Part { peer: peer(other), segments: shard(at) };
        let scatter = Round {
            adds_up: Some(shard(at)),
            sends: others().map(given).collect(),
            recvs: (0..size).map(own).collect(),
        };
        let gather = Round {
            adds_up: None,
            sends: others().map(own).collect(),
            recvs: (0..size).filter(|other| *other != at).map(given).collect(),
        };
        let moved = |round: Round| self.moved(round, at);
        let all = std::iter::once(scatter).chain(between.into_iter().map(moved));
        all.chain((!keeps_sums).then_some(gather)).collect()
    }

    /// A round between groups, for the members at this position of their groups.
    fn moved(&self, round: Round, at: usize) -> Round {
        let Plan { n_groups, size } = *self;
        let within =
            |segments: Range<usize>| segments.start + at * n_groups..segments.end + at * n_groups;
        let part = |Part { peer, segments }: Part| Part {
            peer: peer * size + at,
            segments: within(segments),
        };
        let parts = |parts: Vec<Part>| parts.into_iter().map(part).collect();
        Round {
            adds_up: round.adds_up.map(within),
            sends: parts(round.sends),
            recvs: parts(round.recvs),
        }
    }

    /// All messages of a reduction, in waves: the messages of a wave depend only on earlier waves.
    pub fn waves(&self, keeps_sums: bool) -> Vec<Vec<Transfer>> {
        waves_of((0..self.n_members()).map(|me| self.rounds(me, keeps_sums)).collect())
    }
}

#[cfg(test)]
mod tests;
