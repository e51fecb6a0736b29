//! Frames of a byte transport: one byte for the kind, then the content, little-endian.

use super::{Host, Tag};
use crate::device::Dtype;
use crate::fault::Fault;

/// A message from one rank to another.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Frame {
    /// A tag, the type of the elements (2 bytes), the number of extents (2), each extent (8), the words (4).
    Tensor(Tag, Host),
    /// Control data.
    Bytes(Vec<u8>),
    /// The run ends for this cause, as JSON.
    Abort(Fault),
    /// A request for all ranks to stop.
    Stop,
    /// A question for the position of the receiver.
    Where,
    /// The answer, encoded by [`Position::to_bits`](super::Position::to_bits).
    At(u64),
}

const TENSOR: u8 = 1;
const BYTES: u8 = 2;
const ABORT: u8 = 3;
const STOP: u8 = 4;
const WHERE: u8 = 5;
const AT: u8 = 6;
const WORD: usize = size_of::<f32>();

impl Frame {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Frame::Tensor(tag, tensor) => of_tensor(*tag, tensor),
            Frame::Bytes(bytes) => [&[BYTES], &bytes[..]].concat(),
            Frame::Abort(cause) => {
                let mut bytes = vec![ABORT];
                // A fault consists of numbers and texts, so its conversion to JSON cannot fail.
                bytes.extend(serde_json::to_vec(cause).unwrap_or_default());
                bytes
            }
            Frame::Stop => vec![STOP],
            Frame::Where => vec![WHERE],
            Frame::At(bits) => [&[AT][..], &bits.to_le_bytes()].concat(),
        }
    }

    /// Parses a frame; the error says in words why the bytes are not one.
    pub(super) fn of_bytes(mut bytes: Vec<u8>) -> Result<Frame, String> {
        let (kind, content) = bytes.split_first().ok_or("an empty frame")?;
        Ok(match *kind {
            TENSOR => tensor(content).ok_or("a tensor whose extents do not fit its elements")?,
            BYTES => {
                bytes.remove(0);
                Frame::Bytes(bytes)
            }
            ABORT => Frame::Abort(serde_json::from_slice(content).map_err(|e| e.to_string())?),
            STOP if content.is_empty() => Frame::Stop,
            WHERE if content.is_empty() => Frame::Where,
            AT => Frame::At(u64::from_le_bytes(content.try_into().map_err(|_| "a cut position")?)),
            other => {
                return Err(format!(
                    "no frame begins with {other} and has {} further bytes",
                    content.len()
                ));
            }
        })
    }
}

fn of_tensor(tag: Tag, Host { shape, dtype, data }: &Host) -> Vec<u8> {
    let extents = size_of::<u64>() * shape.len();
    let mut bytes = Vec::with_capacity(5 + Tag::N_BYTES + extents + WORD * data.len());
    bytes.push(TENSOR);
    bytes.extend(tag.to_bytes());
    bytes.extend(dtype.code().to_le_bytes());
    bytes.extend((shape.len() as u16).to_le_bytes());
    bytes.extend(shape.iter().flat_map(|extent| (*extent as u64).to_le_bytes()));
    bytes.extend(data.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

fn tensor(content: &[u8]) -> Option<Frame> {
    let (tag, rest) = content.split_first_chunk::<{ Tag::N_BYTES }>()?;
    let (dtype, rest) = rest.split_first_chunk()?;
    let (n_extents, rest) = rest.split_first_chunk()?;
    let tag = Tag::from_bytes(*tag)?;
    let dtype = Dtype::from_code(u16::from_le_bytes(*dtype))?;
    let n_extents = usize::from(u16::from_le_bytes(*n_extents));
    let (extents, words) = rest.split_at_checked(size_of::<u64>() * n_extents)?;
    let extent = |bytes: &[u8; 8]| usize::try_from(u64::from_le_bytes(*bytes)).ok();
    let shape: Vec<usize> = extents.as_chunks().0.iter().map(extent).collect::<Option<_>>()?;
    let n_elements = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
    let (words, rest) = words.as_chunks::<WORD>();
    let fits = rest.is_empty() && dtype.n_words(n_elements) == Some(words.len());
    let data = fits.then(|| words.iter().map(|word| f32::from_le_bytes(*word)).collect())?;
    Some(Frame::Tensor(tag, Host { shape, dtype, data }))
}

#[cfg(test)]
mod tests {
    use chimera_schedule::ids::Rank;
    use proptest::prelude::*;

    use super::*;
    use crate::fault::Class;

    fn frames() -> Vec<Frame> {
        let tag = Tag::private(3, 9);
        let words = vec![1.5, f32::from_bits(0x7F80_0001), -0.0];
        let half = Host { shape: vec![5], dtype: Dtype::Bf16, data: words };
        vec![
            Frame::Tensor(tag, half),
            Frame::Tensor(tag, Host::new([], vec![7.0])),
            Frame::Tensor(tag, Host::new([3, 0], vec![])),
            Frame::Bytes(vec![]),
            Frame::Bytes(vec![1, 2, 3]),
            Frame::Abort(Fault::new(Class::Io, Rank(2), "full")),
            Frame::Stop,
            Frame::Where,
            Frame::At(u64::MAX - 1),
        ]
    }

    #[test]
    fn frames_come_back() {
        for frame in frames() {
            let bytes = frame.to_bytes();
            assert_eq!(Frame::of_bytes(bytes.clone()).unwrap().to_bytes(), bytes, "{frame:?}");
        }
    }

    #[test]
    fn tensors_that_do_not_fit_are_refused() {
        let bytes = frames()[0].to_bytes();
        for n in 1..bytes.len() {
            assert!(Frame::of_bytes(bytes[..n].to_vec()).is_err(), "{n} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(frame) = Frame::of_bytes(bytes.clone()) {
                prop_assert!(frame.to_bytes() == bytes || matches!(frame, Frame::Abort(_)));
            }
        }
    }
}
