//! Tables of published measurements: CSV with a line of names, and comments that begin with `#`.

use anyhow::{Context, Result, ensure};

/// A table.
pub(super) struct Table {
    names: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A row of a table.
#[derive(Clone, Copy)]
pub(super) struct Row<'t> {
    names: &'t [String],
    cells: &'t [String],
}

impl Table {
    pub(super) fn of(text: &str) -> Result<Table> {
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let names = cells(lines.next().context("the table is empty")?);
        let rows: Vec<_> = lines.map(cells).collect();
        for row in &rows {
            let (found, expected) = (row.len(), names.len());
            ensure!(found == expected, "{row:?} has {found} cells instead of {expected}");
        }
        Ok(Table { names, rows })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { names: &self.names, cells })
    }
}

impl<'t> Row<'t> {
    /// Returns the cell below a name.
    pub(super) fn text(self, name: &str) -> Result<&'t str> {
        let at = self.names.iter().position(|known| known == name);
        let at = at.with_context(|| format!("the table has no column `{name}`"))?;
        Ok(&self.cells[at])
    }

    pub(super) fn number(self, name: &str) -> Result<f64> {
        let text = self.text(name)?;
        text.parse().with_context(|| format!("`{name}` is `{text}`, which is not a number"))
    }
}

/// Returns the cells of a line. A cell in quotes may have commas.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    for letter in line.chars() {
        match (letter, cells.last_mut()) {
            ('"', _) => is_quoted = !is_quoted,
            (',', _) if !is_quoted => cells.push(String::new()),
            (letter, Some(cell)) => cell.push(letter),
            (_, None) => {}
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_names_and_may_have_commas() {
        let table = Table::of("# from there\nname,size\none,1\n\"a,b\",2.5\n").unwrap();
        let rows: Vec<_> = table.rows().collect();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[1].text("name").unwrap(), rows[1].number("size").unwrap()), ("a,b", 2.5));
        assert!(rows[0].number("name").is_err() && rows[0].text("other").is_err());
        assert!(Table::of("a,b\n1\n").is_err());
    }
}
