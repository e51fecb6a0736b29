//! The settings by heading, made from the rows of the [table](super::options).

use crate::{Layout, OPTIONS, Opt};
use std::collections::BTreeMap;

use chimera_core::schedule::{NUMBERS, Number};

use crate::sources::origin::Entries;
use crate::values::value::Setting;

/// Defines [`OPTIONS`] and [`Config`] from rows.
macro_rules! options {
    ($(
        $(#[doc = $about:literal])+
        $heading:literal $part:ident: $Part:ident { $(
            $(#[doc = $help:literal])+
            $name:literal $field:ident: $type:ty = [$($details:tt)*];
        )+ }
    )+) => {
        /// All options, in the order of the help text.
        pub static OPTIONS: LazyLock<Vec<Opt>> = LazyLock::new(|| with_parameters([$($(
            Opt::new::<$type>($heading, $name, concat!($($help),+)).$($details)*
        ),+),+]));

        $(
            $(#[doc = $about])+
            #[derive(Clone, PartialEq, Debug)]
            pub struct $Part {
                $( $(#[doc = $help])+ pub $field: $type, )+
            }
        )+

        /// The settings of a run by heading. Every key has a value in its range.
        ///
        /// The model and the schedule check values that depend on each other (whether `heads`
        /// divides `hidden`, whether a schedule can have its shape).
        #[derive(Clone, PartialEq, Debug)]
        pub struct Config {
            $( $(#[doc = $about])+ pub $part: $Part, )+
            /// The [parameters](NUMBERS) of the schedule that have a value.
            pub(crate) parameters: BTreeMap<&'static str, u32>,
            /// The origins of the values.
            pub(crate) origins: BTreeMap<&'static str, Origin>,
            /// Name of a caller's model, which our model options do not describe.
            pub(crate) own_model: Option<String>,
        }

        impl Config {
            /// Converts `entries` to settings, or returns the key with the wrong value and the
            /// reason.
            pub(crate) fn of(entries: Entries) -> Result<Config, (&'static str, String)> {
                Ok(Config {
                    $( $part: $Part { $( $field: read(&entries, $name)?, )+ }, )+
                    parameters: parameters(&entries)?,
                    own_model: text(&entries, crate::OWN_MODEL).map(str::to_owned),
                    origins: entries.into_iter().map(|(key, (_, origin))| (key, origin)).collect(),
                })
            }

            /// Returns the value of `key` and its origin; `None` if none was given and there is no
            /// default.
            pub fn value(&self, key: &str) -> Option<(Value, &Origin)> {
                if let Some(name) = self.own_model.as_ref().filter(|_| is_of_our_models(key)) {
                    return (key == "model").then(|| (name.as_str().into(), &Origin::Default));
                }
                let value = match key {
                    $($( $name => self.$part.$field.write(), )+)+
                    _ => self.parameters.get(key).map(|number| i64::from(*number).into()),
                };
                Some((value?, self.origins.get(key).unwrap_or(&Origin::Default)))
            }
        }
    };
}
pub(super) use options;

/// Adds the parameters of schedules at their places in the help text.
pub(super) fn with_parameters(rows: impl IntoIterator<Item = Opt>) -> Vec<Opt> {
    let mut parameters = NUMBERS.iter().map(Opt::of_parameter);
    let mut options = Vec::new();
    for option in rows {
        let n_before = match option.name {
            "scaling" => 2,
            "adapt-every" => 1, // `in-turn`
            "placement" => usize::MAX,
            _ => 0,
        };
        options.extend(parameters.by_ref().take(n_before));
        options.push(option);
    }
    options
}

/// Reads the parameters of schedules.
pub(super) fn parameters(
    entries: &Entries,
) -> Result<BTreeMap<&'static str, u32>, (&'static str, String)> {
    let value = |row: &Number| {
        let number = read::<Option<u32>>(entries, row.name)?;
        Ok(number.map(|number| (row.name, number)))
    };
    NUMBERS.iter().filter_map(|row| value(row).transpose()).collect()
}

pub(super) fn read<T: Setting>(
    entries: &Entries,
    key: &'static str,
) -> Result<T, (&'static str, String)> {
    match entries.get(key) {
        Some((value, _)) => T::read(value).map_err(|message| (key, message)),
        None => T::unset().ok_or_else(|| (key, format!("`{key}` has no value"))),
    }
}

/// Returns true if an option is about the built-in models, their stages, text or devices.
pub(crate) fn is_of_our_models(key: &str) -> bool {
    let option = OPTIONS.iter().find(|option| option.name == key);
    ["layout", "device", "precision", "bf16-products", "peak-flops"].contains(&key)
        || Layout::SPLIT.contains(&key)
        || option.is_some_and(|option| ["Model", "Data"].contains(&option.heading))
}
