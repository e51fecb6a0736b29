//! Tables in text files that are compiled in.

/// A row of a table.
#[derive(Clone, Copy)]
pub struct TextRow {
    /// The section that the row is in.
    pub section: &'static str,
    /// First line of the row.
    pub head: &'static str,
    /// Second line of the row, without the indent.
    pub text: &'static str,
}

impl TextRow {
    /// Returns true if its first line contains this word.
    pub fn names(&self, word: &str) -> bool {
        self.head.split(' ').any(|name| name == word)
    }
}

/// Returns the rows of a table. A line in brackets begins a section, and a row is two lines, of
/// which the second is indented.
pub fn text_rows(table: &'static str) -> impl Iterator<Item = TextRow> {
    let (mut section, mut head) = ("", "");
    table.lines().filter_map(move |line| {
        if let Some(text) = line.strip_prefix("    ") {
            return Some(TextRow { section, head, text });
        }
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name,
            None => head = line,
        }
        None
    })
}
