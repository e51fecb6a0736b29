//! The messages of a reduction over replicas.
//!
//! The data lies in one buffer, which is cut into a segment for each member. Up to [`MOST_DIRECT`]
//! members each send every other one its segment, the owners add them in the order of members, and
//! send the sums back. More members halve and double recursively (Rabenseifner, ICCS 2004): in each
//! round a member sends one half of what it still has to one partner and adds the other half, until
//! it has the sum of its own segment. Then the rounds run backwards, with sums. Members beyond the
//! largest power of two give theirs to a partner first, and receive the sums last. So the messages
//! of a member grow with the logarithm of the members, and every element is added along one fixed
//! tree over the members, for every transport and every cut of its segment.

mod grouped;

use std::ops::Range;

use rustc_hash::FxHashSet;

pub use self::grouped::Plan;

/// The most members that reduce directly, in their own order.
pub const MOST_DIRECT: usize = 8;

/// One round of a member: all its sends, then all its receives, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Round {
    /// The segments that the member keeps and adds up; `None` if it receives sums.
    pub adds_up: Option<Range<usize>>,
    /// Segments that this member sends, by peer.
    pub sends: Vec<Part>,
    /// Segments that this member receives, by peer. If the member adds up, its own part is among
    /// them, at its place in the sum.
    pub recvs: Vec<Part>,
}

/// Segments that go between this member and another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The other member.
    pub peer: usize,
    /// Positions in the [order](segments) of segments.
    pub segments: Range<usize>,
}

/// The members in the order of their segments in the buffer.
pub fn segments(n_members: usize) -> Vec<usize> {
    let core = n_core(n_members);
    (0..core).flat_map(|i| [i, i + core]).filter(|i| *i < n_members).collect()
}

/// Number of members that add. Each other member has a partner that adds for it.
pub fn n_core(n_members: usize) -> usize {
    match n_members {
        0..=MOST_DIRECT => n_members,
        _ => 1 << n_members.ilog2(),
    }
}

/// The rounds of member `me`. If owners keep the sums, none are sent back.
pub fn rounds(n_members: usize, me: usize, keeps_sums: bool) -> Vec<Round> {
    match n_members {
        0 | 1 => Vec::new(),
        2..=MOST_DIRECT => direct(n_members, me, keeps_sums),
        _ => recursive(n_members, me, keeps_sums),
    }
}

/// A message of a reduction, between two members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Positions in the [order](segments) of segments.
    pub segments: Range<usize>,
    /// Whether the receiver adds the segments to its own.
    pub adds: bool,
}

/// All messages of the plans of all members, in waves: those of a wave depend only on earlier waves.
fn waves_of(plans: Vec<Vec<Round>>) -> Vec<Vec<Transfer>> {
    let mut sent = vec![false; plans.len()];
    let mut plans: Vec<_> = plans.into_iter().map(|plan| plan.into_iter().peekable()).collect();
    let mut come = FxHashSet::default();
    let mut waves = Vec::new();
    loop {
        let mut wave = Vec::new();
        for (from, plan) in plans.iter_mut().enumerate().filter(|(me, _)| !sent[*me]) {
            let Some(Round { adds_up, sends, .. }) = plan.peek() else { continue };
            let adds = adds_up.is_some();
            for Part { peer: to, segments } in sends.clone() {
                come.insert((from, to, adds));
                wave.push(Transfer { from, to, segments, adds });
            }
        }
        let mut has_moved = false;
        for (me, plan) in plans.iter_mut().enumerate() {
            let has_all = |round: &Round| {
                let mut peers = round.recvs.iter().map(|part| part.peer).filter(|peer| *peer != me);
                peers.all(|peer| come.contains(&(peer, me, round.adds_up.is_some())))
            };
            let is_over = plan.next_if(has_all).is_some();
            (sent[me], has_moved) = (!is_over, has_moved | is_over);
        }
        if !wave.is_empty() {
            waves.push(wave);
        }
        if !has_moved {
            return waves;
        }
    }
}

fn direct(n: usize, me: usize, keeps_sums: bool) -> Vec<Round> {
    let own = |peer: usize| Part { peer, segments: me..me + 1 };
    let theirs = |peer: usize| Part { peer, segments: peer..peer + 1 };
    // Each sends to the next member first, so that not all send to one at once.
    let to = || (1..n).map(|behind| (me + behind) % n);
    let scatter = Round {
        adds_up: Some(me..me + 1),
        sends: to().map(theirs).collect(),
        recvs: (0..n).map(own).collect(),
    };
    let gather = Round {
        adds_up: None,
        sends: to().map(own).collect(),
        recvs: (0..n).filter(|peer| *peer != me).map(theirs).collect(),
    };
    if keeps_sums { vec![scatter] } else { vec![scatter, gather] }
}

fn recursive(n: usize, me: usize, keeps_sums: bool) -> Vec<Round> {
    let core = n_core(n);
    let extra = n - core;
    // Start of each core member's segments: each is followed by that of the member it adds for.
    let position = |member: usize| member + member.min(extra);
    let among = |members: &Range<usize>| position(members.start)..position(members.end);
    let part = |peer: usize, members: &Range<usize>| vec![Part { peer, segments: among(members) }];
    let added = |peer: usize, members: &Range<usize>| {
        [me.min(peer), me.max(peer)].map(|peer| Part { peer, segments: among(members) }).to_vec()
    };
    let of_extra = |peer: usize, member: usize| {
        let at = position(member);
        let segments = if keeps_sums { at + 1..at + 2 } else { 0..n };
        vec![Part { peer, segments }]
    };
    if me >= core {
        let partner = me - core;
        return vec![
            Round { adds_up: Some(0..0), sends: part(partner, &(0..core)), recvs: Vec::new() },
            Round { recvs: of_extra(partner, partner), ..Round::default() },
        ];
    }
    let mut rounds = Vec::new();
    if extra > 0 {
        // Members without an extra one wait as well, so that all are in the same round.
        let recvs = if me < extra { added(me + core, &(0..core)) } else { Vec::new() };
        rounds.push(Round { adds_up: Some(0..n), sends: Vec::new(), recvs });
    }
    let mut mine = 0..core;
    let mut doubling = Vec::new();
    while mine.len() > 1 {
        let middle = mine.start + mine.len() / 2;
        let (lower, upper) = (mine.start..middle, middle..mine.end);
        let (kept, given) = if me < middle { (lower, upper) } else { (upper, lower) };
        let partner = me ^ kept.len();
        rounds.push(Round {
            adds_up: Some(among(&kept)),
            sends: part(partner, &given),
            recvs: added(partner, &kept),
        });
        doubling.push(Round {
            adds_up: None,
            sends: part(partner, &kept),
            recvs: part(partner, &given),
        });
        mine = kept;
    }
    if !keeps_sums {
        rounds.extend(doubling.into_iter().rev());
    }
    if me < extra {
        rounds.push(Round { sends: of_extra(me + core, me), ..Round::default() });
    }
    rounds
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// For each segment, the part that a member has, as the tree of additions that made it.
    pub(super) type Held = Vec<Option<String>>;

    /// Runs the rounds of all members. Returns the final data of each.
    fn run(n: usize, keeps_sums: bool) -> Vec<Held> {
        run_plans(&(0..n).map(|me| rounds(n, me, keeps_sums)).collect::<Vec<_>>())
    }

    /// Runs these rounds of all members. Returns the final data of each.
    pub(super) fn run_plans(plans: &[Vec<Round>]) -> Vec<Held> {
        let n = plans.len();
        let mut held: Vec<Held> = (0..n).map(|me| vec![Some(format!("{me}")); n]).collect();
        let mut at = vec![0; n];
        let mut sent = vec![false; n];
        let mut wire: HashMap<(usize, usize, bool), Vec<Held>> = HashMap::new();
        while (0..n).any(|me| at[me] < plans[me].len()) {
            let mut has_moved = false;
            for me in 0..n {
                let Some(round) = plans[me].get(at[me]) else { continue };
                if !sent[me] {
                    for Part { peer, segments } in &round.sends {
                        let part = held[me][segments.clone()].to_vec();
                        assert!(part.iter().all(Option::is_some), "{me} of {n} sends what it has");
                        let adds = round.adds_up.is_some();
                        wire.entry((me, *peer, adds)).or_default().push(part);
                        if adds {
                            held[me][segments.clone()].fill(None);
                        }
                    }
                    (sent[me], has_moved) = (true, true);
                }
                let adds = round.adds_up.is_some();
                let others: Vec<_> = round.recvs.iter().filter(|part| part.peer != me).collect();
                let is_here = |part: &&Part| {
                    wire.get(&(part.peer, me, adds)).is_some_and(|parts| !parts.is_empty())
                };
                if !others.iter().all(is_here) {
                    continue;
                }
                for segment in 0..n {
                    let recvs = round.recvs.iter().filter(|part| part.segments.contains(&segment));
                    let terms = recvs.map(|Part { peer, segments }| {
                        if *peer == me {
                            held[me][segment].clone().unwrap()
                        } else {
                            let parts = &wire[&(*peer, me, adds)][0];
                            parts[segment - segments.start].clone().unwrap()
                        }
                    });
                    if let Some(sum) = terms.reduce(|sum, term| format!("({sum}+{term})")) {
                        held[me][segment] = Some(sum);
                    }
                }
                for Part { peer, .. } in others {
                    wire.get_mut(&(*peer, me, adds)).unwrap().remove(0);
                }
                (at[me], sent[me], has_moved) = (at[me] + 1, false, true);
            }
            assert!(has_moved, "{n} members wait for each other");
        }
        assert!(wire.values().all(Vec::is_empty), "{n}: all that is sent is received");
        held
    }

    #[test]
    fn all_members_have_all_sums_along_one_tree() {
        for n in (2..=40).chain([64, 100, 128]) {
            let all = run(n, false);
            let tree = all[0][0].clone().expect("a sum");
            let terms = tree.split(|c: char| !c.is_ascii_digit()).filter(|term| !term.is_empty());
            assert_eq!(terms.count(), n);
            if n <= MOST_DIRECT {
                let in_order = (1..n).fold("0".to_string(), |sum, m| format!("({sum}+{m})"));
                assert_eq!(tree, in_order);
            }
            assert!(all.iter().flatten().all(|sum| *sum == Some(tree.clone())));
        }
    }

    #[test]
    fn owners_keep_the_sums_of_their_segments() {
        for n in [2, 5, 8, 9, 13, 16, 33] {
            let kept = run(n, true);
            let all = run(n, false);
            for (position, owner) in segments(n).into_iter().enumerate() {
                assert_eq!(kept[owner][position], all[owner][position], "{owner} of {n}");
            }
        }
    }

    /// The waves contain each member's rounds, in their order.
    #[test]
    fn waves_are_the_rounds_of_all() {
        for n in [1, 2, 5, 8, 9, 13, 16, 33] {
            for keeps_sums in [false, true] {
                let all = Plan::flat(n).waves(keeps_sums);
                assert!(all.len() <= 2 * n, "{n} members");
                for me in 0..n {
                    let plan = rounds(n, me, keeps_sums);
                    let mine = all.iter().flatten().filter(|t| t.from == me);
                    let mine: Vec<_> = mine.map(|t| (t.to, t.segments.clone(), t.adds)).collect();
                    let of = |round: &Round| {
                        let sends = round.sends.clone();
                        let adds = round.adds_up.is_some();
                        sends.into_iter().map(move |part| (part.peer, part.segments, adds))
                    };
                    assert_eq!(mine, plan.iter().flat_map(of).collect::<Vec<_>>(), "{me} of {n}");
                }
            }
        }
        assert_eq!(Plan::flat(8).waves(false).len(), 2);
        assert_eq!(Plan::flat(16).waves(false).len(), 8);
    }

    #[test]
    fn messages_grow_with_the_logarithm_of_the_members() {
        for (n, most) in [(8, 14), (16, 8), (64, 12), (256, 16), (1024, 20), (1000, 19)] {
            let n_messages =
                |me| rounds(n, me, false).iter().map(|round| round.sends.len()).sum::<usize>();
            assert_eq!((0..n).map(n_messages).max(), Some(most), "{n} members");
        }
    }
}
