//! The width of the ids in a file, which follows from its name.

use std::path::Path;

/// Number of bytes of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Width {
    /// Text: each byte is an id.
    U8,
    U16,
    U32,
}

impl Width {
    /// The width of the ids in a file of this name.
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

    /// Number of ids of this width.
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

    /// Appends the ids in `bytes`.
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
