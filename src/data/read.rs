//! Reading data files.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::{DataError, Tokens};

/// The tokens of `files`, one file after another; every id is below `vocab`. Kinds of files are those of
/// [`Corpus::open`](super::Corpus::open).
pub fn read(files: &[PathBuf], vocab: usize) -> Result<Tokens, DataError> {
    let mut tokens: Option<Tokens> = None;
    for path in files {
        let kind = Kind::of(path);
        let tokens = tokens.get_or_insert_with(|| kind.none());
        let expected = Kind::held(tokens);
        if kind != expected {
            let (found, expected) = (kind.name(), expected.name());
            return Err(DataError::Mixed { path: path.clone(), found, expected });
        }
        let start = tokens.len();
        append(path, kind.width(), tokens)?;
        tokens.check(path, start, vocab)?;
    }
    Ok(tokens.unwrap_or_else(|| Kind::Text.none()))
}

/// What a file holds, by its name.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    U16,
    U32,
}

impl Kind {
    fn of(path: &Path) -> Kind {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match name.strip_suffix(".bin") {
            Some(name) if name.ends_with(".u32") => Kind::U32,
            Some(_) => Kind::U16,
            None => Kind::Text,
        }
    }

    fn held(tokens: &Tokens) -> Kind {
        match tokens {
            Tokens::Bytes(_) => Kind::Text,
            Tokens::U16(_) => Kind::U16,
            Tokens::U32(_) => Kind::U32,
        }
    }

    fn none(self) -> Tokens {
        match self {
            Kind::Text => Tokens::Bytes(Vec::new().into()),
            Kind::U16 => Tokens::U16(Vec::new()),
            Kind::U32 => Tokens::U32(Vec::new()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::U16 => "u16 token ids",
            Kind::U32 => "u32 token ids",
        }
    }

    fn width(self) -> usize {
        match self {
            Kind::Text => 1,
            Kind::U16 => 2,
            Kind::U32 => 4,
        }
    }
}

fn append(path: &Path, width: usize, tokens: &mut Tokens) -> Result<(), DataError> {
    let unreadable = |reason| DataError::Unreadable { path: path.to_path_buf(), reason };
    let metadata = path.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(DataError::NotAFile { path: path.to_path_buf() });
    }
    let bytes = metadata.len();
    if bytes == 0 {
        return Err(DataError::Empty { path: path.to_path_buf() });
    }
    if !bytes.is_multiple_of(width as u64) {
        return Err(DataError::Torn { path: path.to_path_buf(), bytes, width });
    }
    let file = File::open(path).map_err(unreadable)?;
    let ids = match tokens {
        Tokens::Bytes(ids) => extend(file, bytes, ids.to_mut(), |[id]| id),
        Tokens::U16(ids) => extend(file, bytes, ids, u16::from_le_bytes),
        Tokens::U32(ids) => extend(file, bytes, ids, u32::from_le_bytes),
    };
    ids.map_err(unreadable)
}

/// Appends the ids of a file of so many bytes, without ever holding them twice.
fn extend<I, const WIDTH: usize>(
    mut file: File,
    bytes: u64,
    ids: &mut Vec<I>,
    id: impl Fn([u8; WIDTH]) -> I,
) -> io::Result<()> {
    let count = usize::try_from(bytes).map_err(|_| ErrorKind::OutOfMemory)? / WIDTH;
    ids.try_reserve_exact(count).map_err(|_| ErrorKind::OutOfMemory)?;
    let mut buffer = [0; 1 << 16];
    let mut left = count * WIDTH;
    while left > 0 {
        let chunk = &mut buffer[..left.min(1 << 16)];
        file.read_exact(chunk)?;
        ids.extend(chunk.as_chunks().0.iter().map(|&bytes| id(bytes)));
        left -= chunk.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// Reads files of these contents; a refusal without the folder.
    fn opened(files: &[(&str, &[u8])], vocab: usize) -> Result<Vec<u32>, String> {
        let folder = TempDir::new().unwrap();
        let paths: Vec<_> = files.iter().map(|(name, _)| folder.path().join(name)).collect();
        for (path, (_, bytes)) in paths.iter().zip(files) {
            fs::write(path, bytes).unwrap();
        }
        match read(&paths, vocab) {
            Ok(tokens) => {
                let mut ids = Vec::new();
                tokens.extend(&mut ids, 0..tokens.len());
                Ok(ids)
            }
            Err(e) => Err(e.to_string().replace(&format!("{}/", folder.path().display()), "")),
        }
    }

    #[test]
    fn files_are_read_in_order_at_their_width() {
        let text = opened(&[("b.txt", b"de"), ("a.txt", b"abc")], 256);
        assert_eq!(text, Ok(vec![100, 101, 97, 98, 99]));
        let u16s = opened(&[("a.bin", &[1, 2, 3, 0]), ("b.bin", &[4, 0])], 50257);
        assert_eq!(u16s, Ok(vec![513, 3, 4]));
        assert_eq!(opened(&[("a.u32.bin", &[1, 2, 0, 0])], 50257), Ok(vec![513]));
        let long: Vec<u8> = (0..200_001_u32).map(|i| (i % 251) as u8).collect();
        let ids = opened(&[("long", &long)], 256).unwrap();
        assert_eq!(ids, long.iter().map(|&id| u32::from(id)).collect::<Vec<_>>());
    }

    #[test]
    fn refusals_name_file_and_position() {
        type Case<'a> = (&'a [(&'a str, &'a [u8])], &'a str);
        let cases: [Case; 6] = [
            (&[("a.txt", b"a"), ("b.txt", b"")], "data file b.txt is empty"),
            (
                &[("a.bin", &[0; 5])],
                "data file a.bin has 5 bytes, not a multiple of the 2 bytes of a token id",
            ),
            (
                &[("a.u32.bin", &[0; 6])],
                "data file a.u32.bin has 6 bytes, not a multiple of the 4 bytes of a token id",
            ),
            (
                &[("a.txt", b"a"), ("b.bin", &[0; 2])],
                "data file b.bin holds u16 token ids, but the files before it hold text",
            ),
            (
                &[("a.bin", &[9, 0]), ("b.bin", &[0, 0, 99, 0, 100, 0])],
                "data file b.bin: token 2 has id 100, but the vocabulary has 100 ids: \
                 choose vocab 101 or more",
            ),
            (
                &[("a.txt", b"abz")],
                "data file a.txt: token 2 has id 122, but the vocabulary has 100 ids: \
                 choose vocab 123 or more",
            ),
        ];
        for (files, refusal) in cases {
            assert_eq!(opened(files, 100), Err(refusal.to_owned()));
        }
    }

    #[test]
    fn missing_files_and_folders_are_refused() {
        let folder = TempDir::new().unwrap();
        let refusal = |path: PathBuf| read(&[path], 256).unwrap_err().to_string();
        assert!(refusal(folder.path().join("none")).contains("No such file"));
        assert!(refusal(folder.path().to_path_buf()).contains("is not a regular file"));
    }

    /// A sparse file larger than any memory is refused rather than allocated for.
    #[test]
    fn sizes_beyond_memory_are_refused() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("sparse");
        let file = File::create(&path).unwrap();
        if file.set_len(1 << 50).is_ok() {
            assert!(read(&[path], 256).is_err());
        }
    }
}
