//! Releases: packages, the book, and checks before publishing.

pub(crate) mod book;
pub(crate) mod folder;
pub(crate) mod publish;
