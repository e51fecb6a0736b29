//! Timetables in files: JSON, or PyTorch's CSV if the name ends in `.csv`.

use std::path::Path;

use chimera_core::interchange::json::{MAX_BYTES, MAX_NAME, is_unprintable};
use chimera_core::interchange::{ReadError, from_csv, from_json};
use chimera_core::timetable::Timetable;

use crate::files::{at_most, read_at_most};

/// The byte order mark that some editors put at the beginning of a file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a file; `-` is JSON on standard input. A timetable from a CSV is named after its file.
///
/// # Errors
/// If the file cannot be read, is longer than a timetable may be, or does not hold a timetable.
pub fn read(file: &Path) -> Result<Timetable, ReadError> {
    let most = MAX_BYTES as u64;
    let content = if file == Path::new("-") {
        at_most(std::io::stdin(), most)
    } else {
        read_at_most(file, most)
    };
    let content = content.map_err(|error| ReadError::Unreadable {
        path: file.display().to_string(),
        reason: error.to_string(),
    })?;
    let bytes = content.ok_or(ReadError::TooLong)?;
    if file.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv")) {
        from_csv(&bytes, &name(file))
    } else {
        from_json(bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes))
    }
}

/// Returns the name of a file without its extension, in a form that JSON may hold.
pub fn name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut name: String = stem.replace(is_unprintable, "?");
    name.truncate(name.floor_char_boundary(MAX_NAME));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_is_a_name_of_a_schedule() {
        assert_eq!(name(Path::new("x/mine.v2.csv")), "mine.v2");
        assert_eq!(name(Path::new("a\n\u{1b}b\u{202e}.csv")), "a??b?");
        let long = format!("{}.csv", "é".repeat(300));
        assert_eq!(name(Path::new(&long)).len(), MAX_NAME);
    }
}
