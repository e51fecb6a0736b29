//! Messages between ranks that are processes, as words of four bytes.
//!
//! A transport may have no tags for [`Tag`]s (MPI promises 32,767), so a message carries its own
//! kind: its words are the elements of a tensor, then a footer of fixed length. A footer after the
//! elements costs no copy: the sender's memory has room for it, and the receiver cuts it off.

use chimera_schedule::ids::Rank;

use super::{Host, Tag};
use crate::device::Dtype;
use crate::fault::Fault;

/// A message between two ranks.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// A tensor that the engine sends.
    Tensor(Tag, Host),
    /// Control data, with its sequence number between sender and receiver.
    Bytes(u64, Vec<u8>),
    /// A question for the receiver's progress, with its number.
    Ask(u64),
    /// The answer: a [`Position`](super::Position) as bits.
    Where(u64, u64),
    /// The sender gives up.
    Abort(Fault),
    /// Names a stalled rank: its neighbours are to end it, and it learns why it ends.
    Evict(Rank),
    /// The run is to stop: a request to rank 0, an order from rank 0.
    Stop,
    /// The sender sends nothing more.
    Bye,
}

/// The first word of a footer, which changes with the format.
const MARK: u32 = 0x4348_4d07;
/// Words of a tag.
const TAG: usize = Tag::N_BYTES / WORD;
/// Words of a footer before the extents: mark, code, and a tag or two numbers.
const HEAD: usize = 2 + TAG;
/// Words of a footer.
const FOOTER: usize = Host::ROOM;
/// The most dimensions of a tensor.
const MAX_DIMS: usize = FOOTER - HEAD - 1;
/// Bytes of a word.
const WORD: usize = size_of::<f32>();

/// The shape of a message that is not a tensor.
const NO_SHAPE: (&[usize], Dtype) = (&[], Dtype::F32);

const TENSOR: u32 = 1;
const BYTES: u32 = 32;
const ABORT: u32 = 33;
const BYE: u32 = 34;
const ASK: u32 = 35;
const WHERE: u32 = 36;
const STOP: u32 = 37;
const EVICT: u32 = 38;

impl Message {
    /// Encodes the message as its elements and [`Host::ROOM`] words after them. The error says why it
    /// cannot be sent.
    pub fn into_words(self) -> Result<Vec<f32>, String> {
        let of_bytes = |code, number, bytes: &[u8]| {
            sealed(Host::of_bytes(bytes).data, NO_SHAPE, code, numbers(number, 0))
        };
        match self {
            Message::Tensor(tag, Host { shape, dtype, data }) => {
                sealed(data, (&shape, dtype), TENSOR, tag.to_bytes())
            }
            Message::Bytes(number, bytes) => of_bytes(BYTES, number, &bytes),
            Message::Abort(fault) => {
                let text = serde_json::to_vec(&fault).map_err(|e| e.to_string())?;
                of_bytes(ABORT, 0, &text)
            }
            Message::Evict(rank) => of_bytes(EVICT, rank.0.into(), &[]),
            Message::Stop => of_bytes(STOP, 0, &[]),
            Message::Bye => of_bytes(BYE, 0, &[]),
            Message::Ask(number) => of_bytes(ASK, number, &[]),
            Message::Where(number, bits) => {
                sealed(Vec::with_capacity(FOOTER), NO_SHAPE, WHERE, numbers(number, bits))
            }
        }
    }

    /// Decodes a message. The error says what is wrong with it.
    pub fn from_words(mut data: Vec<f32>) -> Result<Message, String> {
        let n = data.len().checked_sub(FOOTER).ok_or("it is shorter than a footer")?;
        let mut footer = [0; FOOTER];
        for (word, value) in footer.iter_mut().zip(&data[n..]) {
            *word = value.to_bits();
        }
        data.truncate(n);
        if footer[0] != MARK {
            return Err("it is not of this version of chimera".into());
        }
        let wide = |at: usize| u64::from(footer[at]) | u64::from(footer[at + 1]) << 32;
        let (number, bits) = (wide(2), wide(4));
        match footer[1] {
            BYTES => Ok(Message::Bytes(number, bytes(data)?)),
            ABORT => {
                let fault = serde_json::from_slice(&bytes(data)?);
                fault.map(Message::Abort).map_err(|e| format!("its cause cannot be read: {e}"))
            }
            EVICT => Ok(Message::Evict(Rank(number as u32))),
            STOP => Ok(Message::Stop),
            BYE => Ok(Message::Bye),
            ASK => Ok(Message::Ask(number)),
            WHERE => Ok(Message::Where(number, bits)),
            TENSOR => {
                let mut tag = [0; Tag::N_BYTES];
                for (four, word) in tag.chunks_exact_mut(WORD).zip(&footer[2..]) {
                    four.copy_from_slice(&word.to_le_bytes());
                }
                let tag = Tag::from_bytes(tag).ok_or("its tag cannot be read")?;
                let (n_dims, code) = (footer[HEAD] & 0xffff, (footer[HEAD] >> 16) as u16);
                let dtype = Dtype::from_code(code).ok_or("its elements are of an unknown type")?;
                let dims = footer[HEAD + 1..].get(..n_dims as usize);
                let shape: Vec<_> =
                    dims.ok_or("it has too many extents")?.iter().map(|d| *d as usize).collect();
                let n_elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
                if !n_elements.is_some_and(|n| dtype.fits(&data, n)) {
                    return Err(format!("its {n} words are not {dtype:?} of shape {shape:?}"));
                }
                if sealing((&shape, dtype), TENSOR, tag.to_bytes())? != footer {
                    return Err("its footer has more than a tag and a shape".into());
                }
                Ok(Message::Tensor(tag, Host { shape, dtype, data }))
            }
            code => Err(format!("it is of kind {code}")),
        }
    }

    /// Encodes the words as bytes, little-endian.
    pub(super) fn into_bytes(self) -> Result<Vec<u8>, String> {
        Ok(self.into_words()?.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Message, String> {
        let (words, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(format!("its {} bytes are not words", bytes.len()));
        }
        Message::from_words(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }
}

/// Encodes two numbers in the space of a tensor's tag.
fn numbers(first: u64, second: u64) -> [u8; Tag::N_BYTES] {
    let mut bytes = [0; Tag::N_BYTES];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..16].copy_from_slice(&second.to_le_bytes());
    bytes
}

/// Appends the footer to the elements.
fn sealed(
    mut data: Vec<f32>,
    shape: (&[usize], Dtype),
    code: u32,
    tag: [u8; Tag::N_BYTES],
) -> Result<Vec<f32>, String> {
    data.extend(sealing(shape, code, tag)?.map(f32::from_bits));
    Ok(data)
}

/// Returns the footer of a message.
fn sealing(
    (shape, dtype): (&[usize], Dtype),
    code: u32,
    tag: [u8; Tag::N_BYTES],
) -> Result<[u32; FOOTER], String> {
    let mut footer = [0; FOOTER];
    (footer[0], footer[1]) = (MARK, code);
    let (fours, _) = tag.as_chunks();
    for (word, four) in footer[2..].iter_mut().zip(fours) {
        *word = u32::from_le_bytes(*four);
    }
    let fits = shape.len() <= MAX_DIMS && shape.iter().all(|d| u32::try_from(*d).is_ok());
    if !fits {
        return Err(format!("a tensor of shape {shape:?} has too many or too large extents"));
    }
    footer[HEAD] = shape.len() as u32 | u32::from(dtype.code()) << 16;
    for (word, extent) in footer[HEAD + 1..].iter_mut().zip(shape) {
        *word = *extent as u32;
    }
    Ok(footer)
}

fn bytes(data: Vec<f32>) -> Result<Vec<u8>, String> {
    let bytes = Host::new([data.len()], data).into_bytes();
    bytes.ok_or_else(|| "its length differs from the one it states".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fault::Class;

    fn tensor(shape: &[usize], data: &[f32]) -> Message {
        Message::Tensor(Tag::private(3, 1 << 40), Host::new(shape, data.into()))
    }

    #[test]
    fn messages_survive_the_wire() {
        let data = [1.5, -0.0, f32::INFINITY, f32::MIN_POSITIVE, 0.0, 7.0];
        let mut messages = vec![Message::Stop, Message::Bye, Message::Ask(3)];
        messages.push(Message::Evict(Rank(5)));
        messages.push(Message::Where(4, u64::MAX - 1));
        messages.extend([tensor(&[3, 2, 1], &data), tensor(&[], &[4.0]), tensor(&[0, 5], &[])]);
        let tag = Tag::private(3, 7);
        let half = Host { shape: vec![3, 1], dtype: Dtype::Bf16, data: vec![1.5, -2.0] };
        let double = Host { shape: vec![1], dtype: Dtype::F64, data: vec![1.5, -2.0] };
        messages.extend([half, double].map(|host| Message::Tensor(tag, host)));
        messages.extend((0..9).map(|n| Message::Bytes(n, vec![250 + n as u8 % 6; n as usize])));
        messages.push(Message::Abort(Fault::new(Class::Io, Rank(4), "é")));
        for message in messages {
            let words = message.clone().into_words().expect("sendable");
            assert_eq!(Message::from_words(words), Ok(message.clone()));
            let bytes = message.clone().into_bytes().expect("sendable");
            assert_eq!(Message::from_bytes(&bytes), Ok(message));
        }
    }

    #[test]
    fn bytes_that_are_cut_are_refused() {
        let bytes = tensor(&[3], &[1.5, -0.0, 7.0]).into_bytes().expect("sendable");
        for n in 0..bytes.len() {
            assert!(Message::from_bytes(&bytes[..n]).is_err(), "{n} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, at: prop::sample::Index, byte: u8) {
            let _ = Message::from_bytes(&bytes);
            let mut of_tensor = tensor(&[3, 1], &[1.5, -0.0, 7.0]).into_bytes().expect("sendable");
            let at = at.index(of_tensor.len());
            of_tensor[at] = byte;
            if let Ok(message @ Message::Tensor(..)) = Message::from_bytes(&of_tensor) {
                prop_assert_eq!(message.into_bytes().expect("sendable"), of_tensor);
            }
        }
    }

    /// Bits are kept, also those of NaNs.
    #[test]
    fn no_bit_is_lost() {
        let bits = [0x7fa0_0001u32, 0xffc1_2345, 1];
        let words = tensor(&[3], &bits.map(f32::from_bits)).into_words().expect("sendable");
        let Ok(Message::Tensor(_, host)) = Message::from_words(words) else { panic!("a tensor") };
        assert_eq!(host.data.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let whole = Message::Bytes(1, vec![1; 5]).into_words().expect("sendable");
        let refused = |change: &dyn Fn(&mut Vec<f32>)| {
            let mut words = whole.clone();
            change(&mut words);
            Message::from_words(words).expect_err("refused")
        };
        let n = whole.len();
        let set =
            |at: usize, word: u32| move |words: &mut Vec<f32>| words[at] = f32::from_bits(word);
        assert_eq!(refused(&|w| w.truncate(3)), "it is shorter than a footer");
        assert_eq!(refused(&set(n - FOOTER, MARK + 1)), "it is not of this version of chimera");
        assert_eq!(refused(&|w| *w = w.split_off(1)), "its length differs from the one it states");
        assert_eq!(refused(&set(n - FOOTER + 1, TENSOR)), "its tag cannot be read");
        assert_eq!(refused(&set(n - FOOTER + 1, 99)), "it is of kind 99");
        let mut words = tensor(&[1], &[1.0]).into_words().expect("sendable");
        words[1 + HEAD + 1] = f32::from_bits(2);
        assert_eq!(Message::from_words(words), Err("its 1 words are not F32 of shape [2]".into()));
        let mut words = tensor(&[1], &[1.0]).into_words().expect("sendable");
        words[1 + HEAD] = f32::from_bits(1 | 9 << 16);
        assert_eq!(Message::from_words(words), Err("its elements are of an unknown type".into()));
        assert!(tensor(&[1; MAX_DIMS + 1], &[1.0]).into_words().is_err());
    }
}
