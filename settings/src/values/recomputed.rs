//! The choice of stages that recompute.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use chimera_core::ids::StageId;
use chimera_core::lower::Recompute;
use chimera_core::model::Selection;

/// The word for recomputation that is chosen stage by stage.
pub(crate) const AUTO: &str = "auto";

/// The stages that `recompute` applies to. The others keep all their activations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecomputedStages {
    /// All stages.
    All,
    /// As few as memory requires.
    Auto,
    /// These stages, some with a recomputation that differs from `recompute`.
    These(BTreeMap<u16, Option<StageRecompute>>),
}

/// The recomputation of a stage that differs from the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageRecompute {
    /// The forwards keep this.
    Keeps(Recompute),
    /// Recomputes this number of layers from their inputs and keeps the activations of the others.
    Layers(u16),
}

/// An error in the stages to recompute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnfitStages {
    /// A stage does not exist.
    #[error(
        "recompute-stages names stage {stage}, but there are {n_stages}, from 0: name some of these"
    )]
    Absent {
        /// The stage.
        stage: u16,
        /// Number of stages.
        n_stages: usize,
    },
    /// A stage has fewer layers than it should recompute.
    #[error(
        "recompute-stages says that stage {stage} recomputes {n} layers, but it has {has}: write \
         {has} at most, or no number to recompute all"
    )]
    TooManyLayers {
        /// The stage.
        stage: u16,
        /// Number of layers it should recompute.
        n: usize,
        /// Number of layers it has.
        has: usize,
    },
    /// The stages to recompute cannot be chosen for a schedule that is searched for.
    #[error(
        "recompute-stages auto is for the schedules of the table, and auto searches for one: name stages, such as 0,2-3"
    )]
    OfSearch,
}

impl RecomputedStages {
    /// Words for sets of stages.
    pub const WORDS: [(&'static str, RecomputedStages); 2] =
        [("all", RecomputedStages::All), (AUTO, RecomputedStages::Auto)];

    /// Returns the recomputation of a stage, given the `recompute` that applies to these stages.
    pub fn of(&self, stage: StageId, recompute: Recompute) -> Recompute {
        match self {
            RecomputedStages::These(stages) => match stages.get(&stage.0) {
                None => Recompute::None,
                Some(_) if recompute == Recompute::None => Recompute::None,
                Some(None) => recompute,
                Some(Some(StageRecompute::Keeps(own))) => *own,
                Some(Some(StageRecompute::Layers(_))) => Recompute::Selective,
            },
            RecomputedStages::All | RecomputedStages::Auto => recompute,
        }
    }

    /// Returns the part of the layers that a stage keeps if its forwards keep a part.
    pub fn selection(&self, stage: StageId) -> Selection {
        match self {
            RecomputedStages::These(stages) => match stages.get(&stage.0) {
                Some(Some(StageRecompute::Layers(n))) => Selection::InputsOf(usize::from(*n)),
                _ => Selection::Dear,
            },
            RecomputedStages::All | RecomputedStages::Auto => Selection::Dear,
        }
    }

    /// Returns true if some stage recomputes a number of its layers.
    pub fn has_layers(&self) -> bool {
        let RecomputedStages::These(stages) = self else { return false };
        stages.values().any(|own| matches!(own, Some(StageRecompute::Layers(_))))
    }
}

impl FromStr for StageRecompute {
    type Err = String;

    fn from_str(text: &str) -> Result<StageRecompute, String> {
        match text.parse::<u16>() {
            Ok(0) => Err("0 layers means none: leave the stage out".into()),
            Ok(n) => Ok(StageRecompute::Layers(n)),
            Err(_) => text
                .parse()
                .map(StageRecompute::Keeps)
                .map_err(|e| format!("{e}, or a number of layers")),
        }
    }
}

impl fmt::Display for StageRecompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StageRecompute::Layers(n) => n.fmt(f),
            StageRecompute::Keeps(recompute) => {
                let own = Recompute::ALL.iter().find(|(_, one)| one == recompute);
                f.write_str(own.map_or("", |(name, _)| name))
            }
        }
    }
}

impl FromStr for RecomputedStages {
    type Err = String;

    fn from_str(text: &str) -> Result<RecomputedStages, String> {
        let word = RecomputedStages::WORDS.into_iter().find(|(word, _)| *word == text);
        if let Some((_, stages)) = word {
            return Ok(stages);
        }
        let number = |text: &str| {
            text.trim().parse::<u16>().map_err(|_| format!("`{text}` is not the number of a stage"))
        };
        let mut stages = BTreeMap::new();
        for part in text.split(',') {
            let (part, own) = match part.split_once(':') {
                Some((part, own)) => (part, Some(own.trim().parse::<StageRecompute>()?)),
                None => (part, None),
            };
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                return Err(format!("`{from}-{to}` ends before it begins: write {to}-{from}"));
            }
            for stage in from..=to {
                if stages.insert(stage, own).is_some_and(|before| before != own) {
                    return Err(format!("stage {stage} is named twice, in different ways"));
                }
            }
        }
        Ok(RecomputedStages::These(stages))
    }
}

impl fmt::Display for RecomputedStages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecomputedStages::These(stages) = self else {
            let word = RecomputedStages::WORDS.iter().find(|(_, stages)| stages == self);
            return f.write_str(word.map_or("", |(word, _)| word));
        };
        let stages: Vec<(u16, Option<StageRecompute>)> =
            stages.iter().map(|(s, own)| (*s, *own)).collect();
        let is_run = |a: &(u16, Option<StageRecompute>), b: &(u16, Option<StageRecompute>)| {
            a.0 + 1 == b.0 && a.1 == b.1
        };
        let runs = stages.chunk_by(is_run).map(|run| {
            let (from, to) = (run[0].0, run[run.len() - 1].0);
            let numbers = if from == to { from.to_string() } else { format!("{from}-{to}") };
            match run[0].1 {
                Some(own) => format!("{numbers}:{own}"),
                None => numbers,
            }
        });
        f.write_str(&runs.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_written_as_runs() {
        for (text, written) in [
            ("all", "all"),
            ("auto", "auto"),
            ("3,0-1", "0-1,3"),
            ("2, 2,1", "1-2"),
            ("7", "7"),
            ("0-1,2-3:selective,5:full", "0-1,2-3:selective,5:full"),
            ("0:2,1:2,2:3,4", "0-1:2,2:3,4"),
        ] {
            let stages: RecomputedStages = text.parse().unwrap();
            assert_eq!(stages.to_string(), written);
            assert_eq!(written.parse(), Ok(stages));
        }
        let some: RecomputedStages = "0-1,3".parse().unwrap();
        let keeps = |stage| some.of(StageId(stage), Recompute::Full);
        assert_eq!([keeps(1), keeps(2)], [Recompute::Full, Recompute::None]);
        let layers: RecomputedStages = "0:2,1".parse().unwrap();
        let selections = [0, 1, 2].map(|stage| layers.selection(StageId(stage)));
        assert_eq!(selections, [Selection::InputsOf(2), Selection::Dear, Selection::Dear]);
        assert_eq!(layers.of(StageId(0), Recompute::Full), Recompute::Selective);
        assert_eq!(layers.of(StageId(0), Recompute::None), Recompute::None);
        assert!(layers.has_layers() && !some.has_layers());
        let mixed: RecomputedStages = "0-1,2:selective".parse().unwrap();
        let of = |stage| mixed.of(StageId(stage), Recompute::Full);
        assert_eq!([of(1), of(2), of(3)], [Recompute::Full, Recompute::Selective, Recompute::None]);
        assert_eq!(mixed.of(StageId(2), Recompute::None), Recompute::None);
        for wrong in ["", "none", "1-", "-1", "1,,2", "70000", "1:half", ":full", "1:0", "1:-2"] {
            assert!(wrong.parse::<RecomputedStages>().is_err(), "{wrong}");
        }
    }
}
