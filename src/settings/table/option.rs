//! What is known of an option. The table of all is in [`options`](super::options).

use std::fmt;

use toml::Value;

use super::readers::Reader;
use crate::settings::Config;
use crate::settings::values::value::{Kind, Setting};

/// An option of the command line, which is a key of settings too.
pub struct Opt {
    /// Its name, without dashes in front.
    pub name: &'static str,
    /// The heading under which help lists it.
    pub heading: &'static str,
    /// A word for its value.
    pub value: &'static str,
    /// Which values it may have.
    pub kind: Kind,
    /// What happens to it when a run goes on from a checkpoint.
    pub resume: Resume,
    /// Whether each rank of a run may have a value of its own.
    pub is_own: bool,
    /// Whether what a search for a schedule finds depends on it.
    pub is_searched: bool,
    /// Where commands that draw and simulate schedules have it too.
    pub drawn: Option<Drawn>,
    /// Who alone reads it, if not every training does.
    reader: Option<Reader>,
    help: &'static str,
    also: &'static str,
    see: &'static str,
    default: Fallback,
    drawn_default: Option<Fallback>,
    drawn_kind: Option<Kind>,
    read: fn(&Value) -> Result<(), String>,
}

/// What holds where nothing is said.
#[derive(Clone, Copy)]
enum Fallback {
    /// Nothing.
    None,
    /// A value.
    Is(&'static str),
    /// A value that depends on others, in words.
    Follows(&'static str),
}

/// What may happen to an option when a run goes on from a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// With another value it would be another training.
    Fixed,
    /// It decides how and where, but not what is trained.
    Free,
    /// It may change, and the user is told.
    Told,
}

/// Groups of options that commands about schedules have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drawn {
    /// The shape of a schedule, and how it is searched for.
    Shape,
    /// The passes over it.
    Passes,
    /// The limit on memory.
    Memory,
    /// The job that it runs in.
    Job,
    /// A model here, whose stages cost what a profile says.
    Profiled,
}

impl Opt {
    /// An option with the values of a type.
    pub(crate) const fn new<T: Setting>(
        heading: &'static str,
        name: &'static str,
        help: &'static str,
    ) -> Opt {
        Opt {
            name,
            heading,
            value: "NAME",
            kind: T::KIND,
            resume: Resume::Told,
            is_own: false,
            is_searched: false,
            drawn: None,
            reader: None,
            help,
            also: "",
            see: "",
            default: Fallback::None,
            drawn_default: None,
            drawn_kind: None,
            read: |value| T::read(value).map(drop),
        }
    }

    /// With this word for its value.
    pub(crate) const fn value(self, value: &'static str) -> Opt {
        Opt { value, ..self }
    }

    /// With the name that other programs and papers have for it.
    pub(crate) const fn also(self, also: &'static str) -> Opt {
        Opt { also, ..self }
    }

    /// With the section of the documentation that has more.
    pub(crate) const fn see(self, see: &'static str) -> Opt {
        Opt { see, ..self }
    }

    /// A whole number from `least` to `most`.
    pub(crate) const fn whole(self, least: i64, most: i64) -> Opt {
        Opt { kind: Kind::Whole(least, most), ..self }
    }

    /// A number from `least` to `most`.
    pub(crate) const fn real(self, least: f64, most: f64) -> Opt {
        Opt { kind: Kind::Real(least, most), ..self }
    }

    /// One of some words.
    pub(crate) const fn words(self, words: fn() -> Vec<&'static str>) -> Opt {
        Opt { kind: Kind::Words(words), ..self }
    }

    /// Any text, such as these.
    pub(crate) const fn such_as(self, examples: &'static [&'static str]) -> Opt {
        Opt { kind: Kind::Text(examples), ..self }
    }

    /// This holds where nothing is said.
    pub(crate) const fn is(self, default: &'static str) -> Opt {
        Opt { default: Fallback::Is(default), ..self }
    }

    /// What holds where nothing is said depends on other things: on what, in words.
    pub(crate) const fn follows(self, words: &'static str) -> Opt {
        Opt { default: Fallback::Follows(words), ..self }
    }

    /// Another training with another value.
    pub(crate) const fn fixed(self) -> Opt {
        Opt { resume: Resume::Fixed, ..self }
    }

    /// Marks an option that does not change the training, so that a resume may change it.
    pub(crate) const fn free(self) -> Opt {
        Opt { resume: Resume::Free, ..self }
    }

    /// Free, and each rank may have its own, or what it leads to is compared instead.
    pub(crate) const fn own(self) -> Opt {
        Opt { is_own: true, ..self.free() }
    }

    /// What a search for a schedule finds depends on it.
    pub(crate) const fn searched(self) -> Opt {
        Opt { is_searched: true, ..self }
    }

    /// Read by these alone.
    pub(crate) const fn read_by(self, reader: Reader) -> Opt {
        Opt { reader: Some(reader), ..self }
    }

    /// Commands about schedules have it too.
    pub(crate) const fn drawn(self, drawn: Drawn) -> Opt {
        Opt { drawn: Some(drawn), ..self }
    }

    /// There, something else holds where nothing is said: a number.
    pub(crate) const fn drawn_is(self, default: &'static str) -> Opt {
        Opt { drawn_default: Some(Fallback::Is(default)), ..self }
    }

    /// There, it is a whole number from 1 to `most`, as far as schedules and the size of what is drawn allow.
    pub(crate) const fn drawn_to(self, most: i64) -> Opt {
        Opt { drawn_kind: Some(Kind::Whole(1, most)), ..self }
    }

    /// There, what holds where nothing is said follows from other options.
    pub(crate) const fn drawn_follows(self, words: &'static str) -> Opt {
        Opt { drawn_default: Some(Fallback::Follows(words)), ..self }
    }

    /// Which values it may have, in a training or where schedules are drawn.
    pub fn kind_where(&self, is_drawn: bool) -> Kind {
        self.drawn_kind.filter(|_| is_drawn).unwrap_or(self.kind)
    }

    /// Whether a training reads it; the error says in words who does.
    ///
    /// # Errors
    /// If it does not.
    pub fn read_in(&self, config: &Config) -> Result<(), &'static str> {
        match &self.reader {
            Some(reader) if !(reader.is_in)(config) => Err(reader.words),
            _ => Ok(()),
        }
    }

    /// What it does, in a sentence, with its other names.
    pub fn about(&self) -> String {
        let help = self.help.trim();
        match self.also {
            "" => help.to_string(),
            also => format!("{help}. Also called {also}"),
        }
    }

    /// The section of the documentation that has more, if there is one.
    pub fn more(&self) -> Option<&'static str> {
        Some(self.see).filter(|see| !see.is_empty())
    }

    /// What holds where nothing is said, in words.
    pub fn default(&self, is_drawn: bool) -> &'static str {
        match self.fallback(is_drawn) {
            Fallback::None => "none",
            Fallback::Is(value) => value,
            Fallback::Follows(words) => words,
        }
    }

    /// The value that holds where nothing is said, if it depends on nothing else.
    pub(crate) fn default_value(&self, is_drawn: bool) -> Option<Value> {
        match (self.fallback(is_drawn), self.kind) {
            (_, Kind::Paths) => Some(Value::Array(Vec::new())),
            (Fallback::Is(text), kind) => kind.parse(text),
            _ => None,
        }
    }

    fn fallback(&self, is_drawn: bool) -> Fallback {
        self.drawn_default.filter(|_| is_drawn).unwrap_or(self.default)
    }

    /// Refuses a value that the type of the option cannot hold.
    pub fn read(&self, value: &Value) -> Result<(), String> {
        match self.kind {
            // A word may stand for several options, so the type may know fewer.
            Kind::Words(_) if self.kind.holds(value) => Ok(()),
            Kind::Words(words) => Err(format!(
                "unknown {} `{}`: choose one of {}",
                self.name,
                value.as_str().unwrap_or_default(),
                words().join(", ")
            )),
            _ => (self.read)(value),
        }
    }
}

impl fmt::Debug for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
