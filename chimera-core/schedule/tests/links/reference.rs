//! The other simulator.

use std::collections::{BTreeMap, HashMap};

use chimera_schedule::analyze::links::{Collective, Duplex, Sharing, Topology, Traffic};
use chimera_schedule::costs::{Costs, UniformCosts, of_cell};
use chimera_schedule::effects::Token;
use chimera_schedule::ids::{BucketId, WorkerId};
use chimera_schedule::program::{Instr, Program};

pub(crate) struct Job<'j> {
    pub(crate) program: &'j Program,
    pub(crate) costs: &'j UniformCosts,
    pub(crate) traffic: &'j Traffic,
    pub(crate) width: usize,
}

struct Wire {
    rate: f64,
    dedicated: bool,
}

/// Rounds of sends: sender, receiver, part of the bytes.
type Rounds = Vec<Vec<(usize, usize, f64)>>;

/// Resources, and for each link its ends with the resources there and back.
struct Wires {
    wires: Vec<Wire>,
    links: Vec<(String, String, usize, usize, f64)>,
    devices: Vec<String>,
}

impl Wires {
    fn of(topology: &Topology) -> Wires {
        let mut wires = Vec::new();
        let mut links = Vec::new();
        for link in &topology.links {
            let there = wires.len();
            let wire = || Wire { rate: link.bytes_per_s, dedicated: link.dedicated };
            wires.push(wire());
            let mut back = there;
            if link.duplex == Duplex::Full {
                wires.push(wire());
                back += 1;
            }
            links.push((link.from.clone(), link.to.clone(), there, back, link.latency_s));
        }
        let devices = topology.devices.iter().map(|device| device.name.clone()).collect();
        Wires { wires, links, devices }
    }

    /// Tries paths of 0, 1, 2 … links, each link in order of the file, until one leads there.
    fn path(&self, from: &str, to: &str) -> (Vec<usize>, f64) {
        (0..=self.links.len())
            .find_map(|n| self.path_of(from, to, n, &mut Vec::new()))
            .expect("a path")
    }

    fn path_of(
        &self,
        from: &str,
        to: &str,
        n: usize,
        seen: &mut Vec<String>,
    ) -> Option<(Vec<usize>, f64)> {
        if n == 0 || from == to {
            return (from == to && n == 0).then(Default::default);
        }
        if !seen.is_empty() && self.devices.iter().any(|device| device == from) {
            return None;
        }
        seen.push(from.into());
        let found = self.links.iter().find_map(|(a, b, there, back, latency)| {
            let (next, wire) = match from {
                _ if from == a => (b, there),
                _ if from == b => (a, back),
                _ => return None,
            };
            if seen.contains(next) {
                return None;
            }
            let (mut path, sum) = self.path_of(next, to, n - 1, seen)?;
            path.insert(0, *wire);
            Some((path, sum + latency))
        });
        seen.pop();
        found
    }
}

#[derive(Clone)]
struct Flow {
    begins: f64,
    left: f64,
    bytes: f64,
    path: Vec<usize>,
    key: (usize, usize, usize),
    has_begun: bool,
    there: Option<f64>,
    /// FIFO: wires that have begun, and the latest end.
    begun: usize,
    entered: f64,
    ends: f64,
    sum: Option<usize>,
}

#[derive(Clone, Default)]
struct Sum {
    rows: BTreeMap<usize, usize>,
    rounds: Rounds,
    is_running: bool,
    may_begin: bool,
    is_done: bool,
    n_open: usize,
}

struct Rank {
    at: usize,
    free: f64,
    n_begun: usize,
}

struct Reference<'j> {
    job: &'j Job<'j>,
    topology: &'j Topology,
    wires: Wires,
    paths: HashMap<(usize, usize), (Vec<usize>, f64)>,
    now: f64,
    ranks: Vec<Rank>,
    flows: Vec<Flow>,
    sent: HashMap<(usize, Token), usize>,
    sums: Vec<Sum>,
    busy: Vec<f64>,
    arrived: Vec<Option<f64>>,
    last: f64,
}

/// Returns the end of the last op, reduction or update of the job.
pub(crate) fn step(job: &Job<'_>, topology: &Topology) -> f64 {
    let n = job.program.rows().len() * job.width;
    let wires = Wires::of(topology);
    let mut all = Reference {
        job,
        topology,
        now: 0.0,
        ranks: (0..n).map(|_| Rank { at: 0, free: 0.0, n_begun: 0 }).collect(),
        flows: Vec::new(),
        sent: HashMap::new(),
        sums: vec![Sum::default(); job.program.buckets().len()],
        busy: vec![0.0; wires.wires.len()],
        arrived: vec![None; n],
        paths: HashMap::new(),
        wires,
        last: 0.0,
    };
    all.run();
    all.last
}

impl Reference<'_> {
    fn is_now(&self, time: f64) -> bool {
        time <= self.now + 1e-12 * self.now
    }

    fn run(&mut self) {
        loop {
            while self.rows_go_on() | self.flows_go_on() | self.sums_go_on() {}
            let frees = self.ranks.iter().map(|rank| rank.free);
            let rates = self.rates();
            let changes = (self.flows.iter().zip(&rates)).map(|(flow, rate)| {
                if flow.there.is_some() {
                    f64::INFINITY
                } else if !flow.has_begun {
                    flow.begins
                } else if *rate > 0.0 {
                    self.now + flow.left / rate
                } else if flow.begun == flow.path.len() {
                    flow.ends
                } else {
                    f64::INFINITY
                }
            });
            let times = frees.chain(changes).chain(self.busy.iter().copied());
            let next = times.filter(|time| !self.is_now(*time)).fold(f64::INFINITY, f64::min);
            if next == f64::INFINITY {
                let rows = self.job.program.rows();
                let is_over = |(at, rank): (usize, &Rank)| rank.at == rows[at % rows.len()].len();
                assert!(self.ranks.iter().enumerate().all(is_over), "it hangs");
                return;
            }
            for (flow, rate) in self.flows.iter_mut().zip(rates) {
                flow.left -= rate * (next - self.now);
            }
            self.now = next;
        }
    }

    fn rank_of(&self, at: usize, worker: WorkerId) -> usize {
        let depth = self.job.program.rows().len();
        at / depth * depth + worker.index()
    }

    fn path(&mut self, from: usize, to: usize) -> (Vec<usize>, f64) {
        if !self.paths.contains_key(&(from, to)) {
            let name = |rank: usize| match self.topology.ranks.get(rank) {
                Some(name) => name.clone(),
                None => self.topology.devices[rank].name.clone(),
            };
            let path = self.wires.path(&name(from), &name(to));
            self.paths.insert((from, to), path);
        }
        self.paths[&(from, to)].clone()
    }

    fn flow(
        &mut self,
        (from, to): (usize, usize),
        beside: f64,
        bytes: f64,
        row: usize,
        sum: Option<usize>,
    ) {
        let (path, latency) = self.path(from, to);
        self.flows.push(Flow {
            begins: self.now + beside + latency,
            left: bytes,
            bytes,
            path,
            key: (from, row, to),
            has_begun: false,
            there: None,
            begun: 0,
            entered: 0.0,
            ends: 0.0,
            sum,
        });
    }

    fn rows_go_on(&mut self) -> bool {
        let mut goes = false;
        for at in 0..self.ranks.len() {
            while self.row_goes_on(at) {
                goes = true;
            }
        }
        goes
    }

    fn row_goes_on(&mut self, at: usize) -> bool {
        let program = self.job.program;
        let depth = program.rows().len();
        let worker = WorkerId((at % depth) as u16);
        let Some(instr) = program.rows()[at % depth].get(self.ranks[at].at) else { return false };
        if !self.is_now(self.ranks[at].free) {
            return false;
        }
        match instr {
            Instr::Run(cell) => {
                self.ranks[at].free = self.now + of_cell(self.job.costs, worker, cell);
                self.last = self.last.max(self.ranks[at].free);
            }
            Instr::Send(token, channel) => {
                self.ranks[at].n_begun += 1;
                let to = self.rank_of(at, program.channels()[channel.index()].to);
                self.sent.insert((at / depth, *token), self.flows.len());
                let beside = self.job.costs.message(token);
                let row = self.ranks[at].n_begun;
                self.flow((at, to), beside, self.job.traffic.message(token), row, None);
            }
            Instr::Recv(token, _) => {
                let flow = self.sent.get(&(at / depth, *token)).map(|flow| &self.flows[*flow]);
                if flow.and_then(|flow| flow.there).is_none() {
                    return false;
                }
            }
            Instr::Reduce(bucket) => {
                self.ranks[at].n_begun += 1;
                let row = self.ranks[at].n_begun;
                self.sums[bucket.index()].rows.insert(at, row);
            }
            Instr::Await(bucket) if !self.sums[bucket.index()].is_done => return false,
            Instr::Agree => {
                if self.arrived[at].is_none() {
                    self.arrived[at] = Some(self.now);
                }
                if self.arrived.contains(&None) {
                    return false;
                }
                let last = self.arrived.iter().flatten().fold(0.0, |a: f64, b| a.max(*b));
                let n = self.ranks.len();
                let latency = (0..n).map(|to| self.path(0, to).1).fold(0.0, f64::max);
                self.ranks[at].free = last + (n as f64).log2().ceil() * latency;
            }
            _ => {}
        }
        self.ranks[at].at += 1;
        true
    }

    fn flows_go_on(&mut self) -> bool {
        let mut goes = false;
        let rates = self.rates();
        for at in 0..self.flows.len() {
            let flow = &self.flows[at];
            if flow.there.is_some() {
                continue;
            }
            if !flow.has_begun && self.is_now(flow.begins) {
                let now = self.now;
                let flow = &mut self.flows[at];
                flow.has_begun = true;
                flow.entered = now;
                goes = true;
            }
            let flow = &self.flows[at];
            let is_fifo = self.topology.sharing == Sharing::Fifo;
            let is_empty = flow.bytes == 0.0 || flow.path.is_empty();
            let is_carried = if is_fifo {
                flow.begun == flow.path.len() && self.is_now(flow.ends)
            } else {
                let rate = rates.get(at).copied().unwrap_or(0.0);
                rate > 0.0 && self.is_now(self.now + flow.left / rate)
            };
            if flow.has_begun && (is_empty || is_carried) {
                self.flows[at].there = Some(self.now);
                goes = true;
                if let Some(sum) = self.flows[at].sum {
                    self.sums[sum].n_open -= 1;
                    if self.sums[sum].n_open == 0 {
                        self.next_round(sum);
                    }
                }
            }
        }
        goes
    }

    /// Begins what may begin when all else of this time has happened.
    fn sums_go_on(&mut self) -> bool {
        let n = self.sums.len();
        let mut goes = false;
        for bucket in 0..n {
            let members = self.job.program.replicas(self.job.width, BucketId(bucket as u32));
            let members: Vec<usize> = members.iter().map(|rank| rank.index()).collect();
            let sum = &self.sums[bucket];
            if sum.may_begin || sum.rows.len() < members.len() {
                continue;
            }
            goes = true;
            self.sums[bucket].may_begin = true;
            let bytes = self.job.traffic.sum(BucketId(bucket as u32));
            if members.len() == 1 || bytes == 0.0 {
                self.sums[bucket].is_done = true;
            } else {
                self.sums[bucket].rounds = self.rounds(&members);
                self.sums[bucket].rounds.reverse();
            }
        }
        if goes {
            return true;
        }
        for bucket in 0..n {
            let members =
                |bucket: usize| self.job.program.replicas(self.job.width, BucketId(bucket as u32));
            let sum = &self.sums[bucket];
            if sum.is_done || sum.is_running || !sum.may_begin {
                continue;
            }
            let own = members(bucket);
            let is_free = (0..n)
                .filter(|other| self.sums[*other].is_running && !self.sums[*other].is_done)
                .all(|other| members(other).iter().all(|rank| !own.contains(rank)));
            if is_free {
                self.sums[bucket].is_running = true;
                self.next_round(bucket);
                goes = true;
            }
        }
        goes || self.queues_go_on()
    }

    fn next_round(&mut self, bucket: usize) {
        let Some(round) = self.sums[bucket].rounds.pop() else {
            self.sums[bucket].is_done = true;
            self.last = self.last.max(self.now);
            return;
        };
        self.sums[bucket].n_open = round.len();
        let bytes = self.job.traffic.sum(BucketId(bucket as u32));
        for (from, to, part) in round {
            let row = self.sums[bucket].rows[&from];
            self.flow((from, to), 0.0, bytes * part, row, Some(bucket));
        }
    }

    fn queues_go_on(&mut self) -> bool {
        if self.topology.sharing == Sharing::Fair {
            return false;
        }
        for wire in 0..self.wires.wires.len() {
            let Wire { rate, dedicated } = self.wires.wires[wire];
            if !dedicated && !self.is_now(self.busy[wire]) {
                continue;
            }
            let waits = |flow: &&(usize, &Flow)| {
                let flow = flow.1;
                flow.has_begun
                    && flow.there.is_none()
                    && flow.bytes > 0.0
                    && flow.path.get(flow.begun) == Some(&wire)
            };
            let order = |a: &(usize, &Flow), b: &(usize, &Flow)| {
                a.1.entered.total_cmp(&b.1.entered).then(a.1.key.cmp(&b.1.key)).then(a.0.cmp(&b.0))
            };
            let waiting: Vec<_> = self.flows.iter().enumerate().collect();
            let Some((at, _)) = waiting.iter().filter(waits).min_by(|a, b| order(a, b)) else {
                continue;
            };
            let at = *at;
            let until = self.now + self.flows[at].bytes / rate;
            if !dedicated {
                self.busy[wire] = until;
            }
            let now = self.now;
            let flow = &mut self.flows[at];
            flow.begun += 1;
            flow.entered = now;
            flow.ends = flow.ends.max(until);
            return true;
        }
        false
    }

    /// Grows all rates together until a wire is full, and again.
    fn rates(&self) -> Vec<f64> {
        let mut rates = vec![0.0; self.flows.len()];
        if self.topology.sharing == Sharing::Fifo {
            return rates;
        }
        let is_active = |flow: &Flow| {
            flow.has_begun && flow.there.is_none() && flow.bytes > 0.0 && !flow.path.is_empty()
        };
        let active: Vec<usize> =
            (0..self.flows.len()).filter(|at| is_active(&self.flows[*at])).collect();
        let mut growing = active.clone();
        let mut level = 0.0;
        while !growing.is_empty() {
            // How far each wire lets the level rise.
            let most = |wire: usize| {
                let crosses = |at: &&usize| self.flows[**at].path.contains(&wire);
                let n = growing.iter().filter(crosses).count();
                let Wire { rate, dedicated } = self.wires.wires[wire];
                if n == 0 {
                    return f64::INFINITY;
                }
                if dedicated {
                    return rate;
                }
                let fixed: f64 = active
                    .iter()
                    .filter(|at| !growing.contains(at) && self.flows[**at].path.contains(&wire))
                    .map(|at| rates[*at])
                    .sum();
                (rate - fixed) / n as f64
            };
            let most: Vec<f64> = (0..self.wires.wires.len()).map(most).collect();
            level = most.iter().copied().fold(f64::INFINITY, f64::min).max(level);
            let is_full = |at: &usize| {
                self.flows[*at].path.iter().any(|wire| most[*wire] <= level * (1.0 + 1e-14))
            };
            let full: Vec<usize> = growing.iter().copied().filter(is_full).collect();
            full.iter().for_each(|at| rates[*at] = level);
            growing.retain(|at| !full.contains(at));
        }
        rates
    }

    /// The rounds of a reduction, by rank.
    fn rounds(&self, members: &[usize]) -> Rounds {
        let n = members.len();
        let ring = |ring: &[usize], share: f64| -> Rounds {
            let round =
                (0..ring.len()).map(|i| (ring[i], ring[(i + 1) % ring.len()], share)).collect();
            vec![round; ring.len() - 1]
        };
        let whole_ring = || {
            let once = ring(members, 1.0 / n as f64);
            [once.clone(), once].concat()
        };
        match self.topology.reductions {
            Collective::Ring => whole_ring(),
            Collective::Tree => {
                let mut rounds = Vec::new();
                let mut s = 1;
                while s < n {
                    let senders = (0..n).filter(|i| i % (2 * s) == s);
                    rounds.push(
                        senders.map(|i| (members[i], members[i - s], 1.0)).collect::<Vec<_>>(),
                    );
                    s *= 2;
                }
                let mut back = rounds.clone();
                back.reverse();
                for round in &mut back {
                    round.iter_mut().for_each(|(a, b, _)| std::mem::swap(a, b));
                }
                [rounds, back].concat()
            }
            Collective::Halving => {
                let mut p = 1;
                while 2 * p <= n {
                    p *= 2;
                }
                let mut rounds = Vec::new();
                if p < n {
                    rounds.push((p..n).map(|i| (members[i], members[i - p], 1.0)).collect());
                }
                let mut distances = Vec::new();
                let mut d = p / 2;
                while d >= 1 {
                    distances.push(d);
                    d /= 2;
                }
                let back: Vec<usize> = distances.iter().rev().copied().collect();
                for d in distances.into_iter().chain(back) {
                    let part = d as f64 / p as f64;
                    rounds.push((0..p).map(|i| (members[i], members[i ^ d], part)).collect());
                }
                if p < n {
                    rounds.push((p..n).map(|i| (members[i - p], members[i], 1.0)).collect());
                }
                rounds
            }
            Collective::Hierarchical => {
                let island = |rank: usize| {
                    let name = self.topology.ranks.get(rank);
                    let device =
                        self.topology.devices.iter().enumerate().find(|(at, device)| match name {
                            Some(name) => device.name == *name,
                            None => *at == rank,
                        });
                    device.expect("a device").1.island.clone()
                };
                let mut islands: Vec<(String, Vec<usize>)> = Vec::new();
                for member in members {
                    let own = island(*member);
                    match islands.iter_mut().find(|(name, _)| *name == own) {
                        Some((_, list)) => list.push(*member),
                        None => islands.push((own, vec![*member])),
                    }
                }
                let (m, k) = (islands[0].1.len(), islands.len());
                if islands.iter().any(|(_, list)| list.len() != m) {
                    return whole_ring();
                }
                let beside = |rings: Vec<Rounds>| -> Rounds {
                    (0..rings[0].len())
                        .map(|at| rings.iter().flat_map(|ring| ring[at].clone()).collect())
                        .collect()
                };
                let inside =
                    beside(islands.iter().map(|(_, list)| ring(list, 1.0 / m as f64)).collect());
                let across = beside(
                    (0..m)
                        .map(|j| {
                            let list: Vec<usize> =
                                islands.iter().map(|(_, list)| list[j]).collect();
                            ring(&list, 1.0 / (m * k) as f64)
                        })
                        .collect(),
                );
                [inside.clone(), across.clone(), across, inside].concat()
            }
        }
    }
}
