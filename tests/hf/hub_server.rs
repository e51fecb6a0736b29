//! A hub on the loopback, and its moods.

use std::collections::BTreeMap;
use std::fs::read_dir;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use ring::digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

use crate::command::{Ran, start_with};

/// The commit of the branch `main`.
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The manner of answers.
#[derive(Clone, Default)]
pub(super) struct Mood {
    /// Status and error code instead of a list of files.
    pub(super) listing: Option<(u16, &'static str)>,
    /// Status and error code instead of a file.
    pub(super) file: Option<(&'static str, u16, &'static str)>,
    /// Content that is cut after this number of bytes, this number of times.
    pub(super) cut: Option<(&'static str, usize, usize)>,
    /// Content with another first byte than the hub says.
    pub(super) damaged: Option<&'static str>,
    /// Content that is longer than the hub says.
    pub(super) longer: Option<&'static str>,
    /// Files are always sent from their beginning.
    pub(super) ignores_ranges: bool,
    /// The token that it wants.
    pub(super) token: Option<&'static str>,
    /// Something else than a hub answers.
    pub(super) is_other: bool,
}

/// A hub with the model `org/tiny`, whose large files lie on another host.
pub(super) struct Hub {
    files: BTreeMap<String, Vec<u8>>,
    mood: Mutex<Mood>,
    /// Method, path, range and whether there was a token.
    requests: Mutex<Vec<String>>,
    is_over: AtomicBool,
    port: u16,
}

/// A hub that answers until it is dropped.
pub(super) struct Running(Arc<Hub>, Option<JoinHandle<()>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.0.port)); // wakes it
        let _ = self.1.take().expect("once").join();
    }
}

impl Running {
    /// Starts a hub with these files.
    pub(super) fn with(files: BTreeMap<String, Vec<u8>>) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (mood, requests) = (Mutex::default(), Mutex::default());
        let hub = Arc::new(Hub { files, mood, requests, is_over: AtomicBool::new(false), port });
        let own = hub.clone();
        let thread = spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if own.is_over.load(SeqCst) {
                    return;
                }
                let hub = own.clone();
                spawn(move || hub.answer(stream));
            }
        });
        Running(hub, Some(thread))
    }

    /// Starts a hub with the files of a folder.
    pub(super) fn of(folder: &Path) -> Running {
        let entries =
            read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
        let name =
            |path: &Path| path.file_name().expect("a name").to_str().expect("UTF-8").to_string();
        let others =
            [("README.md", "a model"), ("pytorch_model.bin", "a pickle"), ("onnx/model.onnx", "")];
        let others = others.map(|(name, content)| (name.to_string(), content.as_bytes().to_vec()));
        let files = entries.map(|path| (name(&path), std::fs::read(&path).expect("a file")));
        Running::with(files.chain(others).collect())
    }

    pub(super) fn be(&self, mood: Mood) {
        *self.0.mood.lock().expect("a mood") = mood;
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port)
    }

    /// The requests since the last call.
    pub(super) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.0.requests.lock().expect("requests"))
    }
}

/// Runs the command with a hub, and a cache in the folder `home`.
pub(super) fn ask(endpoint: &str, home: &Path, more: &[(&str, &str)], line: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
    for variable in
        ["HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE"]
    {
        command.env_remove(variable);
    }
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", home).env("NO_PROXY", "*");
    command.envs(more.iter().copied());
    start_with(command, line).wait()
}

impl Hub {
    fn answer(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(n) if n > 0 && !line.trim().is_empty() => lines.push(line.trim().to_string()),
                _ => break,
            }
        }
        let Some(first) = lines.first() else { return };
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let header = |key: &str| {
            let of = |line: &String| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case(key).then(|| value.to_string())
            };
            lines.iter().find_map(of)
        };
        let (range, token) = (header("range"), header("authorization"));
        let seen = format!(
            "{method} {path}{}{}",
            range.as_deref().map(|range| format!(" {range}")).unwrap_or_default(),
            if token.is_some() { " with a token" } else { "" }
        );
        self.requests.lock().expect("requests").push(seen);
        let mood = self.mood.lock().expect("a mood").clone();
        let (head, body) = self.content(method, path, range.as_deref(), token.as_deref(), &mood);
        let _ = self.send(stream, &head, if method == "HEAD" { &[] } else { &body }, path);
    }

    /// Sends an answer; a file may be cut.
    fn send(
        &self,
        mut stream: TcpStream,
        head: &str,
        body: &[u8],
        path: &str,
    ) -> std::io::Result<()> {
        let mut sent = body.len();
        if let Some((file, bytes, times)) = &mut self.mood.lock().expect("a mood").cut
            && path.contains(*file)
            && *times > 0
            && !body.is_empty()
        {
            *times -= 1;
            sent = sent.min(*bytes);
        }
        write!(stream, "HTTP/1.1 {head}Connection: close\r\n\r\n")?;
        stream.write_all(&body[..sent])?;
        stream.shutdown(Shutdown::Both)
    }

    /// The status line with headers, and the body.
    fn content(
        &self,
        method: &str,
        path: &str,
        range: Option<&str>,
        token: Option<&str>,
        mood: &Mood,
    ) -> (String, Vec<u8>) {
        let refusal = |status: u16, code: &str| {
            let code =
                if code.is_empty() { String::new() } else { format!("X-Error-Code: {code}\r\n") };
            (format!("{status} Refused\r\n{code}Content-Length: 0\r\n"), Vec::new())
        };
        if mood.is_other {
            return ("200 OK\r\nContent-Length: 6\r\n".into(), b"<html>".to_vec());
        }
        let is_known = mood.token.is_none_or(|wanted| token == Some(&format!("Bearer {wanted}")));
        if let Some(name) = path.strip_prefix("/cdn/") {
            let content = self.sent(name, mood);
            let start = range.filter(|_| !mood.ignores_ranges).and_then(|range| {
                range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok()
            });
            return match start {
                None => (format!("200 OK\r\nContent-Length: {}\r\n", content.len()), content),
                Some(start) => {
                    let (rest, n) = (content[start..].to_vec(), content.len());
                    let range = format!("Content-Range: bytes {start}-{}/{n}\r\n", n - 1);
                    (format!("206 Partial\r\n{range}Content-Length: {}\r\n", rest.len()), rest)
                }
            };
        }
        if path.starts_with("/api/models/org/tiny/revision/") {
            if let Some((status, code)) = mood.listing {
                return refusal(status, code);
            }
            let files = self.files.keys().map(|name| format!("{{\"rfilename\": \"{name}\"}}"));
            let files = files.collect::<Vec<_>>().join(", ");
            let list = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{files}]}}").into_bytes();
            return (format!("200 OK\r\nContent-Length: {}\r\n", list.len()), list);
        }
        let file = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
        let Some((name, content)) = file.and_then(|name| self.files.get_key_value(name)) else {
            return refusal(404, "RepoNotFound");
        };
        if let Some((_, status, code)) = mood.file.filter(|(file, ..)| file == name) {
            return refusal(status, code);
        }
        if !is_known {
            return refusal(if token.is_some() { 403 } else { 401 }, "GatedRepo");
        }
        let commit = format!("X-Repo-Commit: {COMMIT}\r\n");
        if name.ends_with(".safetensors") {
            let (hash, n) = (hash(&SHA256, content), content.len());
            let said = format!("X-Linked-ETag: \"{hash}\"\r\nX-Linked-Size: {n}\r\n");
            let to = format!("Location: http://localhost:{}/cdn/{name}\r\n", self.port);
            return (format!("302 Found\r\n{commit}{said}{to}Content-Length: 0\r\n"), Vec::new());
        }
        let mut blob = format!("blob {}\0", content.len()).into_bytes();
        blob.extend(content);
        let etag = format!("ETag: \"{}\"\r\n", hash(&SHA1_FOR_LEGACY_USE_ONLY, &blob));
        let content = if method == "HEAD" { content.clone() } else { self.sent(name, mood) };
        (format!("200 OK\r\n{commit}{etag}Content-Length: {}\r\n", content.len()), content)
    }

    /// The content of a file, as it is sent.
    fn sent(&self, name: &str, mood: &Mood) -> Vec<u8> {
        let mut content = self.files[name].clone();
        if mood.damaged == Some(name) {
            content[0] ^= 1;
        }
        if mood.longer == Some(name) {
            content.push(0);
        }
        content
    }
}

fn hash(algorithm: &'static Algorithm, content: &[u8]) -> String {
    digest(algorithm, content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
