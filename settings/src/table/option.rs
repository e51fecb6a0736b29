//! The description of an option. See [`options`](super::options) for the table of all.

use std::fmt;

use chimera_core::schedule::Number;
use chimera_core::search::Where;
use toml::Value;

use super::readers::Reader;
use crate::Config;
use crate::sources::peers::names;
use crate::values::value::{Kind, Setting};

/// An option of the command line, which is also a key of settings files.
pub struct Opt {
    /// Name of the option, without leading dashes.
    pub name: &'static str,
    /// The heading under which help lists it.
    pub heading: &'static str,
    /// Placeholder of a value in help.
    pub value: &'static str,
    /// Kind and range of values.
    pub kind: Kind,
    /// Effect of changing the option when a run resumes from a checkpoint.
    pub resume: Resume,
    /// Whether each rank of a run may have its own value.
    pub is_own: bool,
    /// Whether the search for a schedule depends on it.
    pub is_searched: bool,
    /// Group in which commands that draw and simulate schedules have it too.
    pub drawn: Option<Drawn>,
    /// The runs that read it, if not all do.
    reader: Option<Reader>,
    help: &'static str,
    also: &'static str,
    see: &'static str,
    default: Fallback,
    /// Default in the recipe of the command, and the words for both defaults.
    recipe: Option<[&'static str; 2]>,
    drawn_default: Option<Fallback>,
    drawn_kind: Option<Kind>,
    read: fn(&Value) -> Result<(), String>,
}

/// The value of an option that was not given.
#[derive(Clone, Copy)]
enum Fallback {
    /// No value.
    None,
    /// A constant.
    Is(&'static str),
    /// A number.
    Number(u32),
    /// A value that depends on others, described in words.
    Follows(&'static str),
}

/// The changes to an option that are allowed when a run resumes from a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// The option must not change: another value would make it another training.
    Fixed,
    /// The option may change: it does not affect the result of the training.
    Free,
    /// The option may change, with a notice to the user.
    Told,
}

/// Groups of options for commands about schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drawn {
    /// The shape of a schedule, and the search for one.
    Shape,
    /// The passes over a schedule.
    Passes,
    /// The memory limit.
    Memory,
    /// The job that the schedule runs in.
    Job,
    /// A built-in model whose stage costs come from a profile.
    Profiled,
}

impl Opt {
    /// Makes an option with the values of a type.
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
            recipe: None,
            drawn_default: None,
            drawn_kind: None,
            read: |value| T::read(value).map(drop),
        }
    }

    /// Makes the option of a schedule's parameter.
    pub(super) fn of_parameter(row: &'static Number) -> Opt {
        let follows = Fallback::Follows(row.follows);
        Opt {
            value: row.value,
            kind: Kind::Whole(1, row.most.into()),
            also: row.also,
            is_searched: Where::ALL.iter().any(|(_, place)| place.reads().contains(&row.parameter)),
            default: row.trained.or(row.default).map_or(follows, Fallback::Number),
            drawn: Some(Drawn::Shape),
            drawn_default: row.default.map(Fallback::Number),
            drawn_kind: Some(Kind::Whole(1, row.most_drawn.into())),
            ..Opt::new::<u32>("Schedule", row.name, row.help).free()
        }
    }

    /// Sets the placeholder of its value.
    pub(crate) const fn value(self, value: &'static str) -> Opt {
        Opt { value, ..self }
    }

    /// Sets the name that other programs and papers have for it.
    pub(crate) const fn also(self, also: &'static str) -> Opt {
        Opt { also, ..self }
    }

    /// Sets the section of the documentation with details.
    pub(crate) const fn see(self, see: &'static str) -> Opt {
        Opt { see, ..self }
    }

    /// Restricts it to whole numbers from `least` to `most`.
    pub(crate) const fn whole(self, least: i64, most: i64) -> Opt {
        Opt { kind: Kind::Whole(least, most), ..self }
    }

    /// Restricts it to numbers from `least` to `most`.
    pub(crate) const fn real(self, least: f64, most: f64) -> Opt {
        Opt { kind: Kind::Real(least, most), ..self }
    }

    /// Restricts it to these words.
    pub(crate) const fn words(self, words: fn() -> Vec<&'static str>) -> Opt {
        Opt { kind: Kind::Words(words), ..self }
    }

    /// Allows any text, with these as examples.
    pub(crate) const fn such_as(self, examples: &'static [&'static str]) -> Opt {
        Opt { kind: Kind::Text(examples), ..self }
    }

    /// Sets its default.
    pub(crate) const fn is(self, default: &'static str) -> Opt {
        Opt { default: Fallback::Is(default), ..self }
    }

    /// Sets its default in the recipe of the command, and the words for both defaults.
    pub(crate) const fn in_recipe(self, value: &'static str, both: &'static str) -> Opt {
        Opt { recipe: Some([value, both]), ..self }
    }

    /// Describes in words how its default follows from other settings.
    pub(crate) const fn follows(self, words: &'static str) -> Opt {
        Opt { default: Fallback::Follows(words), ..self }
    }

    /// Marks an option that a resume must not change, since it would be another training.
    pub(crate) const fn fixed(self) -> Opt {
        Opt { resume: Resume::Fixed, ..self }
    }

    /// Marks an option that does not change the training, so that a resume may change it.
    pub(crate) const fn free(self) -> Opt {
        Opt { resume: Resume::Free, ..self }
    }

    /// Marks a free option that may differ between ranks, or whose effect is compared instead of
    /// its value.
    pub(crate) const fn own(self) -> Opt {
        Opt { is_own: true, ..self.free() }
    }

    /// Marks an option that the search for a schedule depends on.
    pub(crate) const fn searched(self) -> Opt {
        Opt { is_searched: true, ..self }
    }

    /// Restricts it to some runs.
    pub(crate) const fn read_by(self, reader: Reader) -> Opt {
        Opt { reader: Some(reader), ..self }
    }

    /// Adds it to a group of options for commands about schedules.
    pub(crate) const fn drawn(self, drawn: Drawn) -> Opt {
        Opt { drawn: Some(drawn), ..self }
    }

    /// Restricts it there to whole numbers from 1 to `most`; schedules and the size of a drawing
    /// set the real limit.
    pub(crate) const fn drawn_to(self, most: i64) -> Opt {
        Opt { drawn_kind: Some(Kind::Whole(1, most)), ..self }
    }

    /// Describes in words how its default follows from other options there.
    pub(crate) const fn drawn_follows(self, words: &'static str) -> Opt {
        Opt { drawn_default: Some(Fallback::Follows(words)), ..self }
    }

    /// Returns the kind of its values, in a training or where schedules are drawn.
    pub fn kind_where(&self, is_drawn: bool) -> Kind {
        self.drawn_kind.filter(|_| is_drawn).unwrap_or(self.kind)
    }

    /// Checks whether a training reads it; the error describes the runs that do.
    ///
    /// # Errors
    /// If the training does not read it.
    pub fn read_in(&self, config: &Config) -> Result<(), &'static str> {
        match &self.reader {
            Some(reader) if !(reader.is_in)(config) => Err(reader.words),
            _ => Ok(()),
        }
    }

    /// Returns the names that it has in other programs, which are accepted too.
    pub fn other_names(&self) -> impl Iterator<Item = &'static str> {
        names(self.name)
    }

    /// Describes it in a sentence, with its other names.
    pub fn about(&self) -> String {
        let help = self.help.trim();
        match self.also {
            "" => help.to_string(),
            also => format!("{help}. Also called {also}"),
        }
    }

    /// Returns the section of the documentation with details, if there is one.
    pub fn more(&self) -> Option<&'static str> {
        Some(self.see).filter(|see| !see.is_empty())
    }

    /// Describes its default in words.
    pub fn default(&self, is_drawn: bool) -> String {
        match (self.fallback(is_drawn), self.recipe) {
            (_, Some([_, both])) if !is_drawn => both.into(),
            (Fallback::None, _) => "none".into(),
            (Fallback::Number(number), _) => number.to_string(),
            (Fallback::Is(words) | Fallback::Follows(words), _) => words.into(),
        }
    }

    /// Returns its default in the recipe of the command, if it has another one there.
    pub(crate) fn recipe_value(&self) -> Option<Value> {
        self.recipe.and_then(|[value, _]| self.kind.parse(value))
    }

    /// Returns its default if that is a constant.
    pub(crate) fn default_value(&self, is_drawn: bool) -> Option<Value> {
        match (self.fallback(is_drawn), self.kind) {
            (_, Kind::Paths) => Some(Value::Array(Vec::new())),
            (Fallback::Is(text), kind) => kind.parse(text),
            (Fallback::Number(number), _) => Some(i64::from(number).into()),
            _ => None,
        }
    }

    fn fallback(&self, is_drawn: bool) -> Fallback {
        self.drawn_default.filter(|_| is_drawn).unwrap_or(self.default)
    }

    /// Refuses a value that does not fit the type of the option.
    pub fn read(&self, value: &Value) -> Result<(), String> {
        match self.kind {
            // A word may stand for several options, so the type may not know all of them.
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
