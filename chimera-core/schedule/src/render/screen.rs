//! Coloured lines of text, as wide as a terminal.

use crate::ir::ids::PipeId;

/// The screen that a drawing is shown on.
#[derive(Clone, Copy)]
pub struct Screen<'s> {
    /// Characters side by side, if there is a limit.
    pub width: Option<usize>,
    /// Writes work of a pipe in its colour.
    pub paint: &'s dyn Fn(PipeId, &str) -> String,
}

impl Screen<'_> {
    /// No limit and no colours.
    pub const PLAIN: Screen<'static> = Screen { width: None, paint: &|_, text| text.to_string() };
}

/// Characters, each with its pipe.
#[derive(Default)]
pub(super) struct Line(pub(super) Vec<(char, Option<PipeId>)>);

impl Line {
    pub(super) fn push(&mut self, pipe: Option<PipeId>, text: &str) {
        self.0.extend(text.chars().map(|letter| (letter, pipe)));
    }

    /// Repeats `with` up to a length.
    pub(super) fn fill(&mut self, to: usize, with: char) {
        self.0.resize(self.0.len().max(to), (with, None));
    }

    /// Writes the label of work and fills it up to a length.
    pub(super) fn work(&mut self, pipe: Option<PipeId>, label: &str, with: char, to: usize) {
        self.push(pipe, label);
        self.0.resize(self.0.len().max(to), (with, pipe));
    }
}

/// Lines that begin with the worker's name, all with the same margin.
pub(super) struct Picture<'s> {
    pub(super) text: String,
    margin: usize,
    screen: Screen<'s>,
}

impl<'s> Picture<'s> {
    pub(super) fn new(n_workers: usize, screen: Screen<'s>) -> Picture<'s> {
        let last = n_workers.saturating_sub(1);
        Picture { text: String::new(), margin: format!("P{last} ").len(), screen }
    }

    /// Characters of a line after its margin, if there is a limit.
    pub(super) fn room(&self) -> Option<usize> {
        self.screen.width.map(|width| width.saturating_sub(self.margin).max(1))
    }

    pub(super) fn worker(&mut self, worker: usize, line: &[(char, Option<PipeId>)]) {
        self.line(&format!("{:<margin$}", format!("P{worker}"), margin = self.margin), line);
    }

    /// A line below a worker's, which begins with a mark, unless it is empty.
    pub(super) fn lane(&mut self, mark: char, line: &[(char, Option<PipeId>)]) {
        if line.iter().any(|(letter, _)| *letter != ' ') {
            self.line(&format!("{mark:>margin$} ", margin = self.margin - 1), line);
        }
    }

    fn line(&mut self, name: &str, line: &[(char, Option<PipeId>)]) {
        let end = line.iter().rposition(|(letter, _)| *letter != ' ').map_or(0, |last| last + 1);
        self.text.push_str(if end == 0 { name.trim_end() } else { name });
        for run in line[..end].chunk_by(|a, b| a.1 == b.1) {
            let text: String = run.iter().map(|(letter, _)| letter).collect();
            match run[0].1 {
                Some(pipe) => self.text.push_str(&(self.screen.paint)(pipe, &text)),
                None => self.text.push_str(&text),
            }
        }
        self.text.push('\n');
    }
}
