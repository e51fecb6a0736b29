//! Layouts as Megatron-LM writes them: `Et*3|(tt|)*29,m|L`.
//!
//! `E` is the embedding, `t` a transformer block, `m` a layer of multi-token prediction, `L` the
//! head with the loss, and `|` ends a stage. `(tt|)*3` repeats a group and `t*3` a letter, as text:
//! the letters and bars count after all repetitions. Commas are ignored. The rules are those of
//! `parse_str_to_list` and `validate_layer_layout` in Megatron's
//! `core/transformer/pipeline_parallel_layer_layout.py`.

use std::fmt::Write;

use super::{MOST_BLOCKS, Partition};

/// The most letters and bars after all repetitions.
const MOST_LETTERS: usize = 8 * MOST_BLOCKS;

/// The reason why a text is not a layout of Megatron.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MegatronError {
    /// A character that stands for no layer.
    #[error(
        "`{0}` is no layer of a Megatron layout: write E, t, m and L, with | between stages, as in Et*3|(tt|)*6tL"
    )]
    Letter(char),
    /// A group that is not closed, not repeated, or holds another.
    #[error(
        "a group of a Megatron layout ends in `)*` and a number, and holds no other group: write it as (tt|)*6"
    )]
    Group,
    /// More letters than a model may have layers.
    #[error("a Megatron layout has at most {MOST_LETTERS} letters and bars after all repetitions")]
    TooLong,
    /// The embedding is not the first layer, or not the only one.
    #[error("a Megatron layout begins with E, once, in its first stage, as in Et*3|t*4|t*3L")]
    Embedding,
    /// The loss is not the last layer, or not the only one.
    #[error("a Megatron layout ends with L, once, in its last stage, as in Et*3|t*4|t*3L")]
    Loss,
    /// Multi-token prediction before a transformer block, or in two stages.
    #[error("every m of a Megatron layout stands after every t, and all in one stage")]
    Predictors,
}

/// Returns true if a text has a character that only Megatron's layouts have.
pub(super) fn is_megatron(text: &str) -> bool {
    text.contains(['L', 'm', '*', '(', ')'])
}

/// Reads a layout.
pub(super) fn read(text: &str) -> Result<Partition, MegatronError> {
    let letters = repeated_letters(&repeated_groups(text)?)?;
    let stages: Vec<&str> = letters.split('|').collect();
    let last = stages.len() - 1;
    let mut blocks = Vec::with_capacity(stages.len());
    let mut predictors = None;
    for (nth, stage) in stages.into_iter().enumerate() {
        let mut layers = stage;
        if nth == 0 {
            layers = layers.strip_prefix('E').ok_or(MegatronError::Embedding)?;
        }
        if nth == last {
            layers = layers.strip_suffix('L').ok_or(MegatronError::Loss)?;
        }
        let decoders = layers.trim_start_matches('t');
        blocks.push(layers.len() - decoders.len());
        if decoders.len() < layers.len() && predictors.is_some() {
            return Err(MegatronError::Predictors);
        }
        let others = decoders.trim_start_matches('m');
        if let Some(letter) = others.chars().next() {
            return Err(misplaced(letter));
        }
        if !decoders.is_empty() && predictors.replace((nth, decoders.len())).is_some() {
            return Err(MegatronError::Predictors);
        }
    }
    if blocks.iter().sum::<usize>() > MOST_BLOCKS {
        return Err(MegatronError::TooLong);
    }
    Ok(Partition { blocks, predictors })
}

/// The refusal of a letter after the layers that a stage may have.
fn misplaced(letter: char) -> MegatronError {
    match letter {
        'E' => MegatronError::Embedding,
        'L' => MegatronError::Loss,
        't' => MegatronError::Predictors,
        other => MegatronError::Letter(other),
    }
}

/// Drops commas, and writes each group as often as it is repeated.
fn repeated_groups(text: &str) -> Result<String, MegatronError> {
    let text = text.trim().replace(',', "");
    let mut all = String::new();
    let mut rest = text.as_str();
    while let Some((before, group)) = rest.split_once('(') {
        let (inside, after) = group.split_once(')').ok_or(MegatronError::Group)?;
        let (count, behind) = count(after).ok_or(MegatronError::Group)?;
        if inside.contains('(') || inside.is_empty() {
            return Err(MegatronError::Group);
        }
        all.push_str(before);
        push(&mut all, inside, count)?;
        rest = behind;
    }
    if rest.contains(')') {
        return Err(MegatronError::Group);
    }
    push(&mut all, rest, 1)?;
    Ok(all)
}

/// Writes each letter as often as it is repeated.
fn repeated_letters(text: &str) -> Result<String, MegatronError> {
    let mut all = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let (letter, after) = rest.split_at(letter.len_utf8());
        let (count, behind) = count(after).unwrap_or((1, after));
        push(&mut all, letter, count)?;
        rest = behind;
    }
    Ok(all)
}

/// Reads `*` and a number at the start of a text; returns the number and the rest.
fn count(text: &str) -> Option<(usize, &str)> {
    let text = text.strip_prefix('*')?;
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    // Digits that do not fit are a number too large for any layout.
    let count = if digits.is_empty() { return None } else { digits.parse().unwrap_or(usize::MAX) };
    Some((count, rest))
}

/// Appends a text several times.
fn push(all: &mut String, text: &str, count: usize) -> Result<(), MegatronError> {
    let more = text.len().checked_mul(count).and_then(|more| more.checked_add(all.len()));
    if more.is_none_or(|n_letters| n_letters > MOST_LETTERS) {
        return Err(MegatronError::TooLong);
    }
    all.extend(std::iter::repeat_n(text, count));
    Ok(())
}

/// Writes a layout, with like stages in a row as a group.
pub(super) fn write(partition: &Partition) -> String {
    let last = partition.blocks.len() - 1;
    let stages: Vec<String> = (0..=last).map(|stage| write_stage(partition, stage)).collect();
    let mut text = String::new();
    let mut at = 0;
    while at < last {
        let n_alike = stages[at..last].iter().take_while(|stage| **stage == stages[at]).count();
        let _ = match n_alike {
            1 => write!(text, "{}|", stages[at]),
            n => write!(text, "({}|)*{n}", stages[at]),
        };
        at += n_alike;
    }
    text + &stages[last]
}

fn write_stage(partition: &Partition, stage: usize) -> String {
    let mut text = String::from(if stage == 0 { "E" } else { "" });
    let n_predictors = match partition.predictors {
        Some((at, n)) if at == stage => n,
        _ => 0,
    };
    for (letter, n) in [('t', partition.blocks[stage]), ('m', n_predictors)] {
        let _ = match n {
            0 => Ok(()),
            1 => write!(text, "{letter}"),
            n => write!(text, "{letter}*{n}"),
        };
    }
    if stage + 1 == partition.blocks.len() {
        text.push('L');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published layouts: stages, blocks, layers of multi-token prediction, blocks of each stage.
    const LAYOUTS: &str = include_str!("megatron_layouts.txt");

    #[test]
    fn published_layouts_give_the_listed_blocks_and_read_back() {
        for line in LAYOUTS.lines() {
            let [text, n_stages, n_blocks, n_predictors, blocks] =
                line.splitn(5, ' ').collect::<Vec<_>>()[..]
            else {
                panic!("{line}")
            };
            let partition: Partition = text.parse().expect(text);
            let said: Vec<String> = partition.blocks.iter().map(usize::to_string).collect();
            assert_eq!(said.join(" "), blocks, "{text}");
            assert_eq!(partition.blocks.len().to_string(), n_stages, "{text}");
            assert_eq!(partition.blocks.iter().sum::<usize>().to_string(), n_blocks, "{text}");
            let predictors = partition.predictors.map_or(0, |(_, n)| n);
            assert_eq!(predictors.to_string(), n_predictors, "{text}");
            assert_eq!(read(&write(&partition)), Ok(partition.clone()), "{text}");
            assert_eq!(partition.to_string().parse(), Ok(partition), "{text}");
        }
    }

    #[test]
    fn repetitions_are_of_text() {
        for (text, blocks, written) in [
            ("Et*3|(tt|)*2tL", &[3, 2, 2, 1][..], "Et*3|(t*2|)*2tL"),
            ("E|t*0|tL", &[0, 0, 1], "E||tL"),
            ("E|*4tL", &[0, 0, 0, 0, 1], "E|(|)*3tL"),
            ("E(tt|t)*2|L", &[2, 3, 1, 0], "Et*2|t*3|t|L"),
            (" E,t,t|,t L", &[], ""),
            ("EtL", &[1], "EtL"),
        ] {
            match read(text) {
                Ok(partition) => {
                    assert_eq!((partition.blocks(), write(&partition).as_str()), (blocks, written));
                }
                Err(error) => assert!(blocks.is_empty(), "{text}: {error}"),
            }
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (text, refusal) in [
            ("t|tL", MegatronError::Embedding),
            ("Et|EtL", MegatronError::Embedding),
            ("|Et|L", MegatronError::Embedding),
            ("Et|t*2", MegatronError::Loss),
            ("EtL|tL", MegatronError::Loss),
            ("Et|L|", MegatronError::Loss),
            ("Em|tL", MegatronError::Predictors),
            ("Et|m|mL", MegatronError::Predictors),
            ("Et|mtL", MegatronError::Predictors),
            ("Et|xL", MegatronError::Letter('x')),
            ("Et|t*L", MegatronError::Letter('*')),
            ("Et|(tt|)L", MegatronError::Group),
            ("Et|(tt|*3L", MegatronError::Group),
            ("Et|tt)*3L", MegatronError::Group),
            ("Et|((tt|)*2)*3L", MegatronError::Group),
            ("Et*99999999999999999999L", MegatronError::TooLong),
            ("E(t*16384|)*16384L", MegatronError::TooLong),
        ] {
            assert_eq!(read(text), Err(refusal), "{text}");
        }
    }

    #[test]
    fn every_small_layout_reads_back() {
        for code in 0..5usize.pow(4) * 8 {
            let blocks: Vec<usize> = (0..4).map(|at| code / 5usize.pow(at) % 5).collect();
            let least = blocks.iter().rposition(|n| *n > 0).unwrap_or(0);
            let stage = least + code / 625 % 4;
            let predictors = (stage < 4).then_some((stage, 1 + code / 2500));
            let partition = Partition { blocks, predictors };
            assert_eq!(read(&write(&partition)), Ok(partition.clone()));
            assert_eq!(partition.to_string().parse(), Ok(partition));
        }
    }
}
