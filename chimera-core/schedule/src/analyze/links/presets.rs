//! Topologies of common machines, with the rates of data sheets and latencies in the range of
//! published measurements. A topology file describes a machine more exactly.

use super::collective::Collective;
use super::topology::{Device, Duplex, Sharing, Topology, TopologyLink};

/// A topology that grows with the number of ranks.
pub struct TopologyPreset {
    /// The name for `--topology`.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// Ranks of a node, unless another number is given.
    pub ranks_per_node: usize,
    make: fn(&mut Topology, usize, usize),
}

/// All presets.
pub static PRESETS: [TopologyPreset; 5] = [
    TopologyPreset {
        name: "two-level",
        about: "islands of NVLink (450 GB/s), each with one NIC (50 GB/s) that its ranks share",
        ranks_per_node: 8,
        make: two_level,
    },
    TopologyPreset {
        name: "rail",
        about: "islands of NVLink (450 GB/s), each rank with a NIC (50 GB/s) on the switch of its rail",
        ranks_per_node: 8,
        make: rail,
    },
    TopologyPreset {
        name: "pcie",
        about: "hosts with four ranks a PCIe switch (32 GB/s) and one NIC (25 GB/s)",
        ranks_per_node: 8,
        make: pcie,
    },
    TopologyPreset {
        name: "ethernet",
        about: "hosts on one switch of Ethernet (1.25 GB/s, 25 us)",
        ranks_per_node: 1,
        make: ethernet,
    },
    TopologyPreset {
        name: "aries",
        about: "Cray XC: four nodes a router (10.2 GB/s), chassis of 16 routers joined in pairs (5.25 GB/s)",
        ranks_per_node: 1,
        make: aries,
    },
];

impl TopologyPreset {
    /// Finds a preset by name.
    pub fn named(name: &str) -> Option<&'static TopologyPreset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Returns the topology for a number of ranks, at least 1.
    pub fn topology(&self, n_ranks: usize, ranks_per_node: Option<usize>) -> Topology {
        let mut topology = Topology {
            format: 1,
            name: self.name.into(),
            devices: Vec::new(),
            nics: Vec::new(),
            switches: Vec::new(),
            links: Vec::new(),
            sharing: Sharing::Fair,
            reductions: Collective::Ring,
            ranks: Vec::new(),
        };
        (self.make)(&mut topology, n_ranks, ranks_per_node.unwrap_or(self.ranks_per_node).max(1));
        topology
    }
}

/// Adds a device, and returns its name.
fn device(topology: &mut Topology, node: usize, at: usize) -> String {
    let name = format!("n{node}d{at}");
    topology.devices.push(Device { name: name.clone(), island: format!("n{node}") });
    name
}

fn switch(topology: &mut Topology, name: String) -> String {
    topology.switches.push(name.clone());
    name
}

fn nic(topology: &mut Topology, name: String) -> String {
    topology.nics.push(name.clone());
    name
}

fn link(topology: &mut Topology, from: &str, to: &str, bytes_per_s: f64, latency_s: f64) {
    topology.links.push(TopologyLink {
        from: from.into(),
        to: to.into(),
        bytes_per_s,
        latency_s,
        duplex: Duplex::Full,
        dedicated: false,
    });
}

/// Returns the nodes, each with its ranks.
fn nodes(n_ranks: usize, ranks_per_node: usize) -> impl Iterator<Item = (usize, usize)> {
    let full = move |node: usize| (n_ranks - node * ranks_per_node).min(ranks_per_node);
    (0..n_ranks.div_ceil(ranks_per_node)).map(move |node| (node, full(node)))
}

/// H100: 900 GB/s of NVLink in both directions; NICs of 400 Gb/s.
fn two_level(topology: &mut Topology, n_ranks: usize, ranks_per_node: usize) {
    let core = switch(topology, "core".into());
    for (node, n) in nodes(n_ranks, ranks_per_node) {
        let nvlink = switch(topology, format!("n{node}nvlink"));
        let adapter = nic(topology, format!("n{node}nic"));
        for at in 0..n {
            let device = device(topology, node, at);
            link(topology, &device, &nvlink, 450e9, 1e-6);
        }
        link(topology, &nvlink, &adapter, 450e9, 1e-6);
        link(topology, &adapter, &core, 50e9, 2e-6);
    }
}

/// H100: NVLink as above; a NIC of 400 Gb/s for each rank by PCIe 5.0 x16, on one switch for each
/// position in the node.
fn rail(topology: &mut Topology, n_ranks: usize, ranks_per_node: usize) {
    let spine = switch(topology, "spine".into());
    for at in 0..ranks_per_node.min(n_ranks) {
        let rail = switch(topology, format!("rail{at}"));
        link(topology, &rail, &spine, 50e9 * ranks_per_node as f64, 1e-6);
    }
    for (node, n) in nodes(n_ranks, ranks_per_node) {
        let nvlink = switch(topology, format!("n{node}nvlink"));
        for at in 0..n {
            let device = device(topology, node, at);
            let adapter = nic(topology, format!("n{node}nic{at}"));
            link(topology, &device, &nvlink, 450e9, 1e-6);
            link(topology, &device, &adapter, 63e9, 1e-6);
            link(topology, &adapter, &format!("rail{at}"), 50e9, 1e-6);
        }
    }
}

/// PCIe 4.0 x16 between four devices, their switch and the host; a NIC of 200 Gb/s.
fn pcie(topology: &mut Topology, n_ranks: usize, ranks_per_node: usize) {
    let core = switch(topology, "core".into());
    for (node, n) in nodes(n_ranks, ranks_per_node) {
        let host = switch(topology, format!("n{node}host"));
        let adapter = nic(topology, format!("n{node}nic"));
        link(topology, &host, &adapter, 32e9, 1e-6);
        link(topology, &adapter, &core, 25e9, 2e-6);
        for at in 0..n {
            let bridge = format!("n{node}pcie{}", at / 4);
            if at % 4 == 0 {
                switch(topology, bridge.clone());
                link(topology, &bridge, &host, 32e9, 1e-6);
            }
            let device = device(topology, node, at);
            link(topology, &device, &bridge, 32e9, 1e-6);
        }
    }
}

/// Ranks of a host share its memory (20 GB/s) and its port of 10 Gb/s.
fn ethernet(topology: &mut Topology, n_ranks: usize, ranks_per_node: usize) {
    let core = switch(topology, "core".into());
    for (node, n) in nodes(n_ranks, ranks_per_node) {
        let host = switch(topology, format!("n{node}host"));
        link(topology, &host, &core, 1.25e9, 25e-6);
        for at in 0..n {
            let device = device(topology, node, at);
            link(topology, &device, &host, 20e9, 1e-6);
        }
    }
}

/// Aries (Alverson et al., 2012): injection of 10.2 GB/s, 5.25 GB/s in each direction of a link in
/// the chassis, three such links between equal routers of two chassis.
fn aries(topology: &mut Topology, n_ranks: usize, ranks_per_node: usize) {
    let n_nodes = n_ranks.div_ceil(ranks_per_node);
    let n_routers = n_nodes.div_ceil(4);
    for at in 0..n_routers {
        let router = switch(topology, format!("router{at}"));
        for other in 0..at {
            let is_inside = other / 16 == at / 16;
            if is_inside || other % 16 == at % 16 {
                let rate = if is_inside { 5.25e9 } else { 3.0 * 5.25e9 };
                link(topology, &format!("router{other}"), &router, rate, 1e-7);
            }
        }
    }
    for (node, n) in nodes(n_ranks, ranks_per_node) {
        let adapter = nic(topology, format!("n{node}nic"));
        link(topology, &adapter, &format!("router{}", node / 4), 10.2e9, 6e-7);
        for at in 0..n {
            let device = device(topology, node, at);
            link(topology, &device, &adapter, 10.2e9, 1e-7);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::RoutedTopology;
    use super::*;
    use crate::ir::ids::Rank;

    #[test]
    fn presets_connect_all_ranks() {
        for preset in &PRESETS {
            for n_ranks in [1, 2, 8, 13, 64, 130] {
                let topology = preset.topology(n_ranks, None);
                let network = RoutedTopology::open(&topology, n_ranks).expect(preset.name);
                let last = Rank(n_ranks as u32 - 1);
                assert_eq!(network.route(Rank(0), last).resources.is_empty(), n_ranks == 1);
                let again = Topology::from_json(&topology.to_json()).expect("reads back");
                assert_eq!(again, topology);
            }
        }
    }

    #[test]
    fn ranks_of_a_rail_meet_on_its_switch() {
        let topology = TopologyPreset::named("rail").expect("known").topology(16, None);
        let network = RoutedTopology::open(&topology, 16).expect("sound");
        let crossed = |to: u32| network.route(Rank(0), Rank(to)).resources.len();
        assert_eq!([crossed(0), crossed(1), crossed(8), crossed(9)], [0, 2, 4, 6]);
    }
}
