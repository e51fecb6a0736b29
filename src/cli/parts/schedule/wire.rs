//! A link on the command line: a latency and a rate, two times, or a file of measurements.

use std::path::Path;
use std::str::FromStr;

use chimera_core::analyze::Link;

use crate::cli::parts::schedule::costs::number;
use crate::cli::parts::schedule::measured_network::{MeasuredLink, read};
use crate::cli::parts::schedule::quantity::{bytes_per_s, seconds};

/// Seconds of a byte on the slowest and on the fastest link that are believed.
const BELIEVED_S_PER_BYTE: [f64; 2] = [1.0, 1e-14];
/// Seconds of a message on the slowest link that is believed.
const BELIEVED_S: f64 = 10.0;

/// A link that was given or measured.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Wire {
    pub(crate) link: Link,
    /// Whether it is in seconds, whatever the unit of other times.
    pub(crate) is_in_seconds: bool,
}

impl Wire {
    /// A link in the unit of other times.
    pub(crate) fn given(link: Link) -> Wire {
        Wire { link, is_in_seconds: false }
    }

    /// A link in seconds.
    pub(crate) fn in_seconds(link: Link) -> Wire {
        Wire { link, is_in_seconds: true }
    }

    /// Returns the reason why no machine has this link, if its times are seconds.
    pub(crate) fn doubt(self) -> Option<String> {
        let Link { alpha, beta } = self.link;
        let [slowest, fastest] = BELIEVED_S_PER_BYTE;
        let with_units = "write a latency and a rate with their units, e.g. 5us,300GB/s";
        if beta > slowest {
            return Some(format!("a byte takes {beta:e} s on this link: {with_units}"));
        }
        if beta > 0.0 && beta < fastest {
            let rate = 1e-9 / beta;
            return Some(format!("this link carries {rate:e} GB/s: {with_units}"));
        }
        let is_slow = alpha > BELIEVED_S;
        is_slow.then(|| format!("a message takes {alpha} s on this link: {with_units}"))
    }
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Wire, String> {
        if Path::new(text).exists() {
            let link: MeasuredLink = read(Path::new(text))?;
            return link.sound().map(Wire::in_seconds);
        }
        let Some((latency, rate)) = text.split_once(',') else {
            return Err(
                "neither a link such as 5us,300GB/s or 5e-6,3e-12 nor a file that is there".into(),
            );
        };
        let (alpha, beta) = (seconds(latency), bytes_per_s(rate).map(|rate| 1.0 / rate));
        let is_in_seconds = alpha.is_some() || beta.is_some();
        let link = Link {
            alpha: alpha.map_or_else(|| number(latency), Ok)?,
            beta: beta.map_or_else(|| number(rate), Ok)?,
        };
        Ok(Wire { link, is_in_seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_two_numbers() {
        assert_eq!("1e-6, 2".parse(), Ok(Wire::given(Link { alpha: 1e-6, beta: 2.0 })));
        for (bad, named) in
            [("1", "neither"), ("1,2,3", "`2,3`"), ("-1,2", "`-1`"), ("", "neither")]
        {
            let error = bad.parse::<Wire>().expect_err(bad);
            assert!(error.starts_with(named), "{error}");
        }
    }

    #[test]
    fn a_link_is_a_latency_and_a_rate() {
        let wire: Wire = "5us,200GB/s".parse().unwrap();
        assert!(wire.is_in_seconds && wire.link.beta == 5e-12, "{wire:?}");
        assert!((wire.link.alpha - 5e-6).abs() < 1e-18, "{wire:?}");
        let wire: Wire = "0,400Gbit/s".parse().unwrap();
        assert!(wire.is_in_seconds && wire.link.beta == 2e-11, "{wire:?}");
        for bad in ["5us,300GB", "5kg,300GB/s", "5us,0GB/s"] {
            assert!(bad.parse::<Wire>().is_err(), "{bad}");
        }
    }

    #[test]
    fn links_that_no_machine_has_are_doubted() {
        for good in ["5us,300GB/s", "0,0", "9.5e-3,1.7e-10", "1ms,1MB/s"] {
            assert_eq!(good.parse::<Wire>().unwrap().doubt(), None, "{good}");
        }
        for (bad, why) in [
            ("5e-6,300e9", "a byte takes 3e11 s on this link: write a latency and a rate"),
            ("5,2", "a byte takes 2e0 s on this link"),
            ("5e-6,1e-16", "this link carries 1e7 GB/s"),
            ("100,1e-9", "a message takes 100 s on this link"),
        ] {
            let doubt = bad.parse::<Wire>().unwrap().doubt().expect(bad);
            assert!(doubt.starts_with(why), "{doubt}");
        }
    }
}
