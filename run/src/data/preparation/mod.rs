//! Prepared data: files of token ids and their description, made of collections of texts.

mod chats;
pub(super) mod documents;
pub(super) mod parameters;
pub(super) mod prepare;
pub(super) mod prepared;
pub(super) mod prepared_files;
mod writer;
