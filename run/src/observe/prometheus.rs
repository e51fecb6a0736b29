//! A Prometheus endpoint for the last step, which only serves this machine.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chimera_formats::files::open_files_limit;

use super::Metrics;

/// Time in which a client must send its request.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longer requests are not read to their end.
const MAX_REQUEST: usize = 8 << 10;
/// The most clients that may have unfinished requests at once.
const MAX_CLIENTS: usize = 16;
/// Clients may use one in this many of the files that the process may open. The others are for
/// data, checkpoints and peers.
const FILES_PER_CLIENT: u64 = 8;
/// Pause between two checks of clients that have sent nothing.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause after an error of the listener, such as too many open files.
const REST: Duration = Duration::from_millis(100);

/// Serves `GET /metrics` until it is dropped.
pub struct Prometheus {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    page: Mutex<String>,
    is_over: AtomicBool,
}

impl Prometheus {
    /// Listens at `address`; port 0 takes a free port.
    pub fn listen(address: SocketAddr) -> Result<Prometheus> {
        Prometheus::listen_with(address, PATIENCE)
    }

    fn listen_with(address: SocketAddr, patience: Duration) -> Result<Prometheus> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("prometheus".into());
        thread.spawn(move || serve(&listener, &served, patience))?;
        Ok(Prometheus { address, shared })
    }

    /// The address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows a step from now on.
    pub fn show(&self, metrics: &Metrics) {
        *self.shared.page.lock().unwrap_or_else(PoisonError::into_inner) = page(metrics);
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect_timeout(&self.address, PATIENCE); // wakes the listener
    }
}

/// Answers clients in this one thread, which sleeps in `accept` while there are none. A new client
/// replaces the oldest one that has not finished its request.
fn serve(listener: &TcpListener, shared: &Shared, patience: Duration) {
    let most = most_clients(open_files_limit());
    let mut clients: VecDeque<Client> = VecDeque::new();
    loop {
        let accepted =
            listener.set_nonblocking(!clients.is_empty()).and_then(|()| listener.accept());
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        match accepted {
            Ok((stream, _)) => {
                if clients.len() >= most {
                    clients.pop_front();
                }
                // A client that closes its connection only harms itself.
                clients.extend(Client::new(stream, patience));
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(_) => std::thread::sleep(REST),
        }
        clients.retain_mut(|client| client.is_silent(&shared.page));
    }
}

/// Returns the number of clients to accept at once in a process that may open `limit` files.
fn most_clients(limit: Option<u64>) -> usize {
    let share = limit.map_or(u64::MAX, |limit| limit / FILES_PER_CLIENT);
    usize::try_from(share).unwrap_or(MAX_CLIENTS).clamp(1, MAX_CLIENTS)
}

/// A client that has not finished its request.
struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    deadline: Instant,
}

impl Client {
    fn new(stream: TcpStream, patience: Duration) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        Some(Client { stream, request: Vec::new(), deadline: Instant::now() + patience })
    }

    /// Returns true if the request is incomplete and may still arrive. Otherwise the client was
    /// answered, if possible.
    fn is_silent(&mut self, page: &Mutex<String>) -> bool {
        let mut part = [0; 1024];
        while self.request.len() < MAX_REQUEST && !self.is_complete() {
            match self.stream.read(&mut part) {
                Ok(0) => break,
                Ok(n) => self.request.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return Instant::now() < self.deadline;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        // The page is smaller than what the system buffers for a new connection.
        let _ = self.answer(page);
        false
    }

    fn is_complete(&self) -> bool {
        self.request.windows(4).any(|end| end == b"\r\n\r\n")
    }

    fn answer(&mut self, page: &Mutex<String>) -> Result<()> {
        let (status, body) = if self.request.starts_with(b"GET /metrics ") {
            ("200 OK", page.lock().unwrap_or_else(PoisonError::into_inner).clone())
        } else {
            ("404 Not Found", "see /metrics\n".to_string())
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        self.stream.write_all(answer.as_bytes())
    }
}

/// Returns the metrics in version 0.0.4 of Prometheus's text format.
fn page(metrics: &Metrics) -> String {
    let gauges = [
        ("step", "Number of the last step, from 0", Some(metrics.step as f64)),
        ("loss", "Loss of the step in nats per token", metrics.loss),
        ("grad_norm", "Norm of the gradient before clipping", Some(metrics.grad_norm)),
        ("lr", "Learning rate", Some(metrics.lr)),
        ("step_seconds", "Time of the step", Some(metrics.step_s)),
        ("tokens_per_second", "Tokens trained per second", Some(metrics.tokens_per_s)),
        ("bubble_ratio", "Idle time over time times workers", Some(metrics.bubble_ratio)),
        ("bytes", "Weights, gradients, moments and peak activations", Some(metrics.bytes as f64)),
        (
            "skipped_steps",
            "Steps whose gradient was not finite",
            (metrics.skipped > 0).then_some(metrics.skipped as f64),
        ),
        (
            "repeated_windows",
            "Windows without a border that were trained again with one",
            (metrics.repeated > 0).then_some(metrics.repeated as f64),
        ),
        (
            "recoveries",
            "Deaths of ranks that the run has survived",
            (metrics.recoveries > 0).then_some(metrics.recoveries as f64),
        ),
        ("recovery_seconds", "Time that recoveries took", metrics.recovery_s),
        ("mfu", "Model FLOPs over what the devices can do", metrics.mfu),
        ("validation_loss", "Loss on validation text in nats per token", metrics.validation_loss),
    ];
    let mut page = String::new();
    for (name, help, value) in gauges {
        if let Some(value) = value {
            let _ = writeln!(
                page,
                "# HELP chimera_{name} {help}\n# TYPE chimera_{name} gauge\nchimera_{name} {value}"
            );
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(address: SocketAddr, path: &str) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn the_last_step_is_shown_until_the_end() {
        let line = r#"{"step":7,"loss":2.5,"grad_norm":1.0,"lr":0.001,"tokens":8,"step_s":0.5,
                       "tokens_per_s":16.0,"bubble_ratio":0.25,"mfu":0.4}"#;
        let metrics: Metrics = serde_json::from_str(line).unwrap();
        let prometheus = Prometheus::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = prometheus.address();
        assert!(get(address, "/metrics").ends_with("\r\n\r\n"), "no step has been trained");
        prometheus.show(&metrics);
        let said = get(address, "/metrics");
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        for line in [
            "chimera_step 7\n",
            "# TYPE chimera_loss gauge\nchimera_loss 2.5\n",
            "chimera_mfu 0.4\n",
        ] {
            assert!(said.contains(line), "{said}");
        }
        assert!(!said.contains("validation"), "{said}");
        assert!(get(address, "/").starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn silent_clients_delay_no_other() {
        let prometheus = Prometheus::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = prometheus.address();
        let silent: Vec<_> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
        let began = Instant::now();
        assert!(get(address, "/metrics").starts_with("HTTP/1.1 200 OK"));
        // One after another they would take two seconds each.
        assert!(began.elapsed() < PATIENCE * 30, "{:?}", began.elapsed());
        drop(silent);
    }

    /// Each client waits for an hour unless it is ended.
    #[test]
    fn the_oldest_silent_client_gives_way() {
        let address = "127.0.0.1:0".parse().unwrap();
        let hour = Duration::from_secs(3600);
        let prometheus = Prometheus::listen_with(address, hour).unwrap();
        let address = prometheus.address();
        let connect = |_| TcpStream::connect(address).unwrap();
        let mut silent: Vec<TcpStream> = (0..MAX_CLIENTS + 20).map(connect).collect();
        for client in &mut silent[..20] {
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "it is closed");
        }
        let last = silent.last_mut().unwrap();
        write!(last, "GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut said = String::new();
        last.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
    }

    #[test]
    fn clients_take_a_small_part_of_the_files_that_may_be_open() {
        for (limit, most) in
            [(Some(0), 1), (Some(20), 2), (Some(64), 8), (Some(256), 16), (Some(1 << 40), 16)]
        {
            assert_eq!(most_clients(limit), most, "{limit:?}");
        }
        assert_eq!(most_clients(None), MAX_CLIENTS);
    }
}
