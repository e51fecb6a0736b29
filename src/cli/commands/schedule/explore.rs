//! `chimera schedule explore`: serves the page of schedules to a browser on this machine.

mod page;

use std::env;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};

use self::page::{Page, VARIABLE};
use crate::cli::parts::terminal::browser;
use crate::cli::parts::terminal::console::print;

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
/// The page is built into releases. Otherwise it is a folder that `cargo xtask page` makes.
#[derive(Args)]
pub(super) struct Explore {
    /// Folder of the page [default: CHIMERA_PAGE]
    ///
    /// Without that variable, the page in this program, or `page` beside it.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    page: Option<PathBuf>,
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Open the page in a browser
    #[arg(long)]
    open: bool,
}

impl Explore {
    pub(super) fn run(self) -> Result<()> {
        let named = self.page.or_else(|| env::var_os(VARIABLE).map(PathBuf::from));
        let page = Page::find(named)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let listener = TcpListener::bind(address)
            .with_context(|| format!("cannot listen at {address}: choose another --port"))?;
        let address = format!("http://{}/", listener.local_addr()?);
        print(format!("{address} (until Ctrl-C)"))?;
        if self.open {
            browser::open(&address);
        }
        serve(&listener, page)
    }
}

/// Answers clients, each in a thread of its own.
fn serve(listener: &TcpListener, page: Page) -> ! {
    let page = Arc::new(page);
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
        let (page, n_served) = (Arc::clone(&page), Arc::clone(&n_clients));
        let client = move || {
            // A client that closes its connection only harms itself.
            let _ = answer(stream, &page);
            n_served.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("explore".into()).spawn(client).is_err() {
            n_clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads one request, and answers it with a file of the page.
fn answer(mut stream: TcpStream, page: &Page) -> io::Result<()> {
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
    match page.file(target) {
        Some((path, content)) => respond(&mut stream, "200 OK", kind(path), &content),
        None => respond(&mut stream, "404 Not Found", "text/plain", b"there is no such file\n"),
    }
}

fn kind(path: &str) -> &'static str {
    match Path::new(path).extension().and_then(|ending| ending.to_str()) {
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
    use std::fs;

    use super::page::found;
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
        fs::write(folder.join("index.html"), "<p>the page</p>").unwrap();
        fs::write(folder.join("assets/a-1.wasm"), "code").unwrap();
        fs::write(folder.join(".hidden"), "hidden").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("../secret.txt", folder.join("link.txt")).unwrap();

        let page = found(&folder).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, page));
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
}
