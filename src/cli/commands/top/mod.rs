//! `chimera top`: shows a run in the terminal while it trains.

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

/// Interval between updates.
const PERIOD: Duration = Duration::from_millis(500);
/// Columns and rows of a printed picture.
const PRINTED: (u16, u16) = (100, 30);
/// The most columns and rows that are drawn: a terminal may claim 65,535 of each, which would not
/// fit into memory.
const LARGEST: (u16, u16) = (1000, 400);

/// Follows a run in the terminal; q quits
#[derive(Args)]
pub(crate) struct Top {
    /// Directory of the run, active or finished [default: the newest in `runs`]
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// Print the picture once as text, as without a terminal
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

/// The part of the terminal that is drawn on.
fn area() -> Result<Rect> {
    let (width, height) = size().context("the size of this terminal is unknown")?;
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

/// Renders the terminal's content as text.
fn picture(run: &Followed) -> Result<String> {
    let (width, height) = PRINTED;
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| view::draw(frame, run))?;
    let cells = terminal.backend().buffer().content();
    let lines: Vec<String> = cells.chunks(usize::from(width)).map(line).collect();
    Ok(lines.join("\n").trim_end().to_string())
}

/// Converts a row to text. A letter that is two cells wide is followed by a hidden cell.
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
