//! One rank of a training of processes over TCP: `processes RANK PORT,PORT,… OUT DEPTH STEPS`, with a port for each rank. It
//! saves every four steps, and continues from the newest checkpoint in OUT.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use chimera::core::comm::{Framed, Wire};
use chimera::core::ids::Rank;
use chimera::run::{Processes, Seat, fault_of, outside::OnDisk};
use chimera::settings::{Layers, Settings};

/// A connection to each other rank. Each frame follows its length.
struct Tcp(BTreeMap<Rank, TcpStream>);

impl Wire for Tcp {
    fn send(&self, to: Rank, frame: &[u8]) -> io::Result<()> {
        let length = (frame.len() as u64).to_le_bytes();
        (&self.0[&to]).write_all(&[&length, frame].concat())
    }

    fn recv(&self, from: Rank) -> io::Result<Vec<u8>> {
        let mut peer = &self.0[&from];
        let mut length = [0; 8];
        peer.read_exact(&mut length)?;
        let mut frame = vec![0; u64::from_le_bytes(length) as usize];
        peer.read_exact(&mut frame)?;
        Ok(frame)
    }

    fn close(&self) {
        for peer in self.0.values() {
            let _ = peer.shutdown(Shutdown::Write);
        }
    }
}

/// Connects a rank to those before it, and waits for those after it.
fn connect(me: usize, ports: &[u16]) -> io::Result<Tcp> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, ports[me]))?;
    let mut peers = BTreeMap::new();
    for (rank, port) in (0..).zip(&ports[..me]) {
        let mut peer = loop {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, *port)) {
                Ok(peer) => break peer,
                Err(_) => thread::sleep(Duration::from_millis(10)), // it has not started yet
            }
        };
        peer.write_all(&(me as u32).to_le_bytes())?;
        peers.insert(Rank(rank), peer);
    }
    for _ in me + 1..ports.len() {
        let (mut peer, _) = listener.accept()?;
        let mut rank = [0; 4];
        peer.read_exact(&mut rank)?;
        peers.insert(Rank(u32::from_le_bytes(rank)), peer);
    }
    Ok(Tcp(peers))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [me, ports, out, depth, steps] = &args[..] else { anyhow::bail!("five arguments") };
    let me: usize = me.parse()?;
    let ports = ports.split(',').map(str::parse).collect::<Result<Vec<u16>, _>>()?;
    let depth: i64 = depth.parse()?;
    let width = ports.len() as i64 / depth;
    let settings = Settings::default()
        .with("depth", depth)
        .with("width", width)
        .with("micro-batches", 8 / width) // the same samples whatever the width
        .with("steps", steps.parse::<i64>()?)
        .with("layers", 6)
        .with("hidden", 16)
        .with("heads", 2)
        .with("context", 16)
        // its steps are as large as its gradients, so rounding errors stay small
        .with("optimizer", "sgd")
        .with("lr", 0.1)
        .with("threads", 1)
        .with("save-every", 4)
        .with("out", out.as_str())
        .with("resume", "auto");
    let config = Layers { config: None, settings }.resolve(&OnDisk)?;

    let rank = Rank(me as u32);
    let n_ranks = ports.len() as u32;
    let mut comm = Framed::new(connect(me, &ports)?, rank, n_ranks);
    let patience = config.patience().first_step;
    let mut ranks = Processes::new(&mut comm, patience);
    let mut run = ranks.prepare(config, Seat { rank, n_ranks, local: me, n_local: n_ranks })?;
    let stop = AtomicBool::new(false);
    let warn = |warning: &str| eprintln!("{warning}");
    let trained = run.train_in_folder_of(ranks, &stop, warn, |_| Ok(()));
    if let Err(error) = &trained {
        eprintln!("{error:#}");
        std::process::exit(fault_of(error, rank).class.code().into());
    }
    if rank == Rank(0) {
        let trained = trained?.context("rank 0 leads")?;
        for (param, values) in trained.weights {
            println!("{} {values:?}", param.name);
        }
    }
    Ok(())
}
