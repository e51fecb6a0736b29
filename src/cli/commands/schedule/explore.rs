//! `chimera schedule explore`: serves the page of schedules to a browser on this machine.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};

use crate::cli::parts::terminal::console::print;

/// Variable that names the folder of the page.
const VARIABLE: &str = "CHIMERA_PAGE";
/// Folders in which the page is looked for, from the one with this program: beside it, where cargo
/// builds, and where packages install it.
const BESIDE: [&str; 3] = ["page", "../page", "../share/chimera/page"];
/// The file that a page begins with.
const INDEX: &str = "index.html";
/// Time in which a client must send its request and take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longer requests are refused.
const MAX_REQUEST: usize = 8 << 10;
/// The most clients at once.
const MAX_CLIENTS: usize = 32;
/// Pause after an error of the listener, such as too many open files.
const REST: Duration = Duration::from_millis(100);

/// Explores schedules in a browser
///
/// Proofs, timelines and edits follow while you change them.
///
/// Serves the page on this machine only, without a network: everything is computed in the browser.
/// The page is a folder that `cargo xtask page` makes.
#[derive(Args)]
pub(super) struct Explore {
    /// Folder of the page [default: CHIMERA_PAGE]
    ///
    /// Without that variable, `page` beside this program.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    page: Option<PathBuf>,
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
}

impl Explore {
    pub(super) fn run(self) -> Result<()> {
        let named = self.page.or_else(|| env::var_os(VARIABLE).map(PathBuf::from));
        let folder = folder(named)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let listener = TcpListener::bind(address)
            .with_context(|| format!("cannot listen at {address}: choose another --port"))?;
        print(format!("http://{}/ (until Ctrl-C)", listener.local_addr()?))?;
        serve(&listener, &folder)
    }
}

/// The folder of the page: the one that was named, or one beside this program.
fn folder(named: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(folder) = named {
        return found(&folder).with_context(|| {
            format!("{} has no page: `cargo xtask page` makes one", folder.display())
        });
    }
    let program =
        env::current_exe().and_then(fs::canonicalize).context("where is this program?")?;
    let beside = |below: &&str| found(&program.parent()?.join(below)).ok();
    match BESIDE.iter().find_map(beside) {
        Some(folder) => Ok(folder),
        None => bail!(
            "there is no page beside {}: make it with `cargo xtask page`, or name its folder with --page or {VARIABLE}",
            program.display()
        ),
    }
}

/// The folder, without links, if a page is in it.
fn found(folder: &Path) -> io::Result<PathBuf> {
    let folder = fs::canonicalize(folder)?;
    fs::metadata(folder.join(INDEX)).map(|_| folder)
}

/// Answers clients, each in a thread of its own.
fn serve(listener: &TcpListener, folder: &Path) -> ! {
    let n_clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(REST);
            continue;
        };
        if n_clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
            n_clients.fetch_sub(1, Ordering::Relaxed);
            continue; // which closes the connection
        }
        let (folder, n_served) = (folder.to_path_buf(), Arc::clone(&n_clients));
        let client = move || {
            // A client that closes its connection only harms itself.
            let _ = answer(stream, &folder);
            n_served.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("explore".into()).spawn(client).is_err() {
            n_clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads one request, and answers it with a file of the folder.
fn answer(mut stream: TcpStream, folder: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while request.len() < MAX_REQUEST && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&part[..n]),
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    if method != Some("GET") {
        return respond(&mut stream, "405 Method Not Allowed", "text/plain", b"only GET\n");
    }
    match file(folder, target).and_then(|path| fs::read(&path).ok().map(|file| (path, file))) {
        Some((path, content)) => respond(&mut stream, "200 OK", kind(&path), &content),
        None => respond(&mut stream, "404 Not Found", "text/plain", b"there is no such file\n"),
    }
}

/// The file that a target of a request names, if it is below the folder.
fn file(folder: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split(['?', '#']).next()?.strip_prefix('/')?;
    let path = if path.is_empty() { INDEX } else { path };
    let is_plain = |part: &str| {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_known)
    };
    if !path.split('/').all(is_plain) {
        return None;
    }
    // A link may lead out of the folder.
    let path = fs::canonicalize(folder.join(path)).ok()?;
    (path.starts_with(folder) && path.is_file()).then_some(path)
}

fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

fn respond(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8]) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(address: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        write!(client, "{request} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn only_files_of_the_folder_are_served() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.txt"), "secret").unwrap();
        let folder = outside.path().join("page");
        fs::create_dir_all(folder.join("assets")).unwrap();
        fs::write(folder.join(INDEX), "<p>the page</p>").unwrap();
        fs::write(folder.join("assets/a-1.wasm"), "code").unwrap();
        fs::write(folder.join(".hidden"), "hidden").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("../secret.txt", folder.join("link.txt")).unwrap();

        let folder = found(&folder).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, &folder));
        for target in ["/", "/index.html", "/?x=1"] {
            let said = asked(address, &format!("GET {target}"));
            assert!(said.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{said}");
            assert!(said.ends_with("\r\n\r\n<p>the page</p>"), "{said}");
        }
        let said = asked(address, "GET /assets/a-1.wasm");
        assert!(said.contains("Content-Type: application/wasm\r\n"), "{said}");
        for target in [
            "/../secret.txt",
            "/assets/../../secret.txt",
            "/%2e%2e/secret.txt",
            "/link.txt",
            "/.hidden",
            "//etc/passwd",
            "/assets",
            "/assets/",
            "/none.js",
            "secret.txt",
            "",
        ] {
            let said = asked(address, &format!("GET {target}"));
            assert!(said.starts_with("HTTP/1.1 404 "), "{target}: {said}");
        }
        for method in ["POST", "HEAD", "PUT", "get"] {
            assert!(
                asked(address, &format!("{method} /")).starts_with("HTTP/1.1 405 "),
                "{method}"
            );
        }
    }

    #[test]
    fn a_folder_without_a_page_is_refused_with_the_chore_that_makes_one() {
        let empty = tempfile::tempdir().unwrap();
        let refusal = folder(Some(empty.path().to_path_buf())).unwrap_err().to_string();
        assert!(refusal.ends_with("has no page: `cargo xtask page` makes one"), "{refusal}");
    }
}
