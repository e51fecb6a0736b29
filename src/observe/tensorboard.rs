//! Event files that TensorBoard reads.
//!
//! A file is a row of TFRecords (length, its checksum, bytes, their checksum), each an `Event` message of
//! TensorFlow's `event.proto`. Four kinds of fields are all that scalars need, so they are written here.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Metrics;

/// The status of a `SessionLog` that begins.
const START: u64 = 1;

/// An event file under way.
pub(crate) struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Makes an event file in `folder`, which is made if it is not there, of steps from `first` on. What other
    /// files there say of these steps TensorBoard then leaves aside: a run that is resumed trains them again.
    pub(crate) fn create(folder: &Path, first: u64) -> Result<EventFile> {
        create_dir_all(folder)?;
        let name = format!("events.out.tfevents.{:.0}.{}", now_s(), std::process::id());
        let path = folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let mut events = EventFile { file, path };
        events.write(&bytes_field(3, b"brain.Event:2"))?;
        if first > 0 {
            let start = bytes_field(7, &varint_field(1, START));
            events.write(&[varint_field(2, first), start].concat())?;
        }
        Ok(events)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the scalars of a step.
    pub(crate) fn record(&mut self, metrics: &Metrics) -> Result<()> {
        let scalars = [
            ("loss", Some(metrics.loss)),
            ("grad_norm", Some(metrics.grad_norm)),
            ("lr", Some(metrics.lr)),
            ("tokens_per_s", Some(metrics.tokens_per_s)),
            ("bubble_ratio", Some(metrics.bubble_ratio)),
            ("bytes", Some(metrics.bytes as f64)),
            ("skipped", (metrics.skipped > 0).then_some(metrics.skipped as f64)),
            ("mfu", metrics.mfu),
            ("validation_loss", metrics.validation_loss),
            ("perplexity", metrics.perplexity),
        ];
        let value = |(tag, value): (&str, Option<f64>)| {
            let value = [bytes_field(1, tag.as_bytes()), float_field(2, value? as f32)].concat();
            Some(bytes_field(1, &value))
        };
        let summary: Vec<u8> = scalars.into_iter().filter_map(value).flatten().collect();
        let event = [varint_field(2, metrics.step), bytes_field(5, &summary)].concat();
        self.write(&event)
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        self.file.write_all(&record(&[double_field(1, now_s()), event.to_vec()].concat()))
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), data, &checksum(data)].concat()
}

/// A CRC-32C, masked since it may come to stand in what another one covers.
fn checksum(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
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
    fn a_file_that_goes_on_says_from_where() {
        let folder = tempfile::TempDir::new().unwrap();
        let events = EventFile::create(folder.path(), 300).unwrap();
        let bytes = std::fs::read(events.path()).unwrap();
        let start = [0x10, 0xac, 0x02, 0x3a, 0x02, 0x08, 0x01];
        assert!(bytes.windows(start.len()).any(|window| window == start), "{bytes:?}");
    }

    /// As TensorFlow's own writer frames and encodes an event (of no time).
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
