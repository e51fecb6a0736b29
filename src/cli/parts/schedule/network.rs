//! Command-line options for the network between the ranks of a job.

mod nodes;

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use chimera_core::analyze::links::{Topology, Traffic};
use chimera_core::analyze::{ClosedForm, Network, NetworkCosts, Reduced, ReductionAlgorithm};
use chimera_core::costs::{Costs, StageCosts, UnevenCosts};
use chimera_core::ids::Rank;
use chimera_core::op::Kind;
use chimera_core::program::Program;
use chimera_core::timetable::Timetable;
use clap::Args;

use crate::cli::parts::schedule::costs::{CostArgs, Times, may_be_negative, whole_in};
use crate::cli::parts::schedule::measured_network::MeasuredNetwork;
use crate::cli::parts::schedule::rank_map::{OnTopology, RankMap};
use crate::cli::parts::schedule::shape::JobArgs;
use crate::cli::parts::schedule::topology::TopologyArg;
use crate::cli::parts::schedule::wire::Wire;
use crate::cli::parts::terminal::console::warn;
use crate::plan::Hardware;
use crate::settings::{Config, SettingsError, Speeds};

/// The largest number of pipelines side by side.
const MAX_WIDTH: usize = 65_535;

/// The options that are bytes per stage.
const BYTES: [&str; 3] = ["activation_bytes", "saved_bytes", "gradient_bytes"];

/// Nodes and links. Without links, messages and sums take no time.
#[derive(Args, Clone)]
#[command(mut_args(|arg| may_be_negative(arg, &["inside", "between"])))]
pub(crate) struct LinkArgs {
    /// Nodes and links measured by `chimera comm bench --out FILE`, in seconds; the next three options override it
    #[arg(long, value_name = "FILE")]
    network: Option<MeasuredNetwork>,
    /// Ranks of a node, R, a divisor or a multiple of D [default: all]
    #[arg(long, value_name = "R", value_parser = whole_in(1..=u32::MAX))]
    ranks_per_node: Option<u32>,
    /// Link between ranks of a node: latency and rate, e.g. 5us,300GB/s; or times of a message and of a byte, e.g.
    /// 5e-6,3e-12; or a file of `chimera comm bench --json` [default: 0,0]
    #[arg(long, value_name = "LINK")]
    inside: Option<Wire>,
    /// Link between nodes, shared by the ranks of a node [default: as inside]
    #[arg(long, value_name = "LINK")]
    between: Option<Wire>,
    /// Machine whose links messages and reductions share: two-level, rail, pcie, ethernet, aries, or a JSON file
    #[arg(long, value_name = "PRESET|FILE", conflicts_with_all = ["network", "inside", "between"])]
    topology: Option<TopologyArg>,
    /// Devices of ranks on the topology
    #[arg(long, value_enum, default_value_t, requires = "topology")]
    pub(crate) map: RankMap,
    /// Network adapters per node, from the data sheet, otherwise 1.
    #[arg(skip = 1usize)]
    adapters: usize,
    #[arg(skip)]
    blocking: bool,
    #[arg(skip)]
    reductions: ReductionAlgorithm,
    #[arg(skip)]
    round_latency: Option<f64>,
    #[arg(skip)]
    reduction_share: f64,
}

impl LinkArgs {
    /// Completes these links from data sheets.
    pub(crate) fn or_hardware(&self, hardware: &Hardware, n_ranks: u32) -> LinkArgs {
        let of_node = self.ranks_per_node().unwrap_or(hardware.ranks_per_node);
        let ranks_per_node = of_node.min(n_ranks);
        let [inside, between] = hardware.links().map(Wire::given);
        let said = self.between().or(self.inside);
        LinkArgs {
            network: None,
            ranks_per_node: Some(ranks_per_node),
            inside: self.inside().or(Some(inside)),
            between: said.or(Some(between)),
            adapters: if said.is_none() { ranks_per_node as usize } else { 1 },
            blocking: hardware.blocking,
            reductions: hardware.reductions,
            round_latency: hardware.round_latency_s,
            reduction_share: hardware.reduction_share,
            topology: self.topology.clone(),
            map: self.map,
        }
    }

    /// Returns the topology of a job, if one was given.
    pub(crate) fn topology(&self, n_ranks: usize) -> Option<Arc<Topology>> {
        Some(self.topology.as_ref()?.topology(n_ranks, self.ranks_per_node()))
    }

    /// Warns of links in seconds that no machine has.
    pub(crate) fn warn_of_implausible(&self) {
        for (option, wire) in [("--inside", self.inside), ("--between", self.between)] {
            if let Some(why) = wire.and_then(Wire::doubt) {
                warn(&format!("{option}: {why}"));
            }
        }
    }

    /// Returns true if no link is described, so that messages and reductions take no time.
    pub(crate) fn is_free(&self) -> bool {
        self.inside().is_none() && self.between().is_none() && self.topology.is_none()
    }

    /// Returns the option whose times are in seconds, if there is one.
    fn in_seconds(&self) -> Option<&'static str> {
        let is_in_seconds = |wire: Option<Wire>| wire.is_some_and(|wire| wire.is_in_seconds);
        let options = [
            ("--topology", self.topology.is_some()),
            ("--network", self.network.is_some()),
            ("--inside", is_in_seconds(self.inside)),
            ("--between", is_in_seconds(self.between)),
        ];
        options.into_iter().find(|(_, is_in_seconds)| *is_in_seconds).map(|(option, _)| option)
    }

    /// Number of ranks per node, if it was given or measured.
    pub(crate) fn ranks_per_node(&self) -> Option<u32> {
        self.ranks_per_node.or(self.network.map(|network| network.ranks_per_node))
    }

    fn inside(&self) -> Option<Wire> {
        self.inside.or(self.network.and_then(|network| network.inside).map(Wire::in_seconds))
    }

    fn between(&self) -> Option<Wire> {
        self.between.or(self.network.and_then(|network| network.between).map(Wire::in_seconds))
    }

    /// Returns the network of a job of this number of ranks in `width` groups.
    ///
    /// # Errors
    /// If the job needs a link that was not measured.
    pub(crate) fn network(&self, width: usize, n_ranks: usize) -> Result<Network> {
        if self.topology.is_some() {
            // The topology has the links.
            return Ok(Network { width, ..Network::free(n_ranks) });
        }
        ensure!(
            self.between.is_none() || self.ranks_per_node().is_some(),
            "--between is for links between nodes: give the ranks of a node with --ranks-per-node"
        );
        let ranks_per_node = self.ranks_per_node().map_or(n_ranks, |n| n as usize);
        let is_said = self.network.is_none() || self.inside.is_some();
        ensure!(
            ranks_per_node >= n_ranks || is_said || self.between().is_some(),
            "--network was measured on one node, and {n_ranks} ranks need several of \
             {ranks_per_node}: measure with ranks on two nodes, or give --between"
        );
        ensure!(
            ranks_per_node == 1 || self.network.is_none() || self.inside().is_some(),
            "--network was measured with one rank on each node: measure with two, or give --inside"
        );
        let inside = self.inside().unwrap_or_default().link;
        Ok(Network {
            width,
            ranks_per_node,
            inside,
            between: self.between().map_or(inside, |wire| wire.link),
            adapters: self.adapters,
            blocking: self.blocking,
            reductions: self.reductions,
            round_alpha: self.round_latency,
            reduction_share: self.reduction_share,
        })
    }
}

/// Ranks, nodes and links, and what travels.
#[derive(Args, Clone)]
#[command(mut_args(|arg| may_be_negative(arg, &BYTES)))]
pub(crate) struct NetworkArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    #[command(flatten)]
    links: LinkArgs,
    /// Bytes that a stage sends to the next for a micro-batch, as a number or a list
    #[arg(long, value_name = "BYTES", default_value = "0")]
    activation_bytes: Times,
    /// Bytes of a stage's activations of a micro-batch, which `--bpipe` moves over the links, as a number or a list
    #[arg(long, value_name = "BYTES", default_value = "0")]
    saved_bytes: Times,
    /// Bytes of a stage's gradients, as a number or a list
    #[arg(long, value_name = "BYTES", default_value = "0")]
    gradient_bytes: Times,
    /// The ranks that are left of the job, where some have died: they make one group.
    #[arg(skip)]
    living: Option<Vec<Rank>>,
}

/// Costs of stages on workers that need not be alike.
pub(crate) type WorkerCosts = UnevenCosts<StageCosts>;

impl NetworkArgs {
    /// Warns of options about links if there are no links.
    pub(crate) fn warn_of_unread(&self) {
        let NetworkArgs { activation_bytes, saved_bytes, gradient_bytes, .. } = self;
        let given = [
            ("activation-bytes", activation_bytes),
            ("saved-bytes", saved_bytes),
            ("gradient-bytes", gradient_bytes),
        ];
        let of_bytes = given.iter().filter(|(_, bytes)| bytes.has_any()).map(|(option, _)| *option);
        let of_nodes = self.links.ranks_per_node.map(|_| "ranks-per-node");
        for option in of_bytes.chain(of_nodes).filter(|_| self.links.is_free()) {
            warn(&format!(
                "`{option}` has no effect without links: give --inside, --between or --network"
            ));
        }
    }

    /// Warns of bytes of saved activations that no link carries, because the timetable moves none
    /// to other workers.
    pub(crate) fn warn_of_unmoved(&self, timetable: &Timetable) {
        if self.saved_bytes.has_any() && !self.links.is_free() && !timetable.has(Kind::Keep) {
            warn(&format!(
                "`saved-bytes` has no effect: {} moves no activations to other workers, as --bpipe does",
                timetable.schedule
            ));
        }
    }

    /// Warns of a width and a policy for gradient reductions if reductions take no time, of the width
    /// unless it changes the time of something else: of the step sync, or of links that groups share.
    pub(crate) fn warn_of_free_reductions(&self, width_takes_time: bool) {
        // From ZeRO stage 2 on, reductions free gradients.
        let Some(job) = self.job().ok().filter(|job| job.replicas.zero < 2) else { return };
        let is_wide = job.schedule.width > 1 && job.schedule.speeds.is_none() && !width_takes_time;
        let has_sync = self.job.0.iter().any(|(key, _)| key == "sync");
        let given = [("width", is_wide), ("sync", has_sync)];
        for (option, _) in given.into_iter().filter(|(_, is_unread)| *is_unread) {
            warn(&format!(
                "`{option}` has no effect: no gradient reduction takes time, since no two workers hold the same stage or no links \
                 (--inside, --between, --network) take any"
            ));
        }
    }

    /// Refuses links in seconds if ops are in a unit of their own.
    ///
    /// # Errors
    /// If no time of an op is given.
    pub(crate) fn check_unit(&self, costs: &CostArgs) -> Result<()> {
        let Some(option) = self.links.in_seconds().filter(|_| !costs.has_ops()) else {
            return Ok(());
        };
        bail!(
            "{option} is in seconds, and no option says how many an op takes: give --forward and --backward in seconds, \
             or name a profile with --profile"
        )
    }

    /// Returns the costs of a timetable's compute and messages on the network, and of moves that go
    /// to other workers.
    pub(crate) fn of_messages(
        &self,
        timetable: &Timetable,
        goes_to_partners: bool,
        compute: StageCosts,
    ) -> Result<NetworkCosts<WorkerCosts>> {
        let placement = &timetable.placement;
        let (depth, n_stages) = (placement.n_workers(), placement.n_stages());
        let job = self.job()?;
        let width = job.schedule.width;
        ensure!(
            (1..=MAX_WIDTH).contains(&width),
            "`width` is {width}; it must be a whole number from 1 to {MAX_WIDTH}"
        );
        let network = self.links.network_of(&job, depth)?;
        ensure!(
            network.fits(depth),
            "--ranks-per-node {}: groups of {depth} workers would be placed differently on the \
             nodes; choose a divisor or a multiple of {depth}",
            network.ranks_per_node
        );
        let why = format!("{} has {n_stages} stages", timetable.schedule);
        self.activation_bytes.0.check("--activation-bytes", n_stages, &why)?;
        self.saved_bytes.0.check("--saved-bytes", n_stages, &why)?;
        let each = |bytes: &Times| (0..n_stages).map(|s| bytes.0.at(s)).collect::<Vec<f64>>();
        let activations = each(&self.activation_bytes);
        let units = timetable.units_per_micro;
        let n_speeds = job.schedule.speeds.as_ref().map_or(0, Speeds::n_said);
        ensure!(
            n_speeds <= width * depth,
            "--speeds has values for {n_speeds} ranks, but there are {}: leave out the others",
            width * depth
        );
        let speeds =
            job.schedule.speeds.map_or(Vec::new(), |speeds| speeds.of_workers(depth, width));
        let compute = UnevenCosts::new(compute, speeds);
        let costs = NetworkCosts::of_messages(compute, network, placement, units, &activations);
        job.devices.wire.check(depth).map_err(anyhow::Error::msg)?;
        let costs = costs.compressed(&job.devices.wire);
        Ok(if goes_to_partners { costs.with_saved(&each(&self.saved_bytes)) } else { costs })
    }

    /// Adds the costs of the reductions of `program`.
    pub(crate) fn with_sums(
        &self,
        messages: NetworkCosts<WorkerCosts>,
        program: &Program,
    ) -> Result<NetworkCosts<WorkerCosts>> {
        let n_stages = program.placement().n_stages();
        let why = format!("{} has {n_stages} stages", program.schedule());
        self.gradient_bytes.0.check("--gradient-bytes", n_stages, &why)?;
        let gradients: Vec<_> = (0..n_stages).map(|s| vec![self.gradient_bytes.0.at(s)]).collect();
        Ok(messages.with_sums(program, &gradients, &[]))
    }

    /// Simulates a program on the topology, if one was given. `costs` are those of everything beside
    /// the links.
    pub(crate) fn on_topology(
        &self,
        program: &Program,
        traffic: &Traffic,
        costs: &impl Costs,
    ) -> Result<Option<OnTopology>> {
        let width = self.job()?.schedule.width;
        let n_ranks = program.placement().n_ranks(width);
        let Some(topology) = self.links.topology(n_ranks) else { return Ok(None) };
        ensure!(
            !program.rules().has_moves() || !self.saved_bytes.has_any(),
            "--topology has no moves of activations between workers: leave --bpipe or --saved-bytes out"
        );
        ensure!(self.living.is_none(), "--topology is about all ranks of a job: leave --lost out");
        self.links.map.simulate(program, costs, traffic, &topology, width).map(Some)
    }

    /// Returns the closed form with what it needs from the network: gradients, groups, and the
    /// slowest link between replicas.
    pub(crate) fn closed_form(&self, program: &Program, costs: &impl Costs) -> Result<ClosedForm> {
        let placement = program.placement();
        let (width, depth) = (self.job()?.schedule.width, placement.n_workers());
        let link = self.links.network(width, width * depth)?.slowest(depth);
        let bytes: Vec<f64> =
            (0..placement.n_stages()).map(|s| self.gradient_bytes.0.at(s)).collect();
        Ok(ClosedForm::of(program, costs, Reduced { bytes: &bytes, width, link }))
    }

    /// Returns the job that the options describe, or what is left of it.
    pub(crate) fn job(&self) -> Result<Config, SettingsError> {
        let mut job = self.job.0.drawn()?;
        if let Some(living) = &self.living {
            job.schedule.width = 1;
            job.schedule.speeds = job.schedule.speeds.map(|speeds| speeds.of_ranks(living));
        }
        Ok(job)
    }

    /// Returns what is left of a job with groups of `depth` ranks, without the `lost` ranks.
    ///
    /// # Errors
    /// If the ranks are on several nodes: the costs of messages do not know how many are left on
    /// each.
    pub(crate) fn without(&self, lost: &[Rank], depth: usize) -> Result<NetworkArgs> {
        if lost.is_empty() {
            return Ok(self.clone());
        }
        let n_ranks = self.job()?.schedule.width * depth;
        let ranks_per_node = self.links.ranks_per_node();
        ensure!(
            ranks_per_node.is_none_or(|n| n as usize >= n_ranks),
            "--lost is about ranks of one node: leave --ranks-per-node and --between out"
        );
        let ranks = (0..n_ranks as u32).map(Rank);
        let living = ranks.filter(|rank| !lost.contains(rank)).collect();
        Ok(NetworkArgs { living: Some(living), ..self.clone() })
    }
}
