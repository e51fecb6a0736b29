//! The text that is trained on when no other is given: the project's own documents and sources.

/// Documents and sources of this project, put together by `build.rs`. UTF-8.
pub const TEXT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/corpus.txt"));
