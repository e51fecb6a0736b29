//! The view of a run as text.

use anyhow::Result;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::text::Span;

use super::view;
use crate::cli::parts::training::followed::Followed;

/// Columns and rows of a printed picture.
const PRINTED: (u16, u16) = (100, 30);

/// Renders the terminal's content as text.
pub(super) fn of(run: &Followed) -> Result<String> {
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
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn wide_letters_have_no_gaps() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 1));
        buffer.set_string(0, 0, "a\u{65e5}\u{672c} b", Style::new());
        assert_eq!(line(buffer.content()), "a\u{65e5}\u{672c} b");
    }
}
