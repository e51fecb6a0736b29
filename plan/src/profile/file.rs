//! The file of a profile: JSON with a line for each measurement.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chimera_device::{Precision, machine};
use chimera_formats::files::text_at_most;
use serde::{Deserialize, Serialize};

use super::{LayerTime, Measurements, Profile};

/// The format of the file.
pub(super) const FORMAT: u32 = 6;

/// Longer files are refused before they are read.
const MAX_BYTES: u64 = 1 << 26;
/// The largest extent of a call.
const MOST_EXTENT: usize = 1 << 48;
/// The most times of a layer that a law is fitted to: it is solved for that many unknowns.
const MOST_POINTS: usize = 2_000;

/// The field of a file that gives its format.
#[derive(Deserialize)]
struct Form {
    format: u32,
}

impl Profile {
    /// Reads a profile from a file.
    ///
    /// # Errors
    /// If it cannot be read, or is not a profile.
    pub fn read(path: &Path) -> Result<Profile> {
        let name = path.display();
        let text = text_at_most(path, MAX_BYTES).with_context(|| format!("cannot read {name}"))?;
        let text = text.with_context(|| format!("{name} is longer than {MAX_BYTES} bytes"))?;
        if let Ok(Form { format }) = serde_json::from_str(&text) {
            ensure!(
                format == FORMAT,
                "{name} is a profile of format {format}, and this program reads format {FORMAT}: measure again with \
                 `chimera profile --out {name}`"
            );
        }
        Profile::of(&text).with_context(|| {
            format!("{name} is not a profile: make one with `chimera profile --out {name}`")
        })
    }

    fn of(text: &str) -> Result<Profile> {
        let profile: Profile = serde_json::from_str(text)?;
        ensure!(profile.format == FORMAT, "its format is {}, not {FORMAT}", profile.format);
        for measurements in &profile.measured {
            let Measurements { layers, parts, workers, threads, messages, reductions, .. } =
                measurements;
            let Measurements { sync_s, reference_s, moves, .. } = measurements;
            let Measurements { reference_quick_s, core_share, .. } = measurements;
            let is_time = |x: &f64| (1e-12..=1e9).contains(x);
            let is_share = |x: &f64| (0.0..=1e6).contains(x);
            let is_size = |n: &usize| (1..=MOST_EXTENT).contains(n);
            let are_sound = layers.iter().all(|l| is_time(&l.seconds) && is_share(&l.spread))
                && layers.iter().all(|l| l.extents.iter().all(is_size))
                && parts.iter().all(|p| is_time(&p.seconds) && (0.0..=1.0).contains(&p.in_layers))
                && parts.iter().all(|p| [p.sequence, p.samples, p.hidden].iter().all(is_size))
                && messages.iter().all(|m| is_time(&m.seconds) && is_time(&m.occupies))
                && messages.iter().all(|m| is_size(&m.bytes) && is_share(&m.spread))
                && reductions.iter().all(|r| is_time(&r.seconds) && is_time(&r.occupies))
                && reductions
                    .iter()
                    .all(|r| r.replicas > 1 && r.elements > 0 && is_share(&r.spread))
                && moves.iter().all(|m| is_time(&m.seconds) && is_share(&m.spread) && m.bytes > 0)
                && is_share(sync_s)
                && is_time(reference_s)
                && reference_quick_s.iter().all(is_time)
                && core_share.iter().all(|share| (1e-9..=1.0).contains(share))
                && *workers > 0
                && *threads > 0;
            ensure!(are_sound, "a time in it is impossible");
            let alike = |a: &LayerTime, b: &LayerTime| {
                a.layer != b.layer || a.extents.len() == b.extents.len()
            };
            let mut sorted: Vec<&LayerTime> = layers.iter().collect();
            sorted.sort_by(|a, b| a.layer.cmp(&b.layer));
            ensure!(
                sorted.windows(2).all(|pair| alike(pair[0], pair[1])),
                "the extents of a layer are not equally many"
            );
            let most = sorted.chunk_by(|a, b| a.layer == b.layer).map(<[_]>::len).max();
            let most = most.unwrap_or(0).max(parts.len()).max(messages.len()).max(reductions.len());
            ensure!(
                most.max(moves.len()) <= MOST_POINTS,
                "it has {most} times of one kind, more than the {MOST_POINTS} that a law goes through"
            );
        }
        Ok(profile)
    }

    /// Refuses a profile of another machine, device, precision or build than those to be predicted.
    ///
    /// # Errors
    /// Names each difference.
    pub fn check(&self, device: &str, precision: Precision) -> Result<()> {
        let (build, machine, precision) = (build(), machine(), precision.to_string());
        let here = [
            ("machine", &self.machine, machine.as_str()),
            ("device", &self.device, device),
            ("precision", &self.precision, precision.as_str()),
            ("build", &self.build, build.as_str()),
        ];
        let differ = here.iter().filter(|(_, there, here)| there != here);
        let differ: Vec<String> = differ
            .map(|(what, there, here)| format!("its {what} is {there}, not {here}"))
            .collect();
        match differ.len() {
            0 => Ok(()),
            _ => bail!("the profile is of another kind: {}", differ.join("; ")),
        }
    }

    /// Returns the file's text: a line for each measurement.
    ///
    /// # Errors
    /// None is known: all of it can be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        let Profile { build, date, machine, device, precision, .. } = self;
        let mut text = String::from("{");
        let facts = [
            ("build", build),
            ("date", date),
            ("machine", machine),
            ("device", device),
            ("precision", precision),
        ];
        write!(text, "\n  \"format\": {FORMAT},")?;
        for (key, value) in facts {
            write!(text, "\n  \"{key}\": {},", serde_json::to_string(value)?)?;
        }
        let measured =
            self.measured.iter().map(Measurements::to_json).collect::<Result<Vec<_>>>()?;
        write!(text, "\n  \"measured\": [{}\n  ]\n}}\n", measured.join(","))?;
        Ok(text)
    }
}

impl Measurements {
    fn to_json(&self) -> Result<String> {
        fn lines(all: &[impl Serialize]) -> Result<String> {
            let lines =
                all.iter().map(|one| Ok(format!("\n        {}", serde_json::to_string(one)?)));
            Ok(lines.collect::<Result<Vec<_>>>()?.join(","))
        }
        let Measurements { workers, threads, layers, parts, messages, reductions, moves, .. } =
            self;
        let lists = [
            ("messages", lines(messages)?),
            ("reductions", lines(reductions)?),
            ("moves", lines(moves)?),
            ("parts", lines(parts)?),
            ("layers", lines(layers)?),
        ];
        let lists = lists.map(|(name, lines)| format!("\"{name}\": [{lines}\n      ]"));
        Ok(format!(
            "\n    {{\n      \"workers\": {workers},\n      \"threads\": {threads},\n      \"sync_s\": {},\n      \"reference_s\": {},\n      \"reference_quick_s\": {},\n      \"core_share\": {},\n      {}\n    }}",
            serde_json::to_string(&self.sync_s)?,
            serde_json::to_string(&self.reference_s)?,
            serde_json::to_string(&self.reference_quick_s)?,
            serde_json::to_string(&self.core_share)?,
            lists.join(",\n      ")
        ))
    }
}

/// Returns the program's version, and whether it has debug assertions.
pub(super) fn build() -> String {
    let debug = if cfg!(debug_assertions) { " with debug assertions" } else { "" };
    format!("{}{debug}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::stage_pass::{Half, ModelPart};
    use crate::profile::{MessageTime, MoveTime, PartTime, ReductionTime};

    fn profile() -> Profile {
        let layer = |n| LayerTime {
            layer: "adamw".into(),
            extents: vec![n],
            count: 3,
            seconds: 1e-9 * n as f64,
            spread: 0.1,
        };
        let part = PartTime {
            model: "gpt2".into(),
            hidden: 64,
            heads: 4,
            vocab: 256,
            sequence: 32,
            samples: 2,
            part: ModelPart::Block,
            op: Half::Weight,
            seconds: 0.1 + 0.2,
            spread: 0.0,
            in_layers: 0.75,
        };
        let measured = Measurements {
            workers: 1,
            threads: 2,
            layers: vec![layer(4), layer(9)],
            parts: vec![part],
            messages: vec![MessageTime {
                bytes: 4096,
                count: 9,
                seconds: 2e-5,
                spread: 0.25,
                occupies: 1e-6,
            }],
            reductions: vec![ReductionTime {
                replicas: 2,
                elements: 1024,
                count: 9,
                seconds: 3e-5,
                spread: 0.5,
                occupies: 7e-6,
            }],
            sync_s: 8e-6,
            reference_s: 0.0625,
            reference_quick_s: Some(0.0605),
            core_share: Some(0.97),
            moves: vec![MoveTime { bytes: 1 << 16, count: 7, seconds: 3e-4, spread: 0.25 }],
        };
        Profile {
            format: FORMAT,
            build: build(),
            date: "2026-01-02T03:04:05Z".into(),
            machine: machine(),
            device: "cpu".into(),
            precision: "f32".into(),
            measured: vec![measured],
        }
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let text = profile().to_json().expect("JSON");
        assert_eq!(Profile::of(&text).expect("a profile"), profile());
        assert!(text.contains("\n        {\"layer\":\"adamw\",\"extents\":[9],"), "{text}");
        for (from, to) in [
            ("\"format\": 6", "\"format\": 4"),
            ("0.0625", "0.0"),
            ("0.0605", "-1"),
            ("0.97", "1.5"),
            ("\"bytes\":65536", "\"bytes\":0"),
            ("4e-9", "-1"),
            ("[9]", "[9,1]"),
            ("[9]", "[0]"),
            ("\"bytes\":4096", "\"bytes\":0"),
            ("\"samples\":2", "\"samples\":18446744073709551615"),
            ("0.00002", "0.0"),
            ("\"replicas\":2", "\"replicas\":1"),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            assert!(Profile::of(&text.replace(from, to)).is_err(), "{to}");
        }
    }

    #[test]
    fn a_profile_of_an_older_format_is_refused_with_what_to_do() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = profile().to_json().expect("JSON");
        let older =
            text.replace("\"format\": 6", "\"format\": 4").replace("\"moves\"", "\"other\"");
        std::fs::write(file.path(), older).expect("written");
        let refusal = Profile::read(file.path()).expect_err("another format").to_string();
        assert!(
            refusal.contains("is a profile of format 4, and this program reads format 6"),
            "{refusal}"
        );
        assert!(refusal.contains("measure again with `chimera profile --out "), "{refusal}");
    }

    #[test]
    fn a_profile_without_what_says_how_busy_the_machine_was_is_read() {
        let text = profile().to_json().expect("JSON");
        let older = text
            .replace("      \"reference_quick_s\": 0.0605,\n", "")
            .replace("      \"core_share\": 0.97,\n", "");
        assert!(older.len() < text.len());
        let older = Profile::of(&older).expect("a profile");
        assert_eq!(older.check_idle(2).expect("not known to be busy"), None);
    }

    #[test]
    fn a_profile_of_a_busy_machine_is_told_by_its_reference_work_and_its_share_of_the_cores() {
        let with = |quick, share| {
            let mut profile = profile();
            profile.measured[0].reference_quick_s = Some(quick);
            profile.measured[0].core_share = share;
            profile.check_idle(2)
        };
        assert_eq!(with(0.0605, Some(0.97)).expect("idle"), None);
        assert_eq!(with(0.0625, None).expect("idle"), None);
        // Measured beside builds that took half of the cores.
        for (quick, share, excess) in [(0.0625, Some(0.48), "108 %"), (0.0202, None, "209 %")] {
            let refusal = with(quick, share).expect_err("busy").to_string();
            assert!(refusal.contains("the machine was busy when 1 worker(s) of 2 thread(s)"));
            assert!(refusal.contains(&format!("{excess} too long")), "{refusal}");
        }
        for (quick, share) in [(0.0625, Some(0.9)), (0.0563, Some(1.0))] {
            let doubt = with(quick, share).expect("somewhat busy").expect("a doubt");
            assert!(doubt.contains("times may be 11 % too long"), "{doubt}");
        }
        let mut busy = profile();
        busy.measured[0].core_share = Some(0.3);
        assert_eq!(busy.check_idle(1).expect("of other threads"), None);
    }

    #[test]
    fn a_profile_of_something_else_is_refused_with_each_difference() {
        profile().check("cpu", Precision::F32).expect("of this machine");
        let other = Profile { machine: "an abacus".into(), build: "0.0".into(), ..profile() };
        let refusal = other.check("cuda", Precision::Bf16).expect_err("another").to_string();
        for difference in
            ["machine is an abacus, not ", "device is cpu, not cuda", "f32, not bf16", "0.0, not"]
        {
            assert!(refusal.contains(difference), "{refusal}");
        }
    }
}
