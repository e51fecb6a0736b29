//! Publishing.

pub(crate) mod book;
pub(crate) mod folder;
pub(crate) mod publish;
