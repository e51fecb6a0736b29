//! Reading the metrics of a run again. Damaged lines are skipped, and the length of a line is
//! limited.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Seek, SeekFrom, copy};
use std::ops::Range;
use std::path::Path;

use chimera_formats::files::disk::Disk;
use chimera_formats::files::{no_follow, open_regular};
use serde::Deserialize;

/// Bytes of the longest line that can be metrics: a hundred thousand ranks fill a third of it.
const MAX_LINE: u64 = 64 << 20;

/// Reads whole lines, up to the first that is too long for metrics.
pub struct Lines<R> {
    from: R,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Starts reading the lines of `from`.
    pub fn of(from: R) -> Lines<R> {
        Lines { from, line: Vec::new() }
    }

    /// Returns the next line with its line end, or `None` if no whole line is left.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>> {
        self.line.clear();
        self.from.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.line)?;
        Ok(self.line.ends_with(b"\n").then_some(&self.line))
    }
}

/// The lowest validation loss of a run so far.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Best {
    /// Number of finished steps.
    pub n_steps: u64,
    /// The loss, in nats.
    pub loss: f64,
}

impl Best {
    /// Returns the better of the best so far and the loss after `step`.
    pub(crate) fn of(before: Option<Best>, step: u64, loss: Option<f64>) -> Option<Best> {
        let is_better = |loss: &f64| !before.is_some_and(|best| best.loss <= *loss);
        let best = loss.filter(|loss| loss.is_finite()).filter(is_better);
        best.map(|loss| Best { n_steps: step.saturating_add(1), loss }).or(before)
    }
}

/// The metrics of a run for the steps before a checkpoint.
#[derive(Default, PartialEq, Debug)]
pub(crate) struct Kept {
    /// Byte ranges of the lines that are kept, in order; the last one ends at a line end.
    ranges: Vec<Range<u64>>,
    /// The last step among them.
    last: Option<u64>,
    /// The lowest validation loss among them.
    pub(crate) best: Option<Best>,
    /// Lines before the checkpoint that are not metrics of a step, or whose step is out of order.
    pub(crate) n_damaged: usize,
}

/// A line with the metrics of a step before the checkpoint.
struct StepLine {
    step: u64,
    validation_loss: Option<f64>,
    bytes: Range<u64>,
    /// Number of the line among all lines.
    nth: usize,
}

impl Kept {
    /// Finds the lines of steps before `first`: the longest sequence of rising steps, so that one
    /// wrong step costs one line.
    fn of(from: impl BufRead, first: u64) -> Result<Kept> {
        #[derive(Deserialize)]
        struct Step {
            step: u64,
            validation_loss: Option<f64>,
        }
        let (mut found, mut later) = (Vec::new(), Vec::new());
        let (mut lines, mut start, mut n_lines) = (Lines::of(from), 0, 0);
        while let Some(line) = lines.next_line()? {
            let end = start + line.len() as u64;
            match serde_json::from_slice(line) {
                Ok(Step { step, .. }) if step >= first => later.push(n_lines),
                Ok(Step { step, validation_loss }) => {
                    found.push(StepLine { step, validation_loss, bytes: start..end, nth: n_lines });
                }
                Err(_) => {}
            }
            (start, n_lines) = (end, n_lines + 1);
        }
        let mut kept = Kept::default();
        let steps: Vec<u64> = found.iter().map(|line| line.step).collect();
        let rising = longest_rising(&steps);
        for StepLine { step, validation_loss, bytes, .. } in rising.iter().map(|i| &found[*i]) {
            kept.last = Some(*step);
            kept.best = Best::of(kept.best, *step, *validation_loss);
            match kept.ranges.last_mut() {
                Some(range) if range.end == bytes.start => range.end = bytes.end,
                _ => kept.ranges.push(bytes.clone()),
            }
        }
        // Lines after the checkpoint are cut; they are not damaged.
        let n_before = rising.last().map_or(0, |last| found[*last].nth + 1);
        let end = later.into_iter().find(|nth| *nth >= n_before).unwrap_or(n_lines);
        kept.n_damaged = end - rising.len();
        Ok(kept)
    }

    /// Returns true if there are lines but none of them is metrics of a step.
    pub(crate) fn is_foreign(&self) -> bool {
        self.ranges.is_empty() && self.n_damaged > 0
    }

    /// Returns the steps before `first` whose metrics are missing at the end.
    pub(crate) fn missing(&self, first: u64) -> Range<u64> {
        self.last.map_or(0, |last| last + 1)..first
    }

    /// Cuts the file at `path` to these lines. Follows a link if a user named it.
    pub(crate) fn cut(&self, path: &Path, is_named: bool) -> Result<()> {
        let file = options(is_named).write(true).open(path)?;
        match &self.ranges[..] {
            [] => file.set_len(0),
            [all] if all.start == 0 => file.set_len(all.end),
            ranges => {
                let mut file = open_regular(path)?;
                let written = Disk::default().write(&path.canonicalize()?, |out| {
                    for Range { start, end } in ranges {
                        file.seek(SeekFrom::Start(*start))?;
                        copy(&mut (&file).take(end - start), out)?;
                    }
                    Ok(())
                });
                written.map(drop)
            }
        }
    }
}

/// Returns the positions of a longest strictly rising subsequence of steps; of equal steps the
/// first counts.
fn longest_rising(steps: &[u64]) -> Vec<usize> {
    // For each length, the position of the smallest step that a sequence of that length can end
    // with.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(steps.len());
    for (place, step) in steps.iter().enumerate() {
        let length = ends.partition_point(|end| steps[*end] < *step);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            None => ends.push(place),
            Some(end) if steps[*end] > *step => *end = place,
            Some(_) => {}
        }
    }
    let mut rising = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied();
    while let Some(place) = next {
        rising.push(place);
        next = before[place];
    }
    rising.reverse();
    rising
}

/// Returns the metrics at `path` of the steps before `first`, or `None` if there is no such file,
/// or if it is a device or pipe that a user named.
pub(crate) fn before(path: &Path, first: u64, is_named: bool) -> Result<Option<Kept>> {
    match path.metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Ok(found) if is_named && !found.is_file() => Ok(None),
        _ => Kept::of(BufReader::new(open_regular(path)?), first).map(Some),
    }
}

/// Opens metrics for appending. Follows a link if a user named it.
pub(crate) fn open(path: &Path, is_named: bool) -> Result<File> {
    options(is_named).append(true).create(true).open(path)
}

/// Opens metrics whose file was removed or replaced during the run. Replaces anything that is not a
/// file, unless a user named it: a pipe could wait for its reader for ever.
pub(crate) fn reopen(path: &Path, is_named: bool) -> Result<File> {
    let found = if is_named { path.metadata() } else { path.symlink_metadata() };
    match found {
        Ok(found) if !found.is_file() && is_named => {
            Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file any more"))
        }
        Ok(found) if !found.is_file() => {
            remove_file(path)?;
            open(path, is_named)
        }
        _ => open(path, is_named),
    }
}

fn options(is_named: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    if !is_named {
        no_follow(&mut options);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: &[u8], first: u64) -> (Vec<u8>, Kept) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, text).unwrap();
        let kept = before(&path, first, false).unwrap().unwrap();
        kept.cut(&path, false).unwrap();
        (std::fs::read(&path).unwrap(), kept)
    }

    #[test]
    fn sound_lines_before_the_checkpoint_are_kept() {
        let line = |step: u64| format!("{{\"step\":{step}}}\n");
        let steps = |steps: &[u64]| steps.iter().map(|step| line(*step)).collect::<String>();
        let all = steps(&[0, 1, 2, 3, 4]);
        for (text, first, expected, n_damaged) in [
            (all.clone(), 3, steps(&[0, 1, 2]), 0),
            (all.clone(), 5, all.clone(), 0),
            (all.clone() + "{\"step\":5", 9, all.clone(), 0),
            (all.replace("{\"step\":2", "[\"step\":2"), 4, steps(&[0, 1, 3]), 1),
            (all.replace("{\"step\":0", "\u{0}"), 4, steps(&[1, 2, 3]), 1),
            (steps(&[0, 1, 1, 0, 2]), 4, steps(&[0, 1, 2]), 2),
            (String::new(), 4, String::new(), 0),
            // One digit is wrong: only its line is lost.
            (steps(&[0, 1, 9, 3, 4]), 6, steps(&[0, 1, 3, 4]), 1),
            (steps(&[0, 1, 5, 3, 4]), 6, steps(&[0, 1, 3, 4]), 1),
            (steps(&[7, 1, 2, 0, 4]), 5, steps(&[1, 2, 4]), 2),
            // Steps after the checkpoint are not damage.
            (steps(&[0, 1, 9, 3, 6, 7]), 6, steps(&[0, 1, 3]), 1),
            (steps(&[8, 9]), 4, String::new(), 0),
        ] {
            let (content, kept) = kept(text.as_bytes(), first);
            assert_eq!(String::from_utf8(content).unwrap(), expected, "{text}");
            assert_eq!(kept.n_damaged, n_damaged, "{text}");
        }
        let bytes = [line(0).as_bytes(), b"\xff\n", line(1).as_bytes(), b"\xff\0"].concat();
        let (content, kept) = kept(&bytes, 4);
        assert_eq!((content, kept.missing(4)), (steps(&[0, 1]).into_bytes(), 2..4));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_in_the_place_of_metrics_never_holds_up_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(reopen(&path, true).unwrap_err().kind(), ErrorKind::InvalidInput);
        reopen(&path, false).unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn the_best_validation_loss_before_the_checkpoint_is_known() {
        let line = |(step, loss)| format!("{{\"step\":{step},\"validation_loss\":{loss}}}\n");
        let losses = [(0, "3.0"), (1, "null"), (2, "2.5"), (3, "2.5"), (4, "2.75"), (5, "1.0")];
        let text: String = losses.map(line).concat();
        let (_, kept) = kept(text.as_bytes(), 5);
        assert_eq!(kept.best, Some(Best { n_steps: 3, loss: 2.5 }));
    }
}
