//! Drawn topologies.

use chimera_schedule::analyze::links::{
    Collective, Device, Duplex, Sharing, Topology, TopologyLink,
};

/// A source of numbers (splitmix64).
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn time(&mut self) -> f64 {
        0.5 + self.part()
    }

    pub(crate) fn bytes(&mut self) -> f64 {
        [0.0, 1000.0 * self.part(), 5000.0 * self.part(), 1000.0][self.below(4)]
    }

    fn link(&mut self, from: &str, to: &str) -> TopologyLink {
        TopologyLink {
            from: from.into(),
            to: to.into(),
            bytes_per_s: [1e3, 1e4 * (0.1 + self.part()), 2e3][self.below(3)],
            latency_s: [0.0, 0.1 * self.part()][self.below(2)],
            duplex: [Duplex::Full, Duplex::Full, Duplex::Half][self.below(3)],
            dedicated: self.below(8) == 0,
        }
    }

    /// Hosts of `per_host` devices on one switch.
    pub(crate) fn star(&mut self, n: usize, per_host: usize, rate: f64) -> Topology {
        let mut topology = self.tree(n, per_host);
        for link in &mut topology.links {
            *link = TopologyLink {
                bytes_per_s: rate,
                dedicated: false,
                duplex: Duplex::Full,
                ..link.clone()
            };
        }
        topology
    }

    fn tree(&mut self, n: usize, per_host: usize) -> Topology {
        let n_hosts = n.div_ceil(per_host);
        let mut links: Vec<TopologyLink> =
            (0..n_hosts).map(|host| self.link(&format!("h{host}"), "core")).collect();
        let mut devices = Vec::new();
        for at in 0..n {
            let island = format!("h{}", at / per_host);
            links.push(self.link(&format!("d{at}"), &island));
            devices.push(Device { name: format!("d{at}"), island });
        }
        Topology {
            format: 1,
            name: String::new(),
            devices,
            nics: (0..n_hosts).map(|host| format!("h{host}")).collect(),
            switches: vec!["core".into()],
            links,
            sharing: Sharing::Fair,
            reductions: Collective::Ring,
            ranks: Vec::new(),
        }
    }

    /// A tree with further links between random vertices, in random order.
    pub(crate) fn topology(&mut self, n: usize) -> Topology {
        let per_host = 1 + self.below(4);
        let mut topology = self.tree(n, per_host);
        let names: Vec<String> = topology
            .devices
            .iter()
            .map(|device| device.name.clone())
            .chain(topology.nics.iter().cloned())
            .collect();
        for _ in 0..self.below(n) {
            let (a, b) = (self.below(names.len()), self.below(names.len()));
            if a != b {
                let link = self.link(&names[a], &names[b]);
                topology.links.push(link);
            }
        }
        for at in (1..topology.links.len()).rev() {
            let other = self.below(at + 1);
            topology.links.swap(at, other);
        }
        topology.sharing = [Sharing::Fair, Sharing::Fair, Sharing::Fifo][self.below(3)];
        topology.reductions = Collective::ALL[self.below(4)].1;
        if self.below(3) == 0 {
            let device = |draw: &mut Draw| format!("d{}", draw.below(n));
            topology.ranks = (0..n).map(|_| device(self)).collect();
        }
        topology
    }
}
