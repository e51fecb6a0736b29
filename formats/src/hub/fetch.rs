//! The order in which the files of a model are fetched.

use std::fs::{create_dir_all, rename};
use std::io;
use std::path::{Path, PathBuf};

use super::client::{Client, Listing};
use super::download::blob;
use super::error::HubError;
use super::place::{Place, said};
use super::progress::{Event, report};
use super::{HubName, Part};
use crate::files::write;
use crate::hf::{CONFIG, INDEX, Index, WEIGHTS};

/// Files that are fetched if a model has them. The last says that those before it are there.
const TEXTS: [&str; 6] = [
    "chat_template.jinja",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    CONFIG,
];
/// The weights of other programs, which are not read.
const PICKLES: [&str; 4] = [".bin", ".pt", ".pth", ".ckpt"];

/// Fetches a part of a model, unless it is in the cache. A commit that is there is not asked for; for
/// a branch, the cache is taken if the hub does not answer.
pub(super) fn fetch(place: &Place, name: &HubName, part: Part) -> Result<PathBuf, HubError> {
    let is_offline = said("HF_HUB_OFFLINE")
        .is_some_and(|said| matches!(&*said.to_uppercase(), "1" | "ON" | "YES" | "TRUE"));
    let cached = place.find(name, part);
    match cached {
        Some(folder) if name.is_pinned() || is_offline => return Ok(folder),
        None if is_offline => {
            return Err(HubError::Offline(name.clone(), place.cache.display().to_string()));
        }
        _ => {}
    }
    let client = Client::new(name)?;
    match (client.listing(), cached) {
        (Ok(listing), _) => Fetch { place, client, listing }.run(part),
        (Err(HubError::Away(from, reason)), Some(folder)) => {
            report(&Event::Stale { from: &from, reason: &reason });
            Ok(folder)
        }
        (Err(error), _) => Err(error),
    }
}

/// A model whose files are known.
struct Fetch<'p> {
    place: &'p Place,
    client: Client,
    listing: Listing,
}

impl Fetch<'_> {
    fn run(&self, part: Part) -> Result<PathBuf, HubError> {
        let Listing { commit, files } = &self.listing;
        let from = self.client.source();
        let folder = self.place.snapshot(&from.name, commit);
        let has = |file: &str| files.iter().any(|other| other == file);
        if !has(CONFIG) {
            return Err(HubError::NoFile(from.clone(), CONFIG.into()));
        }
        create_dir_all(&folder).map_err(|e| unusable(&folder, "make", e))?;
        let mut has_begun = false;
        let mut get = |file: &str, is_linked: bool| {
            let path = folder.join(file);
            if path.exists() {
                return Ok(path);
            }
            if !has_begun {
                report(&Event::Begins { from, commit });
                has_begun = true;
            }
            let blob = blob(&self.client, &self.place.repository(&from.name), commit, file)?;
            if is_linked {
                link(&blob, &path).map_err(|e| unusable(&path, "make", e))?;
            }
            Ok(blob)
        };
        for file in TEXTS.into_iter().filter(|file| has(file)) {
            get(file, true)?;
        }
        if part == Part::All && has(WEIGHTS) {
            get(WEIGHTS, true)?;
        } else if part == Part::All && has(INDEX) {
            let index = Index::read(&get(INDEX, false)?).map_err(|e| {
                HubError::Answer(from.clone(), format!("{INDEX} cannot be read ({e:#})"))
            })?;
            let is_plain = |shard: &&str| !shard.contains(['/', '\\']) && has(shard);
            if let Some(lacking) = index.shards().iter().find(|shard| !is_plain(shard)) {
                return Err(HubError::NoFile(
                    from.clone(),
                    format!("{lacking}, which {INDEX} names"),
                ));
            }
            for shard in index.shards() {
                get(shard, true)?;
            }
            get(INDEX, true)?;
        } else if part == Part::All {
            return Err(HubError::NoWeights(from.clone(), others(files)));
        }
        self.refer(commit)?;
        Ok(folder)
    }

    /// Notes the commit of a branch or tag.
    fn refer(&self, commit: &str) -> Result<(), HubError> {
        let name = &self.client.source().name;
        let path = self.place.reference(name);
        let is_noted = || std::fs::read_to_string(&path).is_ok_and(|noted| noted.trim() == commit);
        if name.is_pinned() || is_noted() {
            return Ok(());
        }
        let folder = path.parent().map_or(Ok(()), create_dir_all);
        folder
            .and_then(|()| write(&path, commit.as_bytes()))
            .map_err(|e| unusable(&path, "write", e))
    }
}

/// Makes the file of a snapshot from its content: a link, where there are links.
fn link(blob: &Path, path: &Path) -> io::Result<()> {
    let part = path.with_file_name(format!(".{}.{}", file_name(path), std::process::id()));
    #[cfg(unix)]
    std::os::unix::fs::symlink(Path::new("../../blobs").join(file_name(blob)), &part)?;
    #[cfg(not(unix))]
    std::fs::copy(blob, &part).map(drop)?;
    rename(&part, path)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn unusable(path: &Path, what: &'static str, reason: io::Error) -> HubError {
    HubError::Cache { path: path.to_path_buf(), what, reason }
}

/// Describes weights that are not read.
fn others(files: &[String]) -> String {
    let is_pickle = |file: &&String| PICKLES.iter().any(|ending| file.ends_with(ending));
    let is_other = |file: &&String| file.ends_with(".safetensors") || file.ends_with(".gguf");
    match files.iter().find(is_pickle).or_else(|| files.iter().find(is_other)) {
        Some(file) if is_pickle(&file) => format!(" ({file} is a pickle, which is never read)"),
        Some(file) => format!(" ({file} is not read)"),
        None => String::new(),
    }
}
