//! Formats and screens for drawings and comparisons of schedules.

use std::io::{IsTerminal, stderr, stdout};

use anstream::{AutoStream, ColorChoice};
use chimera_core::ids::PipeId;
use chimera_core::render::screen::Screen;
use clap::ValueEnum;
use clap::builder::styling::AnsiColor;
use ratatui::crossterm::terminal;

use crate::cli::parts::out::FileFormat;

/// Colours of pipes, in order.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Yellow,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

/// The largest width that is used: a terminal may claim to be wider than any screen.
const WIDEST: u16 = 1000;

/// The format of a drawing or a comparison.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Svg,
    Json,
}

impl From<Format> for FileFormat {
    fn from(format: Format) -> FileFormat {
        match format {
            Format::Text => FileFormat::Text,
            Format::Svg => FileFormat::Svg,
            Format::Json => FileFormat::Json,
        }
    }
}

/// Returns the screen for a drawing: standard output or standard error, minus the columns of an
/// indentation. It has a width if it is a terminal, and colours if help has them.
pub(crate) fn screen(is_stderr: bool, indentation: usize) -> Screen<'static> {
    let (is_terminal, colours) = if is_stderr {
        (stderr().is_terminal(), AutoStream::choice(&stderr()))
    } else {
        (stdout().is_terminal(), AutoStream::choice(&stdout()))
    };
    let columns =
        if is_terminal { terminal::size().ok().map(|(columns, _)| columns) } else { None };
    let columns = columns.filter(|columns| *columns > 0).map(|n| usize::from(n.min(WIDEST)));
    let width = columns.map(|columns| columns.saturating_sub(indentation));
    let paint = if colours == ColorChoice::Never { Screen::PLAIN.paint } else { &painted };
    Screen { width, paint }
}

fn painted(pipe: PipeId, text: &str) -> String {
    let style = COLOURS[pipe.index() % COLOURS.len()].on_default();
    format!("{style}{text}{style:#}")
}
