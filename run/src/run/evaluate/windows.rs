//! A text in windows, as the samples of an evaluation.

use std::io;

use anyhow::{Result, ensure};
use chimera_core::stage::Data;

use crate::data::Tokens;

/// A text in windows of `context` tokens, each `stride` tokens after the one before. A window scores
/// those targets that no earlier window scored. So each token but the first is predicted once, from at
/// least `context - stride` tokens where that many come before it.
pub struct Windows<'t> {
    tokens: &'t Tokens,
    context: usize,
    stride: usize,
    /// The token after which nothing is a target.
    end_of_text: Option<u32>,
    n_predicted: usize,
    /// Windows of a step of an evaluation.
    pub(super) n_per_step: u64,
}

impl Windows<'_> {
    /// Cuts a text into windows. Nothing is a target after the token `end_of_text`.
    ///
    /// # Errors
    /// If the text has no target, or the stride is longer than the window.
    pub fn new(
        tokens: &Tokens,
        context: usize,
        stride: usize,
        end_of_text: Option<u32>,
    ) -> Result<Windows<'_>> {
        ensure!(context > 0, "a window of 0 tokens: choose 1 or more");
        ensure!(
            (1..=context).contains(&stride),
            "a stride of {stride} tokens: choose 1 to the window's {context}"
        );
        ensure!(tokens.len() > 1, "a single token predicts nothing: give at least two");
        let n_predicted = tokens.n_targets(end_of_text)?;
        ensure!(n_predicted > 0, "no token of the text is a target");
        Ok(Windows { tokens, context, stride, end_of_text, n_predicted, n_per_step: 1 })
    }

    /// Number of windows.
    pub fn n_windows(&self) -> u64 {
        let behind_first = (self.tokens.len() - 1).saturating_sub(self.context);
        1 + behind_first.div_ceil(self.stride) as u64
    }

    /// Number of tokens that are predicted.
    pub fn n_predicted(&self) -> usize {
        self.n_predicted
    }

    /// Tokens of a window.
    pub(super) fn context(&self) -> usize {
        self.context
    }

    /// Returns the window at a place of an evaluation, or `None` after the last.
    pub(super) fn at(&self, step: u64, sample: u64) -> Option<u64> {
        let window = step * self.n_per_step + sample;
        (window < self.n_windows()).then_some(window)
    }

    /// Number of the token after the last one of a window, except that the text's last token is
    /// only a target.
    fn end(&self, window: usize) -> usize {
        let start = window.saturating_mul(self.stride);
        start.saturating_add(self.context).min(self.tokens.len() - 1)
    }
}

/// Samples are numbered in steps of as many windows as the evaluation has at a time. A target begins
/// with the number of targets; zeros fill it up. After the last window samples have one token and no
/// target.
impl Data for Windows<'_> {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> io::Result<()> {
        let first = target.len();
        target.push(0);
        if let Some(window) = self.at(step, sample) {
            let window = window as usize;
            let end = self.end(window);
            let done = window.checked_sub(1).map_or(0, |before| self.end(before));
            self.tokens.extend(input, window * self.stride..end)?;
            self.tokens.extend_targets(target, done + 1..end + 1, self.end_of_text)?;
            target[first] = (target.len() - first - 1) as u32;
        } else {
            self.tokens.extend(input, 0..1)?;
        }
        target.resize(first + self.target_len(), 0);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        self.context
    }

    fn target_len(&self) -> usize {
        1 + self.context
    }

    /// The loss is the mean over all targets of the text, whatever the step.
    fn n_counted(&self, _step: u64, _n_samples: u64) -> io::Result<u64> {
        Ok(self.n_predicted as u64)
    }
}

/// Returns the targets of a sample.
pub(super) fn targets(target: &[u32]) -> &[u32] {
    let (n, rest) = target.split_first().map_or((0, target), |(n, rest)| (*n as usize, rest));
    &rest[..n.min(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The input and the targets of each window of a text of `n` tokens, which are their positions.
    fn windows(n: u32, context: usize, stride: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
        let ids: Vec<u32> = (0..n).collect();
        let tokens = Tokens::of_ids(&ids);
        let windows = Windows::new(&tokens, context, stride, None).expect("windows");
        let sample = |number| {
            let (mut input, mut target) = (Vec::new(), Vec::new());
            windows.sample(number, 0, &mut input, &mut target).expect("a sample");
            assert_eq!(target.len(), windows.target_len());
            (input, targets(&target).to_vec())
        };
        let surplus = sample(windows.n_windows());
        assert_eq!(surplus, (vec![0], Vec::new()));
        (0..windows.n_windows()).map(sample).collect()
    }

    #[test]
    fn every_token_but_the_first_is_a_target_once() {
        for n in 2..=20 {
            for (context, stride) in [(1, 1), (4, 4), (4, 1), (5, 3), (30, 30), (30, 7)] {
                let windows = windows(n, context, stride);
                let targets = windows.iter().flat_map(|(_, targets)| targets.iter().copied());
                assert!(targets.eq(1..n), "{n} {context} {stride}");
                for (input, targets) in &windows {
                    assert!(input.len() <= context && !targets.is_empty());
                    assert_eq!(input.last().map(|last| last + 1), targets.last().copied());
                }
            }
        }
    }

    #[test]
    fn windows_that_cannot_be_are_refused() {
        let refusal = |n: u32, stride| {
            let tokens = Tokens::of_ids(&(0..n).collect::<Vec<_>>());
            Windows::new(&tokens, 4, stride, None).err().expect("refused").to_string()
        };
        assert!(refusal(9, 5).contains("a stride of 5 tokens: choose 1 to the window's 4"));
        assert!(refusal(9, 0).contains("a stride of 0 tokens"));
        assert!(refusal(1, 1).contains("a single token predicts nothing"));
    }
}
