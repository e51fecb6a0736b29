//! Control messages that the host transport carries for NCCL.

use chimera_backend_cuda::Element;
use chimera_core::comm::{CommError, Host, Tag};
use chimera_core::ids::Rank;

/// Channels of control data over the host transport. Low numbers belong to its other user.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    /// A rank leaves.
    Bye = 0xf0,
    /// Carries nothing; it is only polled to learn whether a rank still lives.
    Silence,
}

impl Line {
    pub(crate) fn tag(self, number: u64) -> Tag {
        Tag::private(self as u8, number)
    }
}

/// The type and shape of a message, which are sent once: they are the same in every step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) element: Element,
    pub(crate) shape: Vec<usize>,
}

impl Header {
    /// Returns the length of the message in bytes; `None` if it overflows.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let mut extents = self.shape.iter();
        extents.try_fold(self.element.bytes(), |bytes, extent| bytes.checked_mul(*extent))
    }

    pub(crate) fn write(&self) -> Host {
        let element = u64::from(self.element == Element::Bf16);
        let shape = self.shape.iter().map(|extent| *extent as u64);
        let numbers = [element].into_iter().chain(shape);
        Host::of_bytes(&numbers.flat_map(u64::to_le_bytes).collect::<Vec<_>>())
    }

    pub(crate) fn read(from: Rank, message: Host) -> Result<Header, CommError> {
        let unreadable = |reason: &str| CommError::Unreadable { from, reason: reason.into() };
        let bytes = message.into_bytes();
        let bytes = bytes
            .ok_or_else(|| unreadable("bytes whose length differs from the one they state"))?;
        let (numbers, []) = bytes.as_chunks() else {
            return Err(unreadable("bytes instead of numbers"));
        };
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let element = match numbers.next() {
            Some(0) => Element::F32,
            Some(1) => Element::Bf16,
            _ => return Err(unreadable("a message of no known type")),
        };
        let shape = numbers.map(usize::try_from).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| unreadable("a shape that no memory holds"))?;
        let header = Header { element, shape };
        match header.bytes() {
            Some(_) => Ok(header),
            None => Err(unreadable("a shape that no memory holds")),
        }
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::fault::Class;

    use super::*;

    /// A header of another version is a mismatch of versions, not a fault of the transport.
    #[test]
    fn what_cannot_be_read_is_a_mismatch() {
        let header = Header { element: Element::Bf16, shape: vec![3, 1 << 40] };
        assert_eq!(Header::read(Rank(2), header.write()), Ok(header));
        let large = Header { element: Element::F32, shape: vec![1 << 40, 1 << 40] };
        for message in [
            large.write(),
            Host::default(),
            Host::of_bytes(&[]),
            Host::of_bytes(&[1; 9]),
            Host::of_bytes(&[2, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let error = Header::read(Rank(2), message).expect_err("unreadable");
            let fault = error.into_fault(Rank(0));
            assert_eq!((fault.class, fault.peer), (Class::Mismatch, Some(Rank(2))), "{fault}");
        }
    }
}
