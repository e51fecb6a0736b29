//! `chimera top`: a run followed in the terminal.

mod view;

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, size};
use ratatui::layout::Rect;
use ratatui::text::Span;
use ratatui::{Terminal, TerminalOptions, Viewport};

use crate::cli::parts::training::followed::{Followed, named_or_newest};

/// How often the run is looked at.
const PERIOD: Duration = Duration::from_millis(500);
/// Size of a picture that is printed.
const PRINTED: (u16, u16) = (100, 30);
/// Columns and rows that are drawn at most: a terminal may claim 65,535 of each, which no memory holds.
const LARGEST: (u16, u16) = (1000, 400);

/// Follows a run in the terminal; q quits
#[derive(Args)]
pub(crate) struct Top {
    /// Directory of the run, active or finished [default: the newest in `runs`]
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// Prints what there is once, as where standard output is no terminal
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(crate) fn run(self) -> Result<()> {
        let mut run = Followed::open(&named_or_newest(self.run)?)?;
        run.read()?;
        if self.once || !stdout().is_terminal() {
            return crate::cli::parts::terminal::console::print(picture(&run)?);
        }
        let viewport = Viewport::Fixed(area()?);
        let terminal = ratatui::try_init_with_options(TerminalOptions { viewport });
        let mut terminal = terminal.context("cannot draw on this terminal")?;
        let entered = execute!(stdout(), EnterAlternateScreen);
        let outcome = entered.map_err(Into::into).and_then(|()| follow(&mut terminal, &mut run));
        ratatui::restore();
        outcome
    }
}

/// What is drawn of the terminal.
fn area() -> Result<Rect> {
    let (width, height) = size().context("the size of this terminal is not known")?;
    Ok(Rect::new(0, 0, width.min(LARGEST.0), height.min(LARGEST.1)))
}

fn follow(terminal: &mut ratatui::DefaultTerminal, run: &mut Followed) -> Result<()> {
    let mut drawn = area()?;
    loop {
        let now = area()?;
        if now != drawn {
            terminal.resize(now)?;
            drawn = now;
        }
        terminal.draw(|frame| view::draw(frame, run))?;
        if event::poll(PERIOD)?
            && let Event::Key(key) = event::read()?
            && quits(key)
        {
            return Ok(());
        }
        run.read()?;
    }
}

fn quits(key: KeyEvent) -> bool {
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// What the terminal would show, as text.
fn picture(run: &Followed) -> Result<String> {
    let (width, height) = PRINTED;
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| view::draw(frame, run))?;
    let cells = terminal.backend().buffer().content();
    let lines: Vec<String> = cells.chunks(usize::from(width)).map(line).collect();
    Ok(lines.join("\n").trim_end().to_string())
}

/// A row as text. Behind a letter that is two cells wide there is a cell that nobody sees.
fn line(row: &[Cell]) -> String {
    let (mut line, mut at) = (String::new(), 0);
    while let Some(cell) = row.get(at) {
        line.push_str(cell.symbol());
        at += Span::raw(cell.symbol()).width().max(1);
    }
    line.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Buffer;
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn wide_letters_have_no_gaps() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 1));
        buffer.set_string(0, 0, "a\u{65e5}\u{672c} b", Style::new());
        assert_eq!(line(buffer.content()), "a\u{65e5}\u{672c} b");
    }
}
