//! The form of a timetable's JSON, checked while it is read.
//!
//! Reading a list stops at its first bad item: a long list of `{}` would otherwise take many times
//! the memory of the file before it is refused.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::ir::ids::{PipeId, StageId, WholeNumber, WorkerId};
use crate::ir::op::{Cell, Kind, Op, Span};
use crate::ir::update::Update;

/// Most workers, stages and pipes of a file: as many as ids can number.
pub(super) const MAX_COUNT: usize = u16::MAX as usize;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) schedule: String,
    #[serde(deserialize_with = "depth")]
    pub(super) depth: usize,
    #[serde(deserialize_with = "stages")]
    pub(super) stages: usize,
    #[serde(deserialize_with = "pipes")]
    pub(super) pipes: usize,
    #[serde(deserialize_with = "micro_batches")]
    pub(super) micro_batches: u32,
    #[serde(default)]
    pub(super) micro_batches_of: Vec<u32>,
    #[serde(default = "whole")]
    pub(super) unit: f64,
    #[serde(default)]
    pub(super) slices: bool,
    #[serde(default)]
    pub(super) selective: Vec<Two<PipeId, StageId>>,
    #[serde(default)]
    pub(super) on_demand: bool,
    #[serde(default)]
    pub(super) frozen: Vec<StageId>,
    #[serde(default)]
    pub(super) update: Rule,
    #[serde(default, deserialize_with = "steps")]
    pub(super) steps: Option<u32>,
    #[serde(default, deserialize_with = "counted_stages")]
    pub(super) counted_stages: Option<usize>,
    #[serde(default, deserialize_with = "present")]
    pub(super) graph: Option<Object<Edges>>,
    #[serde(deserialize_with = "at_most_max_count")]
    pub(super) placement: Vec<Vec<WorkerId>>,
    #[serde(deserialize_with = "at_most_max_count")]
    pub(super) rows: Vec<Vec<Cell>>,
}

/// The graph of stages that are not a chain.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Edges {
    pub(super) sources: Vec<StageId>,
    pub(super) edges: Vec<Two<StageId, StageId>>,
    pub(super) losses: Vec<StageId>,
}

/// The name of an [`Update`].
#[derive(Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rule {
    #[default]
    Flush,
    EachStep,
    Stash,
    DoubleBuffer,
    Newest,
    Predicted,
}

impl From<Update> for Rule {
    fn from(update: Update) -> Rule {
        match update {
            Update::Flush => Rule::Flush,
            Update::EachStep { .. } => Rule::EachStep,
            Update::Stash { .. } => Rule::Stash,
            Update::DoubleBuffer { .. } => Rule::DoubleBuffer,
            Update::Newest { .. } => Rule::Newest,
            Update::Predicted { .. } => Rule::Predicted,
        }
    }
}

/// The rule as written in JSON.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&name)
    }
}

fn whole() -> f64 {
    1.0
}

/// Defines a reader of the count at a key, which is then checked with the others.
macro_rules! count {
    ($key:ident) => {
        fn $key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
            let count = WholeNumber::new(stringify!($key), 1, MAX_COUNT as u64).checked_later();
            let count = deserializer.deserialize_u64(count)?;
            Ok(usize::try_from(count).unwrap_or(usize::MAX))
        }
    };
}

count!(depth);
count!(stages);
count!(pipes);

fn counted_stages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    let count = WholeNumber::new("counted_stages", 1, MAX_COUNT as u64);
    deserializer.deserialize_u64(count).map(|count| Some(count as usize))
}

fn micro_batches<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let count = WholeNumber::new("micro_batches", 0, u32::MAX.into());
    deserializer.deserialize_u32(count).map(|count| count as u32)
}

fn steps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let count = WholeNumber::new("steps", 0, u32::MAX.into());
    deserializer.deserialize_u32(count).map(|count| Some(count as u32))
}

/// A micro-batch, or a unit of one.
struct MicroBatch(u32);

impl<'de> Deserialize<'de> for MicroBatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MicroBatch, D::Error> {
        let id = WholeNumber::new("micro-batch", 0, u32::MAX.into());
        deserializer.deserialize_u32(id).map(|id| MicroBatch(id as u32))
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCell {
    #[serde(default, deserialize_with = "present")]
    kind: Option<Letter>,
    #[serde(default, deserialize_with = "present")]
    pipe: Option<PipeId>,
    #[serde(default, deserialize_with = "present")]
    stage: Option<StageId>,
    #[serde(default, deserialize_with = "present")]
    micro_batches: Option<Ids>,
    #[serde(default, deserialize_with = "present")]
    pair: Option<Two<Object<RawOp>, Object<RawOp>>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOp {
    kind: Letter,
    pipe: PipeId,
    stage: StageId,
    micro_batches: Ids,
}

impl From<RawOp> for Op {
    fn from(raw: RawOp) -> Op {
        Op { kind: raw.kind.0, pipe: raw.pipe, stage: raw.stage, span: raw.micro_batches.0 }
    }
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cell, D::Error> {
        match Object::deserialize(deserializer)?.0 {
            RawCell {
                kind: Some(kind),
                pipe: Some(pipe),
                stage: Some(stage),
                micro_batches: Some(micro_batches),
                pair: None,
            } => Ok(Cell::One(RawOp { kind, pipe, stage, micro_batches }.into())),
            RawCell {
                kind: None,
                pipe: None,
                stage: None,
                micro_batches: None,
                pair: Some(Two(a, b)),
            } => Ok(Cell::Pair(a.0.into(), b.0.into())),
            _ => Err(D::Error::custom(
                "a cell has `kind`, `pipe`, `stage` and `micro_batches`, or only `pair`",
            )),
        }
    }
}

/// A `T` written as an object; serde would also accept a list of its fields.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
    }
}

/// A list of exactly two. For a tuple of another length serde would report the wrong place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Two<A, B>(pub(super) A, pub(super) B);

impl<'de, A: Deserialize<'de>, B: Deserialize<'de>> Deserialize<'de> for Two<A, B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(TwoVisitor(PhantomData))
    }
}

struct TwoVisitor<A, B>(PhantomData<(A, B)>);

impl<'de, A: Deserialize<'de>, B: Deserialize<'de>> Visitor<'de> for TwoVisitor<A, B> {
    type Value = Two<A, B>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of two")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Two<A, B>, S::Error> {
        let other = |has: &str| S::Error::custom(format!("a list of two has {has}"));
        let first = items.next_element()?.ok_or_else(|| other("no entry"))?;
        let second = items.next_element()?.ok_or_else(|| other("only one entry"))?;
        match items.next_element::<IgnoredAny>()? {
            None => Ok(Two(first, second)),
            Some(_) => Err(other("more than two entries")),
        }
    }
}

/// A field that may be absent, but not null.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

struct Letter(Kind);

impl<'de> Deserialize<'de> for Letter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Letter, D::Error> {
        let letter = String::deserialize(deserializer)?;
        let unknown = || {
            let known = Kind::ALL.map(|kind| kind.letter().to_string()).join(", ");
            D::Error::custom(format!("unknown kind `{letter}`: choose one of {known}"))
        };
        Kind::from_letter(&letter).map(Letter).ok_or_else(unknown)
    }
}

/// Micro-batch ids, each one more than the id before.
struct Ids(Span);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ids, D::Error> {
        deserializer.deserialize_seq(IdsVisitor).map(Ids)
    }
}

struct IdsVisitor;

impl<'de> Visitor<'de> for IdsVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("micro-batch ids, ascending without gaps")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<Span, A::Error> {
        let first = ids.next_element()?;
        let MicroBatch(first) = first
            .ok_or_else(|| A::Error::custom("`micro_batches` is empty: an op has one or more"))?;
        let mut span = Span::one(first);
        while let Some(MicroBatch(id)) = ids.next_element()? {
            let next = span.start.checked_add(u32::from(span.len));
            if next != Some(id) {
                return Err(A::Error::custom(format!(
                    "micro-batch {id} does not follow the one before"
                )));
            }
            let len = span.len.checked_add(1);
            span.len =
                len.ok_or_else(|| A::Error::custom("more than 65535 micro-batches in one op"))?;
        }
        Ok(span)
    }
}

/// A list; reading stops as soon as it is longer than [`MAX_COUNT`].
fn at_most_max_count<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct AtMost<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for AtMost<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_COUNT} lists")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                if list.len() == MAX_COUNT {
                    return Err(A::Error::custom(format!("more than {MAX_COUNT} lists")));
                }
                list.push(item);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(AtMost(PhantomData))
}
