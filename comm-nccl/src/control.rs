//! What the other transport carries for this one: on which lines, and how numbers become tensors of it.

use chimera_backend_candle::gpu::Element;
use chimera_core::comm::{CommError, Host, Tag};
use chimera_core::ids::Rank;

/// The channels of control data over the other transport. They begin high, so that who uses this transport has the low
/// ones.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    /// Messages that a rank is to send, to rank 0.
    Announced = 0xf0,
    /// What is next, from rank 0.
    Next,
    /// A rank leaves.
    Bye,
    /// Nobody says anything on it: asked only whether a rank still lives.
    Silence,
}

impl Line {
    pub(crate) fn tag(self, number: u64) -> Tag {
        Tag::private(self as u8, number)
    }
}

/// What a message is.
pub(crate) struct Header {
    pub(crate) number: u64,
    pub(crate) element: Element,
    pub(crate) shape: Vec<usize>,
}

impl Header {
    pub(crate) fn write(&self) -> Host {
        let element = u64::from(self.element == Element::Bf16);
        let shape = self.shape.iter().map(|extent| *extent as u64);
        of_numbers(&[self.number, element].into_iter().chain(shape).collect::<Vec<_>>())
    }

    /// Reads what `from` sent.
    pub(crate) fn read(from: Rank, message: Host) -> Result<Header, CommError> {
        let message = numbers(from, message)?;
        let [number, element, ref extents @ ..] = message[..] else {
            return Err(unreadable(from, "what a message is, without its number and type"));
        };
        let element = if element == 0 { Element::F32 } else { Element::Bf16 };
        let extents = extents.iter().map(|extent| usize::try_from(*extent));
        let shape = extents.collect::<Result<_, _>>();
        let shape = shape.map_err(|_| unreadable(from, "a shape that no memory holds"))?;
        Ok(Header { number, element, shape })
    }
}

pub(crate) fn of_numbers(numbers: &[u64]) -> Host {
    Host::of_bytes(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
}

/// Reads the numbers that `from` sent.
fn numbers(from: Rank, message: Host) -> Result<Vec<u64>, CommError> {
    let bytes = bytes(from, message)?;
    let (numbers, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(unreadable(
            from,
            format!("{} bytes where there should be numbers", bytes.len()),
        ));
    }
    Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

/// Decodes `N` numbers.
pub(crate) fn exactly<const N: usize>(from: Rank, message: Host) -> Result<[u64; N], CommError> {
    let numbers = numbers(from, message)?;
    let other = |numbers: Vec<u64>| {
        unreadable(from, format!("{} numbers where there should be {N}", numbers.len()))
    };
    numbers.try_into().map_err(other)
}

/// Reads the bytes that `from` sent.
fn bytes(from: Rank, message: Host) -> Result<Vec<u8>, CommError> {
    message.into_bytes().ok_or_else(|| unreadable(from, "bytes of another length than they say"))
}

/// Reads the rank of a number that `from` sent.
pub(crate) fn rank(from: Rank, number: u64) -> Result<Rank, CommError> {
    u32::try_from(number).map(Rank).map_err(|_| unreadable(from, format!("rank {number}")))
}

pub(crate) fn unreadable(from: Rank, reason: impl Into<String>) -> CommError {
    CommError::Unreadable { from, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use chimera_core::fault::Class;

    use super::*;

    /// What another version says is a mismatch with it and not a fault of the transport.
    #[test]
    fn what_cannot_be_read_is_a_mismatch() {
        let message = Header { number: 7, element: Element::Bf16, shape: vec![3, 1 << 40] };
        let read = Header::read(Rank(2), message.write()).expect("readable");
        assert_eq!((read.number, read.element, read.shape), (7, Element::Bf16, vec![3, 1 << 40]));
        assert_eq!(exactly(Rank(2), of_numbers(&[1, u64::MAX])), Ok([1, u64::MAX]));
        for error in [
            Header::read(Rank(2), of_numbers(&[7])).err(),
            Header::read(Rank(2), Host::default()).err(),
            exactly::<3>(Rank(2), of_numbers(&[1, 2])).err(),
            exactly::<1>(Rank(2), Host::of_bytes(&[1; 9])).err(),
            rank(Rank(2), 1 << 32).err(),
        ] {
            let fault = error.expect("unreadable").into_fault(Rank(0));
            assert_eq!((fault.class, fault.peer), (Class::Mismatch, Some(Rank(2))), "{fault}");
        }
    }
}
