//! Which stages recompute.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use chimera_core::ids::StageId;
use chimera_core::lower::Recompute;

/// The recomputation that is chosen stage by stage.
pub(super) const AUTO: &str = "auto";

/// The stages that `recompute` is about: the others keep all their activations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecomputedStages {
    /// All of them.
    All,
    /// As few as memory asks for.
    Auto,
    /// These, each with what its forwards keep where that is not what `recompute` says.
    These(BTreeMap<u16, Option<Recompute>>),
}

impl RecomputedStages {
    /// Words that stand for stages.
    pub const WORDS: [(&'static str, RecomputedStages); 2] =
        [("all", RecomputedStages::All), (AUTO, RecomputedStages::Auto)];

    /// Whether a stage is one of them. Until `auto` is known, all are.
    pub fn has(&self, stage: StageId) -> bool {
        match self {
            RecomputedStages::All | RecomputedStages::Auto => true,
            RecomputedStages::These(stages) => stages.contains_key(&stage.0),
        }
    }

    /// What the forwards of a stage keep, where `recompute` says what those of a stage among these keep.
    pub fn of(&self, stage: StageId, recompute: Recompute) -> Recompute {
        match self {
            RecomputedStages::These(stages) => match stages.get(&stage.0) {
                Some(own) => own.filter(|_| recompute != Recompute::None).unwrap_or(recompute),
                None => Recompute::None,
            },
            RecomputedStages::All | RecomputedStages::Auto => recompute,
        }
    }

    /// Stages that keep what `recompute` says, and those of them that keep what is dear to compute.
    pub(crate) fn with_selective(stages: &[u16], selective: &[u16]) -> RecomputedStages {
        let own = |stage: &u16| selective.contains(stage).then_some(Recompute::Selective);
        RecomputedStages::These(stages.iter().map(|stage| (*stage, own(stage))).collect())
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
            text.trim().parse::<u16>().map_err(|_| format!("`{text}` is no number of a stage"))
        };
        let mut stages = BTreeMap::new();
        for part in text.split(',') {
            let (part, own) = match part.split_once(':') {
                Some((part, own)) => (part, Some(own.trim().parse::<Recompute>()?)),
                None => (part, None),
            };
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (number(from)?, number(to)?);
            if from > to {
                return Err(format!("`{from}-{to}` ends before it begins: say {to}-{from}"));
            }
            for stage in from..=to {
                if stages.insert(stage, own).is_some_and(|before| before != own) {
                    return Err(format!("stage {stage} is named twice, each time otherwise"));
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
        let stages: Vec<(u16, Option<Recompute>)> =
            stages.iter().map(|(s, own)| (*s, *own)).collect();
        let is_run = |a: &(u16, Option<Recompute>), b: &(u16, Option<Recompute>)| {
            a.0 + 1 == b.0 && a.1 == b.1
        };
        let runs = stages.chunk_by(is_run).map(|run| {
            let (from, to) = (run[0].0, run[run.len() - 1].0);
            let numbers = if from == to { from.to_string() } else { format!("{from}-{to}") };
            match Recompute::ALL.iter().find(|(_, one)| Some(*one) == run[0].1) {
                Some((own, _)) => format!("{numbers}:{own}"),
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
        ] {
            let stages: RecomputedStages = text.parse().unwrap();
            assert_eq!(stages.to_string(), written);
            assert_eq!(written.parse(), Ok(stages));
        }
        let some: RecomputedStages = "0-1,3".parse().unwrap();
        assert!(some.has(StageId(1)) && !some.has(StageId(2)));
        assert!(RecomputedStages::Auto.has(StageId(2)));
        let mixed: RecomputedStages = "0-1,2:selective".parse().unwrap();
        let of = |stage| mixed.of(StageId(stage), Recompute::Full);
        assert_eq!([of(1), of(2), of(3)], [Recompute::Full, Recompute::Selective, Recompute::None]);
        assert_eq!(mixed.of(StageId(2), Recompute::None), Recompute::None);
        assert_eq!(RecomputedStages::with_selective(&[0, 1, 2], &[2]), mixed);
        for wrong in ["", "none", "1-", "-1", "1,,2", "70000", "1:half", ":full"] {
            assert!(wrong.parse::<RecomputedStages>().is_err(), "{wrong}");
        }
    }
}
