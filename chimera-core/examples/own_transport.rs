//! A custom transport: TCP, in three functions. Four ranks, here threads, train over it.

#[allow(dead_code)]
#[path = "own_stage.rs"]
pub(crate) mod own_stage;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

use chimera_core::comm::{Framed, HostStaged, Wire};
use chimera_core::device::reference::Reference;
use chimera_core::prelude::*;
use own_stage::{Curve, bend};

/// A connection to each other rank. Each frame follows its length.
struct Tcp(BTreeMap<Rank, TcpStream>);

impl Wire for Tcp {
    fn send(&self, to: Rank, frame: &[u8]) -> io::Result<()> {
        let length = (frame.len() as u64).to_le_bytes();
        (&self.0[&to]).write_all(&[&length, frame].concat())
    }

    fn recv(&self, from: Rank) -> io::Result<Vec<u8>> {
        let (mut peer, mut length) = (&self.0[&from], [0; 8]);
        peer.read_exact(&mut length)?;
        let mut frame = Vec::new();
        peer.take(u64::from_le_bytes(length)).read_to_end(&mut frame)?;
        Ok(frame)
    }

    fn close(&self) {
        for peer in self.0.values() {
            let _ = peer.shutdown(Shutdown::Write);
        }
    }
}

/// The ends of all ranks, each connected to the ranks before it.
fn connect(n: u32) -> io::Result<Vec<Tcp>> {
    let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners: Vec<_> = (0..n).map(listen).collect::<io::Result<_>>()?;
    let mut ends: Vec<Tcp> = (0..n).map(|_| Tcp(BTreeMap::new())).collect();
    for (later, earlier) in (0..n).flat_map(|later| (0..later).map(move |earlier| (later, earlier)))
    {
        let there = TcpStream::connect(listeners[earlier as usize].local_addr()?)?;
        let (here, _) = listeners[earlier as usize].accept()?;
        ends[later as usize].0.insert(Rank(earlier), there);
        ends[earlier as usize].0.insert(Rank(later), here);
    }
    Ok(ends)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let timetable = find("chimera")?.timetable(&Shape::new(4, 8))?;
    let program = lower(&timetable, &Lowering { barrier: true, ..Lowering::default() })?;
    let trainer = Trainer::new(&program, &Curve).micro_batch_size(2);
    let rank = |(rank, wire): (u32, Tcp)| {
        let comm = HostStaged::new(Reference, Framed::new(wire, Rank(rank), 4));
        trainer.on_rank(comm, Reference, |id| Ok(bend(id.index())))
    };
    let losses = thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..).zip(connect(4)?).map(|end| scope.spawn(move || rank(end))).collect();
        let ended = ranks.into_iter().map(|rank| rank.join().expect("no rank panics"));
        Ok::<_, Box<dyn Error>>(ended.collect::<Result<Vec<_>, _>>()?)
    })?;
    let loss = losses[0].reports[0].loss;
    let threads = trainer.on_threads(|_| Ok(Reference), |_, id| Ok(bend(id.index())))?;
    let others = threads.reports[0].loss;
    println!("loss {loss} over TCP, {others} over threads"); // between processes it travels as f32
    assert!((loss - others).abs() < 1e-7);
    Ok(())
}
