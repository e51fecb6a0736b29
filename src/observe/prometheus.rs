//! The last step for Prometheus to scrape, on this machine alone.

use std::fmt::Write as _;
use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Metrics;

/// How long a client may take for its request, and for each part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longer requests are not read to their end.
const MAX_REQUEST: usize = 8 << 10;
/// Clients that are answered at once; more are turned away.
const MAX_CLIENTS: usize = 256;
/// Of a thread that answers one.
const STACK_BYTES: usize = 128 << 10;

/// Serves `GET /metrics` until it is dropped.
pub struct Prometheus {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    page: Mutex<String>,
    is_over: AtomicBool,
    n_clients: AtomicUsize,
}

impl Prometheus {
    /// Listens at `address`; port 0 takes one that is free.
    pub fn listen(address: SocketAddr) -> Result<Prometheus> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        std::thread::Builder::new().name("prometheus".into()).spawn(move || {
            for client in listener.incoming() {
                if served.is_over.load(Ordering::Relaxed) {
                    break;
                }
                // A client that goes away or keeps silent is its own loss.
                let _ = client.and_then(|client| serve(client, &served));
            }
        })?;
        Ok(Prometheus { address, shared })
    }

    /// Where it listens.
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

/// Answers a client in a thread of its own, so that none has to wait for another.
fn serve(client: TcpStream, shared: &Arc<Shared>) -> Result<()> {
    if shared.n_clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
        shared.n_clients.fetch_sub(1, Ordering::Relaxed);
        return Ok(());
    }
    let served = Arc::clone(shared);
    let answered = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let _ = answer(client, &served.page);
        served.n_clients.fetch_sub(1, Ordering::Relaxed);
    });
    answered.map(drop).inspect_err(|_| {
        shared.n_clients.fetch_sub(1, Ordering::Relaxed);
    })
}

fn answer(mut client: TcpStream, page: &Mutex<String>) -> Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while request.len() < MAX_REQUEST && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match client.read(&mut part)? {
            0 => break,
            n => request.extend_from_slice(&part[..n]),
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => ("200 OK", page.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        false => ("404 Not Found", "see /metrics\n".to_string()),
    };
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// The text format of Prometheus, version 0.0.4.
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
}
