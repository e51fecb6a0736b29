//! Arguments with words that shells can complete.

use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, Error};

use crate::device::Device;

/// A parser that offers words; it may accept others too.
#[derive(Clone)]
pub(crate) struct Offered<P> {
    parser: P,
    words: fn() -> Vec<&'static str>,
}

/// Parses like `parser`, and offers `words`.
pub(crate) fn offered<P: TypedValueParser>(
    parser: P,
    words: fn() -> Vec<&'static str>,
) -> Offered<P> {
    Offered { parser, words }
}

/// Parses the name of a device, and offers some names.
pub(crate) fn device_name() -> impl TypedValueParser<Value = Device> {
    offered(Device::from_str, || Device::EXAMPLES.to_vec())
}

impl<P: TypedValueParser> TypedValueParser for Offered<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        word: &OsStr,
    ) -> Result<P::Value, Error> {
        self.parser.parse_ref(command, arg, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.words)().into_iter().map(PossibleValue::new)))
    }
}
