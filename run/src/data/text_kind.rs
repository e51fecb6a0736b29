//! A look at the beginning of a text file, for files whose bytes are no text to train on.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::width::Width;

/// Bytes of a file that are looked at.
const LOOKED_AT: u64 = 4096;

/// Returns why a file is likely no text, with what to do; `None` if it looks like text, holds token
/// ids, or is not a file that can be read.
pub fn doubt(path: &Path) -> Option<String> {
    if Width::of(path) != Width::U8 || !path.is_file() {
        return None;
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(LOOKED_AT).read_to_end(&mut head).ok()?;
    let (name, why) = (path.display(), looks_like(&head)?);
    Some(format!("{name} {why}"))
}

/// Describes what the first bytes of a file look like, unless that is text.
fn looks_like(head: &[u8]) -> Option<&'static str> {
    // The last character may be cut off.
    let is_text = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    if head.contains(&0) || !is_text && !is_latin(head) {
        return Some("looks binary, and its bytes are taken for text: name a text file");
    }
    let first = head.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty())?;
    let object =
        serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(first).ok()?;
    Some(if object.contains_key("messages") {
        "looks like chats, whose keys and quotes would be trained on too: make texts of them with `chimera prepare --chat`"
    } else {
        "looks like JSON Lines, whose keys and quotes would be trained on too: take out its texts with `chimera prepare`"
    })
}

/// Returns true if bytes may be a text in an encoding of one byte: hardly any control characters.
fn is_latin(head: &[u8]) -> bool {
    let is_control = |byte: &&u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    head.iter().filter(is_control).count() * 100 < head.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_other_files() {
        for text in ["In the beginning\n", "", "{ not JSON", "\u{e9}t\u{e9}", "[1, 2]\n"] {
            assert_eq!(looks_like(text.as_bytes()), None, "{text}");
        }
        assert_eq!(looks_like("caf\u{e9}".as_bytes().split_last().unwrap().1), None, "cut off");
        assert_eq!(looks_like(b"caf\xe9 au lait"), None, "Latin-1");
        for binary in [&b"\x7fELF\x02\x01\x01\x00"[..], b"\x89PNG\r\n\x1a\n\x01\xff\x02"] {
            assert!(looks_like(binary).is_some_and(|why| why.starts_with("looks binary")));
        }
        let lines = b"\n{\"text\": \"In the beginning\"}\n{\"te";
        assert!(looks_like(lines).is_some_and(|why| why.starts_with("looks like JSON Lines")));
    }

    #[test]
    fn token_ids_are_not_doubted() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_doubted) in [("ids.bin", false), ("ids.u32.bin", false), ("ids", true)] {
            let path = folder.path().join(name);
            std::fs::write(&path, [0, 1, 200, 0]).unwrap();
            assert_eq!(doubt(&path).is_some(), is_doubted, "{name}");
        }
    }
}
