//! The ranks of a run over its last steps: whom they waited for, and how they used their links.

mod members;

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

pub(crate) use self::members::{Member, word};
use crate::observe::{Metrics, PeerMetrics, RankMetrics};

/// Steps of which means are shown.
const N_STEPS: usize = 20;

/// Bytes of a step that show a rate: fewer mostly wait for their confirmation.
const ENOUGH: f64 = 65_536.0;

/// The last steps of a run, as long as their ranks are the same in number.
#[derive(Default)]
pub(crate) struct LastSteps(VecDeque<(f64, Vec<RankMetrics>)>);

/// Means over some steps.
#[derive(Serialize, PartialEq, Debug)]
pub(crate) struct Means {
    pub(crate) n_steps: usize,
    pub(crate) step_s: f64,
    /// By rank.
    pub(crate) ranks: Vec<RankMeans>,
}

/// Means of one rank. Times are seconds in a step.
#[derive(Serialize, PartialEq, Default, Debug)]
pub(crate) struct RankMeans {
    /// The share of its time for which it computed.
    pub(crate) computing: f64,
    /// Waits for messages, by the rank that sent them.
    pub(crate) waits_s: BTreeMap<u32, f64>,
    /// Waits for gradient reductions.
    pub(crate) reductions_s: f64,
    /// Waits for the slowest rank at the end of a step.
    pub(crate) sync_s: f64,
    /// Links to other ranks, if the transport measures them.
    pub(crate) links: BTreeMap<u32, Link>,
}

/// Use of a link in one direction.
#[derive(Serialize, PartialEq, Default, Debug)]
pub(crate) struct Link {
    /// Bytes sent in a step.
    pub(crate) sent_bytes: f64,
    /// Seconds of a step in which some of them were under way.
    pub(crate) busy_s: f64,
    /// The shortest round trip, in seconds.
    pub(crate) round_trip_s: f64,
}

impl Link {
    /// Bytes per second while some were under way; `None` if too few were sent to say. A link that is
    /// never full may carry more.
    fn rate(&self) -> Option<f64> {
        let is_enough = self.sent_bytes >= ENOUGH && self.busy_s > 0.0;
        is_enough.then(|| self.sent_bytes / self.busy_s)
    }

    /// The rate in words, `-` if it is not known.
    pub(crate) fn shown_rate(&self) -> String {
        self.rate().map_or("-".into(), |rate| format!("{:.1} MB/s", rate / 1e6))
    }
}

impl LastSteps {
    pub(crate) fn add(&mut self, step: &Metrics) {
        if self.0.back().is_some_and(|(_, ranks)| ranks.len() != step.ranks.len()) {
            self.0.clear();
        }
        if self.0.len() == N_STEPS {
            self.0.pop_front();
        }
        self.0.push_back((step.step_s, step.ranks.clone()));
    }

    /// Returns the means, if the steps say more of ranks than how much they computed.
    pub(crate) fn means(&self) -> Option<Means> {
        let n = self.0.len() as f64;
        let n_ranks = self.0.back()?.1.len();
        let mut ranks: Vec<_> = (0..n_ranks).map(|_| RankMeans::default()).collect();
        for (rank, mean) in ranks.iter_mut().enumerate() {
            let loads = self.0.iter().filter_map(|(_, ranks)| ranks.get(rank));
            loads.for_each(|load| mean.add(load, n));
            // Steps in which nothing was sent count too.
            mean.links.retain(|_, link| link.sent_bytes > 0.0);
            mean.waits_s.retain(|_, seconds| *seconds > 0.0);
        }
        share_round_trips(&mut ranks);
        let step_s = self.0.iter().map(|(step_s, _)| step_s).sum::<f64>() / n;
        let is_known = ranks.iter().any(|rank| rank.waiting_s() > 0.0 || !rank.links.is_empty());
        is_known.then_some(Means { n_steps: self.0.len(), step_s, ranks })
    }
}

/// Gives both directions of a link the longer round trip: on a machine alone one may be measured as
/// none.
fn share_round_trips(ranks: &mut [RankMeans]) {
    for rank in 0..ranks.len() {
        let trip =
            |of: &RankMeans, to: u32| of.links.get(&to).map_or(0.0, |link| link.round_trip_s);
        let back: Vec<f64> = ranks.iter().map(|other| trip(other, rank as u32)).collect();
        for (to, link) in &mut ranks[rank].links {
            let back = back.get(*to as usize).copied().unwrap_or_default();
            link.round_trip_s = link.round_trip_s.max(back);
        }
    }
}

impl RankMeans {
    /// Adds one of `n` steps.
    fn add(&mut self, load: &RankMetrics, n: f64) {
        self.computing += (1.0 - load.bubble_ratio) / n;
        self.reductions_s += load.reductions_s / n;
        self.sync_s += load.sync_s / n;
        for PeerMetrics { rank, wait_s, sent_bytes, busy_s, round_trip_s } in &load.peers {
            *self.waits_s.entry(rank.0).or_default() += wait_s / n;
            let link = self.links.entry(rank.0).or_default();
            link.sent_bytes += *sent_bytes as f64 / n;
            link.busy_s += busy_s / n;
            if *round_trip_s > 0.0 {
                link.round_trip_s = *round_trip_s;
            }
        }
    }

    /// Seconds of a step for which it waited for anything.
    pub(crate) fn waiting_s(&self) -> f64 {
        self.waits_s.values().sum::<f64>() + self.reductions_s + self.sync_s
    }

    /// Lists its waits, the longest first: for whom, and the seconds.
    pub(crate) fn waits(&self) -> Vec<(String, f64)> {
        let messages = self.waits_s.iter().map(|(rank, s)| (format!("rank {rank}"), *s));
        let others = [("reductions", self.reductions_s), ("step sync", self.sync_s)];
        let others = others.into_iter().map(|(what, s)| (what.to_string(), s));
        let mut all: Vec<_> = messages.chain(others).filter(|(_, s)| *s > 0.0).collect();
        all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step_s: f64, ranks: &str) -> Metrics {
        let text = format!(
            r#"{{"step":0,"grad_norm":1,"lr":1,"tokens":1,"step_s":{step_s},"tokens_per_s":1,"bubble_ratio":0,"ranks":[{ranks}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn means(steps: &[Metrics]) -> Option<Means> {
        let mut last = LastSteps::default();
        steps.iter().for_each(|step| last.add(step));
        last.means()
    }

    const RANK: &str = r#"{"bubble_ratio":0.5,"bytes":1,"reductions_s":0.5,"sync_s":0.25,
        "peers":[{"rank":1,"wait_s":1},{"rank":4,"sent_bytes":200000,"busy_s":2,"round_trip_s":0.01}]}"#;
    const IDLE: &str = r#"{"bubble_ratio":0.0,"bytes":1}"#;

    #[test]
    fn waits_and_links_are_means_over_steps() {
        let means = means(&[step(1.0, RANK), step(3.0, IDLE)]).unwrap();
        assert_eq!((means.n_steps, means.step_s), (2, 2.0));
        let rank = &means.ranks[0];
        assert_eq!((rank.computing, rank.waiting_s()), (0.75, 0.875));
        let waits = [("rank 1", 0.5), ("reductions", 0.25), ("step sync", 0.125)];
        assert_eq!(rank.waits(), waits.map(|(who, s)| (who.to_string(), s)));
        let link = Link { sent_bytes: 1e5, busy_s: 1.0, round_trip_s: 0.01 };
        assert_eq!(link.rate(), Some(1e5));
        assert_eq!(Link { sent_bytes: 496.0, ..link }.rate(), None);
        let link = Link { sent_bytes: 1e5, busy_s: 1.0, round_trip_s: 0.01 };
        assert_eq!(rank.links, BTreeMap::from([(4, link)]));
    }

    #[test]
    fn only_the_last_steps_of_as_many_ranks_count() {
        let two = format!("{RANK},{IDLE}");
        let means_of = means(&[step(1.0, RANK), step(2.0, &two)]).unwrap();
        assert_eq!((means_of.n_steps, means_of.ranks.len()), (1, 2));
        let many: Vec<_> = (0..30).map(|nth| step(f64::from(nth), RANK)).collect();
        assert_eq!(means(&many).unwrap().step_s, 19.5);
    }

    /// As written by earlier versions.
    #[test]
    fn metrics_without_waits_have_no_means() {
        assert_eq!(means(&[step(1.0, IDLE)]), None);
        assert_eq!(means(&[]), None);
    }
}
