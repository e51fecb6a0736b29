//! Topologies as JSON, and their checks.

use std::collections::BTreeSet;

use super::topology::Topology;

/// The version of the form.
const FORMAT: u32 = 1;
/// The most vertices and links of a topology.
const MOST: usize = 1 << 16;

/// The reason why a topology cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopologyError {
    /// Text that is not a topology.
    #[error("it is no topology: {0}")]
    Form(String),
    /// Another version.
    #[error("format is {0}; it must be {FORMAT}")]
    Format(u32),
    /// More than a file may have.
    #[error("it has more than {MOST} vertices or links")]
    TooLarge,
    /// A name that stands for two vertices.
    #[error("`{0}` is the name of two vertices: give each device, NIC and switch its own")]
    Twice(String),
    /// A name that stands for none.
    #[error("{place} names `{name}`, which is no {what}: choose a name from the file")]
    Unknown {
        /// The place in the file.
        place: String,
        /// The name.
        name: String,
        /// The kind of vertex that is meant.
        what: &'static str,
    },
    /// A number of a link that is out of range.
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

impl Topology {
    /// Reads a topology from JSON.
    ///
    /// # Errors
    /// If the text is not a topology; the error names the place.
    pub fn from_json(text: &str) -> Result<Topology, TopologyError> {
        let read: Result<Topology, _> = serde_json::from_str(text);
        let topology = read.map_err(|error| TopologyError::Form(error.to_string()))?;
        topology.check()?;
        Ok(topology)
    }

    /// Writes a topology as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Checks names and numbers.
    pub(super) fn check(&self) -> Result<(), TopologyError> {
        if self.format != FORMAT {
            return Err(TopologyError::Format(self.format));
        }
        if self.names().count().max(self.links.len()) > MOST {
            return Err(TopologyError::TooLarge);
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = self.names().find(|name| !names.insert(*name)) {
            return Err(TopologyError::Twice(twice.into()));
        }
        for (number, link) in self.links.iter().enumerate() {
            for (end, name) in [("from", &link.from), ("to", &link.to)] {
                if !names.contains(name.as_str()) {
                    let place = format!("links[{number}].{end}");
                    let what = "device, NIC or switch";
                    return Err(TopologyError::Unknown { place, name: name.clone(), what });
                }
            }
            if link.from == link.to {
                return Err(TopologyError::Loop(number));
            }
            let wrong = |field, value: f64, must| {
                Err(TopologyError::Number { number, field, value: value.to_string(), must })
            };
            if !(1e-9..=1e18).contains(&link.bytes_per_s) {
                return wrong("bytes_per_s", link.bytes_per_s, "a number from 1e-9 to 1e18");
            }
            if !(0.0..=1e9).contains(&link.latency_s) {
                return wrong("latency_s", link.latency_s, "a number from 0 to 1e9");
            }
        }
        let devices: BTreeSet<&str> = self.devices.iter().map(|d| d.name.as_str()).collect();
        let unknown =
            self.ranks.iter().enumerate().find(|(_, name)| !devices.contains(name.as_str()));
        match unknown {
            Some((rank, name)) => Err(TopologyError::Unknown {
                place: format!("ranks[{rank}]"),
                name: name.clone(),
                what: "device",
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"format": 1, "devices": [{"name": "a"}, {"name": "b", "island": "x"}],
        "switches": ["s"], "ranks": ["b", "a"], "sharing": "fifo", "reductions": "tree",
        "links": [{"from": "a", "to": "s", "bytes_per_s": 1e9, "latency_s": 1e-6},
                  {"from": "s", "to": "b", "bytes_per_s": 2e9, "duplex": "half"}]}"#;

    #[test]
    fn a_topology_is_written_as_it_is_read() {
        let topology = Topology::from_json(GOOD).unwrap();
        assert_eq!(Topology::from_json(&topology.to_json()), Ok(topology));
    }

    #[test]
    fn one_wrong_thing_is_named() {
        for (from, to, refusal) in [
            ("\"format\": 1", "\"format\": 2", "format is 2; it must be 1"),
            ("\"from\": \"a\"", "\"from\": \"x\"", "links[0].from names `x`, which is no device"),
            ("\"to\": \"b\"", "\"to\": \"s\"", "links[1] leads from a vertex to itself"),
            ("1e9", "0", "links[0].bytes_per_s is 0; it must be a number from 1e-9"),
            ("1e-6", "-1", "links[0].latency_s is -1; it must be a number from 0"),
            ("[\"s\"]", "[\"s\", \"a\"]", "`a` is the name of two vertices"),
            ("[\"b\", \"a\"]", "[\"b\", \"s\"]", "ranks[1] names `s`, which is no device"),
            ("\"half\"", "\"both\"", "unknown variant `both`"),
            ("\"fifo\"", "\"lifo\"", "unknown variant `lifo`"),
            ("\"sharing\"", "\"share\"", "unknown field `share`"),
        ] {
            let refused = Topology::from_json(&GOOD.replacen(from, to, 1)).expect_err(to);
            assert!(refused.to_string().contains(refusal), "{to}: {refused}");
        }
    }
}
