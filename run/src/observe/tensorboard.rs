//! Event files for TensorBoard.
//!
//! A file is a sequence of TFRecords (length, its checksum, bytes, their checksum). Each record is
//! an `Event` message of TensorFlow's `event.proto`. Scalars and a text need only four kinds of
//! fields, so they are encoded here.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Metrics;

/// The status of a `SessionLog` that starts.
const START: u64 = 1;
/// The `DataType` of a string.
const STRING: u64 = 7;
/// The most ranks that get scalars of their own, since each makes a chart.
const MAX_RANKS: usize = 64;

/// An open event file.
pub(crate) struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Creates an event file for steps from `first` on in `folder`, which is created if needed. It
    /// holds the `settings` of the run as a text. TensorBoard then ignores what other files in the
    /// folder hold of these steps, because a run that resumes or starts again trains them again.
    pub(crate) fn create(folder: &Path, first: u64, settings: &str) -> Result<EventFile> {
        if cfg!(not(feature = "logs")) {
            let why = "this build writes no files for TensorBoard: build with `--features logs`";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        create_dir_all(folder)?;
        let name = format!("events.out.tfevents.{:.0}.{}", now_s(), std::process::id());
        let path = folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let mut events = EventFile { file, path };
        events.write(&bytes_field(3, b"brain.Event:2"))?;
        let start = bytes_field(7, &varint_field(1, START));
        events.write(&[varint_field(2, first), start].concat())?;
        let markdown = format!("```toml\n{}\n```", settings.trim_end());
        events.summary(first, &text("config", &markdown))?;
        Ok(events)
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the scalars of a step.
    pub(crate) fn record(&mut self, metrics: &Metrics) -> Result<()> {
        let scalars = [
            ("train/loss", metrics.loss),
            ("train/grad_norm", Some(metrics.grad_norm)),
            ("train/lr", Some(metrics.lr)),
            ("train/tokens", Some(metrics.tokens_seen as f64)),
            ("train/skipped", (metrics.skipped > 0).then_some(metrics.skipped as f64)),
            ("train/repeated", (metrics.repeated > 0).then_some(metrics.repeated as f64)),
            ("train/recovery_s", metrics.recovery_s),
            ("val/loss", metrics.validation_loss),
            ("val/perplexity", metrics.perplexity),
            ("perf/step_s", Some(metrics.step_s)),
            ("perf/tokens_per_s", Some(metrics.tokens_per_s)),
            ("perf/mfu", metrics.mfu),
            ("perf/bubble_ratio", Some(metrics.bubble_ratio)),
            ("perf/bytes", Some(metrics.bytes as f64)),
            ("perf/max_rank_bytes", Some(metrics.max_rank_bytes as f64)),
        ];
        let mut summary: Vec<u8> =
            scalars.into_iter().filter_map(|(tag, x)| Some(scalar(tag, x?))).flatten().collect();
        if metrics.ranks.len() <= MAX_RANKS {
            for (rank, load) in metrics.ranks.iter().enumerate() {
                summary.extend(scalar(&format!("bubble_ratio/rank_{rank}"), load.bubble_ratio));
                summary.extend(scalar(&format!("bytes/rank_{rank}"), load.bytes as f64));
            }
        }
        self.summary(metrics.step, &summary)
    }

    fn summary(&mut self, step: u64, values: &[u8]) -> Result<()> {
        self.write(&[varint_field(2, step), bytes_field(5, values)].concat())
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        self.file.write_all(&record(&[double_field(1, now_s()), event.to_vec()].concat()))
    }
}

/// Encodes a number as a value of a summary.
fn scalar(tag: &str, value: f64) -> Vec<u8> {
    bytes_field(1, &[bytes_field(1, tag.as_bytes()), float_field(2, value as f32)].concat())
}

/// Encodes a Markdown text as a value of a summary: a tensor of one string, for the plugin `text`.
fn text(tag: &str, markdown: &str) -> Vec<u8> {
    let one = bytes_field(2, &[]); // a shape without dimensions
    let tensor = [varint_field(1, STRING), one, bytes_field(8, markdown.as_bytes())].concat();
    let plugin = bytes_field(1, &bytes_field(1, b"text"));
    let value =
        [bytes_field(1, tag.as_bytes()), bytes_field(8, &tensor), bytes_field(9, &plugin)].concat();
    bytes_field(1, &value)
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), data, &checksum(data)].concat()
}

/// A CRC-32C, masked because it may itself be covered by another checksum.
#[cfg(feature = "logs")]
fn checksum(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(not(feature = "logs"))]
fn checksum(_: &[u8]) -> [u8; 4] {
    unreachable!("no file is made in a build without checksums")
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn field(number: u64, wire_type: u64, content: &[u8]) -> Vec<u8> {
    [&varint(number << 3 | wire_type), content].concat()
}

fn varint_field(number: u64, value: u64) -> Vec<u8> {
    field(number, 0, &varint(value))
}

fn double_field(number: u64, value: f64) -> Vec<u8> {
    field(number, 1, &value.to_le_bytes())
}

fn bytes_field(number: u64, bytes: &[u8]) -> Vec<u8> {
    field(number, 2, &[&varint(bytes.len() as u64), bytes].concat())
}

fn float_field(number: u64, value: f32) -> Vec<u8> {
    field(number, 5, &value.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_from_which_step_on_it_counts() {
        let folder = tempfile::TempDir::new().unwrap();
        for (name, first, start) in [
            ("resumed", 300, &[0x10, 0xac, 0x02, 0x3a, 0x02, 0x08, 0x01][..]),
            ("again", 0, &[0x10, 0x00, 0x3a, 0x02, 0x08, 0x01]),
        ] {
            let events = EventFile::create(&folder.path().join(name), first, "").unwrap();
            let bytes = std::fs::read(events.path()).unwrap();
            assert!(bytes.windows(start.len()).any(|window| window == start), "{name}: {bytes:?}");
        }
    }

    /// Splits a message into its fields: of 4 or 8 bytes, of any number of bytes, or a varint as
    /// its own bytes.
    fn fields(mut rest: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn varint(rest: &mut &[u8]) -> u64 {
            let n = rest.iter().take_while(|byte| **byte >= 0x80).count() + 1;
            let (bytes, after) = rest.split_at(n);
            *rest = after;
            bytes.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
        }
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let key = varint(&mut rest);
            let n = match key & 7 {
                0 => {
                    fields.push((key >> 3, varint(&mut rest).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                2 => varint(&mut rest) as usize,
                5 => 4,
                other => panic!("wire type {other}"),
            };
            let (bytes, after) = rest.split_at(n);
            fields.push((key >> 3, bytes.to_vec()));
            rest = after;
        }
        fields
    }

    fn field_of(message: &[u8], number: u64) -> Option<Vec<u8>> {
        fields(message).into_iter().find(|(n, _)| *n == number).map(|(_, content)| content)
    }

    /// Returns step, tag and content of each summary value in a file.
    fn values(file: &[u8]) -> Vec<(u64, String, Vec<u8>)> {
        let mut values = Vec::new();
        let mut rest = file;
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let (event, after) = after[4..].split_at(u64::from_le_bytes(*length) as usize);
            rest = &after[4..];
            let step = field_of(event, 2)
                .map_or(0, |step| u64::from_le_bytes(step.try_into().expect("eight bytes")));
            for (_, value) in field_of(event, 5).iter().flat_map(|summary| fields(summary)) {
                let tag = String::from_utf8(field_of(&value, 1).unwrap()).unwrap();
                values.push((step, tag, value));
            }
        }
        values
    }

    #[test]
    fn settings_are_a_text_and_metrics_are_grouped_scalars() {
        let line = r#"{"step":7,"loss":2.5,"grad_norm":1.0,"lr":0.001,"tokens":8,"tokens_seen":64,
            "step_s":0.5,"tokens_per_s":16.0,"bubble_ratio":0.25,"bytes":5,"max_rank_bytes":3,"validation_loss":2.0,
            "ranks":[{"bubble_ratio":0.125,"bytes":2},{"bubble_ratio":0.375,"bytes":3}]}"#;
        let folder = tempfile::TempDir::new().unwrap();
        let mut events = EventFile::create(folder.path(), 7, "depth = 2\n").unwrap();
        events.record(&serde_json::from_str(line).unwrap()).unwrap();
        let values = values(&std::fs::read(events.path()).unwrap());
        let (step, tag, config) = &values[0];
        assert_eq!((*step, tag.as_str()), (7, "config"));
        let tensor = field_of(config, 8).unwrap();
        assert_eq!(field_of(&tensor, 8).unwrap(), b"```toml\ndepth = 2\n```");
        let plugin = field_of(&field_of(config, 9).unwrap(), 1).unwrap();
        assert_eq!(field_of(&plugin, 1).unwrap(), b"text");
        let number = |content: Vec<u8>| f32::from_le_bytes(content.try_into().unwrap());
        let scalars: Vec<(&str, f32)> = values[1..]
            .iter()
            .map(|(_, tag, value)| (tag.as_str(), number(field_of(value, 2).unwrap())))
            .collect();
        assert_eq!(
            scalars,
            [
                ("train/loss", 2.5),
                ("train/grad_norm", 1.0),
                ("train/lr", 0.001),
                ("train/tokens", 64.0),
                ("val/loss", 2.0),
                ("perf/step_s", 0.5),
                ("perf/tokens_per_s", 16.0),
                ("perf/bubble_ratio", 0.25),
                ("perf/bytes", 5.0),
                ("perf/max_rank_bytes", 3.0),
                ("bubble_ratio/rank_0", 0.125),
                ("bytes/rank_0", 2.0),
                ("bubble_ratio/rank_1", 0.375),
                ("bytes/rank_1", 3.0),
            ]
        );
    }

    /// TensorFlow's own writer frames and encodes an event without a time in this way.
    #[test]
    fn records_are_as_tensorflow_writes_them() {
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(float_field(2, 1.0), [0x15, 0, 0, 0x80, 0x3f]);
        assert_eq!(checksum(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
        let framed = record(b"abc");
        assert_eq!(framed.len(), 8 + 4 + 3 + 4);
        assert_eq!((&framed[..8], &framed[12..15]), (&3u64.to_le_bytes()[..], &b"abc"[..]));
    }
}
