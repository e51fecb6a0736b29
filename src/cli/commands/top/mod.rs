//! `chimera top`: shows a run in the terminal while it trains.

mod json;
mod picture;
mod ranks;
mod view;

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, size};
use ratatui::layout::Rect;
use ratatui::{TerminalOptions, Viewport};

use crate::cli::parts::training::followed::{Followed, named_or_newest};

/// Interval between updates.
const PERIOD: Duration = Duration::from_millis(500);
/// The most columns and rows that are drawn: a terminal may claim 65,535 of each, which would not
/// fit into memory.
const LARGEST: (u16, u16) = (1000, 400);

/// Follows a run in the terminal; q quits
#[derive(Args)]
pub(crate) struct Top {
    /// Directory of the run, active or finished [default: the newest in `runs`]
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// Print the view once as text, as is done without a terminal
    #[arg(long)]
    once: bool,
    /// Print the last step, members, waits and links once as JSON
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

impl Top {
    pub(crate) fn run(self) -> Result<()> {
        let mut run = Followed::open(&named_or_newest(self.run)?)?;
        run.read()?;
        if self.json {
            return crate::cli::parts::terminal::console::print(format!("{:#}", json::of(&run)));
        }
        if self.once || !stdout().is_terminal() {
            return crate::cli::parts::terminal::console::print(picture::of(&run)?);
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
