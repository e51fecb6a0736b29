use super::*;
use crate::collective::tests::run_plans;

/// Groups of these sizes, in order.
fn groups(sizes: &[usize]) -> Plan {
    let of = |(group, size): (usize, &usize)| std::iter::repeat_n(group, *size);
    Plan::in_groups(sizes.iter().enumerate().flat_map(of))
}

fn plans(plan: Plan, keeps_sums: bool) -> Vec<Vec<Round>> {
    (0..plan.n_members()).map(|me| plan.rounds(me, keeps_sums)).collect()
}

#[test]
fn groups_are_equal_and_not_alone() {
    assert_eq!(groups(&[2, 2, 2]), Plan { n_groups: 3, size: 2 });
    for flat in [&[4][..], &[1, 1], &[2, 3], &[3, 2], &[2, 2, 1], &[9, 9], &[]] {
        assert_eq!(groups(flat), Plan::flat(flat.iter().sum()), "{flat:?}");
    }
    assert_eq!(Plan::in_groups([0, 0, 1, 1, 0, 0]), Plan { n_groups: 3, size: 2 });
    assert_eq!(Plan::in_groups([0, 1, 0, 1]), Plan::flat(4));
}

/// Every member has every sum, once of every member, along one tree; owners keep the same sums.
#[test]
fn all_members_have_all_sums_along_one_tree() {
    for (n_groups, size) in [(2, 2), (2, 3), (3, 2), (5, 4), (8, 8), (9, 2), (12, 3), (16, 2)] {
        let plan = Plan { n_groups, size };
        let all = run_plans(&plans(plan, false));
        let tree = all[0][0].clone().expect("a sum");
        let mut terms: Vec<usize> = tree
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|term| term.parse().ok())
            .collect();
        terms.sort_unstable();
        assert_eq!(terms, (0..plan.n_members()).collect::<Vec<_>>());
        for (at, first) in all[0].iter().enumerate() {
            // Positions of a group's members add the groups in the same order.
            assert!(all.iter().all(|held| held[at] == *first), "{plan:?}, {at}");
            assert_eq!(first.as_ref().map(String::len), Some(tree.len()));
        }
        let kept = run_plans(&plans(plan, true));
        for (position, owner) in plan.segments().into_iter().enumerate() {
            assert_eq!(kept[owner][position], all[owner][position], "{owner} of {plan:?}");
        }
        let inside: String = (1..size).fold("0".into(), |sum, member| format!("({sum}+{member})"));
        assert!(tree.contains(&inside), "{tree}");
    }
}

/// Between groups goes the data of one member for each group, however many members it has.
#[test]
fn groups_exchange_less() {
    for (n_groups, size) in [(2, 2), (2, 8), (4, 4), (8, 2)] {
        let plan = Plan { n_groups, size };
        let sent = |plan: Plan| {
            let all = plan.waves(false).into_iter().flatten();
            let between = all.filter(|sent| sent.from / size != sent.to / size);
            between.map(|sent| sent.segments.len()).sum::<usize>()
        };
        assert_eq!(sent(plan), 2 * (n_groups - 1) * plan.n_members());
        if plan.n_members() <= MOST_DIRECT {
            let flat = sent(Plan::flat(plan.n_members()));
            assert_eq!(flat, size * sent(plan), "{plan:?}");
        }
    }
}

/// The waves contain each member's rounds, in their order.
#[test]
fn waves_are_the_rounds_of_all() {
    for (n_groups, size) in [(2, 2), (3, 4), (9, 2)] {
        let plan = Plan { n_groups, size };
        for keeps_sums in [false, true] {
            let all = plan.waves(keeps_sums);
            for (me, rounds) in plans(plan, keeps_sums).into_iter().enumerate() {
                let mine = all.iter().flatten().filter(|sent| sent.from == me);
                let mine: Vec<_> = mine.map(|sent| (sent.to, sent.segments.clone())).collect();
                let sends = rounds.into_iter().flat_map(|round| round.sends);
                let sends: Vec<_> = sends.map(|part| (part.peer, part.segments)).collect();
                assert_eq!(mine, sends, "{me} of {plan:?}");
            }
        }
    }
}
