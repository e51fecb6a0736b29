//! The content of one file: fetched beside its place in the cache, compared with the hub's size and
//! hash, and only then renamed. An interrupted download continues where it stopped.

use std::fs::{File, OpenOptions, create_dir_all, remove_file, rename};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::client::{Client, Remote, header};
use super::error::HubError;
use super::progress::{Event, report};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// Attempts to get a file, as long as each brings some of it.
const MAX_ATTEMPTS: usize = 5;

/// Returns the content of a file in the cache, which is fetched if it is not there.
pub(super) fn blob(
    client: &Client,
    repository: &Path,
    commit: &str,
    file: &str,
) -> Result<PathBuf, HubError> {
    let remote = client.remote(commit, file)?;
    let path = repository.join("blobs").join(&remote.etag);
    let download = Download { client, commit, file, remote, part: part_of(&path), path };
    download.run(repository)?;
    Ok(download.path)
}

/// The name of a partial file, as `huggingface_hub` has it.
fn part_of(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".incomplete");
    part.into()
}

struct Download<'c> {
    client: &'c Client,
    commit: &'c str,
    file: &'c str,
    remote: Remote,
    /// The path of the whole file.
    path: PathBuf,
    /// The path of the part downloaded so far.
    part: PathBuf,
}

impl Download<'_> {
    /// Fetches the file. One process at a time does so; the others wait.
    fn run(&self, repository: &Path) -> Result<(), HubError> {
        if self.path.exists() {
            return Ok(());
        }
        let _lock = self.lock(repository)?;
        if self.path.exists() {
            return Ok(());
        }
        let mut n_attempts = 1;
        let mut before = len(&self.part);
        while let Err(error) = self.receive_rest() {
            let has_more = len(&self.part) > before;
            if !matches!(error, HubError::Cut { .. }) || !has_more || n_attempts == MAX_ATTEMPTS {
                return Err(error);
            }
            before = len(&self.part);
            n_attempts += 1;
        }
        self.check()?;
        rename(&self.part, &self.path).map_err(|e| self.unusable("rename", e))?;
        report(&Event::Ends { file: self.file, bytes: len(&self.path) });
        Ok(())
    }

    /// Waits until no other process fetches this file.
    fn lock(&self, repository: &Path) -> Result<File, HubError> {
        let folder = repository.file_name().unwrap_or_default();
        let locks = repository.with_file_name(".locks").join(folder);
        let path = locks.join(format!("{}.lock", self.remote.etag));
        let make = || {
            create_dir_all(&locks)?;
            create_dir_all(repository.join("blobs"))?;
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        make().map_err(|reason| HubError::Cache { path: path.clone(), what: "lock", reason })
    }

    /// Receives what is not here yet.
    fn receive_rest(&self) -> Result<(), HubError> {
        let mut start = len(&self.part);
        if self.remote.bytes.is_some_and(|bytes| start == bytes && bytes > 0) {
            return Ok(());
        }
        if self.remote.bytes.is_some_and(|bytes| start > bytes) {
            start = 0;
        }
        let mut answer =
            self.client.content(self.commit, self.file, start).map_err(|error| match error {
                HubError::Away(_, reason) if start > 0 => self.cut(start, reason),
                error => error,
            })?;
        let range = header(&answer, "content-range").unwrap_or("");
        let goes_on = answer.status() == 206 && range.starts_with(&format!("bytes {start}-"));
        if start > 0 && !goes_on {
            // The hub sends the whole file, or it has no such bytes: begin again.
            start = 0;
            if answer.status() != 200 {
                answer = self.client.content(self.commit, self.file, 0)?;
            }
        }
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&self.part);
        let mut part = opened.map_err(|e| self.unusable("write", e))?;
        part.set_len(start).map_err(|e| self.unusable("write", e))?;
        io::Seek::seek(&mut part, io::SeekFrom::End(0)).map_err(|e| self.unusable("write", e))?;
        let mut body = answer.into_body().into_reader();
        self.copy(&mut body, &mut part, start)
    }

    /// Appends the bytes that come to a partial file of `n` bytes.
    fn copy(&self, body: &mut impl Read, part: &mut File, mut n: u64) -> Result<(), HubError> {
        let mut piece = vec![0; PIECE];
        let failure = loop {
            match body.read(&mut piece) {
                Ok(0) => break None,
                Ok(read) => {
                    part.write_all(&piece[..read]).map_err(|e| self.unusable("write", e))?;
                    n += read as u64;
                    report(&Event::Receives { file: self.file, bytes: n, of: self.remote.bytes });
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Some(e),
            }
        };
        part.sync_all().map_err(|e| self.unusable("write", e))?;
        if failure.is_none() && self.remote.bytes.is_none_or(|bytes| n >= bytes) {
            return Ok(());
        }
        let why = failure.map_or("it was closed".into(), |failure| failure.to_string());
        Err(self.cut(n, why))
    }

    fn cut(&self, has: u64, reason: String) -> HubError {
        let (from, file) = (self.client.source().clone(), self.file.to_string());
        HubError::Cut { from, file, has, of: self.remote.bytes, reason }
    }

    /// Compares the size and the hash with those that the hub says. Removes a file that is another.
    fn check(&self) -> Result<(), HubError> {
        let bytes = len(&self.part);
        let what = match self.remote.bytes {
            Some(said) if said != bytes => Some(format!("it has {bytes} bytes instead of {said}")),
            _ => {
                let hashes = hashes(&self.part, &self.remote.etag, bytes);
                let hashes = hashes.map_err(|e| self.unusable("read", e))?;
                let is_right = hashes.is_empty() || hashes.contains(&self.remote.etag);
                let said = &self.remote.etag;
                (!is_right).then(|| format!("its hash is {} instead of {said}", hashes[0]))
            }
        };
        let Some(what) = what else { return Ok(()) };
        remove_file(&self.part).map_err(|e| self.unusable("remove", e))?;
        let (from, file) = (self.client.source().clone(), self.file.to_string());
        Err(HubError::Damaged { from, file, what })
    }

    fn unusable(&self, what: &'static str, reason: io::Error) -> HubError {
        HubError::Cache { path: self.part.clone(), what, reason }
    }
}

/// Returns the length of a file, 0 if there is none.
fn len(path: &Path) -> u64 {
    path.metadata().map_or(0, |found| found.len())
}

/// Returns the hashes of a file that an ETag of this form may be: SHA-256 of large files; of others
/// SHA-1 as git has it, with the size, or in mirrors without. None for another form.
fn hashes(path: &Path, etag: &str, bytes: u64) -> io::Result<Vec<String>> {
    let is_hexadecimal = etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut contexts = match etag.len() {
        64 if is_hexadecimal => vec![Context::new(&SHA256)],
        40 if is_hexadecimal => {
            let mut of_git = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            of_git.update(format!("blob {bytes}\0").as_bytes());
            vec![of_git, Context::new(&SHA1_FOR_LEGACY_USE_ONLY)]
        }
        _ => return Ok(Vec::new()),
    };
    let (mut file, mut piece) = (File::open(path)?, vec![0; PIECE]);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            break;
        }
        contexts.iter_mut().for_each(|context| context.update(&piece[..read]));
    }
    let text = |context: Context| {
        context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    Ok(contexts.into_iter().map(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `git hash-object`, `sha1sum` and `sha256sum` print them.
    #[test]
    fn hashes_are_those_of_git_and_of_large_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "hello").unwrap();
        let of = |etag: &str| hashes(&file, etag, 5).unwrap();
        let [git, plain] = [
            "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0",
            "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d",
        ];
        assert_eq!(of(git), [git, plain]);
        let large = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(of(large), [large]);
        assert!(of("5f3-6").is_empty());
    }
}
