//! Devices, NICs and switches, the links between them, and the place of each rank.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::collective::Collective;
use super::error::TopologyError;
use crate::ir::ids::Rank;

/// The machine that a job runs on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Version of the form: 1.
    pub format: u32,
    /// Name of the topology.
    #[serde(default)]
    pub name: String,
    /// Places that run ranks. They forward nothing.
    pub devices: Vec<Device>,
    /// Network adapters, which forward messages.
    #[serde(default)]
    pub nics: Vec<String>,
    /// Switches, routers and host bridges, which forward messages.
    #[serde(default)]
    pub switches: Vec<String>,
    /// All links.
    pub links: Vec<TopologyLink>,
    /// The way in which flows share a link.
    #[serde(default)]
    pub sharing: Sharing,
    /// The algorithm of gradient reductions.
    #[serde(default)]
    pub reductions: Collective,
    /// The device of each rank; if empty, rank r is on device r.
    #[serde(default)]
    pub ranks: Vec<String>,
}

/// A place that runs ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name of the device.
    pub name: String,
    /// Name of its node or island; hierarchical reductions go inside of it first.
    #[serde(default)]
    pub island: String,
}

/// A link between two vertices.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyLink {
    /// Name of one end.
    pub from: String,
    /// Name of the other end.
    pub to: String,
    /// Bytes per second in each direction, or in both together if it is half duplex.
    pub bytes_per_s: f64,
    /// Latency of a message on the link, in seconds.
    #[serde(default)]
    pub latency_s: f64,
    /// The sharing of the two directions.
    #[serde(default)]
    pub duplex: Duplex,
    /// Whether no other flow slows a flow down: each has the whole bandwidth.
    #[serde(default)]
    pub dedicated: bool,
}

/// The directions of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Duplex {
    /// Each direction has the bandwidth.
    #[default]
    Full,
    /// Both directions share it.
    Half,
}

/// The way in which flows share a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// All at once, with max-min fair rates.
    #[default]
    Fair,
    /// One after the other.
    Fifo,
}

/// The kind of a vertex.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VertexKind {
    /// Runs ranks, and forwards nothing.
    Device,
    /// Passes on messages.
    Forwards,
}

/// Something that flows share: a direction of a link, or both of a half-duplex one.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Resource {
    pub(super) name: String,
    pub(super) bytes_per_s: f64,
    pub(super) is_dedicated: bool,
}

/// The path between two devices.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct LinkPath {
    /// Resources in the order in which a message crosses them.
    pub(super) resources: Vec<usize>,
    /// The sum of the latencies.
    pub(super) latency: f64,
}

/// A topology that has been checked, with the routes that were asked for.
#[derive(Debug)]
pub(super) struct RoutedTopology<'t> {
    pub(super) topology: &'t Topology,
    pub(super) resources: Vec<Resource>,
    kinds: Vec<VertexKind>,
    /// By vertex: the link, the resource towards the neighbour, and the neighbour, in order of links.
    neighbours: Vec<Vec<(usize, usize, usize)>>,
    /// The vertex of each rank.
    places: Vec<usize>,
    routes: RefCell<FxHashMap<(usize, usize), Rc<LinkPath>>>,
}

impl Topology {
    /// Returns the names of all vertices: devices, NICs, switches.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let devices = self.devices.iter().map(|device| device.name.as_str());
        devices.chain(self.nics.iter().chain(&self.switches).map(String::as_str))
    }

    /// Returns the number of ranks that have a device.
    pub fn n_ranks(&self) -> usize {
        if self.ranks.is_empty() { self.devices.len() } else { self.ranks.len() }
    }

    /// Returns the island of each of the first `n` ranks, by number.
    pub(super) fn islands(&self, n: usize) -> Vec<usize> {
        let mut known: FxHashMap<&str, usize> = FxHashMap::default();
        let device = |rank: usize| match self.ranks.get(rank) {
            Some(name) => self.devices.iter().find(|device| device.name == *name),
            None => self.devices.get(rank),
        };
        let mut island = |rank| {
            let name = device(rank).map_or("", |device| device.island.as_str());
            let next = known.len();
            *known.entry(name).or_insert(next)
        };
        (0..n).map(&mut island).collect()
    }
}

impl<'t> RoutedTopology<'t> {
    /// Opens a topology for a job of `n_ranks`.
    ///
    /// # Errors
    /// If it has fewer ranks, or two of them are not connected.
    pub(super) fn open(topology: &'t Topology, n_ranks: usize) -> Result<Self, TopologyError> {
        topology.check()?;
        let has = topology.n_ranks();
        if has < n_ranks {
            return Err(TopologyError::Ranks { has, needs: n_ranks });
        }
        let vertex: FxHashMap<&str, usize> = topology.names().zip(0..).collect();
        let n_devices = topology.devices.len();
        let n_vertices = vertex.len();
        let mut network = RoutedTopology {
            topology,
            resources: Vec::new(),
            kinds: vec![VertexKind::Forwards; n_vertices],
            neighbours: vec![Vec::new(); n_vertices],
            places: (0..n_ranks).collect(),
            routes: RefCell::default(),
        };
        network.kinds[..n_devices].fill(VertexKind::Device);
        if !topology.ranks.is_empty() {
            network.places =
                topology.ranks[..n_ranks].iter().map(|name| vertex[name.as_str()]).collect();
        }
        for (number, link) in topology.links.iter().enumerate() {
            network.add(number, link, [vertex[link.from.as_str()], vertex[link.to.as_str()]]);
        }
        network.check_connected()?;
        Ok(network)
    }

    fn add(&mut self, number: usize, link: &TopologyLink, [from, to]: [usize; 2]) {
        let resource =
            |name| Resource { name, bytes_per_s: link.bytes_per_s, is_dedicated: link.dedicated };
        let forward = self.resources.len();
        let back = match link.duplex {
            Duplex::Full => {
                self.resources.push(resource(format!("{} > {}", link.from, link.to)));
                self.resources.push(resource(format!("{} > {}", link.to, link.from)));
                forward + 1
            }
            Duplex::Half => {
                self.resources.push(resource(format!("{} - {}", link.from, link.to)));
                forward
            }
        };
        self.neighbours[from].push((number, forward, to));
        self.neighbours[to].push((number, back, from));
    }

    fn check_connected(&self) -> Result<(), TopologyError> {
        let Some(first) = self.places.first() else { return Ok(()) };
        let mut seen = vec![false; self.kinds.len()];
        for from in &self.places {
            if std::mem::replace(&mut seen[*from], true) {
                continue;
            }
            let far = self.distances(*from);
            let cut_off = self.places.iter().find(|to| far[**to] == usize::MAX);
            if let Some(to) = cut_off {
                let name = |vertex: usize| self.topology.names().nth(vertex).unwrap_or("").into();
                return Err(TopologyError::Unconnected { from: name(*from), to: name(*to) });
            }
        }
        debug_assert!(seen[*first]);
        Ok(())
    }

    /// Returns the number of links from each vertex to `to`, past no other device.
    fn distances(&self, to: usize) -> Vec<usize> {
        let mut far = vec![usize::MAX; self.kinds.len()];
        let mut queue = VecDeque::from([to]);
        far[to] = 0;
        while let Some(vertex) = queue.pop_front() {
            if vertex != to && self.kinds[vertex] == VertexKind::Device {
                continue;
            }
            for (_, _, next) in &self.neighbours[vertex] {
                if far[*next] == usize::MAX {
                    far[*next] = far[vertex] + 1;
                    queue.push_back(*next);
                }
            }
        }
        far
    }

    /// Returns the path between two ranks: the fewest links, and of these paths the one whose
    /// links come first.
    pub(super) fn route(&self, from: Rank, to: Rank) -> Rc<LinkPath> {
        let ends = (self.places[from.index()], self.places[to.index()]);
        if let Some(route) = self.routes.borrow().get(&ends) {
            return route.clone();
        }
        let far = self.distances(ends.1);
        let mut route = LinkPath::default();
        let mut at = ends.0;
        while at != ends.1 {
            let nearer = |(_, _, next): &&(usize, usize, usize)| {
                let passes = *next == ends.1 || self.kinds[*next] == VertexKind::Forwards;
                passes && far[*next] < far[at]
            };
            let Some((link, resource, next)) = self.neighbours[at].iter().find(nearer) else {
                break;
            };
            route.resources.push(*resource);
            route.latency += self.topology.links[*link].latency_s;
            at = *next;
        }
        let route = Rc::new(route);
        self.routes.borrow_mut().insert(ends, route.clone());
        route
    }

    /// Returns the time of the step sync: the greatest latency between rank 0 and another, for each
    /// round of an all-gather.
    pub(super) fn agree(&self) -> f64 {
        let n = self.places.len();
        let n_rounds = usize::BITS - n.saturating_sub(1).leading_zeros();
        let latencies = (0..n as u32).map(|to| self.route(Rank(0), Rank(to)).latency);
        f64::from(n_rounds) * latencies.fold(0.0, f64::max)
    }
}
