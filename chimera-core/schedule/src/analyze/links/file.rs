//! Topologies as JSON, and their checks.

use std::collections::BTreeSet;

use super::error::{FORMAT, MOST, TopologyError};
use super::topology::Topology;

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
            (
                "\"from\": \"a\"",
                "\"from\": \"x\"",
                "links[0].from names `x`, which is not a device",
            ),
            ("\"to\": \"b\"", "\"to\": \"s\"", "links[1] leads from a vertex to itself"),
            ("1e9", "0", "links[0].bytes_per_s is 0; it must be a number from 1e-9"),
            ("1e-6", "-1", "links[0].latency_s is -1; it must be a number from 0"),
            ("[\"s\"]", "[\"s\", \"a\"]", "`a` is the name of two vertices"),
            ("[\"b\", \"a\"]", "[\"b\", \"s\"]", "ranks[1] names `s`, which is not a device"),
            ("\"half\"", "\"both\"", "unknown variant `both`"),
            ("\"fifo\"", "\"lifo\"", "unknown variant `lifo`"),
            ("\"sharing\"", "\"share\"", "unknown field `share`"),
        ] {
            let refused = Topology::from_json(&GOOD.replacen(from, to, 1)).expect_err(to);
            assert!(refused.to_string().contains(refusal), "{to}: {refused}");
        }
    }
}
