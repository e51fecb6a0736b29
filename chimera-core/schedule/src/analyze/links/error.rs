//! The errors of topologies.

/// The version of the form.
pub(super) const FORMAT: u32 = 1;
/// The most vertices and links of a topology.
pub(super) const MOST: usize = 1 << 16;

/// The reason why a topology cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopologyError {
    /// Text that is not a topology.
    #[error("it is not a topology: {0}")]
    Form(String),
    /// Another version.
    #[error("format is {0}; it must be {FORMAT}")]
    Format(u32),
    /// More vertices or links than a file may have.
    #[error("it has more than {MOST} vertices or links")]
    TooLarge,
    /// A name that stands for two vertices.
    #[error("`{0}` is the name of two vertices: give each device, NIC and switch its own")]
    Twice(String),
    /// A name that no vertex of the needed kind has.
    #[error("{place} names `{name}`, which is not a {what}: choose a name from the file")]
    Unknown {
        /// The place in the file.
        place: String,
        /// The name.
        name: String,
        /// The kind of vertex that is needed.
        what: &'static str,
    },
    /// A link has a number that is out of range.
    #[error("links[{number}].{field} is {value}; it must be {must}")]
    Number {
        /// The link.
        number: usize,
        /// The field.
        field: &'static str,
        /// The value.
        value: String,
        /// The range.
        must: &'static str,
    },
    /// A link from a vertex to itself.
    #[error("links[{0}] leads from a vertex to itself: name two")]
    Loop(usize),
    /// Fewer ranks than the job.
    #[error(
        "it has places for {has} rank(s), and the job has {needs}: add devices or `ranks`, or choose a smaller job"
    )]
    Ranks {
        /// Ranks of the topology.
        has: usize,
        /// Ranks of the job.
        needs: usize,
    },
    /// Two ranks without a path.
    #[error("no path of links, NICs and switches leads from {from} to {to}: add a link")]
    Unconnected {
        /// One device.
        from: String,
        /// The other device.
        to: String,
    },
}
