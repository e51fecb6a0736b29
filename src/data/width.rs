//! How wide the ids of a file are, which its name says.

use std::path::Path;

/// Bytes of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Width {
    /// Text: each byte is an id.
    U8,
    U16,
    U32,
}

impl Width {
    /// Width of a file's ids, by the file's name.
    pub(super) fn of(path: &Path) -> Width {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match name.strip_suffix(".bin") {
            Some(name) if name.ends_with(".u32") => Width::U32,
            Some(_) => Width::U16,
            None => Width::U8,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Width::U8 => 1,
            Width::U16 => 2,
            Width::U32 => 4,
        }
    }

    /// How many ids it can tell apart.
    pub(super) fn n_ids(self) -> usize {
        match self {
            Width::U8 => 1 << 8,
            Width::U16 => 1 << 16,
            Width::U32 => usize::MAX,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Width::U8 => "text",
            Width::U16 => "u16 token ids",
            Width::U32 => "u32 token ids",
        }
    }

    /// Appends the ids that are in `bytes`.
    pub(super) fn extend(self, to: &mut Vec<u32>, bytes: &[u8]) {
        match self {
            Width::U8 => to.extend(bytes.iter().map(|&id| u32::from(id))),
            Width::U16 => {
                to.extend(bytes.as_chunks().0.iter().map(|&id| u32::from(u16::from_le_bytes(id))));
            }
            Width::U32 => to.extend(bytes.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id))),
        }
    }
}
