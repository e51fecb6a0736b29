//! Sums inside of nodes before those between nodes.

use chimera_schedule::collective::Plan;
use chimera_schedule::ids::Rank;

/// The plan by which these ranks reduce, of which each `within` consecutive ones of all add up among
/// themselves first; 0 if they add up at once.
pub(crate) fn plan_within(members: &[Rank], within: usize) -> Plan {
    if within == 0 {
        return Plan::flat(members.len());
    }
    Plan::in_groups(members.iter().map(|rank| rank.index() / within))
}
