//! `chimera comm bench`: measures messages and all-reduces on a transport.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use chimera_core::comm::{Comm, CommError, Endpoint, Host, Tag, Threads, all_gather};
use chimera_core::engine::run_threads;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_core::notation::by_name;
use clap::{Subcommand, ValueHint};
use serde::Serialize;

use crate::cli::commands::train::ranks;
use crate::cli::parts::schedule::costs::whole_in;
use crate::cli::parts::schedule::measured_network::MeasuredLink;
use crate::cli::parts::terminal::console::{check_writable, print, write_whole};
use crate::cli::parts::terminal::offered::offered;
use crate::cli::parts::terminal::output::is_standard_output;
use crate::run::host_name;
use crate::settings::{Survive, Transport};
use crate::transport::{Over, choose};

/// Sizes to measure, in bytes.
const SIZES: [usize; 8] = [4, 64, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
/// Rounds for each size; the median counts.
const N_ROUNDS: usize = 7;
/// Bytes of one round.
const ROUND_BYTES: usize = 1 << 26;
/// If the largest message takes longer than the smallest by less than this fraction, the difference
/// is noise.
const NOISE: f64 = 0.05;
/// Timeout for a message.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures the communication between workers
#[derive(Subcommand)]
pub(crate) enum CommCommand {
    /// Times messages between two ranks, and all-reduces over all
    Bench(Bench),
}

impl CommCommand {
    pub(crate) fn run(self) -> Result<()> {
        let CommCommand::Bench(bench) = self;
        bench.run()
    }
}

/// Measures a transport: under mpirun or srun MPI, else threads.
#[derive(clap::Args)]
pub(crate) struct Bench {
    /// Transport: threads, mpi, or auto for mpi if a launcher started several processes
    #[arg(long, value_name = "NAME", default_value = "auto")]
    #[arg(value_parser = offered(transport, || MEASURED.map(|(name, _)| name).to_vec()), hide_possible_values = true)]
    transport: Transport,
    /// Number of ranks, if they are threads
    #[arg(long, value_name = "COUNT", default_value_t = 2, allow_negative_numbers = true, value_parser = whole_in(2..=256))]
    ranks: u32,
    /// File for the measurements as JSON, which `plan` and `simulate` read with --network; `-` is standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
    /// Print JSON: `alpha_s` and `beta_s_per_byte` of messages, and all times in seconds
    #[arg(long)]
    json: bool,
}

/// Transports that carry the host's tensors.
const MEASURED: [(&str, Transport); 3] =
    [("auto", Transport::Auto), ("threads", Transport::Threads), ("mpi", Transport::Mpi)];

fn transport(name: &str) -> Result<Transport, String> {
    match name {
        "nccl" => Err(
            "this measures the host's tensors, which NCCL does not carry: choose mpi or threads"
                .into(),
        ),
        "quic" => Err("ranks over QUIC are not measured yet: choose mpi or threads".into()),
        name => by_name("transport", name, &MEASURED),
    }
}

/// The measured times.
#[derive(Serialize)]
pub(crate) struct Report {
    transport: String,
    ranks: u32,
    /// Whether messages are passed without a copy, so that this does not measure a network.
    handed_over: bool,
    /// The link between ranks 0 and 1.
    #[serde(flatten)]
    link: MeasuredLink,
    /// Number of ranks on the node of rank 0.
    ranks_per_node: u32,
    /// The link between two ranks of that node, if the node has two.
    inside: Option<MeasuredLink>,
    /// The link from that node to another one, if there is one.
    between: Option<MeasuredLink>,
    /// One-way times of messages between ranks 0 and 1.
    messages: Vec<Timed>,
    /// Times of an all-reduce: each rank owns a share, adds it up in order of rank, and sends it to all.
    sums: Vec<Timed>,
}

#[derive(Serialize, Clone, Copy)]
struct Timed {
    bytes: usize,
    seconds: f64,
}

impl Bench {
    fn run(self) -> Result<()> {
        let is_mpi = choose(self.transport, Survive::Off)?.0 == Over::Mpi;
        let is_piped = self.out.as_deref().is_some_and(is_standard_output);
        let file = self.out.as_deref().filter(|_| !is_piped);
        let check_file = || file.map_or(Ok(()), check_writable); // measuring takes seconds
        let report = if is_mpi {
            ranks::with(0, &|comm, transport| {
                let me = comm.rank();
                if me == Rank(0) {
                    check_file().map_err(|e| Fault::new(Class::Usage, me, format!("{e:#}")))?;
                }
                measure(comm, transport).map_err(|e| e.into_fault(me))
            })?
        } else {
            check_file()?;
            let ranks = run_threads(self.ranks, |comm: &mut Threads<Host>| {
                let rank = comm.rank();
                measure(comm, "threads").map_err(|e| e.into_fault(rank))
            });
            ranks?.into_iter().next().flatten().map(Report::between_threads)
        };
        let Some(report) = report else { return Ok(()) };
        let json = serde_json::to_string_pretty(&report)?;
        if let Some(path) = file {
            write_whole(path, &json)?;
        }
        print(if self.json || is_piped { json } else { report.table() })
    }
}

impl Report {
    /// Between threads the size costs nothing: the differences are noise.
    fn between_threads(self) -> Report {
        let free = |link: MeasuredLink| MeasuredLink { beta_s_per_byte: 0.0, ..link };
        let inside = self.inside.map(free);
        Report { handed_over: true, link: free(self.link), inside, ..self }
    }

    fn table(&self) -> String {
        let how = if self.handed_over {
            ": messages are passed on without a copy, so this does not measure a network"
        } else {
            ""
        };
        let mut lines = vec![
            format!("{}, {} ranks{how}", self.transport, self.ranks),
            words(self.link),
            format!("{:>9} {:>12} {:>8} {:>13}", "bytes", "message us", "GB/s", "all-reduce us"),
        ];
        if let (Some(inside), Some(between)) = (self.inside, self.between) {
            lines[1] = format!(
                "{} ranks a node; inside: {}; between nodes: {}",
                self.ranks_per_node,
                words(inside),
                words(between)
            );
        }
        let rows = self.messages.iter().zip(&self.sums);
        lines.extend(rows.map(|(message, sum)| {
            let Timed { bytes, seconds } = message;
            let rate = if self.handed_over {
                "-".to_string()
            } else {
                format!("{:.2}", *bytes as f64 / seconds * 1e-9)
            };
            let (message, sum) = (seconds * 1e6, sum.seconds * 1e6);
            format!("{bytes:>9} {message:>12.2} {rate:>8} {sum:>13.2}")
        }));
        lines.join("\n")
    }
}

/// Measures on all ranks; only rank 0 returns a report.
pub(crate) fn measure(
    comm: &mut dyn Comm<Host>,
    transport: &str,
) -> Result<Option<Report>, CommError> {
    let hosts = all_gather(comm, host_name().as_bytes(), deadline())?;
    let mut bench = Measured { number: 0, comm };
    let (mut messages, mut sums) = (Vec::new(), Vec::new());
    let next = Rank(1);
    for bytes in SIZES {
        messages.push(Timed { bytes, seconds: bench.message(bytes, next)? });
        sums.push(Timed { bytes, seconds: bench.sum(bytes)? });
    }
    let [first, .., last] = messages[..] else { return Ok(None) };
    let link = MeasuredLink { alpha_s: first.seconds, beta_s_per_byte: slope(first, last) };
    let is_near = |rank: &Rank| hosts.first() == hosts.get(rank.index());
    let others = || (1..bench.comm.n_ranks()).map(Rank);
    let peers = [others().find(is_near), others().find(|rank| !is_near(rank))];
    let ranks_per_node = 1 + others().filter(is_near).count() as u32;
    let [inside, between] = peers.map(|peer| peer.map(|peer| bench.link(peer, link)));
    let report = Report {
        transport: transport.to_string(),
        ranks: bench.comm.n_ranks(),
        handed_over: false,
        link,
        ranks_per_node,
        inside: inside.transpose()?,
        between: between.transpose()?,
        messages,
        sums,
    };
    Ok((bench.comm.rank() == Rank(0)).then_some(report))
}

/// Describes a link.
fn words(link: MeasuredLink) -> String {
    let MeasuredLink { alpha_s, beta_s_per_byte } = link;
    match beta_s_per_byte {
        0.0 => format!("alpha {:.2} us, whatever the size", alpha_s * 1e6),
        beta => format!("alpha {:.2} us, 1/beta {:.1} GB/s", alpha_s * 1e6, 1e-9 / beta),
    }
}

/// Seconds per additional byte.
fn slope(first: Timed, last: Timed) -> f64 {
    let more = last.seconds - first.seconds;
    if more > NOISE * first.seconds { more / (last.bytes - first.bytes) as f64 } else { 0.0 }
}

struct Measured<'c> {
    comm: &'c mut dyn Comm<Host>,
    /// Number of the last message; numbers are unique.
    number: u64,
}

impl Measured<'_> {
    /// Measures the link from rank 0 to another rank; the link to rank 1 is known.
    fn link(&mut self, peer: Rank, to_next: MeasuredLink) -> Result<MeasuredLink, CommError> {
        if peer == Rank(1) {
            return Ok(to_next);
        }
        let [first, last] = [SIZES[0], SIZES[SIZES.len() - 1]];
        let first = Timed { bytes: first, seconds: self.message(first, peer)? };
        let last = Timed { bytes: last, seconds: self.message(last, peer)? };
        Ok(MeasuredLink { alpha_s: first.seconds, beta_s_per_byte: slope(first, last) })
    }

    /// Seconds of one message from rank 0 to `peer`: half of a round trip.
    fn message(&mut self, bytes: usize, peer: Rank) -> Result<f64, CommError> {
        let me = self.comm.rank();
        let mut host = zeros(bytes / 4);
        self.median(bytes, |bench| {
            let there = bench.tag(0);
            if me == Rank(0) {
                bench.comm.send(peer, there, std::mem::take(&mut host))?;
                host = bench.comm.recv(peer, there, deadline())?;
            } else if me == peer {
                let host = bench.comm.recv(Rank(0), there, deadline())?;
                bench.comm.send(Rank(0), there, host)?;
            }
            Ok(())
        })
        .map(|seconds| seconds / 2.0)
    }

    /// Seconds of one all-reduce over all ranks.
    fn sum(&mut self, bytes: usize) -> Result<f64, CommError> {
        let (me, n) = (self.comm.rank().0, self.comm.n_ranks());
        let share = (bytes / 4).div_ceil(n as usize);
        self.median(bytes, |bench| {
            let others = || (0..n).filter(|rank| *rank != me).map(Rank);
            let (part, whole) = (bench.tag(0), bench.tag(1));
            for to in others() {
                bench.comm.send(to, part, zeros(share))?;
            }
            let mut sum = zeros(share);
            for from in others() {
                let part = bench.comm.recv(from, part, deadline())?;
                sum.data.iter_mut().zip(&part.data).for_each(|(sum, part)| *sum += part);
            }
            for to in others() {
                let mut copy = zeros(share);
                copy.data.copy_from_slice(&sum.data);
                bench.comm.send(to, whole, copy)?;
            }
            others().try_for_each(|from| bench.comm.recv(from, whole, deadline()).map(drop))
        })
    }

    /// Returns the median of the seconds that `once` takes over the rounds; all ranks begin a round
    /// together.
    fn median(
        &mut self,
        bytes: usize,
        mut once: impl FnMut(&mut Self) -> Result<(), CommError>,
    ) -> Result<f64, CommError> {
        let n = (ROUND_BYTES / bytes).clamp(20, 2000);
        let mut seconds = Vec::new();
        for _ in 0..N_ROUNDS {
            all_gather(&mut *self.comm, &[], deadline())?;
            let start = Instant::now();
            for _ in 0..n {
                self.number += 1;
                once(self)?;
            }
            seconds.push(start.elapsed().as_secs_f64() / n as f64);
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[N_ROUNDS / 2])
    }

    fn tag(&self, channel: u8) -> Tag {
        Tag::private(channel, self.number)
    }
}

fn zeros(n: usize) -> Host {
    let mut data = Vec::with_capacity(n + Host::ROOM);
    data.resize(n, 0.0);
    Host::new([n], data)
}

fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Timed = Timed { bytes: 4, seconds: 3e-6 };

    #[test]
    fn what_is_less_than_noise_is_no_slope() {
        for (seconds, beta) in [(3.1e-6, 0.0), (2e-6, 0.0), (3e-6 + 1e-3, 1e-6)] {
            let slope = slope(FIRST, Timed { bytes: 1004, seconds });
            assert!((slope - beta).abs() < 1e-12, "{seconds}: {slope}");
        }
    }

    #[test]
    fn a_table_tells_what_is_no_network() {
        let report = || Report {
            transport: "one".into(),
            ranks: 2,
            handed_over: false,
            link: MeasuredLink { alpha_s: 3e-6, beta_s_per_byte: 1e-9 },
            ranks_per_node: 2,
            inside: Some(MeasuredLink { alpha_s: 3e-6, beta_s_per_byte: 1e-9 }),
            between: None,
            messages: vec![FIRST],
            sums: vec![FIRST],
        };
        let copied = report().table();
        assert!(copied.starts_with("one, 2 ranks\nalpha 3.00 us, 1/beta 1.0 GB/s\n"), "{copied}");
        assert!(copied.ends_with("3.00     0.00          3.00"), "{copied}");
        let handed_over = report().between_threads().table();
        assert!(handed_over.contains("measure a network\nalpha 3.00 us, whatever the size\n"));
        assert!(handed_over.ends_with("3.00        -          3.00"), "{handed_over}");
    }
}
