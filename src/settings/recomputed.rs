//! Which stages recompute.

use std::fmt;
use std::str::FromStr;

use chimera_core::ids::StageId;

/// The stages that `recompute` is about: the others keep all their activations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecomputedStages {
    /// All of them.
    All,
    /// As few as memory asks for.
    Auto,
    /// These, in ascending order.
    These(Vec<u16>),
}

impl RecomputedStages {
    /// Words that stand for stages.
    pub const WORDS: [(&'static str, RecomputedStages); 2] =
        [("all", RecomputedStages::All), ("auto", RecomputedStages::Auto)];

    /// Whether a stage is one of them. Until `auto` is known, all are.
    pub fn has(&self, stage: StageId) -> bool {
        match self {
            RecomputedStages::All | RecomputedStages::Auto => true,
            RecomputedStages::These(stages) => stages.binary_search(&stage.0).is_ok(),
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
            text.trim().parse::<u16>().map_err(|_| format!("`{text}` is no number of a stage"))
        };
        let mut stages = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                Some((from, to)) => stages.extend(number(from)?..=number(to)?),
                None => stages.push(number(part)?),
            }
        }
        stages.sort_unstable();
        stages.dedup();
        Ok(RecomputedStages::These(stages))
    }
}

impl fmt::Display for RecomputedStages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecomputedStages::These(stages) = self else {
            let word = RecomputedStages::WORDS.iter().find(|(_, stages)| stages == self);
            return f.write_str(word.map_or("", |(word, _)| word));
        };
        let runs = stages.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
            [one] => one.to_string(),
            run => format!("{}-{}", run[0], run[run.len() - 1]),
        });
        f.write_str(&runs.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_written_as_runs() {
        for (text, written) in
            [("all", "all"), ("auto", "auto"), ("3,0-1", "0-1,3"), ("2, 2,1", "1-2"), ("7", "7")]
        {
            let stages: RecomputedStages = text.parse().unwrap();
            assert_eq!(stages.to_string(), written);
            assert_eq!(written.parse(), Ok(stages));
        }
        let some: RecomputedStages = "0-1,3".parse().unwrap();
        assert!(some.has(StageId(1)) && !some.has(StageId(2)));
        assert!(RecomputedStages::Auto.has(StageId(2)));
        for wrong in ["", "none", "1-", "-1", "1,,2", "70000"] {
            assert!(wrong.parse::<RecomputedStages>().is_err(), "{wrong}");
        }
    }
}
